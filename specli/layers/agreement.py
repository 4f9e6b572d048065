"""How often a model without some of its layers agrees with the whole: on text that the whole one wrote.

Such text is what drafts are judged on. One decode of it gives the agreement at every position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specli.core.types import Logits
from specli.engine.silence import Silencer
from specli.layers.search import Agreement

LIKELIEST = 128
"""Tokens of the whole model's distribution that are compared; the rest of it hardly counts."""

ROWS = 128
"""Most positions of a passage."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Tokens, of which those from `begin` on are the model's own answer."""

    tokens: tuple[int, ...]
    begin: int

    @property
    def positions(self) -> int:
        """Tokens that are judged."""
        return len(self.tokens) - self.begin


@dataclass(frozen=True, slots=True, eq=False)
class _Reference:
    """The whole model's distribution at each position: `ids` (positions, LIKELIEST) int64, the likeliest
    first, and their `probs`, float32."""

    ids: NDArray[np.int64]
    probs: NDArray[np.float32]


class Jury:
    """Judges sets of layers on passages; implements `search.Judge`."""

    def __init__(self, silencer: Silencer, passages: Sequence[Passage]) -> None:
        self._silencer = silencer
        self.passages = tuple(passages)
        silencer.silence(())
        self._references = [_reference(self._rows(passage)) for passage in self.passages]

    @property
    def parts(self) -> int:
        return len(self.passages)

    @property
    def positions(self) -> int:
        """Positions of all passages."""
        return sum(passage.positions for passage in self.passages)

    def judge(self, dropped: frozenset[int], part: int) -> Agreement:
        """Decode one passage without the layers `dropped`."""
        self._silencer.silence(dropped)
        return _agreement(self._references[part], self._rows(self.passages[part]))

    def judge_all(self, dropped: frozenset[int]) -> Agreement:
        """The same on all passages."""
        return sum((self.judge(dropped, part) for part in range(self.parts)), Agreement())

    def _rows(self, passage: Passage) -> Logits:
        """Logits at every judged position, (positions, n_vocab); a view that dies with the next decode."""
        context = self._silencer.context
        context.clear()
        return context.decode(passage.tokens[:-1], rows=passage.positions)


def _reference(rows: Logits) -> _Reference:
    n = min(LIKELIEST, rows.shape[1])
    top = np.argpartition(rows, -n, axis=1)[:, -n:]
    logits = np.take_along_axis(rows, top, 1)
    order = np.lexsort((top, -logits), axis=1)  # of equals the lowest id, as decoding takes it
    ids = np.take_along_axis(top, order, 1)
    return _Reference(ids, _probs(rows, ids))


def _agreement(reference: _Reference, rows: Logits) -> Agreement:
    mine = _probs(rows, reference.ids)
    matches = int((rows.argmax(axis=1) == reference.ids[:, 0]).sum())
    return Agreement(matches, float(np.minimum(mine, reference.probs).sum()), len(rows))


def _probs(rows: Logits, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Softmax over the whole vocabulary, at `ids` only."""
    most = rows.max(axis=1, keepdims=True)
    total = np.exp(rows - most).sum(axis=1, keepdims=True)
    found: NDArray[np.float32] = np.exp(np.take_along_axis(rows, ids, 1) - most) / total
    return found
