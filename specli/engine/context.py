"""The cache of one conversation: decode, and take back.

This is the one place that rolls a cache back, and it knows what each kind of cache can do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any

import numpy as np

from specli.core.types import Logits
from specli.engine import backend
from specli.engine.model import Model
from specli.errors import EngineError, MemoryShortage, UsageError

FLASH = {"auto": -1, "off": 0, "on": 1}
MAX_ROWS = 64
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


def cache_type(name: str) -> int:
    """The library's number for one of CACHE_TYPES."""
    return int(getattr(backend.load_library(), f"GGML_TYPE_{name.upper()}"))


class Rollback(Enum):
    """How a cache drops its latest tokens."""

    CUT = "cut"  # plain attention: any suffix goes
    WINDOW = "window"  # sliding window: as deep as the window is still whole
    SNAPSHOT = "snapshot"  # recurrent: within the latest decode, by the library's snapshots
    CHECKPOINT = "checkpoint"  # recurrent without snapshots: saved before a draft, restored, replayed


@dataclass(frozen=True, slots=True)
class ContextParams:
    """`n_ctx` tokens of cache; prompts in pieces of `n_batch`, computed `n_ubatch` at a time;
    `max_rows` logits of one decode; `threads` for one token, `threads_batch` for more;
    `flash_attn` auto, on or off; `type_k`, `type_v` of CACHE_TYPES; `swa_full`: the sliding-window
    cache keeps everything; `snapshots`: recurrent states kept for rollback."""

    n_ctx: int = 4096
    n_batch: int = 512
    n_ubatch: int = 512
    max_rows: int = 64
    threads: int = 1
    threads_batch: int = 1
    flash_attn: str = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    swa_full: bool = True
    snapshots: int = 0


class Context:
    """A cache over a `Model`, for one sequence. Implements `core.types.LanguageModel`."""

    def __init__(self, model: Model, params: ContextParams) -> None:
        self.model = model
        self.params = params
        self._lib = backend.load_library()
        self._handle: Any = None
        self._tokens: list[int] = []
        self._last_batch = 0  # where the latest decode began
        self._checkpoint: _Checkpoint | None = None
        self._handle = self._open(model, params)
        self._memory = self._lib.llama_get_memory(self._handle)
        self._n_vocab = model.vocab.n_tokens
        self._n_ctx = int(self._lib.llama_n_ctx(self._handle))
        self.snapshots = int(self._lib.llama_n_rs_seq(self._handle))
        self.rollback = self._rollback_kind()
        self._max_rows = params.max_rows
        if self.rollback is Rollback.SNAPSHOT:
            self._max_rows = min(self._max_rows, self.snapshots + 1)
        self._batch = self._lib.llama_batch_init(params.n_batch, 0, 1)
        n = params.n_batch
        self._b_token = np.ctypeslib.as_array(self._batch.token, (n,))
        self._b_pos = np.ctypeslib.as_array(self._batch.pos, (n,))
        self._b_logits = np.ctypeslib.as_array(self._batch.logits, (n,))
        np.ctypeslib.as_array(self._batch.n_seq_id, (n,))[:] = 1
        for i in range(n):
            self._batch.seq_id[i][0] = 0
        self._rows_at = 0
        self._rows: Logits = np.empty((0, self._n_vocab), np.float32)

    def _open(self, model: Model, params: ContextParams) -> Any:
        check_params(model, params)
        p = self._lib.llama_context_default_params()
        p.n_ctx, p.n_seq_max = params.n_ctx, 1
        p.n_batch, p.n_ubatch = params.n_batch, params.n_ubatch
        p.n_outputs_max = min(params.n_batch, params.max_rows)
        p.n_threads, p.n_threads_batch = params.threads, params.threads_batch
        p.flash_attn_type = FLASH[params.flash_attn]
        p.type_k, p.type_v = cache_type(params.type_k), cache_type(params.type_v)
        p.swa_full = params.swa_full
        p.n_rs_seq = params.snapshots
        handle = self._lib.llama_init_from_model(model.handle, p)
        if not handle:
            reason = backend.library_reason()
            said = f": {reason}" if reason else ""
            raise MemoryShortage(
                f"{model.path.name}: no context of {params.n_ctx} tokens can be opened{said}; "
                "try a smaller --ctx-size or another --cache-type-k/v"
            )
        return handle

    def _rollback_kind(self) -> Rollback:
        if self.model.is_recurrent:
            return Rollback.SNAPSHOT if self.snapshots else Rollback.CHECKPOINT
        windowed = self.model.n_swa > 0 and not self.params.swa_full
        return Rollback.WINDOW if windowed else Rollback.CUT

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
        """See `LanguageModel.decode`. Raises EngineError if the library fails; the cache then holds
        what it held before."""
        n = len(tokens)
        if not n or not 0 <= rows <= min(n, self._max_rows):
            raise EngineError(f"{rows} rows of {n} tokens asked for; at most {self._max_rows} at once")
        if len(self._tokens) + n > self._n_ctx:
            raise EngineError(f"{n} tokens do not fit behind {len(self._tokens)} in a context of {self._n_ctx}")
        if self.rollback is Rollback.CHECKPOINT and rows > 1:
            self._checkpoint = self._save()
        size = self.params.n_batch
        first_row = n - rows
        for at in range(0, n, size):
            piece = tokens[at : at + size]
            if rows and 0 < at + len(piece) - first_row < min(rows, at + len(piece)):
                raise EngineError(f"{rows} rows do not lie within one batch of {size}")
            self._decode_batch(piece, max(0, min(len(piece), at + len(piece) - first_row)))
        return self._logits(rows) if rows else self._rows[:0]

    def _decode_batch(self, tokens: Sequence[int], rows: int) -> None:
        n, at = len(tokens), len(self._tokens)
        self._b_token[:n] = tokens
        if n and (int(self._b_token[:n].min()) < 0 or int(self._b_token[:n].max()) >= self._n_vocab):
            raise EngineError(f"a token outside the vocabulary of {self._n_vocab} was to be decoded")
        self._b_pos[:n] = range(at, at + n)
        self._b_logits[: n - rows] = 0
        self._b_logits[n - rows : n] = 1
        self._batch.n_tokens = n
        code = self._lib.llama_decode(self._handle, self._batch)
        if code != 0:
            self._lib.llama_memory_seq_rm(self._memory, 0, at, -1)
            raise EngineError(_DECODE_ERRORS.get(code, f"the library failed to decode (code {code})"))
        self._last_batch = at
        self._tokens.extend(tokens)

    def _logits(self, rows: int) -> Logits:
        pointer = self._lib.llama_get_logits(self._handle)
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        if not address:
            raise EngineError("the library returned no logits")
        if address != self._rows_at:
            shape = (self.params.max_rows, self._n_vocab)
            self._rows_at, self._rows = address, np.ctypeslib.as_array(pointer, shape)
        return self._rows[:rows]

    def rewind(self, length: int) -> int:
        """See `LanguageModel.rewind`: keep at most `length` tokens, return how many are kept."""
        length = max(0, length)
        if length >= len(self._tokens):
            return len(self._tokens)
        kept = getattr(self, f"_rewind_{self.rollback.value}")(length)
        del self._tokens[kept:]
        return int(kept)

    def _rewind_cut(self, length: int) -> int:
        if not self._lib.llama_memory_seq_rm(self._memory, 0, length, -1):
            return self._forget()
        return length

    def _rewind_window(self, length: int) -> int:
        lowest = int(self._lib.llama_memory_seq_pos_min(self._memory, 0))
        if lowest > max(0, length - self.model.n_swa):  # the window before the cut has gaps
            return self._forget()
        return self._rewind_cut(length)

    def _rewind_snapshot(self, length: int) -> int:
        # The library also says yes to cuts that reach the whole latest decode, and is wrong then.
        if length <= self._last_batch or len(self._tokens) - length > self.snapshots:
            return self._forget()
        kept = self._rewind_cut(length)
        self._last_batch = kept  # a snapshot serves once
        return kept

    def _rewind_checkpoint(self, length: int) -> int:
        saved = self._checkpoint
        if saved is None or saved.length > length:
            return self._forget()
        replay = self._tokens[saved.length : length]
        self._restore(saved)
        del self._tokens[saved.length :]
        if replay:
            self._decode_batch(replay, 0)
        return len(self._tokens)

    def _forget(self) -> int:
        """Empty the cache; the caller decodes again from the start."""
        self._lib.llama_memory_clear(self._memory, True)
        self._checkpoint = None
        self._last_batch = 0
        return 0

    # -- checkpoints ----------------------------------------------------------------------------

    _PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: what cannot be cut, nothing else

    def _save(self) -> _Checkpoint:
        size = self._lib.llama_state_seq_get_size_ext(self._handle, 0, self._PARTIAL)
        data = (ctypes.c_uint8 * size)()
        if self._lib.llama_state_seq_get_data_ext(self._handle, data, size, 0, self._PARTIAL) != size:
            raise EngineError("the recurrent state could not be saved before drafting")
        return _Checkpoint(len(self._tokens), data)

    def _restore(self, saved: _Checkpoint) -> None:
        size = len(saved.data)
        if self._lib.llama_state_seq_set_data_ext(self._handle, saved.data, size, 0, self._PARTIAL) != size:
            raise EngineError("the recurrent state could not be restored after a rejected draft")
        self._lib.llama_memory_seq_rm(self._memory, 0, saved.length, -1)
        self._last_batch = saved.length

    # -- closing --------------------------------------------------------------------------------

    @property
    def handle(self) -> Any:
        """The library's pointer; an error once closed."""
        if self._handle is None:
            raise EngineError("this context has been closed")
        return self._handle

    def close(self) -> None:
        """Free the cache. Safe to call twice."""
        if self._handle is not None:
            self._lib.llama_batch_free(self._batch)
            self._lib.llama_free(self._handle)
            self._handle = None

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True, eq=False)
class _Checkpoint:
    """Recurrent state as it was when the cache held `length` tokens."""

    length: int
    data: Any


_DECODE_ERRORS = {
    1: "the cache has no room for these tokens; try a smaller prompt or a larger --ctx-size",
    2: "decoding was aborted",
    -1: "the library refused a batch of tokens",
}


def check_params(model: Model, params: ContextParams) -> None:
    """Refuse what the library would abort on. Raises UsageError naming the option."""
    if params.n_ctx < 1:
        raise UsageError(f"--ctx-size {params.n_ctx}: a context needs at least one token")
    if params.flash_attn not in FLASH:
        raise UsageError(f"--flash-attn {params.flash_attn}: auto, on or off")
    for option, name in (("--cache-type-k", params.type_k), ("--cache-type-v", params.type_v)):
        if name not in CACHE_TYPES:
            raise UsageError(f"{option} {name}: one of {', '.join(CACHE_TYPES)}")
    if params.type_v not in ("f32", "f16", "bf16") and params.flash_attn == "off":
        raise UsageError(f"--cache-type-v {params.type_v} needs flash attention; leave out --flash-attn off")
    if params.max_rows > params.n_ubatch or params.n_ubatch > params.n_batch:
        raise EngineError("rows ≤ n_ubatch ≤ n_batch must hold")
