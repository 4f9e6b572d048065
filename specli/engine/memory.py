"""What a model and its cache will take, before they are loaded."""

from __future__ import annotations

import psutil

from specli.engine.gguf import Header

_BITS = {"f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q5_1": 6.0, "q5_0": 5.5, "q4_1": 5.0, "q4_0": 4.5, "iq4_nl": 4.5}


def kv_bytes_per_token(header: Header, type_k: str, type_v: str) -> float:
    """Bytes of cache for one token of context; 0.0 where the file does not say enough."""
    arch = header.architecture
    layers = header.block_count or 0
    heads = header.integer(f"{arch}.attention.head_count") or 0
    heads_kv = header.integer(f"{arch}.attention.head_count_kv") or heads
    width = header.integer(f"{arch}.embedding_length") or 0
    head = width // heads if heads else 0
    key = header.integer(f"{arch}.attention.key_length") or head
    value = header.integer(f"{arch}.attention.value_length") or head
    return layers * heads_kv * (key * _BITS[type_k] + value * _BITS[type_v]) / 8


def available_bytes() -> int:
    """Memory of this machine that can be had without swapping."""
    return int(psutil.virtual_memory().available)


def default_ctx_size(header: Header, type_k: str, type_v: str, most: int = 8192) -> int:
    """Context for those who asked for none: the model's own, at most `most`, and at most what a
    quarter of the memory left beside the weights can hold; at least 512."""
    size = min(header.context_length or most, most)
    per_token = kv_bytes_per_token(header, type_k, type_v)
    if per_token:
        free = available_bytes() - header.tensor_bytes
        size = min(size, max(512, int(free / 4 / per_token) // 256 * 256))
    return size
