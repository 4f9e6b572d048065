"""A small cache beside the target's, in step with it: what drafts from the target's hidden rows.

The target's rows say what it has computed; whoever follows them never looks at the target's weights.
Nothing is told to a side cache but "decoded": what changed in the target's cache since is found by
comparing tokens when the next draft begins. Where it cannot keep up it falls silent: the target goes on.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from specli.core.types import Logits
from specli.engine import backend
from specli.engine.context import Context, ContextParams, debugging
from specli.engine.hidden import HiddenRows, Rows, copied, extension
from specli.engine.model import Model
from specli.engine.rollback import put_state, state_of
from specli.errors import EngineError

Self = TypeVar("Self", bound="SideCache")


class SideCache(ABC):
    """The common part. A subclass opens `_handle` with `_open` and says how its cache is filled.

    `width`: values of one row that goes in beside a token. `problem`: why it follows no more. Close before the
    target's context.
    """

    BACKLOG = 512  # tokens that may wait to be caught up with
    what = "the draft"

    def __init__(self, target: Context, model: Model) -> None:
        """Raises EngineError unless the target hands out hidden rows and is empty."""
        if target.hidden is None or target.tokens:
            raise EngineError(f"{self.what} needs the target's hidden rows from the first token on")
        self.model = model
        self._target = target
        self._hidden: HiddenRows = target.hidden
        self._lib, self._ext = backend.load_library(), extension()
        self._tokens: list[int] = []  # the target's tokens that the cache stands for
        self._drafted: list[int] = []  # what it holds behind them
        self.problem: str | None = None
        self._debug = debugging()
        self._handle: Any = None
        self.n_vocab = model.vocab.n_tokens

    def _open(self, handle: Any, params: ContextParams, width: int) -> None:
        self._handle, self._params = handle, params
        self._memory = self._lib.llama_get_memory(handle)
        n = params.n_batch
        self._batch = self._lib.llama_batch_init(n, width, 1)
        self._b_token = (self._lib.llama_token * n)()
        self._batch.token = self._b_token  # the library allocates rows or tokens, never both
        self._b_embd = np.ctypeslib.as_array(self._batch.embd, (n, width))
        np.ctypeslib.as_array(self._batch.n_seq_id, (n,))[:] = 1
        for i in range(n):
            self._batch.seq_id[i][0] = 0
        self._target.follow(self)

    @property
    def n_ctx(self) -> int:
        """Most tokens the cache can hold."""
        return self._target.n_ctx

    # -- in step with the target ----------------------------------------------------------------

    def decoded(self) -> None:
        """The target has decoded more. Keeps the backlog short, so that no hidden row is lost."""
        if self._waiting >= self.BACKLOG:
            self._keeps_up()

    @property
    def _waiting(self) -> int:
        """Tokens whose hidden rows are still needed. What the target dropped and decoded anew is among them,
        however many tokens the cache holds."""
        return len(self._target.tokens) - min(len(self._tokens), self._hidden.low)

    def _keeps_up(self) -> bool:
        """Catch up; False if that cannot be done, now and from now on. An answer does not end for it."""
        if self.problem is None:
            try:
                self.catch_up()
            except EngineError as error:
                self.problem = str(error)
        return self.problem is None

    def catch_up(self) -> None:
        """Bring the cache to stand for every token in the target's. Raises EngineError where it cannot."""
        if self.problem is not None:
            raise EngineError(self.problem)
        start = self._common()
        self._cut(start)
        self._feed(start)
        self._tokens += self._target.tokens[start:]
        self._hidden.settle()

    # -- put aside ------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """Tells this cache from those of other models."""
        return f"{self.what} {self.model.header.fingerprint}"

    def whole(self) -> tuple[NDArray[np.uint8], ...]:
        """See `Follower.whole`. Nothing where it has fallen silent."""
        return (state_of(self._lib, self._open_handle()),) if self._keeps_up() else ()

    def refill(self, tokens: Sequence[int], parts: Sequence[NDArray[np.uint8]]) -> bool:
        """See `Follower.refill`."""
        self._lib.llama_memory_clear(self._memory, True)
        self._tokens, self._drafted = [], []
        if len(parts) != 1 or not put_state(self._lib, self._open_handle(), parts[0]):
            return False
        self._tokens = list(tokens)
        held = int(self._lib.llama_memory_seq_pos_max(self._memory, 0)) + 1
        if held != self._length(len(tokens)):
            self._lib.llama_memory_clear(self._memory, True)
            self._tokens = []
            return False
        self._hidden.settle()
        return True

    @abstractmethod
    def _feed(self, start: int) -> None:
        """Put in what the target's tokens from `start` on bring."""

    def _length(self, n_tokens: int) -> int:
        """Positions that stand for the first `n_tokens` tokens."""
        return n_tokens

    def _common(self) -> int:
        """How many tokens still stand; only what the target may have changed is compared."""
        cached = self._target.tokens
        n = min(self._hidden.low, len(self._tokens), len(cached))
        while n < len(self._tokens) and n < len(cached) and self._tokens[n] == cached[n]:
            n += 1
        return n

    def _cut(self, length: int) -> None:
        """Only what stands for the first `length` tokens stays, nothing drafted, and nothing that an interrupt
        kept from being counted."""
        self._remove(self._length(length))
        del self._tokens[length:]
        self._drafted = []

    def _remove(self, length: int) -> None:
        if not self._lib.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise EngineError(f"the cache of {self.what} of {self.model.name} cannot be cut")

    # -- the library ----------------------------------------------------------------------------

    def _decode(self, tokens: Sequence[int], at: int, rows: Rows, output: bool) -> None:
        """Tokens with a row beside each. All rows are output or none: architectures differ in what they
        count hidden rows by, tokens or outputs, and only so it is the same."""
        batch, n = self._batch, len(tokens)
        self._require_room(at, n)
        for i, token in enumerate(tokens):
            self._b_token[i], batch.pos[i], batch.logits[i] = token, at + i, int(output)
        batch.n_tokens = n
        self._b_embd[:n] = rows
        self._done(self._lib.llama_decode(self._open_handle(), batch))

    def _require_room(self, at: int, n: int) -> None:
        if at + n > self.n_ctx:
            raise EngineError(f"{n} tokens do not fit behind {at} in a context of {self.n_ctx}")

    def _done(self, code: int) -> None:
        if code != 0:
            self._lib.llama_memory_clear(self._memory, True)
            self._tokens.clear()
            self._drafted = []
            raise EngineError(f"the library failed to run {self.what} (code {code})")

    def _row(self, index: int) -> Logits:
        row: NDArray[np.float32] = self._rows(index + 1)[index]
        return row

    def _rows(self, n: int) -> Logits:
        pointer = self._lib.llama_get_logits(self._handle)
        if not ctypes.cast(pointer, ctypes.c_void_p).value:
            raise EngineError("the library returned no logits")
        return np.ctypeslib.as_array(pointer, (n, self.n_vocab))

    def _own_row(self, index: int, width: int) -> Rows:
        """The hidden row that the drafting network itself gave for an output row."""
        pointer = self._ext.llama_get_embeddings_nextn_ith(self._handle, index)
        row: Rows = copied(pointer, 1, width)[0]
        return row

    # -- checking -------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare with the library's account and with the target's cache. Raises EngineError."""
        held = self._length(len(self._tokens)) + len(self._drafted)
        positions = int(self._lib.llama_memory_seq_pos_max(self._memory, 0)) + 1
        if positions != held:
            raise EngineError(f"the cache of {self.what} holds {positions} positions, not {held}")
        waiting = self._waiting
        if waiting > 0 and not self._hidden.holds(len(self._target.tokens) - waiting):
            raise EngineError(f"{self.what}: {waiting} tokens wait whose hidden rows are gone")

    def end_cycle(self) -> None:
        """A cycle is done: in debug mode, catch up and compare the two caches position by position."""
        if self._debug and self.problem is None:
            self.check()
            if not self._keeps_up():
                return
            self.check()
            if self._tokens != list(self._target.tokens):
                raise EngineError(f"the cache of {self.what} and the target's hold different tokens")

    # -- closing --------------------------------------------------------------------------------

    def _open_handle(self) -> Any:
        if self._handle is None:
            raise EngineError(f"{self.what} has been closed")
        return self._handle

    def close(self) -> None:
        """Free the cache. Safe to call twice."""
        if self._handle is not None:
            self._batch.token = ctypes.POINTER(self._lib.llama_token)()  # ours, not the library's to free
            self._lib.llama_batch_free(self._batch)
            self._lib.llama_free(self._handle)
            self._handle = None

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
