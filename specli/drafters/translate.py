"""A draft model of another family, heard in the target's vocabulary.

Token-level intersection (Timor et al., "Accelerating LLM inference with lossless speculative decoding
algorithms for heterogeneous vocabularies", 2025): only tokens that both vocabularies know are proposed;
the others get no probability. Verification is as ever, so nothing is lost but acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specli.core.types import LanguageModel, Logits


class Translated:
    """A LanguageModel over the target's vocabulary, made of one over another.

    `to_draft`: shape (n_vocab of the target,), the draft's id for each of the target's tokens, -1 for none.
    `spell`: the draft's tokens for a target token that it does not have as one.
    """

    def __init__(
        self, model: LanguageModel, to_draft: NDArray[np.int32], spell: Callable[[int], list[int]]
    ) -> None:
        self._model = model
        self._to_draft = to_draft
        self._spell = spell
        self._ours = np.flatnonzero(to_draft >= 0)
        self._theirs = to_draft[self._ours]
        self._tokens: list[int] = []
        self._ends: list[int] = []  # how many draft tokens stand behind each of ours
        self._row = np.full((1, len(to_draft)), -np.inf, np.float32)

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    @property
    def n_vocab(self) -> int:
        return len(self._to_draft)

    @property
    def n_ctx(self) -> int:
        """Tokens of ours that still fit if each costs one of the draft's; see `fits`."""
        return len(self._tokens) + self._model.n_ctx - len(self._model.tokens)

    @property
    def max_rows(self) -> int:
        return 1

    def translate(self, tokens: Sequence[int]) -> list[list[int]]:
        """The draft's tokens for each of ours."""
        known = [int(self._to_draft[t]) for t in tokens]
        return [[k] if k >= 0 else self._spell(t) for t, k in zip(tokens, known)]

    def fits(self, tokens: Sequence[int]) -> bool:
        """Whether the draft's context has room for `tokens` and some more."""
        size = sum(map(len, self.translate(tokens)))
        return len(self._model.tokens) + size + 32 <= self._model.n_ctx

    def decode(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        """As `LanguageModel.decode`, for at most one row. Tokens the draft does not know have -inf."""
        pieces = self.translate(tokens)
        flat = [t for piece in pieces for t in piece]
        out = self._model.decode(flat, rows=min(rows, len(flat))) if flat else None
        at = self._ends[-1] if self._ends else 0
        for piece in pieces:
            at += len(piece)
            self._ends.append(at)
        self._tokens.extend(tokens)
        if not rows:
            return self._row[:0]
        self._row[0, self._ours] = out[-1, self._theirs] if out is not None else 0.0
        return self._row

    def rewind(self, length: int) -> int:
        length = min(max(0, length), len(self._tokens))
        kept = self._model.rewind(self._ends[length - 1] if length else 0)
        while length and self._ends[length - 1] > kept:
            length -= 1
        if length and self._ends[length - 1] < kept:
            self._model.rewind(self._ends[length - 1])
        del self._tokens[length:], self._ends[length:]
        return length
