"""draft-model: a second, smaller model proposes; draft-self-layers: the target without some layers does.

Its cache is brought in step by the longest common prefix with the history, so nothing is decoded
twice: what it drafted itself and the target accepted is already there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specli.core.decoding import common_prefix
from specli.core.pacing import Pacer
from specli.core.types import NO_DRAFT, Cycle, Draft, LanguageModel
from specli.drafters.neural import NeuralDrafter, Row


class ModelDrafter(NeuralDrafter):
    """Drafts with a model that speaks the target's vocabulary.

    `n_vocab`: ids at or above this are never proposed (the smaller of the two vocabularies). `fits`:
    whether the model can take these tokens in; by default, whether it knows them all. See
    `NeuralDrafter` for the rest.
    """

    method = "draft-model"
    NEAR = 8  # tokens read up on the way; more are worth a thought

    def __init__(
        self,
        model: LanguageModel,
        pacer: Pacer,
        n_vocab: int,
        n_max: int = 4,
        n_min: int = 0,
        p_min: float = 0.0,
        chunk: int = 512,
        fits: Callable[[Sequence[int]], bool] | None = None,
    ) -> None:
        super().__init__(pacer, n_max, n_min, p_min)
        self._model = model
        self._n_vocab = n_vocab
        self._chunk = chunk
        self._fits = fits or self._knows
        self._synced = 0  # tokens of the cache known to equal the history's

    def begin(self, history: Sequence[int]) -> None:
        self._synced = self._model.rewind(common_prefix(self._model.tokens, history))

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        """Keep what was drafted and accepted, drop the rest."""
        self._learn(cycle)
        cached = self._model.tokens
        n = self._synced
        while n < len(cached) and n < len(history) and cached[n] == history[n]:
            n += 1
        self._synced = self._model.rewind(n)

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        limit = min(limit, self._model.n_ctx - len(history))
        if limit < 1 or not self._fits(history[self._synced :]):
            return NO_DRAFT
        behind = len(history) - 1 - self._synced
        if behind > self.NEAR and not self._pacer.joins(self.method, behind, min(limit, self._n_max)):
            return NO_DRAFT
        return self._chain(history, limit, lambda: self._catch_up(history), self._extend)

    def _knows(self, tokens: Sequence[int]) -> bool:
        """A token that this model does not know cannot be part of its context."""
        return all(token < self._model.n_vocab for token in tokens)

    def _extend(self, token: int) -> Row:
        return self._model.decode([token], rows=1)[0, : self._n_vocab]

    def _catch_up(self, history: Sequence[int]) -> Row:
        """Decode what the cache lacks of `history`; the logits after it, shape (n_vocab,)."""
        if self._synced == len(history):  # cannot be: the last token is always new to this model
            self._synced = self._model.rewind(len(history) - 1)
        for at in range(self._synced, len(history) - 1, self._chunk):
            self._model.decode(history[at : min(at + self._chunk, len(history) - 1)], rows=0)
        row = self._model.decode(history[-1:], rows=1)[0, : self._n_vocab]
        self._synced = len(history)
        return row


class LayersDrafter(ModelDrafter):
    """draft-self-layers: the target itself, without some of its layers, drafts for the whole of it."""

    method = "draft-self-layers"
