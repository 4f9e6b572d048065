"""draft-dflash and draft-dspark: a small network fills all places of a draft in one pass.

Every place has a distribution of its own, which knows the history and not what was drawn for the places
before it. So a longer draft costs nothing more, and its later tokens agree less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from specli.core.pacing import Pacer
from specli.core.types import Cycle, Draft, Logits
from specli.drafters.neural import NeuralDrafter, Row


class BlockModel(Protocol):
    """What the drafter needs of the network. `most`: tokens of one draft; `n_ctx`: tokens its cache holds."""

    most: int

    @property
    def n_ctx(self) -> int: ...

    def propose(self, token: int, n: int) -> Logits:
        """The logits of the `n` tokens after the target's cached tokens and `token`, shape (n, n_vocab)."""
        ...

    def end_cycle(self) -> None:
        """A cycle is done."""
        ...


class BlockDrafter(NeuralDrafter):
    """Drafts with a block draft. `method`: draft-dflash or draft-dspark. `n_vocab`: ids at or above this
    are never proposed. See `NeuralDrafter` for the rest."""

    def __init__(
        self,
        method: str,
        blocks: BlockModel,
        pacer: Pacer,
        n_vocab: int,
        n_max: int = 4,
        n_min: int = 0,
        p_min: float = 0.0,
    ) -> None:
        self.method = method
        super().__init__(pacer, min(n_max, blocks.most), n_min, p_min)
        self._blocks = blocks
        self._n_vocab = n_vocab
        self._left: list[Row] = []  # rows of the latest block that no token was chosen from yet

    def begin(self, history: Sequence[int]) -> None:
        """Nothing: what changed in the target's cache is found when the next draft begins."""

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        # the block lies behind the history, with a place for the pending token
        limit = min(limit, self._n_max, self._blocks.n_ctx - len(history))
        first = history[-1]
        return self._chain_if_it_can(
            history, limit, lambda: self._block(first, limit), lambda _: self._next()
        )

    def _block(self, token: int, n: int) -> Row:
        rows = np.array(self._blocks.propose(token, n)[:, : self._n_vocab])
        self._left = list(rows[::-1])
        return self._next()

    def _next(self) -> Row:
        return self._left.pop()

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        self._learn(cycle)
        self._blocks.end_cycle()
