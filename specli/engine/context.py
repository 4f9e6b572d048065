"""The cache of one conversation: decode, and take back."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specli.core.types import Logits
from specli.engine import backend
from specli.engine.branches import Branches
from specli.engine.hidden import Follower, HiddenRows
from specli.engine.layers import open_source
from specli.engine.model import Model
from specli.engine.opening import (
    CACHE_TYPES,
    FLASH,
    MAX_ROWS,
    ContextParams,
    cache_type,
    check_params,
    open_handle,
)
from specli.engine.rollback import Checkpoint, Memory, Rollback
from specli.errors import EngineError

__all__ = [
    "CACHE_TYPES",
    "FLASH",
    "MAX_ROWS",
    "Context",
    "ContextParams",
    "Rollback",
    "cache_type",
    "check_params",
    "debugging",
]


_FEW = 16  # tokens


def debugging() -> bool:
    """Whether caches are compared with the library's own account after every step (for tests)."""
    return os.environ.get("SPECLI_DEBUG_CACHES", "") not in ("", "0")


class Context:
    """A cache over a `Model`, for one sequence. Implements `core.types.LanguageModel`.

    `hidden`: the latest hidden rows, None unless the parameters ask for them.
    """

    def __init__(self, model: Model, params: ContextParams) -> None:
        self.model = model
        self.params = params
        self._lib = backend.load_library()
        self._tokens: list[int] = []
        self._latest_rows = 0  # rows of the latest decode: these can always be dropped
        self._debug = debugging()
        self._follower: Follower | None = None
        self._n_vocab = model.vocab.n_tokens
        self._handle: Any = open_handle(model, params)
        with ExitStack() as owned:  # freed here if what follows fails, else by `close`
            owned.callback(self._lib.llama_free, self._handle)
            self._set_up(owned)
            self._owned = owned.pop_all()

    def _set_up(self, owned: ExitStack) -> None:
        model, params = self.model, self.params
        self._n_ctx = int(self._lib.llama_n_ctx(self._handle))
        self.snapshots = int(self._lib.llama_n_rs_seq(self._handle))
        self.rollback = self._rollback_kind()
        self.memory = Memory(
            self._lib,
            self._handle,
            self.rollback,
            model.n_swa,
            params.n_ubatch,
            self.snapshots,
            params.branches,
        )
        self._max_rows = params.max_rows
        if self.rollback is Rollback.SNAPSHOT:
            self._max_rows = min(self._max_rows, self.snapshots + 1)
        self._source = open_source(self._handle, model, params.hidden, params.layers)
        keep = 256 if params.layers else 1024  # such rows are some times as wide
        self.hidden = None if self._source is None else HiddenRows(self._source.width, keep)
        n = params.n_batch
        self._batch = self._lib.llama_batch_init(n, 0, 1)
        owned.callback(self._lib.llama_batch_free, self._batch)
        self._b_token = np.ctypeslib.as_array(self._batch.token, (n,))
        self._b_pos = np.ctypeslib.as_array(self._batch.pos, (n,))
        self._b_logits = np.ctypeslib.as_array(self._batch.logits, (n,))
        np.ctypeslib.as_array(self._batch.n_seq_id, (n,))[:] = 1
        for i in range(n):
            self._batch.seq_id[i][0] = 0
        self._tree = Branches(self._lib, self.memory, params.branches, params.max_rows)
        owned.callback(self._tree.close)
        self._rows_at = 0
        self._rows: Logits = np.empty((0, self._n_vocab), np.float32)

    def _rollback_kind(self) -> Rollback:
        if self.snapshots:
            return Rollback.SNAPSHOT
        if self.model.is_recurrent:
            return Rollback.CHECKPOINT
        windowed = self.model.n_swa > 0 and not self.params.swa_full
        return Rollback.WINDOW if windowed else Rollback.CUT

    def follow(self, follower: Follower) -> None:
        """`follower` is told of everything decoded, and reads `hidden`."""
        self._follower = follower

    # -- LanguageModel --------------------------------------------------------------------------

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    @property
    def n_vocab(self) -> int:
        return self._n_vocab

    @property
    def n_ctx(self) -> int:
        return self._n_ctx

    @property
    def max_rows(self) -> int:
        return self._max_rows

    def decode(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        """See `LanguageModel.decode`. Raises EngineError if the library fails; `tokens` then still says
        what the cache holds, a prefix of what it was to hold."""
        n, size = len(tokens), self.params.n_batch
        if not n or not 0 <= rows <= min(n, self._max_rows):
            raise EngineError(f"{rows} rows of {n} tokens asked for; at most {self._max_rows} at once")
        if len(self._tokens) + n > self._n_ctx:
            raise EngineError(
                f"{n} tokens do not fit behind {len(self._tokens)} in a context of {self._n_ctx}"
            )
        self._check_known(tokens)
        self._drop_tree()
        if self.memory.wants_save(len(self._tokens), rows):
            self.memory.save(len(self._tokens), self._last_hidden())
        self._latest_rows = 0
        head = n - rows if n > size else 0  # all rows in one batch, the last
        for at in range(0, head, size):
            self._decode_batch(tokens[at : min(at + size, head)], 0)
        for at in range(head, n, size):
            self._decode_batch(tokens[at : at + size], min(rows, n - at))
        self.memory.asked(rows)
        self._latest_rows = rows
        if self._debug:
            self.check()
        return self._logits(rows) if rows else self._rows[:0]

    def _decode_batch(self, tokens: Sequence[int], rows: int) -> None:
        n, at = len(tokens), len(self._tokens)
        batch = self._batch
        if n <= _FEW:  # one by one through the pointers: cheaper than four numpy calls
            token, pos, logits, first = batch.token, batch.pos, batch.logits, n - rows
            for i in range(n):
                token[i], pos[i], logits[i] = tokens[i], at + i, i >= first
        else:
            self._b_token[:n] = tokens
            self._b_pos[:n] = range(at, at + n)
            self._b_logits[: n - rows] = 0
            self._b_logits[n - rows : n] = 1
        batch.n_tokens = n
        code = self._lib.llama_decode(self.handle, batch)
        if code != 0:
            self._recover(at, n)
            raise EngineError(_DECODE_ERRORS.get(code, f"the library failed to decode (code {code})"))
        self.memory.after(at, n)
        self._tokens.extend(tokens)
        if self._source is not None and self.hidden is not None:
            self.hidden.append(self._source.read(n))
            if self._follower is not None:
                self._follower.decoded()

    def _recover(self, held: int, n: int) -> None:
        """After a failed decode of `n` tokens: what it left behind goes, and what cannot be trusted too."""
        self.memory.after(held, n)
        kept = self.memory.cut(held + n, held)
        self._forget_from(kept.length, kept.hidden)

    def _logits(self, rows: int) -> Logits:
        pointer = self._lib.llama_get_logits(self._handle)
        if not pointer:
            raise EngineError("the library returned no logits")
        address = ctypes.addressof(pointer.contents)
        if address != self._rows_at:
            shape = (self.params.max_rows, self._n_vocab)
            self._rows_at, self._rows = address, np.ctypeslib.as_array(pointer, shape)
        return self._rows[:rows]

    def _check_known(self, tokens: Sequence[int]) -> None:
        outside = next((t for t in tokens if not 0 <= t < self._n_vocab), None)
        if outside is not None:
            raise EngineError(f"token {outside} is outside the vocabulary of {self._n_vocab}")

    def rewind(self, length: int) -> int:
        """See `LanguageModel.rewind`: keep at most `length` tokens, return how many are kept."""
        self._drop_tree()
        held = len(self._tokens)
        length = min(max(0, length), held)
        lost = not self.params.steady and self._lacks_row(length)
        if length == held and not lost:
            self.memory.end_cycle(held)
            return held
        wanted = self._tokens[:length]
        exactly = length > held - self._latest_rows
        if lost:
            length -= 1  # decoding this one again is what brings its hidden row back
        kept = self.memory.cut(held, length)
        self._forget_from(kept.length, kept.hidden)
        if exactly:
            for at in range(kept.length, len(wanted), self.params.n_batch):
                self._decode_batch(wanted[at : at + self.params.n_batch], 0)
        self._latest_rows = 0
        if self._debug:
            self.check()
        return len(self._tokens)

    def _forget_from(self, length: int, hidden: Any) -> None:
        del self._tokens[length:]
        if self.hidden is not None:
            if hidden is None and self.params.steady and self._lacks_row(length):
                hidden = np.zeros(self.hidden.width, np.float32)
            self.hidden.cut(length, hidden)

    def _lacks_row(self, length: int) -> bool:
        """Whether the hidden row of the last of `length` tokens is wanted, and no longer held."""
        return self.hidden is not None and length > 0 and not self.hidden.holds(length - 1)

    def _last_hidden(self) -> Any:
        return None if self.hidden is None else self.hidden.row(len(self._tokens) - 1)

    # -- TreeModel ------------------------------------------------------------------------------

    def branch(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """See `TreeModel.branch`. Raises EngineError if the library fails; the tree is then dropped."""
        n, base = len(tokens), len(self._tokens)
        if not 1 <= n <= self._max_rows or len(parents) != n:
            raise EngineError(f"{n} nodes of a tree at once; at most {self._max_rows}")
        if base + self._tree.size + n > self._n_ctx:
            raise EngineError(f"{n} nodes do not fit behind {base} tokens in a context of {self._n_ctx}")
        if self.rollback is not Rollback.CUT or self.hidden is not None or self.params.layers:
            raise EngineError(f"the cache of {self.model.name} cannot hold a tree")
        self._check_known(tokens)
        try:
            code = self._tree.decode(self.handle, base, tokens, parents)
            if code != 0:
                raise EngineError(_DECODE_ERRORS.get(code, f"the library failed to decode (code {code})"))
        except EngineError:
            self._tree.keep(base, ())
            raise
        return self._logits(n)

    def keep(self, path: Sequence[int]) -> None:
        """See `TreeModel.keep`."""
        self._tokens += self._tree.keep(len(self._tokens), path)
        self._latest_rows = 0
        if self._debug:
            self.check()

    def _drop_tree(self) -> None:
        if self._tree.size:
            self._tree.keep(len(self._tokens), ())

    # -- probing and checking -------------------------------------------------------------------

    def rollback_problem(self) -> str | None:
        """Why rejected drafts cannot be taken back here, or only at a loss; None if they can.

        Tries it on a few tokens, before the first prompt: the cache must be empty, and is again.
        """
        name = self.model.name
        word = next((t for t in range(self._n_vocab) if not self.model.vocab.is_control(t)), 0)
        try:
            self.decode([word, word], rows=0)
            self.decode([word, word], rows=min(2, self._max_rows))
            if self.rollback is Rollback.CHECKPOINT:
                state, weights = self.memory.state_bytes(), self.model.size_bytes
                if state > weights:  # to save and restore it moves more than a decode reads
                    return (
                        f"{name} keeps a recurrent state of {state >> 20} MiB that can only be saved and "
                        f"restored whole, which costs more than drafts gain"
                    )
            if self.rollback is not Rollback.CHECKPOINT:
                # with snapshots no cut may reach the whole latest decode
                if self._max_rows > 1 and self.memory.cut(4, 3).length != 3:
                    return f"the cache of {name} cannot drop rejected tokens (its architecture does not allow it)"
            elif self.memory.cut(4, 3).length != 2:
                return f"the recurrent state of {name} can be neither cut nor restored"
            return None
        except EngineError as error:
            return f"{name}: {error}"
        finally:
            self.clear()

    def clear(self) -> None:
        """Empty the cache."""
        self.memory.clear()
        self._tree.forget()
        self._forget_from(0, None)
        self._latest_rows = 0

    @property
    def follower(self) -> Follower | None:
        """Who is told of everything decoded."""
        return self._follower

    def refill(self, tokens: Sequence[int], data: NDArray[np.uint8], saves: Sequence[Checkpoint]) -> bool:
        """Hold `tokens` again from what `Memory.whole` and `Memory.saves` gave then, in a context of the same
        parameters; hidden rows are not among it. False, and the cache is empty, if the library does not take
        it."""
        self.clear()
        if len(tokens) > self._n_ctx or not self.memory.refill(len(tokens), data, saves):
            return False
        self._tokens = list(tokens)
        return True

    def check(self) -> None:
        """Compare what is believed to be cached with the library's account. Raises EngineError."""
        positions = self.memory.positions
        if positions != len(self._tokens):
            raise EngineError(
                f"{self.model.name}: the cache holds {positions} positions, not {len(self._tokens)}"
            )
        if self.hidden is not None and self.hidden.end != positions:
            raise EngineError(f"{self.model.name}: hidden rows end at {self.hidden.end}, not {positions}")

    # -- closing --------------------------------------------------------------------------------

    @property
    def handle(self) -> Any:
        """The library's pointer; an error once closed."""
        if self._handle is None:
            raise EngineError("this context has been closed")
        return self._handle

    def close(self) -> None:
        """Free the cache. Safe to call twice."""
        self._owned.close()
        self._handle = None

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_DECODE_ERRORS = {
    1: "the cache has no room for these tokens; try a smaller prompt or a larger --ctx-size",
    2: "decoding was aborted",
    -1: "the library refused a batch of tokens",
}
