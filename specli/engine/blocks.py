"""Block drafts at work (DFlash, DSpark): all tokens of a draft in one pass.

The inputs of the target's layers go straight into the draft's cache, one position for each token. To draft,
a block is decoded behind them: the pending token and a mask for every place that is to be filled, each
seeing the whole block. Then the block is cut off again. DFlash fills the masks' own places; an anchored DSpark
draft predicts what follows each place, the pending token's too.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace

from specli.core.types import Logits
from specli.engine.context import Context, ContextParams
from specli.engine.features import MASK, feature_draft
from specli.engine.hidden import Rows
from specli.engine.model import Model
from specli.engine.opening import open_handle
from specli.engine.side import SideCache
from specli.errors import EngineError

_PLANES = 4  # positions of a row where the rope is the many-sided one of vision models


class Blocks(SideCache):
    """The block draft `model` beside `target`. `most`: tokens of one draft.

    Where `features.feature_problem` names a problem the library would abort: ask it before.
    """

    BACKLOG = 128
    what = "the block draft"

    def __init__(self, target: Context, params: ContextParams, model: Model) -> None:
        """`params`: of the draft's own cache; its size is the target's. The target's context must have been
        opened with the draft's layers, and must be empty."""
        super().__init__(target, model)
        found = feature_draft(model.header)
        if found is None or found.most is None:
            raise EngineError(f"{model.name} is no block draft")
        self._anchored, self._block = found.anchored, found.block
        self.most = found.most
        self._mask = model.header.integer(MASK) or 0
        # without a causal mask the library takes a batch in one piece
        n_batch = max(self._block, min(params.n_batch, params.n_ubatch))
        own = replace(
            params,
            n_ctx=target.n_ctx, n_batch=n_batch, n_ubatch=n_batch, max_rows=self._block, swa_full=True,
            snapshots=0, hidden=False, layers=(), branches=1,
        )  # fmt: skip
        handle = open_handle(model, own, draft_of=target.handle)
        self._open(handle, own, self._hidden.width)
        self._lib.llama_set_causal_attn(handle, found.causal)
        self._no_tokens = ctypes.POINTER(self._lib.llama_token)()
        # casts make pointers of their own: a field read from the batch changes with the batch
        self._embd = ctypes.cast(self._batch.embd, ctypes.POINTER(ctypes.c_float))
        self._own_pos = ctypes.cast(self._batch.pos, ctypes.POINTER(self._lib.llama_pos))
        self._no_embd = ctypes.POINTER(ctypes.c_float)()
        self._pos = (self._lib.llama_pos * (_PLANES * n_batch))()

    def _feed(self, start: int) -> None:
        end, size = len(self._target.tokens), self._params.n_batch
        for at in range(start, end, size):
            stop = min(at + size, end)
            self._inject(self._hidden.shifted(at + 1, stop + 1), at)

    def _inject(self, rows: Rows, at: int) -> None:
        """Rows alone, without tokens: what the positions from `at` on stand for."""
        batch, n = self._batch, len(rows)
        self._require_room(at, n)
        batch.n_tokens, batch.token = n, self._no_tokens
        batch.pos = ctypes.cast(self._pos, ctypes.POINTER(self._lib.llama_pos))
        for i in range(n):
            batch.logits[i] = 0
            for plane in range(_PLANES):
                self._pos[plane * n + i] = at + i if plane < _PLANES - 1 else 0
        self._b_embd[:n] = rows
        try:
            self._done(self._lib.llama_decode(self._open_handle(), batch))
        finally:
            batch.pos, batch.token = self._own_pos, self._b_token

    def propose(self, token: int, n: int) -> Logits:
        """The logits of `n` tokens that follow `token`, which is pending behind the target's cache. Row i is
        about the token i places behind it, whatever stands in between. Shape (n, n_vocab), a view that the
        next decode overwrites."""
        self.catch_up()
        if not 1 <= n <= self.most:
            raise EngineError(f"{n} tokens of a block that gives at most {self.most}")
        at, rows = len(self._tokens), n + (0 if self._anchored else 1)
        self._require_room(at, rows)
        batch = self._batch
        for i in range(rows):
            self._b_token[i], batch.pos[i], batch.logits[i] = self._mask if i else token, at + i, 1
        batch.n_tokens, batch.embd = rows, self._no_embd
        try:
            self._done(self._lib.llama_decode(self._open_handle(), batch))
        finally:
            batch.embd = self._embd
        self._remove(at)
        return self._rows(rows)[rows - n :]
