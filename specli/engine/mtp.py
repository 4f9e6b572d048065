"""Prediction heads at work: a small cache beside the target's, in step with it.

A head at position p takes token x_p and the hidden row h_{p-1}, and predicts x_{p+1}. Rows of kept
tokens come from the target; while drafting, the head feeds on its own. So its cache holds pairs of
the target's for the tokens it has caught up with, and behind them what it drafted, to be dropped.

Models with several heads use the i-th for the i-th draft token. All write to one cache, each into a
layer of its own, so each must be shown everything.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specli.core.types import Logits
from specli.engine.context import Context, ContextParams
from specli.engine.hidden import Rows
from specli.engine.model import Model
from specli.engine.opening import open_handle
from specli.engine.side import SideCache
from specli.errors import DraftMismatch


class Heads(SideCache):
    """The prediction heads of `target`, or those in a file of their own, `model`.

    Draft with `start` and `extend`. `most`: draft tokens that one cycle can get, None for any number.
    Close before the target's context.
    """

    what = "the prediction heads"

    def __init__(self, target: Context, params: ContextParams, model: Model | None = None) -> None:
        """Open the heads' context. Where `nextn` names a problem the library would abort: ask it before.
        Raises DraftMismatch for the heads of another model.

        `params`: of the heads' own cache; its size is the target's. The target's context must have
        been opened with hidden rows, and must be empty.
        """
        super().__init__(target, model or target.model)
        if self.model.n_embd_out != target.model.n_embd_out:
            raise DraftMismatch(
                f"{self.model.name} holds heads for another model: they take hidden rows of "
                f"{self.model.n_embd_out} values, {target.model.name} has {target.model.n_embd_out}"
            )
        self._own: list[Rows] = []  # beside what was drafted: the target's row, then the heads' own
        self._n_heads = max(1, self.model.n_layer_nextn)
        self.most = self._n_heads if self._n_heads > 1 else None
        own = replace(
            params, n_ctx=target.n_ctx, max_rows=self._n_heads, swa_full=True, snapshots=0, hidden=False
        )
        handle = open_handle(self.model, own, heads_of=target.handle)
        self._open(handle, own, self._hidden.width)
        self._ext.llama_set_embeddings_nextn(self._handle, True, True)

    # -- in step with the target ----------------------------------------------------------------

    def _feed(self, start: int) -> None:
        """A pair for every token. The chain's later heads are shown the same."""
        tokens, size = self._target.tokens[start:], self._params.n_batch
        for head in range(self._n_heads):
            self._select(head)
            if head:
                self._remove(start)
            for i in range(0, len(tokens), size):
                piece, at = tokens[i : i + size], start + i
                self._decode(piece, at, self._hidden.shifted(at, at + len(piece)), output=False)
        self._select(0)

    # -- drafting -------------------------------------------------------------------------------

    def start(self, token: int) -> Logits:
        """The logits that follow `token`, which is pending behind the target's cache. Shape (n_vocab,),
        a view that the next decode overwrites."""
        self.catch_up()
        n = len(self._tokens)
        first = self._hidden.shifted(n, n + 1)
        if self._n_heads > 1:
            self._own = [first[0]]
            return self._again(token)
        self._decode([token], n, first, output=True)
        self._tokens.append(token)  # a true pair, so it stays
        self._own = [self._own_row(0, self._hidden.width)]
        return self._row(0)

    def extend(self, token: int) -> Logits:
        """The logits that follow `token`, drafted behind what `start` and `extend` were given before."""
        if self._n_heads > 1:
            return self._again(token)
        at = len(self._tokens) + len(self._drafted)
        self._drafted.append(token)
        self._decode([token], at, self._own[-1][None], output=True)
        self._own = [self._own_row(0, self._hidden.width)]
        return self._row(0)

    def _again(self, token: int) -> Logits:
        """A chain's next head, shown the pending token and the whole draft."""
        self._drafted.append(token)
        at = len(self._tokens)
        self._remove(at)
        self._select(len(self._drafted) - 1)
        self._decode(self._drafted, at, np.stack(self._own), output=True)
        self._select(0)
        last = len(self._drafted) - 1
        self._own.append(self._own_row(last, self._hidden.width))
        return self._row(last)

    def _select(self, head: int) -> None:
        if self._n_heads > 1:
            self._ext.llama_set_nextn_layer_offset(self._handle, head)
