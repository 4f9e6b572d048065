"""What a draft brings to a target on this machine: measured, not guessed.

A few prompts are answered with every draft at full length, so acceptance is known for each position;
then the target's decodes are timed at each width. From the two follows the speed-up of every draft
length (Leviathan et al. 2023, theorem 3.8, with measured costs in place of constant ones):

    speedup(K) = E(K) * plain / (verify(K + 1) + K * draft + outside)
    E(K)       = 1 + sum over k <= K of P(the first k are accepted)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from specli import paths, profiles
from specli.assembly import Generator, Request
from specli.casting import draft_method
from specli.chat.conversation import Message
from specli.core.acceptance import break_even, mean_length
from specli.core.types import Cycle
from specli.costs import WidthCosts, measure_widths
from specli.engine import backend
from specli.engine.gguf import read_header
from specli.errors import SpecliError
from specli.settings import Settings

LENGTH = 8
"""Draft tokens of a measured cycle, and the longest draft that is considered."""

PROMPTS = (
    "Write a Python function that merges two sorted lists into one, with a docstring and an example.",
    "Explain in simple words why the sky is blue and sunsets are red.",
    "Correct the spelling and return the text unchanged otherwise: The quick brwon fox jumps over the lazy "
    "dog, and the dog dosn't mind, becuase it is asleep in the warm sun.",
)
MACHINE = (
    "threads", "threads-batch", "gpu-layers", "spec-draft-ngl", "flash-attn", "no-repack", "cache-type-k",
    "cache-type-v",
)  # fmt: skip
"""The settings of the machine that a measurement is made with."""

NOISY = 1.3
_TOKENS = 48  # of each answer
_WORTH = 4.0  # tested tokens that the average over all positions is worth at each one


@dataclass(frozen=True, slots=True)
class PairFigures:
    """What was measured on a pair. Times in seconds.

    `tested`, `accepted`: draft tokens by position in the draft. `widths`: the target's decode of 1, 2, …
    rows. `draft_s`: one drafted token, catching up included. `outside_s`: a cycle's time outside both.
    `tokens`: emitted tokens this rests on. `temp`: the temperature. `spread`: how far equal decodes differed,
    slow ones over fast ones; near 1 on a quiet machine."""

    tested: tuple[int, ...]
    accepted: tuple[int, ...]
    widths: tuple[float, ...]
    draft_s: float
    outside_s: float
    tokens: int
    temp: float
    spread: float = 1.0

    @property
    def noisy(self) -> bool:
        """Whether the machine was too busy for these times to mean much."""
        return self.spread > NOISY

    @property
    def agreement(self) -> tuple[float, ...]:
        """Part of the tested draft tokens that was accepted, by position."""
        return tuple(a / t for a, t in zip(self.accepted, self.tested) if t)

    @property
    def acceptance(self) -> float:
        """Accepted / tested, over all positions."""
        return sum(self.accepted) / max(1, sum(self.tested))

    @property
    def cost_ratio(self) -> float:
        """One draft token over one target token."""
        return self.draft_s / self.widths[0]

    @property
    def rates(self) -> tuple[float, ...]:
        """Acceptance by position as expected, drawn towards the average where little was tested."""
        tested = [*self.tested, *[0] * LENGTH][:LENGTH]
        accepted = [*self.accepted, *[0] * LENGTH][:LENGTH]
        average = self.acceptance
        return tuple((a + _WORTH * average) / (t + _WORTH) for a, t in zip(accepted, tested))

    def speedup_at(self, length: int, rates: Sequence[float] | None = None) -> float:
        """Expected speed over plain decoding with drafts of `length` tokens."""
        emitted = mean_length((self.rates if rates is None else rates)[:length])
        cycle = self.widths[length] + length * self.draft_s + self.outside_s
        return emitted * (self.widths[0] + self.outside_s) / cycle

    @property
    def best_length(self) -> int:
        """The draft length of the greatest expected speed."""
        return max(self._lengths, key=self.speedup_at)

    @property
    def speedup(self) -> float:
        """Expected speed over plain decoding at the best length."""
        return self.speedup_at(self.best_length)

    @property
    def pays(self) -> bool:
        """Whether drafting is expected to be faster than not to."""
        return self.speedup > 1.0

    @property
    def break_even(self) -> float | None:
        """Acceptance from which on some length pays, the same at every position; None if none would."""
        return break_even(lambda rate: self._best_at(rate) > 1.0)

    @property
    def _lengths(self) -> range:
        return range(1, min(LENGTH, len(self.widths) - 1) + 1)

    def _best_at(self, rate: float) -> float:
        return max(self.speedup_at(k, [rate] * k) for k in self._lengths)


def measure(
    target: Path, draft: Path, settings: Settings | None = None, say: Callable[[str], None] = lambda _: None
) -> PairFigures:
    """Answer a few prompts with `draft` drafting for `target`, time the widths, remember the figures.

    `settings`: the machine's part of them counts, and the temperature. Raises DraftMismatch where the
    pair cannot be run, MemoryShortage where it does not fit.
    """
    settings = _settings(settings, draft_method(draft))
    cycles: list[Cycle] = []
    tested, accepted = [0] * LENGTH, [0] * LENGTH
    with Generator(Request(settings, target, draft), say) as generator:
        for i, prompt in enumerate(PROMPTS, 1):
            say(f"measuring: prompt {i} of {len(PROMPTS)}")
            answer = generator.answer(_tokens(generator, prompt))
            cycles += [step.cycle for step in answer if step.cycle is not None]
        say("measuring: what the target's decodes cost by width")
        costs = measure_widths(generator.target, most=LENGTH + 1)
    for verdict in (cycle.verdict for cycle in cycles):
        for at in range(verdict.tested):
            tested[at] += 1
            accepted[at] += at < verdict.accepted
    figures = _fold(cycles, tested, accepted, costs, settings.temp)
    _remember(target, draft, figures)
    return figures


def _settings(given: Settings | None, method: str) -> Settings:
    flags: dict[str, object] = {
        "spec-type": method,
        "fixed": True,
        "spec-draft-n-max": LENGTH,
        "max-tokens": _TOKENS,
        "ctx-size": 1024,
        "temp": 0.0 if given is None else given.temp,
    }
    if given is not None:
        for name in MACHINE:
            flags[name] = getattr(given, name.replace("-", "_"))
    return profiles.resolve(profiles.load(), flags)


def _tokens(generator: Generator, prompt: str) -> list[int]:
    if generator.prompter.has_template:
        return generator.prompter.tokens([Message("user", prompt)])
    return generator.prompter.raw(prompt)


def by_row(costs: WidthCosts) -> tuple[float, ...]:
    """Seconds of 1, 2, … rows, as many as the longest draft takes, or as were measured."""
    return tuple(costs.at(width) for width in range(1, min(LENGTH + 1, max(costs.seconds)) + 1))


def _fold(
    cycles: Sequence[Cycle], tested: Sequence[int], accepted: Sequence[int], costs: WidthCosts, temp: float
) -> PairFigures:
    drafting = [c for c in cycles if c.draft.tokens]
    if not drafting:
        raise SpecliError("the draft proposed nothing in any of the prompts; nothing could be measured")
    return PairFigures(
        tuple(tested),
        tuple(accepted),
        by_row(costs),
        median(c.draft_s / len(c.draft) for c in drafting),
        median(max(0.0, c.total_s - c.draft_s - c.verify_s) for c in cycles),
        sum(len(c.tokens) for c in cycles),
        temp,
        costs.spread,
    )


# -- remembered ------------------------------------------------------------------------------------


def _key(target: Path, draft: Path) -> str:
    prints = (read_header(path).fingerprint for path in (target, draft))
    return " | ".join(["pair 3", *prints, backend.build_id(), backend.processor_id()])


def _file(key: str) -> Path:
    return paths.cache_dir() / f"pair-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _remember(target: Path, draft: Path, figures: PairFigures) -> None:
    key = _key(target, draft)
    with suppress(SpecliError):  # else it is measured again next time
        paths.write_atomic(_file(key), json.dumps({"key": key, "figures": asdict(figures)}))


def recalled(target: Path, draft: Path) -> PairFigures | None:
    """What an earlier `measure` found for these files on this build and processor; None without."""
    try:
        key = _key(target, draft)
        kept = json.loads(_file(key).read_text("utf-8"))
        if kept["key"] != key:
            return None
        figures: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in kept["figures"].items()
        }
        found = PairFigures(**figures)
        return found if found.speedup > 0 else None
    except (OSError, ValueError, KeyError, TypeError, IndexError, ZeroDivisionError, SpecliError):
        return None
