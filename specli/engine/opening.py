"""How a context is opened: its parameters, and what the library would abort on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specli.engine import backend
from specli.engine.gguf import Header
from specli.engine.gguf_types import TENSOR_TYPES
from specli.engine.model import Model
from specli.errors import EngineError, MemoryShortage, UsageError
from specli.interrupts import held

FLASH = {"auto": -1, "off": 0, "on": 1}
MAX_ROWS = 64
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_FLOATS = ("f32", "f16", "bf16")
CELLS = 256
"""A context has a multiple of so many tokens: the library rounds up."""
_BLOCK = 32  # values in a block of every quantised type above


def cache_type(name: str) -> int:
    """The library's number for one of CACHE_TYPES."""
    return next(number for number, kind in TENSOR_TYPES.items() if kind.name == name.upper())


@dataclass(frozen=True, slots=True)
class ContextParams:
    """`n_ctx` tokens of cache; prompts in pieces of `n_batch`, computed `n_ubatch` at a time;
    `max_rows` logits of one decode; `threads` for one token, `threads_batch` for more;
    `flash_attn` auto, on or off; `type_k`, `type_v` of CACHE_TYPES; `swa_full`: the sliding-window
    cache keeps everything; `snapshots`: recurrent states kept for rollback; `hidden`: hand out the
    hidden rows that prediction heads draft from; `layers`: hand out the inputs of these layers instead, side
    by side; `branches`: of a tree of tokens, 1 for none; `steady`: what a rewind keeps does not depend on
    whether such rows are handed out, one that is gone is zeros then."""

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
    hidden: bool = False
    layers: tuple[int, ...] = ()
    branches: int = 1
    steady: bool = False


def open_handle(model: Model, params: ContextParams, heads_of: Any = None, draft_of: Any = None) -> Any:
    """The library's pointer to a new context. `heads_of`: the pointer of the target's context, for a
    context that runs the model's prediction heads instead of the model; `draft_of`: likewise, for a draft
    that may borrow the target's embeddings and output layer.

    Raises UsageError for options the library would abort on, MemoryShortage if it opens no context.
    """
    check_params(model.header, params)
    lib = backend.load_library()
    p = lib.llama_context_default_params()
    # the library rounds a context up, but bounds its batches by the number asked for
    p.n_ctx, p.n_seq_max = -(-params.n_ctx // CELLS) * CELLS, params.branches
    p.kv_unified = params.branches > 1  # branches share the cells of what they have in common
    p.n_batch, p.n_ubatch = params.n_batch, params.n_ubatch
    p.n_outputs_max = min(params.n_batch, max(params.max_rows, params.branches))
    p.n_threads, p.n_threads_batch = params.threads, params.threads_batch
    p.flash_attn_type = FLASH[params.flash_attn]
    p.type_k, p.type_v = cache_type(params.type_k), cache_type(params.type_v)
    p.swa_full = params.swa_full
    p.n_rs_seq = params.snapshots
    if heads_of is not None:
        p.ctx_type, p.ctx_other = lib.LLAMA_CONTEXT_TYPE_MTP, heads_of
    elif draft_of is not None:
        p.ctx_other = draft_of
    handle = None
    try:
        with held():
            handle = lib.llama_init_from_model(model.handle, p)
    except BaseException:  # what a signal raised that came meanwhile
        if handle:
            lib.llama_free(handle)
        raise
    if not handle:
        reason = backend.library_reason()
        said = f": {reason}" if reason else ""
        raise MemoryShortage(
            f"{model.path.name}: no context of {params.n_ctx} tokens can be opened{said}; "
            "try a smaller --ctx-size or another --cache-type-k/v"
        )
    return handle


def check_params(header: Header, params: ContextParams) -> None:
    """Refuse what the library would abort on. Raises UsageError naming the option."""
    if params.n_ctx < 1:
        raise UsageError(f"--ctx-size {params.n_ctx}: a context needs at least one token")
    if params.flash_attn not in FLASH:
        raise UsageError(f"--flash-attn {params.flash_attn}: auto, on or off")
    for option, name, length in (
        ("--cache-type-k", params.type_k, "key_length"),
        ("--cache-type-v", params.type_v, "value_length"),
    ):
        if name not in CACHE_TYPES:
            raise UsageError(f"{option} {name}: one of {', '.join(CACHE_TYPES)}")
        head = _head_size(header, length)
        if name not in _FLOATS and head % _BLOCK:
            raise UsageError(
                f"{option} {name} stores blocks of {_BLOCK} values, which do not fit into the heads of "
                f"{header.path.name} ({head} values each); take one of {', '.join(_FLOATS)}"
            )
    if params.type_v not in _FLOATS and params.flash_attn == "off":
        raise UsageError(f"--cache-type-v {params.type_v} needs flash attention; leave out --flash-attn off")
    if params.max_rows > params.n_ubatch or params.n_ubatch > params.n_batch:
        raise EngineError("rows ≤ n_ubatch ≤ n_batch must hold")
    if params.branches > params.n_batch:
        raise EngineError(f"{params.branches} branches do not fit into batches of {params.n_batch}")
    if params.snapshots and params.n_ubatch <= params.snapshots + 1:
        raise EngineError(f"n_ubatch must exceed {params.snapshots} snapshots by more than one")


def _head_size(header: Header, length: str) -> int:
    """Values of one attention head's key or value; 0 where the file does not say it in one number."""
    arch = header.architecture
    heads = header.integer(f"{arch}.attention.head_count") or 0
    width = header.integer(f"{arch}.embedding_length") or 0
    return header.integer(f"{arch}.attention.{length}") or (width // heads if heads else 0)


def snapshot_rows(header: Header, free: int, most: int = 16) -> int:
    """How many rows a verify decode may have where every row costs a copy of the recurrent state: `most`,
    or fewer, at least 2, if the copies would take more than a quarter of `free` bytes."""
    rows = most
    while rows > 2 and rows * state_bytes(header) > free // 4:
        rows //= 2
    return rows


def state_bytes(header: Header) -> int:
    """Bytes of one recurrent state, estimated from the file; 0 where it does not say enough."""
    arch = header.architecture

    def size(name: str) -> int:
        return header.integer(f"{arch}.ssm.{name}") or 0

    inner, state = size("inner_size"), size("state_size")
    conv = max(0, size("conv_kernel") - 1) * (inner + 2 * size("group_count") * state)
    blocks = (header.block_count or 0) - header.nextn_predict_layers
    interval = header.integer(f"{arch}.full_attention_interval") or 0
    return 4 * (inner * state + conv) * (blocks - (blocks // interval if interval else 0))
