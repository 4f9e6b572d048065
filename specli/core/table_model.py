"""A language model that is a table: for tests, for simulation, and for readers of the algorithm.

It is exact at every width (a row depends on the tokens before it and on nothing else), and like the
real thing it hands out rows that die with the next decode.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specli.core.types import Logits


class TableModel:
    """A Markov chain of order `order`: the logits after a context are one row of `table`.

    `table`: shape (n_vocab ** order, n_vocab), float32; row index = the last `order` tokens read as
    digits in base n_vocab, earlier ones being worth more; before the first token counts as token 0.
    """

    def __init__(
        self, table: NDArray[np.float32], order: int = 1, n_ctx: int = 4096, max_rows: int = 64
    ) -> None:
        rows, n_vocab = table.shape
        if order < 1:
            raise ValueError(f"the order must be at least 1, not {order}")
        if rows != n_vocab**order:
            raise ValueError(
                f"a table of order {order} over {n_vocab} tokens has {n_vocab**order} rows, not {rows}"
            )
        self.table = table.astype(np.float32)
        self.order = order
        self._n_ctx = n_ctx
        self._max_rows = max_rows
        self._tokens: list[int] = []
        self._nodes: list[tuple[int, int]] = []  # of the open tree: token and parent
        self._out = np.empty((max_rows, n_vocab), np.float32)
        self.decoded = 0  # tokens decoded in all, for tests of "decodes nothing twice"

    @classmethod
    def random(
        cls, n_vocab: int, order: int = 1, seed: int = 0, scale: float = 2.0, n_ctx: int = 4096
    ) -> TableModel:
        """Normally distributed logits of standard deviation `scale`."""
        rng = np.random.default_rng(seed)
        table = rng.normal(0.0, scale, (n_vocab**order, n_vocab)).astype(np.float32)
        return cls(table, order, n_ctx)

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    @property
    def n_vocab(self) -> int:
        return int(self.table.shape[1])

    @property
    def n_ctx(self) -> int:
        return self._n_ctx

    @property
    def max_rows(self) -> int:
        return self._max_rows

    def row(self, context: Sequence[int]) -> NDArray[np.float32]:
        """The logits after `context`, shape (n_vocab,)."""
        index = 0
        for token in ([0] * self.order + list(context[-self.order :]))[-self.order :]:
            index = index * self.n_vocab + token
        row: NDArray[np.float32] = self.table[index]
        return row

    def decode(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        if len(self._tokens) + len(tokens) > self._n_ctx:
            raise ValueError(f"{len(tokens)} tokens do not fit behind {len(self._tokens)} of {self._n_ctx}")
        if not 0 <= rows <= min(len(tokens), self._max_rows):
            raise ValueError(f"{rows} rows of {len(tokens)} tokens")
        if len(tokens) and not 0 <= min(tokens) <= max(tokens) < self.n_vocab:
            raise ValueError(f"a token of {list(tokens)} is not one of the {self.n_vocab} known")
        self._nodes.clear()
        self.decoded += len(tokens)
        self._out.fill(np.nan)  # rows of the decode before are gone
        first = len(self._tokens) + len(tokens) - rows
        self._tokens.extend(tokens)
        for i in range(rows):
            end = first + i + 1
            self._out[i] = self.row(self._tokens[max(0, end - self.order) : end])
        return self._out[:rows]

    def branch(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """See `TreeModel.branch`."""
        if not 1 <= len(tokens) <= self._max_rows or len(parents) != len(tokens):
            raise ValueError(f"{len(tokens)} nodes with {len(parents)} parents")
        if len(self._tokens) + len(self._nodes) + len(tokens) > self._n_ctx:
            raise ValueError(f"{len(tokens)} nodes do not fit behind {len(self._tokens)} of {self._n_ctx}")
        self.decoded += len(tokens)
        self._out.fill(np.nan)
        for i, (token, parent) in enumerate(zip(tokens, parents)):
            if not (0 <= token < self.n_vocab and -1 <= parent < len(self._nodes)):
                raise ValueError(f"node {len(self._nodes)}: token {token} behind node {parent}")
            self._nodes.append((token, parent))
            self._out[i] = self.row([*self._tokens[-self.order :], *self._said(len(self._nodes) - 1)])
        return self._out[: len(tokens)]

    def keep(self, path: Sequence[int]) -> None:
        """See `TreeModel.keep`."""
        said = self._said(path[-1]) if path else []
        if len(said) != len(path):
            raise ValueError(f"{list(path)} is no path of the tree")
        self._tokens.extend(said)
        self._nodes.clear()

    def _said(self, node: int) -> list[int]:
        """The tokens from the cache's end to `node`."""
        said: list[int] = []
        while node >= 0:
            token, node = self._nodes[node]
            said.append(token)
        return said[::-1]

    def rewind(self, length: int) -> int:
        self._nodes.clear()
        del self._tokens[max(0, length) :]
        return len(self._tokens)
