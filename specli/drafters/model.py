"""draft-model: a second, smaller model proposes.

Its cache is brought in step by the longest common prefix with the history, so nothing is decoded
twice: what it drafted itself and the target accepted is already there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specli.core.decoding import common_prefix
from specli.core.pacing import Pacer
from specli.core.types import NO_DRAFT, Cycle, Draft, LanguageModel


class ModelDrafter:
    """Drafts greedily with a model whose vocabulary fits the target's.

    `n_vocab`: ids at or above this are never proposed (the smaller of the two vocabularies).
    A draft ends where the model's own probability falls below `p_min`, or where `pacer` sees no
    profit in another token; shorter ones than `n_min` are dropped.
    """

    method = "draft-model"

    def __init__(
        self,
        model: LanguageModel,
        pacer: Pacer,
        n_vocab: int,
        n_max: int = 4,
        n_min: int = 0,
        p_min: float = 0.0,
        chunk: int = 512,
    ) -> None:
        self._model = model
        self._pacer = pacer
        self._n_vocab = n_vocab
        self._n_max, self._n_min, self._p_min = n_max, n_min, p_min
        self._chunk = chunk
        self._synced = 0  # tokens of the cache known to equal the history's

    def begin(self, history: Sequence[int]) -> None:
        self._synced = self._model.rewind(common_prefix(self._model.tokens, history))

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        """Keep what was drafted and accepted, drop the rest."""
        cached = self._model.tokens
        n = self._synced
        while n < len(cached) and n < len(history) and cached[n] == history[n]:
            n += 1
        self._synced = self._model.rewind(n)

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        limit = min(limit, self._n_max, self._model.n_ctx - len(history))
        if limit < 1 or limit < self._n_min or not self._usable(history):
            return NO_DRAFT
        if not self._pacer.goes_on(self.method, (), limit):
            return NO_DRAFT
        row = self._catch_up(history)
        tokens: list[int] = []
        confidence: list[float] = []
        while True:
            token = int(np.argmax(row))
            p = _probability(row, token)
            if p < self._p_min:
                break
            tokens.append(token)
            confidence.append(p)
            if not self._pacer.goes_on(self.method, confidence, limit):
                break
            row = self._model.decode([token], rows=1)[0, : self._n_vocab]
        if len(tokens) < max(1, self._n_min):
            return NO_DRAFT
        return Draft(tuple(tokens), self.method, confidence=tuple(confidence))

    def _usable(self, history: Sequence[int]) -> bool:
        """A token that this model does not know cannot be part of its context."""
        return all(token < self._model.n_vocab for token in history[self._synced :])

    def _catch_up(self, history: Sequence[int]) -> np.ndarray:
        """Decode what the cache lacks of `history`; the logits after it, shape (n_vocab,)."""
        if self._synced == len(history):  # cannot be: the last token is always new to this model
            self._synced = self._model.rewind(len(history) - 1)
        for at in range(self._synced, len(history) - 1, self._chunk):
            self._model.decode(history[at : min(at + self._chunk, len(history) - 1)], rows=0)
        row = self._model.decode(history[-1:], rows=1)[0, : self._n_vocab]
        self._synced = len(history)
        return row

    def close(self) -> None:
        """The model belongs to whoever opened it."""


def _probability(row: np.ndarray, token: int) -> float:
    """Softmax probability of `token`."""
    return float(1.0 / np.exp(row - row[token]).sum())
