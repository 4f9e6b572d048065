"""Prediction heads at work: a small cache beside the target's, in step with it.

A head at position p takes token x_p and the hidden row h_{p-1}, and predicts x_{p+1}. Rows of kept
tokens come from the target; while drafting, the head feeds on its own. So its cache holds pairs of
the target's for the tokens it has caught up with, and behind them what it drafted, to be dropped.

Models with several heads use the i-th for the i-th draft token. All write to one cache, each into a
layer of its own, so each must be shown everything.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specli.core.types import Logits
from specli.engine import backend
from specli.engine.context import Context, ContextParams, debugging
from specli.engine.hidden import HiddenRows, Rows, copied, extension
from specli.engine.model import Model
from specli.engine.opening import open_handle
from specli.errors import DraftMismatch, EngineError


class Heads:
    """The prediction heads of `target`, or those in a file of their own, `model`.

    Draft with `start` and `extend`. `most`: draft tokens that one cycle can get, None for any number.
    Close before the target's context.
    """

    BACKLOG = 512  # tokens that may wait to be caught up with

    def __init__(self, target: Context, params: ContextParams, model: Model | None = None) -> None:
        """Open the heads' context. Where `nextn` names a problem the library would abort: ask it before.
        Raises DraftMismatch for the heads of another model.

        `params`: of the heads' own cache; its size is the target's. The target's context must have
        been opened with hidden rows, and must be empty.
        """
        self.model = model or target.model
        if target.hidden is None or target.tokens:
            raise EngineError("prediction heads need the target's hidden rows from the first token on")
        if self.model.n_embd_out != target.model.n_embd_out:
            raise DraftMismatch(
                f"{self.model.name} holds heads for another model: they take hidden rows of "
                f"{self.model.n_embd_out} values, {target.model.name} has {target.model.n_embd_out}"
            )
        self._target = target
        self._lib, self._ext = backend.load_library(), extension()
        self._hidden: HiddenRows = target.hidden
        self._tokens: list[int] = []  # tokens whose pairs are cached
        self._drafted: list[int] = []  # the pending token if not among those, and the draft behind it
        self._own: list[Rows] = []  # beside them: the target's row, then the heads' own
        self._debug = debugging()
        self._n_heads = max(1, self.model.n_layer_nextn)
        self.most = self._n_heads if self._n_heads > 1 else None
        self._params = replace(
            params, n_ctx=target.n_ctx, max_rows=self._n_heads, swa_full=True, snapshots=0, hidden=False
        )
        self._handle: Any = open_handle(self.model, self._params, heads_of=target.handle)
        self._memory = self._lib.llama_get_memory(self._handle)
        self.n_vocab = self.model.vocab.n_tokens
        self._ext.llama_set_embeddings_nextn(self._handle, True, True)
        self._open_batch()
        target.follow(self)

    def _open_batch(self) -> None:
        n, width = self._params.n_batch, self._hidden.width
        self._batch = self._lib.llama_batch_init(n, width, 1)
        self._b_token = (self._lib.llama_token * n)()
        self._batch.token = self._b_token  # the library allocates rows or tokens, never both
        self._b_embd = np.ctypeslib.as_array(self._batch.embd, (n, width))
        np.ctypeslib.as_array(self._batch.n_seq_id, (n,))[:] = 1
        for i in range(n):
            self._batch.seq_id[i][0] = 0

    @property
    def n_ctx(self) -> int:
        """Most tokens the cache can hold."""
        return self._target.n_ctx

    # -- in step with the target ----------------------------------------------------------------

    def decoded(self) -> None:
        """The target has decoded more. Keeps the backlog short, so that no hidden row is lost."""
        if len(self._target.tokens) - len(self._tokens) >= self.BACKLOG:
            self.catch_up()

    def catch_up(self) -> None:
        """Bring the cache to hold a pair for every token in the target's."""
        start = self._common()
        self._cut(start)
        for head in self._chain():
            self._select(head)
            if head:
                self._remove(start)
            self._feed(self._target.tokens[start:], start)
        self._select(0)
        self._tokens += self._target.tokens[start:]
        self._hidden.settle()

    def _common(self) -> int:
        """How many pairs still stand; only what the target may have changed is compared."""
        cached = self._target.tokens
        n = min(self._hidden.low, len(self._tokens), len(cached))
        while n < len(self._tokens) and n < len(cached) and self._tokens[n] == cached[n]:
            n += 1
        return n

    def _chain(self) -> Sequence[int]:
        return range(self._n_heads)

    def _feed(self, tokens: Sequence[int], at: int) -> None:
        size = self._params.n_batch
        for i in range(0, len(tokens), size):
            piece = tokens[i : i + size]
            self._decode(piece, at + i, self._hidden.shifted(at + i, at + i + len(piece)), output=False)

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
        self._own = [self._own_row(0)]
        return self._row(0)

    def extend(self, token: int) -> Logits:
        """The logits that follow `token`, drafted behind what `start` and `extend` were given before."""
        if self._n_heads > 1:
            return self._again(token)
        at = len(self._tokens) + len(self._drafted)
        self._drafted.append(token)
        self._decode([token], at, self._own[-1][None], output=True)
        self._own = [self._own_row(0)]
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
        self._own.append(self._own_row(last))
        return self._row(last)

    # -- the library ----------------------------------------------------------------------------

    def _decode(self, tokens: Sequence[int], at: int, rows: Rows, output: bool) -> None:
        """All rows are output or none: architectures differ in what they count hidden rows by, tokens
        or outputs, and only so it is the same."""
        batch, n = self._batch, len(tokens)
        if at + n > self.n_ctx:
            raise EngineError(f"{n} tokens do not fit behind {at} in a context of {self.n_ctx}")
        for i, token in enumerate(tokens):
            self._b_token[i], batch.pos[i], batch.logits[i] = token, at + i, int(output)
        batch.n_tokens = n
        self._b_embd[:n] = rows
        code = self._lib.llama_decode(self._open_handle(), batch)
        if code != 0:
            self._lib.llama_memory_clear(self._memory, True)
            self._tokens.clear()
            raise EngineError(f"the library failed to run the prediction heads (code {code})")

    def _row(self, index: int) -> Logits:
        pointer = self._lib.llama_get_logits(self._handle)
        if not ctypes.cast(pointer, ctypes.c_void_p).value:
            raise EngineError("the library returned no logits")
        rows = np.ctypeslib.as_array(pointer, (index + 1, self.n_vocab))
        row: NDArray[np.float32] = rows[index]
        return row

    def _own_row(self, index: int) -> Rows:
        pointer = self._ext.llama_get_embeddings_nextn_ith(self._handle, index)
        row: Rows = copied(pointer, 1, self._hidden.width)[0]
        return row

    def _select(self, head: int) -> None:
        if self._n_heads > 1:
            self._ext.llama_set_nextn_layer_offset(self._handle, head)

    def _cut(self, length: int) -> None:
        """Only the first `length` pairs stay, nothing drafted."""
        if length < len(self._tokens) or self._drafted:
            self._remove(length)
        del self._tokens[length:]
        self._drafted, self._own = [], []

    def _remove(self, length: int) -> None:
        if not self._lib.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise EngineError(f"the cache of the prediction heads of {self.model.name} cannot be cut")

    def check(self) -> None:
        """Compare with the library's account and with the target's cache. Raises EngineError."""
        held = len(self._tokens) + len(self._drafted)
        positions = int(self._lib.llama_memory_seq_pos_max(self._memory, 0)) + 1
        if positions != held:
            raise EngineError(f"the heads' cache holds {positions} positions, not {held}")
        waiting = len(self._target.tokens) - len(self._tokens)
        if waiting > 0 and not self._hidden.holds(len(self._target.tokens) - waiting):
            raise EngineError(f"the heads wait for {waiting} tokens whose hidden rows are gone")

    def end_cycle(self) -> None:
        """A cycle is done: in debug mode, catch up and compare the two caches position by position."""
        if self._debug:
            self.check()
            self.catch_up()
            self.check()
            if self._tokens != list(self._target.tokens):
                raise EngineError("the heads' cache and the target's hold different tokens")

    # -- closing --------------------------------------------------------------------------------

    def _open_handle(self) -> Any:
        if self._handle is None:
            raise EngineError("these prediction heads have been closed")
        return self._handle

    def close(self) -> None:
        """Free the cache. Safe to call twice."""
        if self._handle is not None:
            self._batch.token = ctypes.POINTER(self._lib.llama_token)()  # ours, not the library's to free
            self._lib.llama_batch_free(self._batch)
            self._lib.llama_free(self._handle)
            self._handle = None

    def __enter__(self) -> Heads:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
