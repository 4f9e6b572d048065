"""Pacing in simulation: recorded text and recorded drafts, costs from a curve, a clock that only they move.

The loop, the n-gram drafters and the pacer are the real ones. The target is a script: it says what was
recorded, whatever is proposed. So a run takes microseconds a token, and hundreds of cost settings can be
tried on the same text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specli.core.decoding import Rules, decode
from specli.core.pacing import FixedPacer, Pacer
from specli.core.sampling import SamplingParams
from specli.core.stats import Stats
from specli.core.types import NO_DRAFT, Cycle, Draft, Drafter
from specli.drafters.model import ModelDrafter

Curve = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Trace:
    """One recorded answer. `drafts[i]`: the (token, confidence) pairs that a draft model proposes, one after
    the other, where the answer so far is `output[:i]`."""

    id: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    drafts: tuple[tuple[tuple[int, float], ...], ...] = ()


def load_traces(path: Path) -> list[Trace]:
    traces = []
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        drafts = tuple(tuple((int(t), float(c)) for t, c in d) for d in row.get("drafts", ()))
        traces.append(compact(Trace(row["id"], tuple(row["prompt"]), tuple(row["output"]), drafts)))
    return traces


def compact(trace: Trace) -> Trace:
    """The same trace with its tokens renumbered from 0, so that rows of logits stay short."""
    number: dict[int, int] = {}
    for token in [*trace.prompt, *trace.output, *(t for chain in trace.drafts for t, _ in chain)]:
        number.setdefault(token, len(number))
    drafts = tuple(tuple((number[t], c) for t, c in chain) for chain in trace.drafts)
    return Trace(
        trace.id, tuple(number[t] for t in trace.prompt), tuple(number[t] for t in trace.output), drafts
    )


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class ScriptedModel:
    """A target that says the trace. A LanguageModel whose decode of n rows takes `curve(n)`."""

    def __init__(self, trace: Trace, curve: Curve, clock: Clock, max_rows: int = 64) -> None:
        self._script = [*trace.prompt, *trace.output, 0]
        self._curve, self._clock = curve, clock
        self._tokens: list[int] = list(trace.prompt[:-1])
        self.n_ctx, self.max_rows, self.n_vocab = (
            1 << 30,
            max_rows,
            1 + max([*self._script, *(t for chain in trace.drafts for t, _ in chain)]),
        )

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    def decode(self, tokens: Sequence[int], rows: int = 1) -> np.ndarray:
        self._clock.now += self._curve(len(tokens))
        at = len(self._tokens)
        self._tokens.extend(tokens)
        out = np.zeros((rows, self.n_vocab), np.float32)
        for i in range(rows):
            following = at + len(tokens) - rows + i + 1
            out[i, self._script[min(following, len(self._script) - 1)]] = 1.0
        return out

    def rewind(self, length: int) -> int:
        del self._tokens[length:]
        return length


class ScriptedDrafter:
    """The recorded draft model: each token it drafts takes `step` seconds, each it reads before that a share
    `reading` of them."""

    method = "draft-model"

    def __init__(
        self, trace: Trace, pacer: Pacer, step: float, clock: Clock, n_max: int = 8, reading: float = 0.0
    ) -> None:
        self._trace, self._pacer, self._step, self._clock, self._n_max = trace, pacer, step, clock, n_max
        self._reading, self._read = reading, 0

    def begin(self, history: Sequence[int]) -> None: ...

    def commit(self, history: Sequence[int], cycle: Cycle) -> None: ...

    def close(self) -> None: ...

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        recorded = self._trace.drafts[len(history) - len(self._trace.prompt)]
        limit = min(limit, self._n_max, len(recorded))
        behind = len(history) - 1 - self._read
        if self._reading and behind > ModelDrafter.NEAR and not self._pacer.joins(self.method, behind, limit):
            return NO_DRAFT
        tokens: list[int] = []
        confidence: list[float] = []
        while self._pacer.goes_on(self.method, confidence, limit):
            self._clock.now += self._step + (0 if tokens else self._reading * self._step * behind)
            self._read = len(history) - 1
            tokens.append(recorded[len(tokens)][0])
            confidence.append(recorded[len(confidence)][1])
        return Draft(tuple(tokens), self.method, confidence=tuple(confidence)) if tokens else NO_DRAFT


@dataclass(frozen=True, slots=True)
class Outcome:
    """Simulated seconds per token, and what the pacer did."""

    seconds: float
    stats: Stats


def simulate(
    trace: Trace,
    curve: Curve,
    pacer: Pacer,
    drafters: Callable[[Pacer, Clock], Sequence[Drafter]],
    compete: bool = False,
) -> Outcome:
    clock = Clock()
    target = ScriptedModel(trace, curve, clock)
    history = list(trace.prompt)
    cast = drafters(pacer, clock)
    for drafter in cast:
        drafter.begin(history)
    rules = Rules(SamplingParams(temp=0.0), max_tokens=len(trace.output), compete=compete)
    stats = Stats()
    for cycle in decode(target, history, cast, rules, pacer, clock):
        stats.fold(cycle)
    assert history[len(trace.prompt) :] == list(trace.output)
    return Outcome(clock.now / len(trace.output), stats)


class Capped(FixedPacer):
    """Always drafts the same length: the competitor in hindsight."""

    def __init__(self, k: int) -> None:
        self.k = k

    def choose(self, draft: Draft, depth: int) -> Draft:
        return draft.first(self.k) if self.k else NO_DRAFT

    def goes_on(self, method: str, confidence: Sequence[float], limit: int) -> bool:
        return len(confidence) < min(limit, self.k)
