"""Builds small model files for tests, whole or damaged, byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

MODELS = Path(__file__).parent / "models"
DRAFT = MODELS / "tiny-draft.gguf"
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?"}
CODES.update({U64: "Q", I64: "q", F64: "d"})
Q8_0 = 8


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(kind: int, item: object) -> bytes:
    if kind == STRING:
        assert isinstance(item, (str, bytes))
        return string(item)
    return struct.pack("<" + CODES[kind], item)


def entry(key: str | bytes, kind: int, item: object) -> bytes:
    return string(key) + struct.pack("<I", kind) + value(kind, item)


def array(key: str, kind: int, items: Sequence[object], count: int | None = None) -> bytes:
    head = struct.pack("<IIQ", ARRAY, kind, len(items) if count is None else count)
    return string(key) + head + b"".join(value(kind, item) for item in items)


def tensor(name: str, dims: Sequence[int], kind: int, offset: int, n_dims: int | None = None) -> bytes:
    count = len(dims) if n_dims is None else n_dims
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


def build(
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: int = 0,
    *,
    alignment: int = 32,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    n_tensors, n_keys = counts or (len(tensors), len(entries))
    head = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys) + b"".join(entries) + b"".join(tensors)
    return (
        head
        + (bytes(-len(head) % alignment) + bytes(range(256)) * (data // 256 + 1))[
            : -len(head) % alignment + data
        ]
    )


ARCH = entry("general.architecture", STRING, "llama")
TWO = [tensor("a", (32, 2), Q8_0, 0), tensor("b", (4,), 0, 96)]  # 68 bytes, padded to 96, then 16


def written(tmp_path: Path, data: bytes, name: str = "model.gguf") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path
