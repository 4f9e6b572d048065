"""draft-mtp: the model's own prediction heads propose.

They draft from what the target has computed anyway, so one draft token costs about one block. The
heads' cache follows the target's by itself, whoever drafted: see `engine.mtp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specli.core.pacing import Pacer
from specli.core.types import Cycle, Draft, Logits
from specli.drafters.neural import NeuralDrafter


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


class MtpDrafter(NeuralDrafter):
    """Drafts with prediction heads.

    `n_vocab`: ids at or above this are never proposed. See `NeuralDrafter` for the rest.
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
        super().__init__(pacer, n_max if heads.most is None else min(n_max, heads.most), n_min, p_min)
        self._heads = heads
        self._n_vocab = n_vocab

    def begin(self, history: Sequence[int]) -> None:
        """Nothing: what changed in the target's cache is found when the next draft begins."""

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        limit = min(limit, self._heads.n_ctx - len(history))
        return self._chain_if_it_can(
            history,
            limit,
            lambda: self._heads.start(history[-1])[: self._n_vocab],
            lambda token: self._heads.extend(token)[: self._n_vocab],
        )

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        self._learn(cycle)
        self._heads.end_cycle()
