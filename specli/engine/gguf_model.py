"""Whether a model file's metadata is such that llama.cpp will not end the process over it.

The library asserts many things of a file instead of refusing it. These are the conditions that
damaged and hostile files were found to break; what else there may be, a trial run in a child process
finds out (see `admission`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from specli.engine.gguf import ArrayInfo, Header, Scalar
from specli.engine.gguf_cursor import shown
from specli.errors import ModelFileError

_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
_MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
_MAX_TOKENS = 1 << 21  # the largest vocabularies have some 300 thousand
_STRING = 8
_BYTE = 6  # LLAMA_TOKEN_TYPE_BYTE
_PER_LAYER = (
    "attention.head_count",
    "attention.head_count_kv",
    "feed_forward_length",
    "expert_used_count",
)
_EPSILONS = (
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "attention.group_norm_epsilon",
)


def check_model(header: Header) -> None:
    """Raises ModelFileError, in one line, for a model that llama.cpp would abort on. Reads the header,
    and the vocabulary from the file."""
    check_vocabulary(header)
    for problem in _problems(header):
        raise _refusal(header, problem)
    for problem in _bytes(header):
        raise _refusal(header, problem)


def check_vocabulary(header: Header) -> None:
    """The same for loading the vocabulary alone."""
    for problem in _vocabulary(header):
        raise _refusal(header, problem)


def _refusal(header: Header, problem: str) -> ModelFileError:
    return ModelFileError(f"{shown(header.path)}: not a model that llama.cpp can load: {shown(problem)}")


# -- the model -------------------------------------------------------------------------------------


def _problems(header: Header) -> Iterator[str]:
    arch = header.architecture
    if not arch:
        yield "it names no architecture (general.architecture)"
    layers = header.block_count
    if layers is not None and not 0 < layers <= _MAX_LAYERS:
        yield f"{arch}.block_count is {layers}, 1 to {_MAX_LAYERS} can be"
    heads = header.nextn_predict_layers
    if layers is not None and not 0 <= heads < layers:
        yield f"{arch}.nextn_predict_layers is {heads} of {layers} blocks"
    yield from _numbers(header)
    yield from _experts(header)
    yield from _attention(header)
    yield from _recurrence(header)
    yield from _shapes(header)


def _numbers(header: Header) -> Iterator[str]:
    arch = header.architecture
    for name in ("embedding_length", "context_length"):
        number = header.integer(f"{arch}.{name}")
        if number is not None and not 0 < number < 1 << 31:
            yield f"{arch}.{name} is {number}"
    for name in _EPSILONS:
        epsilon = header.metadata.get(f"{arch}.{name}")
        if isinstance(epsilon, float) and not 0 <= epsilon < math.inf:
            yield f"{arch}.{name} is {epsilon}"
    scaling = header.text(f"{arch}.rope.scaling.type")
    if scaling is not None and scaling not in _ROPE_SCALINGS:
        yield f"{arch}.rope.scaling.type is {scaling[:40]!r}, not one of {', '.join(_ROPE_SCALINGS)}"
    for name in _PER_LAYER:
        info = header.metadata.get(f"{arch}.{name}")
        if isinstance(info, ArrayInfo) and info.kind == _STRING:
            yield f"{arch}.{name} is a list of texts"


def _experts(header: Header) -> Iterator[str]:
    arch = header.architecture
    count, groups, groups_used = (
        header.integer(f"{arch}.{name}") or 0
        for name in ("expert_count", "expert_group_count", "expert_group_used_count")
    )
    used = max(_per_layer(header, "expert_used_count"), default=0)
    if arch.startswith("hunyuan") and count <= 1:
        return
    if not 0 <= count <= _MAX_EXPERTS:
        yield f"{arch}.expert_count is {count}, at most {_MAX_EXPERTS} can be"
    if not (0 < used <= count if count else used == 0):
        yield f"{arch}.expert_used_count is {used} of {count} experts"
    if groups and not 0 < groups < count:
        yield f"{arch}.expert_group_count is {groups} for {count} experts"
    if groups > 1 and (count % groups or not 0 < groups_used < groups):
        yield f"{count} experts in {groups} groups, of which {groups_used} are used"


def _attention(header: Header) -> Iterator[str]:
    arch = header.architecture
    heads = _per_layer(header, "attention.head_count")
    kv_heads = _per_layer(header, "attention.head_count_kv") or heads
    width = header.integer(f"{arch}.embedding_length") or 0
    for name, counts in (("head_count", heads), ("head_count_kv", kv_heads)):
        if any(not 0 <= n <= 1 << 16 for n in counts):
            yield f"{arch}.attention.{name} is {next(n for n in counts if not 0 <= n <= 1 << 16)}"
    for n, kv in zip(heads * len(kv_heads) if len(heads) == 1 else heads, kv_heads * len(heads)):
        if kv and n % kv:
            yield f"{n} attention heads cannot share {kv} of keys and values"
    key = header.integer(f"{arch}.attention.key_length")
    value = header.integer(f"{arch}.attention.value_length")
    head = width // heads[0] if heads and heads[0] > 0 else 0
    for name, length in (("key_length", key), ("value_length", value)):
        if length is not None and not 0 <= length <= 1 << 16:
            yield f"{arch}.attention.{name} is {length}"
    rope = header.integer(f"{arch}.rope.dimension_count")
    if rope is not None and head and not 0 <= rope <= max(key or head, head):
        yield f"{arch}.rope.dimension_count is {rope}, a head has {key or head}"
    if rope is not None and (rope % 2 or (arch in _WHOLE_HEADS and rope != (key or head))):
        yield f"{arch}.rope.dimension_count is {rope} for heads of {key or head}"
    sections = _per_layer(header, "rope.dimension_sections")
    if sections and (min(sections) < 0 or not 0 < sum(sections) <= (key or head) or rope == 0):
        yield f"{arch}.rope.dimension_sections is {sections[:8]} for heads of {key or head}"


# the library asserts of these that rotation takes the whole head
_WHOLE_HEADS = frozenset(
    {
        "apertus", "arcee", "arctic", "baichuan", "chameleon", "codeshell", "cogvlm", "dbrx", "deci", "deepseek",
        "dots1", "dream", "ernie4_5", "ernie4_5-moe", "exaone", "exaone4", "falcon", "granite", "granitemoe", "grok",
        "grovemoe", "hunyuan-moe", "hy_v3", "internlm2", "llada", "llada-moe", "llama", "llama4", "olmo", "olmo2",
        "olmoe", "orion", "pangu-embedded", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl",
        "qwen3vlmoe", "rnd1", "seed_oss", "smallthinker", "smollm3", "starcoder2", "xverse",
    }
)  # fmt: skip


def _recurrence(header: Header) -> Iterator[str]:
    arch = header.architecture

    def size(name: str) -> int | None:
        return header.integer(f"{arch}.ssm.{name}")

    inner, state, groups, rank = map(size, ("inner_size", "state_size", "group_count", "time_step_rank"))
    if header.integer(f"{arch}.full_attention_interval") == 0:
        yield f"{arch}.full_attention_interval is 0"
    for name, number in (("inner_size", inner), ("state_size", state), ("conv_kernel", size("conv_kernel"))):
        if number is not None and not 0 <= number <= 1 << 20:
            yield f"{arch}.ssm.{name} is {number}"
    if arch in _DELTA_NETS and None not in (inner, state, groups, rank):
        assert inner is not None and state is not None and groups is not None and rank is not None
        if not (groups and rank and inner == state * rank and rank % groups == 0):
            yield (
                f"{arch}.ssm sizes contradict each other: inner size {inner}, state {state}, "
                f"{groups} groups, rank {rank}"
            )


_DELTA_NETS = ("qwen35", "qwen35moe", "qwen3next")


_INTEGERS = frozenset({"I8", "I16", "I32", "I64"})
_PLAIN = ("norm.weight", ".bias")  # computed with as they are
_FLOATS = frozenset({"F32", "F16", "BF16"})  # the halves only on some devices: a trial tells
_NO_WEIGHTS = frozenset(
    {"Q8_1", "Q8_K", "F64"}
)  # what computing makes of activations, and what it cannot multiply


def _shapes(header: Header) -> Iterator[str]:
    """Types and shapes that the library takes without a look."""
    for tensor in header.tensors:
        kind, name = tensor.type.name, tensor.name
        integers = kind in _INTEGERS and name.endswith((".weight", ".bias")) and "tid2eid" not in name
        if integers or kind in _NO_WEIGHTS or (name.endswith(_PLAIN) and kind not in _FLOATS):
            yield f"its tensor {name} is stored as {kind}"
    if header.architecture in _DELTA_NETS:
        yield from _delta_nets(header)
    yield from _feed_forward(header)
    embedding = next((t for t in header.tensors if t.name == "token_embd.weight"), None)
    width, vocab = header.integer(f"{header.architecture}.embedding_length"), header.n_vocab
    if embedding is not None and len(embedding.dims) > 1 and width and vocab and header.split_no == 0:
        rows = math.prod(embedding.dims[1:])
        if rows != vocab:
            yield f"it has {vocab} tokens and embeddings for {rows}"


def _delta_nets(header: Header) -> Iterator[str]:
    """Every block attends, or has all of the recurrent part."""
    names = {t.name for t in header.tensors}
    recurrent = {name.split(".")[1] for name in names if ".ssm_" in name and name.startswith("blk.")}
    for block in sorted(recurrent if not header.is_split else ()):
        for part in ("attn_qkv.weight", "attn_gate.weight"):
            if f"blk.{block}.{part}" not in names:
                yield f"its tensor blk.{block}.{part} is missing"


def _feed_forward(header: Header) -> Iterator[str]:
    """A block that goes up comes down again."""
    names = {t.name for t in header.tensors}
    for name in sorted(names if not header.is_split else ()):
        block, _, part = name.rpartition(".ffn_")
        other = {"gate.weight": "up.weight", "up.weight": "down.weight", "down.weight": "up.weight"}.get(part)
        if other is not None and block.startswith("blk.") and f"{block}.ffn_{other}" not in names:
            yield f"its tensor {block}.ffn_{other} is missing"


def _per_layer(header: Header, name: str) -> list[int]:
    """A number, or one for each layer, as a list; empty where the file does not say."""
    key = f"{header.architecture}.{name}"
    held: Scalar | ArrayInfo | None = header.metadata.get(key)
    if isinstance(held, ArrayInfo):
        items = header.array(key) if held.kind != _STRING and held.count <= 4 * _MAX_LAYERS else ()
        return [int(n) for n in items if not isinstance(n, (str, float))]
    return [held] if isinstance(held, int) and not isinstance(held, bool) else []


# -- the vocabulary --------------------------------------------------------------------------------


def _vocabulary(header: Header) -> Iterator[str]:
    kind = header.text("tokenizer.ggml.model")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if kind is None or kind in ("none", "no_vocab") or tokens is None:
        yield "it carries no tokenizer"
    if not isinstance(tokens, ArrayInfo) or tokens.kind != _STRING or not tokens.count:
        yield "tokenizer.ggml.tokens is no list of texts"
    elif tokens.count > _MAX_TOKENS:
        yield f"it has {tokens.count} tokens"
    yield from _texts(header)


def _texts(header: Header) -> Iterator[str]:
    seen: set[str] = set()
    texts = header.array("tokenizer.ggml.tokens")
    for i, text in enumerate(texts):
        text = str(text) or f"[EMPTY_{i}]"  # as the library calls them
        if text in seen and "\\x" not in text:  # as which bytes that are no text are shown
            yield f"its vocabulary has the token {text[:40]!r} twice"
        seen.add(text)
    types = header.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, ArrayInfo) or types.kind == _STRING:
        return
    if types.count < len(texts):
        yield f"it has {len(texts)} tokens and the types of {types.count}"
    for text, number in zip(texts, header.array("tokenizer.ggml.token_type")):
        if number == _BYTE and len(str(text).encode()) < 3:  # of "<0x0A>" it takes what stands behind these
            yield f"its token {text!r} is said to be a byte, and names none"


def _bytes(header: Header) -> Iterator[str]:
    """A SentencePiece tokenizer spells what it has no token for in bytes, and dies where one is missing."""
    if header.text("tokenizer.ggml.model") != "llama":
        return
    known = set(header.array("tokenizer.ggml.tokens"))
    missing = [b for b in range(256) if f"<0x{b:02X}>" not in known and (b > 127 or chr(b) not in known)]
    if missing:
        yield f"its vocabulary lacks {len(missing)} of the 256 bytes, such as <0x{missing[0]:02X}>"
