"""Variants of the tiny models: the same weights under other metadata, with heads doubled or left out."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gguf_builder import ARRAY, BOOL, F32, STRING, U32, string, value

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_ALIGNMENT = 32


@dataclass
class Entry:
    """One tensor: name, dimensions, type and bytes."""

    name: str
    dims: tuple[int, ...]
    kind: int
    data: bytes


class Gguf:
    """A model file taken apart; `keys` maps names to type and value, as bytes."""

    def __init__(self, path: Path) -> None:
        self._raw = path.read_bytes()
        n_tensors, n_keys = struct.unpack_from("<QQ", self._raw, 8)
        self._at = 24
        self.keys: dict[str, bytes] = {}
        for _ in range(n_keys):
            key = self._string()
            begin = self._at
            self._skip(self._number("<I"))
            self.keys[key] = self._raw[begin : self._at]
        infos = []
        for _ in range(n_tensors):
            name = self._string()
            dims = tuple(self._number("<Q") for _ in range(self._number("<I")))
            infos.append((name, dims, self._number("<I"), self._number("<Q")))
        start = (self._at + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        ends = [offset for *_, offset in infos[1:]] + [len(self._raw) - start]
        self.tensors = [
            Entry(name, dims, kind, self._raw[start + offset : start + end])
            for (name, dims, kind, offset), end in zip(infos, ends)
        ]

    def _number(self, form: str) -> int:
        (found,) = struct.unpack_from(form, self._raw, self._at)
        self._at += struct.calcsize(form)
        return int(found)

    def _string(self) -> str:
        n = self._number("<Q")
        self._at += n
        return self._raw[self._at - n : self._at].decode()

    def _skip(self, kind: int) -> None:
        if kind == STRING:
            self._string()
        elif kind == ARRAY:
            item, count = self._number("<I"), self._number("<Q")
            for _ in range(count if item == STRING else 0):
                self._string()
            self._at += 0 if item == STRING else count * _SIZES[item]
        else:
            self._at += _SIZES[kind]

    def set(self, key: str, kind: int, item: object) -> None:
        self.keys[key] = struct.pack("<I", kind) + value(kind, item)

    def rename_architecture(self, old: str, new: str) -> None:
        self.keys = {
            k.replace(f"{old}.", f"{new}.", 1) if k.startswith(f"{old}.") else k: v
            for k, v in self.keys.items()
        }
        self.set("general.architecture", STRING, new)

    def keep(self, wanted: Callable[[str], bool]) -> None:
        self.tensors = [t for t in self.tensors if wanted(t.name)]

    def write(self, path: Path) -> Path:
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys))
        head += b"".join(string(key) + raw for key, raw in self.keys.items())
        data = b""
        for t in self.tensors:
            data += bytes(-len(data) % _ALIGNMENT)
            head += string(t.name) + struct.pack(
                f"<I{len(t.dims)}QIQ", len(t.dims), *t.dims, t.kind, len(data)
            )
            data += t.data
        path.write_bytes(head + bytes(-len(head) % _ALIGNMENT) + data)
        return path


def two_heads(source: Path, out: Path) -> Path:
    """The tiny MTP model with its one head twice: the chain must draft what the one head drafts."""
    file = Gguf(source)
    again = [
        Entry(t.name.replace("blk.4.", "blk.5."), t.dims, t.kind, t.data)
        for t in file.tensors
        if t.name.startswith("blk.4.")
    ]
    file.tensors += again
    file.set("hy_v3.block_count", U32, 6)
    file.set("hy_v3.nextn_predict_layers", U32, 2)
    return file.write(out)


def heads_only(source: Path, out: Path) -> Path:
    """Its head alone, with the embeddings and the norm that a head needs."""
    file = Gguf(source)
    file.keep(lambda name: not name.startswith("blk.") or name.startswith("blk.4."))
    return file.write(out)


def without_heads(source: Path, out: Path) -> Path:
    """The model without the head that its metadata still names."""
    file = Gguf(source)
    file.keep(lambda name: not name.startswith("blk.4."))
    return file.write(out)


def windowed(source: Path, out: Path, window: int = 32) -> Path:
    """The tiny draft with a sliding window in its first layer (and attention sinks that do nothing)."""
    file = Gguf(source)
    none = struct.pack("<4f", *[-1e9] * 4)
    file.tensors += [Entry(f"blk.{i}.attn_sinks.weight", (4,), 0, none) for i in range(2)]
    file.rename_architecture("llama", "granite_swa")
    file.set("granite_swa.attention.sliding_window", U32, window)
    file.set("granite_swa.logit_scale", F32, 1.0)
    pattern = value(BOOL, True) + value(BOOL, False)
    file.keys["granite_swa.attention.sliding_window_pattern"] = struct.pack("<IIQ", ARRAY, BOOL, 2) + pattern
    return file.write(out)


def as_qwen3(source: Path, out: Path) -> Path:
    """The trunk of the tiny MTP model under another name: llama.cpp computes the same, bit for bit, and hands
    out the inputs of its layers."""
    file = Gguf(source)
    file.keep(lambda name: not name.startswith("blk.4."))
    for key in ("nextn_predict_layers", "expert_feed_forward_length"):
        del file.keys[f"hy_v3.{key}"]
    file.set("hy_v3.block_count", U32, 4)
    file.rename_architecture("hy_v3", "qwen3")
    return file.write(out)
