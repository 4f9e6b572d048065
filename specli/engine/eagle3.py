"""An EAGLE-3 head at work: one block that drafts from the inputs of three of the target's layers.

At position p it takes the token x_{p+1} and g_p, the three inputs at p fused by the head's encoder, and
predicts x_{p+2}. Its own last state stands for g_{p+1} while it drafts on. So the token and the row of a
pair lie one apart: the pair of the target's latest token waits for the token that follows it, and for n
tokens the cache holds n - 1 positions. Li et al. 2025, arXiv 2503.01840.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specli.core.types import Logits
from specli.engine.context import Context, ContextParams
from specli.engine.hidden import Rows, copied
from specli.engine.model import Model
from specli.engine.opening import open_handle
from specli.engine.side import SideCache
from specli.errors import EngineError

_ENCODED = 32  # rows fused at once: the library keeps a row of logits for each of them


class Eagle(SideCache):
    """The head `model` beside `target`. Draft with `start` and `extend`, any number of tokens.

    Where `features.feature_problem` names a problem the library would abort: ask it before.
    """

    BACKLOG = 128
    what = "the EAGLE-3 head"
    most = None

    def __init__(self, target: Context, params: ContextParams, model: Model) -> None:
        """`params`: of the head's own cache; its size is the target's. The target's context must have been
        opened with the head's layers, and must be empty."""
        super().__init__(target, model)
        self._width = model.n_embd
        self._chunk = min(_ENCODED, params.n_ubatch)
        own = replace(
            params,
            n_ctx=target.n_ctx, max_rows=self._chunk, swa_full=True, snapshots=0, hidden=False, layers=(), branches=1,
        )  # fmt: skip
        handle = open_handle(model, own, draft_of=target.handle)
        self._open(handle, own, self._width)
        self._ext.llama_set_embeddings_nextn(handle, True, True)
        self._features = self._lib.llama_batch_init(self._chunk, self._hidden.width, 1)
        self._f_embd = np.ctypeslib.as_array(self._features.embd, (self._chunk, self._hidden.width))
        for i in range(self._chunk):
            self._features.n_seq_id[i], self._features.seq_id[i][0], self._features.logits[i] = 1, 0, 1
        self._pending: Rows = np.empty((1, self._width), np.float32)  # g of the target's latest token
        self._own = self._pending  # the head's state of the latest draft token

    def _length(self, n_tokens: int) -> int:
        return max(0, n_tokens - 1)

    def _feed(self, start: int) -> None:
        """The pairs whose token is new, from the first of them on; the latest row waits for its token."""
        at, end, size = self._length(start), len(self._target.tokens), self._params.n_batch
        if end == 0:
            return
        g = self._fused(at, end)
        self._pending = g[-1:]
        for i in range(at, end - 1, size):
            stop = min(i + size, end - 1)
            self._decode(self._target.tokens[i + 1 : stop + 1], i, g[i - at : stop - at], output=False)

    def whole(self) -> tuple[NDArray[np.uint8], ...]:
        """With the row that waits for its token; nothing where the target has yet to give that one again."""
        cache = super().whole() if self._hidden.holds(len(self._target.tokens) - 1) else ()
        return (*cache, self._pending.copy().view(np.uint8).reshape(-1)) if cache else ()

    def refill(self, tokens: Sequence[int], parts: Sequence[NDArray[np.uint8]]) -> bool:
        """See `Follower.refill`."""
        if len(parts) != 2 or len(parts[1]) != 4 * self._width or not super().refill(tokens, parts[:1]):
            return False
        self._pending = parts[1].view(np.float32).reshape(1, self._width)
        return True

    def _fused(self, start: int, stop: int) -> Rows:
        """g of positions start to stop - 1, shape (stop - start, n_embd)."""
        rows = self._hidden.shifted(start + 1, stop + 1)
        parts = [self._encode(rows[i : i + self._chunk]) for i in range(0, len(rows), self._chunk)]
        return np.concatenate(parts)

    def _encode(self, rows: Rows) -> Rows:
        batch, n = self._features, len(rows)
        at = int(self._lib.llama_memory_seq_pos_max(self._memory, 0)) + 1
        for i in range(n):
            batch.pos[i] = at + i  # stands for nothing: fusing looks at each row alone
        batch.n_tokens = n
        self._f_embd[:n] = rows
        self._done(self._lib.llama_encode(self._open_handle(), batch))
        return copied(self._ext.llama_get_embeddings_nextn(self._handle), n, self._width)

    # -- drafting -------------------------------------------------------------------------------

    def start(self, token: int) -> Logits:
        """The logits that follow `token`, which is pending behind the target's cache, and that holds at least
        one. Shape (n_vocab,), a view that the next decode overwrites; minus infinity for what the head's
        reduced vocabulary lacks."""
        self.catch_up()
        n = len(self._tokens)
        if n == 0:
            raise EngineError("an EAGLE-3 head drafts only behind a cached token")
        row = self._step(token, n - 1, self._pending)
        self._tokens.append(token)  # a true pair, so it stays
        return row

    def extend(self, token: int) -> Logits:
        """The logits that follow `token`, drafted behind what `start` and `extend` were given before."""
        at = self._length(len(self._tokens)) + len(self._drafted)
        self._drafted.append(token)
        return self._step(token, at, self._own)

    def _step(self, token: int, at: int, g: Rows) -> Logits:
        self._decode([token], at, g, output=True)
        self._own = self._own_row(0, self._width)[None]
        return self._row(0)

    def close(self) -> None:
        """Free the cache. Safe to call twice."""
        if self._handle is not None:
            self._lib.llama_batch_free(self._features)
        super().close()
