"""Damages model files: bytes anywhere, lengths, single values of the metadata, single tensors.

Every mutation is named by its model and seed, and is the same wherever it is made again.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gguf_builder import ARRAY, BOOL, CODES, F32, F64, STRING, U32, U64, string, value
from model_edits import Entry, Gguf

INTEGERS = (0, 1, 2, 3, 5, 7, 8, 31, 32, 33, 64, 100, 127, 128, 255, 256, 257, 511, 512, 513, 1000, 1 << 15, 1 << 16,
            (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 32) - 2)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"), 1e-5, 3.0)
COUNTS = (0, 1, 255, 1 << 16, 1 << 20, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 63) - 1,
          1 << 63, (1 << 64) - 1)  # fmt: skip
TEXTS = ("", "x", "llama", "gpt2", "qwen2", "bert", "t5", "rwkv", "none", "test", "default", "no_vocab", "mamba", "gemma3",
         "falcon", "yarn", "linear", "longrope", "\0", "é" * 300, "a" * 100_000, "{{", "%s%n", "\x1b[2J")  # fmt: skip
TENSOR_KINDS = (0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
                34, 35, 39, 40, 41, 42)  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """A damaged file: what was done to it, in words, and its bytes."""

    kind: str
    what: str
    data: bytes


def mutation(model: Path, seed: int) -> Mutation:
    """The mutation of `model` that `seed` stands for."""
    rng = random.Random(seed)
    kind = rng.choices(list(KINDS), WEIGHTS)[0]
    what, data = KINDS[kind](model, rng)
    return Mutation(kind, what, data)


# -- bytes -----------------------------------------------------------------------------------------


def _header_size(raw: bytes, file: Gguf) -> int:
    return len(raw) - sum(len(t.data) + (-len(t.data) % 32) for t in file.tensors)


def _header_bits(model: Path, rng: random.Random) -> tuple[str, bytes]:
    raw = bytearray(model.read_bytes())
    end = _header_size(raw, Gguf(model))
    places = [rng.randrange(end) for _ in range(rng.choice((1, 1, 1, 2, 4, 8)))]
    for at in places:
        raw[at] ^= 1 << rng.randrange(8)
    return f"bits at {places}", bytes(raw)


def _data_bits(model: Path, rng: random.Random) -> tuple[str, bytes]:
    raw = bytearray(model.read_bytes())
    begin = _header_size(raw, Gguf(model))
    how = rng.choice(("bits", "run", "ones"))
    if how == "bits":
        places = [rng.randrange(begin, len(raw)) for _ in range(rng.choice((1, 8, 64, 512)))]
        for at in places:
            raw[at] ^= 1 << rng.randrange(8)
        return f"{len(places)} bits of the weights", bytes(raw)
    at, n = rng.randrange(begin, len(raw)), rng.choice((4, 64, 4096))
    filler = b"\xff" * n if how == "ones" else rng.randbytes(n)
    raw[at : at + n] = filler[: len(raw) - at]
    return f"{n} bytes of the weights from {at}: {how}", bytes(raw)


def _truncated(model: Path, rng: random.Random) -> tuple[str, bytes]:
    raw = model.read_bytes()
    end = rng.choice((len(raw), len(raw), _header_size(raw, Gguf(model)), 200))
    keep = rng.randrange(end)
    padding = rng.choice((0, 0, 0, len(raw) - keep))
    return f"the first {keep} bytes and {padding} zeros", raw[:keep] + bytes(padding)


def _bomb(model: Path, rng: random.Random) -> tuple[str, bytes]:
    """A length or a count replaced: of the file's own, of a string, of an array."""
    raw = bytearray(model.read_bytes())
    places = [8, 16, *_lengths(bytes(raw), Gguf(model))]
    at = rng.choice(places)
    n = rng.choice(COUNTS)
    struct.pack_into("<Q", raw, at, n)
    return f"the length at {at} is {n}", bytes(raw)


def _lengths(raw: bytes, file: Gguf) -> list[int]:
    """Where lengths of keys, values and names stand in the header."""
    places, at = [], 24
    for key, held in file.keys.items():
        places.append(at)
        at += 8 + len(key.encode())
        kind = struct.unpack_from("<I", held)[0]
        if kind == STRING:
            places.append(at + 4)
        if kind == ARRAY:
            places.append(at + 8)
        at += len(held)
    for tensor in file.tensors:
        places.append(at)
        at += 8 + len(tensor.name.encode()) + 4 + 8 * len(tensor.dims) + 12
    return places


# -- metadata --------------------------------------------------------------------------------------


def _scalar(rng: random.Random, kind: int, held: bytes) -> tuple[int, object]:
    """Another value for one of type `kind`, mostly of the same type."""
    if rng.random() < 0.1:
        kind = rng.choice([k for k in (*CODES, STRING) if k != kind])
        held = bytes(8)
    if kind == STRING:
        return kind, rng.choice(TEXTS)
    if kind == BOOL:
        return kind, rng.choice((True, False))
    if kind in (F32, F64):
        return kind, rng.choice(FLOATS)
    form = "<" + CODES[kind]
    size = struct.calcsize(form)
    old = struct.unpack(form, held[:size])[0]
    new = rng.choice((rng.choice(INTEGERS), old + 1, old - 1, 2 * old, old // 2, 3 * old, -old, old ^ (1 << rng.randrange(8 * size))))  # fmt: skip
    return kind, _wrapped(new, form)


def _wrapped(n: int, form: str) -> int:
    size = struct.calcsize(form)
    return int(struct.unpack(form, (n % (1 << 8 * size)).to_bytes(size, "little"))[0])


def _value(model: Path, rng: random.Random) -> tuple[str, bytes]:
    file = Gguf(model)
    changes = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        key = rng.choice([k for k, held in file.keys.items() if struct.unpack_from("<I", held)[0] != ARRAY])
        held = file.keys[key]
        kind, new = _scalar(rng, struct.unpack_from("<I", held)[0], held[4:])
        file.set(key, kind, new)
        changes.append(f"{key} = {str(new)[:20]!r} (type {kind})")
    return "; ".join(changes), written(file)


def _keys(model: Path, rng: random.Random) -> tuple[str, bytes]:
    """Keys dropped, renamed, or added that the architecture may know."""
    file = Gguf(model)
    how = rng.choice(("drop", "rename", "add"))
    key = rng.choice(list(file.keys))
    if how == "drop":
        del file.keys[key]
        return f"without {key}", written(file)
    if how == "rename":
        other = rng.choice(list(file.keys))
        file.keys[other] = file.keys[key]
        return f"{other} has the value of {key}", written(file)
    arch = next((k.split(".")[0] for k in file.keys if k.endswith(".block_count")), "llama")
    name = rng.choice(OPTIONAL).format(arch=arch)
    if rng.random() < 0.15:
        items = [rng.choice(INTEGERS) for _ in range(rng.choice((0, 1, 2, 4, 5, 600)))]
        file.keys[name] = struct.pack("<IIQ", ARRAY, U32, len(items)) + b"".join(value(U32, i) for i in items)
        return f"{name} = an array of {len(items)}", written(file)
    kind = rng.choice((U32, U32, U32, F32, BOOL, STRING))
    new = {U32: rng.choice(INTEGERS), F32: rng.choice(FLOATS), BOOL: True, STRING: rng.choice(TEXTS)}[kind]
    file.set(name, kind, new)
    return f"{name} = {str(new)[:20]!r} added", written(file)


OPTIONAL = tuple(
    "{arch}." + name
    for name in (
        "vocab_size", "expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count",
        "expert_shared_count", "attention.key_length", "attention.value_length", "attention.sliding_window",
        "attention.causal", "attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale",
        "attention.head_count_kv", "attention.head_count", "pooling_type", "rope.dimension_count", "rope.freq_base",
        "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.dimension_sections",
        "rope.scaling.attn_factor", "rope.scale_linear", "nextn_predict_layers", "embedding_length_out",
        "feed_forward_length", "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.inner_size",
        "ssm.time_step_rank", "full_attention_interval", "use_parallel_residual", "logit_scale", "embedding_scale",
        "residual_scale", "leading_dense_block_count", "interleave_moe_layer_step", "attention.layer_norm_epsilon",
        "attention.group_norm_groups", "decoder_start_token_id", "swin_norm", "attn_logit_softcapping",
        "attention.sliding_window_pattern", "attention.shared_kv_layers", "expert_weights_scale",
        "expert_weights_norm", "expert_gating_func", "attention.temperature_length", "attention.temperature_scale",
    )
) + (
    "tokenizer.ggml.pre", "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_sep_token", "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.remove_extra_whitespaces", "tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.scores",
    "tokenizer.ggml.eot_token_id", "tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.suppress_tokens",
    "tokenizer.ggml.token_type_count", "split.count", "split.no", "split.tensors.count", "general.alignment",
    "general.type", "general.quantization_version", "general.file_type", "adapter.type",
    "tokenizer.chat_template", "tokenizer.chat_templates", "tokenizer.ggml.mask_token_id",
)  # fmt: skip


def _array(model: Path, rng: random.Random) -> tuple[str, bytes]:
    file = Gguf(model)
    key = rng.choice([k for k, held in file.keys.items() if struct.unpack_from("<I", held)[0] == ARRAY])
    item, items = _items(file.keys[key])
    how = rng.choice(("items", "items", "shorter", "longer", "type", "empty"))
    if how == "items" and items:
        for _ in range(rng.choice((1, 1, 3, 50))):
            at = rng.randrange(len(items))
            old = b"" if item == STRING else items[at]
            new = rng.choice((items[rng.randrange(len(items))], None))
            items[at] = new if new is not None else _item(rng, item, old)
    elif how == "shorter":
        items = items[: rng.randrange(len(items) + 1)]
    elif how == "longer":
        items += items[: rng.randrange(len(items) + 1)]
    elif how == "type" and item != STRING:
        item = rng.choice(
            [k for k in CODES if struct.calcsize(CODES[k]) == len(items[0] if items else b"1234")]
        )
    else:
        items = []
    file.keys[key] = struct.pack("<IIQ", ARRAY, item, len(items)) + b"".join(items)
    return f"{key}: {how}, now {len(items)} of type {item}", written(file)


def _item(rng: random.Random, kind: int, old: bytes) -> bytes:
    if kind == STRING:
        return string(rng.choice((*TEXTS, "\n", " ", "<0x0A>", "<0xZZ>", "a b c")))
    _, new = _scalar(rng, kind, old)
    try:
        return value(kind, new)
    except struct.error:
        return old


def _items(held: bytes) -> tuple[int, list[bytes]]:
    item, count = struct.unpack_from("<IQ", held, 4)
    if item != STRING:
        size = struct.calcsize(CODES[item])
        return item, [held[16 + size * i : 16 + size * (i + 1)] for i in range(count)]
    items, at = [], 16
    for _ in range(count):
        end = at + 8 + struct.unpack_from("<Q", held, at)[0]
        items.append(held[at:end])
        at = end
    return item, items


# -- tensors ---------------------------------------------------------------------------------------


def _tensor(model: Path, rng: random.Random) -> tuple[str, bytes]:
    file = Gguf(model)
    t = rng.choice(file.tensors)
    how = rng.choice(("drop", "dims", "type", "name", "swap", "grow", "copy", "turn"))
    what = f"{how} {t.name}"
    if how == "drop":
        file.tensors.remove(t)
    elif how == "dims":
        dims = list(t.dims)
        at = rng.randrange(len(dims))
        dims[at] = max(
            0, rng.choice((dims[at] + 1, dims[at] - 1, 2 * dims[at], dims[at] // 2, rng.choice(INTEGERS)))
        )
        what += f" to {dims}"
        _reshape(t, tuple(dims), t.kind, rng)
    elif how == "type":
        kind = rng.choice(TENSOR_KINDS)
        what += f" {t.kind} to {kind}"
        _reshape(t, t.dims, kind, rng)
    elif how == "name":
        t.name = rng.choice((rng.choice(file.tensors).name + "x", "blk.9999999.attn_q.weight", "rope_freqs.weight", "output.weight", "blk.0.attn_sinks.weight", "blk.0.attn_q.bias", "blk.0.attn_q_norm.weight", "blk.0.ffn_gate.bias"))  # fmt: skip
        what += f" to {t.name}"
    elif how == "swap":
        other = rng.choice(file.tensors)
        t.name, other.name = other.name, t.name
        what += f" with {t.name}"
    elif how == "grow":
        _reshape(t, (*t.dims, rng.choice((1, 2, 3)))[:4], t.kind, rng)
    elif how == "copy":
        name = rng.choice(("output.weight", "rope_freqs.weight", "blk.0.attn_sinks.weight", "blk.0.attn_q.bias", "blk.0.attn_q_norm.weight", "blk.1.attn_norm.bias", "token_embd_norm.weight", "blk.0.attn_q.scale", "blk.0.ffn_gate_inp.weight", "blk.0.attn_rot_embd.weight"))  # fmt: skip
        what += f" as {name}"
        if all(t.name != name for t in file.tensors):
            file.tensors.append(Entry(name, t.dims, t.kind, t.data))
    else:
        _reshape(t, tuple(reversed(t.dims)), t.kind, rng)
    return what, written(file)


def _reshape(t: Entry, dims: tuple[int, ...], kind: int, rng: random.Random) -> None:
    """Other dimensions and type, with as many bytes as they need, unless that is too much."""
    from specli.engine.gguf_types import TENSOR_TYPES

    t.dims, t.kind = dims, kind
    size = TENSOR_TYPES[kind]
    n = size.block_bytes
    for i, d in enumerate(dims):
        n *= d if i else d // size.block
    if n <= 4 << 20 and rng.random() < 0.9:
        t.data = (t.data * (n // max(1, len(t.data)) + 1))[:n] if t.data else bytes(n)


def written(file: Gguf) -> bytes:
    """The bytes of a file taken apart."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(file.tensors), len(file.keys))
    head += b"".join(string(key) + raw for key, raw in file.keys.items())
    infos, data = [], []
    at = 0
    for t in file.tensors:
        infos.append(string(t.name) + struct.pack(f"<I{len(t.dims)}QIQ", len(t.dims), *t.dims, t.kind, at))
        padding = -len(t.data) % 32
        data += [t.data, bytes(padding)]
        at += len(t.data) + padding
    head += b"".join(infos)
    return b"".join([head, bytes(-len(head) % 32), *data])


KINDS: dict[str, Callable[[Path, random.Random], tuple[str, bytes]]] = {
    "header bits": _header_bits,
    "weight bits": _data_bits,
    "cut off": _truncated,
    "length": _bomb,
    "value": _value,
    "keys": _keys,
    "array": _array,
    "tensor": _tensor,
}
WEIGHTS = (4, 3, 1, 2, 5, 3, 3, 3)
assert U64 in CODES
