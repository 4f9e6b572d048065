"""draft-mtp: the model's own prediction heads propose.

They draft from what the target has computed anyway, so one draft token costs about one block. The
heads' cache follows the target's by itself, whoever drafted: see `engine.mtp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from specli.core.pacing import Pacer
from specli.core.types import NO_DRAFT, Cycle, Draft, Logits


class PredictionHeads(Protocol):
    """What the drafter needs of the heads. `most`: tokens they can draft in one cycle, None for any
    number; `n_ctx`: tokens their cache holds."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def most(self) -> int | None: ...

    def start(self, token: int) -> Logits:
        """The logits after the target's cached tokens and `token`, shape (n_vocab,)."""
        ...

    def extend(self, token: int) -> Logits:
        """The logits after `token`, drafted behind all given before."""
        ...

    def end_cycle(self) -> None:
        """A cycle is done."""
        ...


class MtpDrafter:
    """Drafts greedily with prediction heads.

    `n_vocab`: ids at or above this are never proposed. A draft ends where the heads' own probability
    falls below `p_min`, or where `pacer` sees no profit in another token; shorter ones than `n_min`
    are dropped.
    """

    method = "draft-mtp"

    def __init__(
        self,
        heads: PredictionHeads,
        pacer: Pacer,
        n_vocab: int,
        n_max: int = 3,
        n_min: int = 0,
        p_min: float = 0.0,
    ) -> None:
        self._heads = heads
        self._pacer = pacer
        self._n_vocab = n_vocab
        self._n_max = n_max if heads.most is None else min(n_max, heads.most)
        self._n_min, self._p_min = n_min, p_min

    def begin(self, history: Sequence[int]) -> None:
        """Nothing: what changed in the target's cache is found when the next draft begins."""

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        limit = min(limit, self._n_max, self._heads.n_ctx - len(history))
        if limit < 1 or limit < self._n_min or not self._pacer.goes_on(self.method, (), limit):
            return NO_DRAFT
        tokens: list[int] = []
        confidence: list[float] = []
        row = self._heads.start(history[-1])[: self._n_vocab]
        while True:
            token = int(np.argmax(row))
            p = float(1.0 / np.exp(row - row[token]).sum())
            if p < self._p_min:
                break
            tokens.append(token)
            confidence.append(p)
            if not self._pacer.goes_on(self.method, confidence, limit):
                break
            row = self._heads.extend(token)[: self._n_vocab]
        if len(tokens) < max(1, self._n_min):
            return NO_DRAFT
        return Draft(tuple(tokens), self.method, confidence=tuple(confidence))

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        self._heads.end_cycle()

    def close(self) -> None:
        """The heads belong to whoever opened them."""
