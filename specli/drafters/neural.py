"""What drafters with a network of their own have in common: one token after another, as long as it pays.

At temperature 0 they propose the most probable token. Above it they may sample as the target is
sampled, and hand over the distribution q they drew from, so that verification can accept with
min(1, p/q); or still propose the most probable token, which for a peaked target is accepted more
often. Which of the two is measured. In exact mode they draw with the target's own noise, so that they
agree with it whenever their distributions are alike.

A draft may end only for reasons known before its next token was drawn: dropping a token for what it
turned out to be would bend the distribution that q claims.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specli.core.noise import Noise, derive
from specli.core.pacing import Pacer
from specli.core.sampling import SamplingParams, distribution
from specli.core.types import NO_DRAFT, Cycle, Distribution, Draft
from specli.errors import EngineError

Row = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Voice:
    """How the target is sampled in this answer, for drafters that sample alike. `ends`: tokens after which
    nothing follows, in a draft either."""

    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temp=0.0))
    seed: int = 0
    coupled: bool = False
    ends: Container[int] = ()


@dataclass(slots=True)
class _Record:
    """Acceptance of first draft tokens, proposed in one way."""

    accepted: float = 0.0
    tested: float = 0.0

    def rate(self) -> float:
        return (self.accepted + 0.5) / (self.tested + 1.0)


class NeuralDrafter:
    """The chain of draft tokens. A subclass names its `method` and gives the rows.

    `n_max`: most tokens of a draft; `n_min`: shorter drafts are dropped; `p_min`: a draft ends before a
    token whose best candidate the drafter gives less than that.
    """

    method = ""
    problem: str | None = None  # why it will draft no more
    TRY_OTHER = 24  # cycles after which the way of proposing that does worse is tried again

    def __init__(self, pacer: Pacer, n_max: int, n_min: int, p_min: float) -> None:
        self._pacer = pacer
        self._n_max, self._n_min, self._p_min = n_max, n_min, p_min
        self.speak(Voice())

    def speak(self, voice: Voice) -> None:
        """Draft for an answer that is sampled like this."""
        self._voice = voice
        # what is drawn here must decide neither what the target accepts nor what another drafter draws
        self._noise = Noise(voice.seed, 0 if voice.coupled else zlib.crc32(self.method.encode()))
        self._sampled, self._greedy = _Record(), _Record()
        self._drafts = 0

    def _place(self, start: int, depth: int, branch: int) -> int:
        """Where the noise for a token `depth` places behind a draft's `start`, in that `branch`, is found.

        Coupled, it is the target's. Else it is of this draft alone: what became known of a token that was
        discarded must not tell what is drawn at its place in the next cycle, or the pacer, which may go by
        it, would bend q.
        """
        return start + depth if self._voice.coupled else derive(start, branch)

    def _samples(self) -> bool:
        """Whether this draft is sampled. Depends on past cycles only."""
        if self._voice.sampling.temp <= 0.0:
            return False
        if self._voice.coupled:
            return True
        better = self._sampled.rate() >= self._greedy.rate()
        return better != (self._drafts % self.TRY_OTHER == self.TRY_OTHER - 1 or self._drafts == 1)

    def _chain(
        self, history: Sequence[int], limit: int, start: Callable[[], Row], extend: Callable[[int], Row]
    ) -> Draft:
        """Draft up to `limit` tokens. `start()`: the row after `history`; `extend(token)`: the row after one
        more token. Rows may be views that die with the next."""
        limit = min(limit, self._n_max)
        if self.problem or limit < max(1, self._n_min) or not self._pacer.goes_on(self.method, (), limit):
            return NO_DRAFT
        sampled = self._samples()
        self._drafts += 1
        tokens: list[int] = []
        laws: list[Distribution] = []
        confidence: list[float] = []
        row = start()
        while True:
            best = int(np.argmax(row))
            if not self._sound(row[best]):
                break
            top = float(1.0 / np.exp(row - row[best]).sum())
            if top < self._p_min:
                break
            if sampled:
                window = self._voice.sampling.window(history, tokens)
                law = distribution(row, window, self._voice.sampling)
                token = self._noise.choose(law, self._place(len(history), len(tokens), len(tokens)))
                laws.append(law)
                top = float(law.probs.max())
            else:
                token = best
            tokens.append(token)
            confidence.append(top)
            if token in self._voice.ends or not self._pacer.goes_on(self.method, confidence, limit):
                break
            row = extend(token)
        q = tuple(laws) if sampled and not self._voice.coupled else None
        if not tokens or (q is None and len(tokens) < self._n_min):
            return NO_DRAFT  # a sampled draft stays: its length hangs on what was drawn
        return Draft(tuple(tokens), self.method, q, confidence=tuple(confidence))

    def _chain_if_it_can(
        self, history: Sequence[int], limit: int, start: Callable[[], Row], extend: Callable[[int], Row]
    ) -> Draft:
        """As `_chain`; an engine that fails makes the drafter fall silent: the target can do without it."""
        try:
            return self._chain(history, limit, start, extend)
        except EngineError as error:
            self.problem = str(error)
            return NO_DRAFT

    def _sound(self, highest: np.float32) -> bool:
        """Whether a row is one of numbers, by its highest value."""
        if math.isnan(highest):
            self.problem = "its file is damaged: it computes no numbers (NaN)"
        return self.problem is None

    def _learn(self, cycle: Cycle) -> None:
        """Which way of proposing was accepted how often."""
        if cycle.draft.method != self.method or not cycle.verdict.tested or self._voice.coupled:
            return
        record = self._greedy if cycle.draft.q is None else self._sampled
        record.accepted = 0.98 * record.accepted + (cycle.verdict.accepted > 0)
        record.tested = 0.98 * record.tested + 1.0

    def close(self) -> None:
        """What drafts belongs to whoever opened it."""
