"""What a GGUF file says about itself, read before any weight is loaded.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The library below prints its
complaints to a log and ends the process over some, so all that it relies on is checked here first.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType

from specli.engine.gguf_cursor import NUMBERS, WINDOW, Cursor, Number, opened, shown
from specli.engine.gguf_types import FILE_TYPES, REPACKED, TENSOR_TYPES, TensorType
from specli.errors import ModelFileError

Scalar = Number | str

_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 17
_MAX_ITEMS = 1 << 24  # of one array; the largest vocabularies have some 300 thousand tokens
_MAX_KEPT = 1 << 26  # bytes of all metadata strings together
_MAX_NAME = 63  # bytes of a tensor's name (GGML_MAX_NAME less its end)
_MAX_DIMS = 4
_MAX_DATA = 1 << 44  # bytes of one file
_MAX_ALIGNMENT = 1 << 20
_UINT32, _STRING, _ARRAY = 4, 8, 9
_ALIGNMENT_KEY = "general.alignment"


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """An array in the metadata, not read yet: `Header.array` does that.

    `kind`: the number of its items' type (8: strings). `offset`: where the items begin in the file.
    """

    kind: int
    count: int
    offset: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: `dims` fastest first, `offset` in bytes from the start of the data section."""

    name: str
    dims: tuple[int, ...]
    type: TensorType
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    """The checked header of a GGUF file. Sizes and offsets in bytes."""

    path: Path
    version: int
    alignment: int
    metadata: Mapping[str, Scalar | ArrayInfo]
    tensors: tuple[Tensor, ...]
    data_offset: int
    file_size: int

    def array(self, key: str) -> tuple[Scalar, ...]:
        """The items of an array in the metadata, read from the file now; KeyError without it.

        Bytes that are not UTF-8 (some vocabularies hold them) become backslash escapes, so that
        different strings stay different. Raises ModelFileError if the file is no longer the same.
        """
        info = self.metadata[key]
        if not isinstance(info, ArrayInfo):
            raise KeyError(key)
        with self._reopened() as cursor:
            cursor.seek(info.offset)
            if info.kind == _STRING:
                return cursor.strings(info.count, key)
            return cursor.numbers(info.kind, info.count)

    @property
    def fingerprint(self) -> str:
        """Tells this file from others: a hash of size, header and a few samples of the weights."""
        digest = hashlib.sha256(str(self.file_size).encode())
        with self._reopened() as cursor:
            for begin in range(0, self.data_offset, WINDOW):
                digest.update(cursor.take(min(WINDOW, self.data_offset - begin)))
            step = (self.file_size - self.data_offset) // 8
            for _ in range(8 if step else 0):  # fine-tunes of one model differ only there
                digest.update(cursor.take(min(4096, step)))
                cursor.skip(step - min(4096, step))
        return digest.hexdigest()[:32]

    @property
    def architecture(self) -> str:
        """As llama.cpp names it ("llama", "qwen2"); empty if the file does not say."""
        return self.text("general.architecture") or ""

    @property
    def name(self) -> str | None:
        """The model's name, as who made the file gave it."""
        return self.text("general.name")

    @property
    def basename(self) -> str | None:
        """The name of the family, without size and variant."""
        return self.text("general.basename")

    @property
    def size_label(self) -> str | None:
        """The size in words, such as "1.5B"."""
        return self.text("general.size_label")

    @property
    def finetune(self) -> str | None:
        """What it was tuned for, such as "Instruct"."""
        return self.text("general.finetune")

    @property
    def context_length(self) -> int | None:
        """Tokens of context it was trained for."""
        return self.integer(f"{self.architecture}.context_length")

    @property
    def block_count(self) -> int | None:
        """Number of blocks, those for multi-token prediction included."""
        return self.integer(f"{self.architecture}.block_count")

    @property
    def nextn_predict_layers(self) -> int:
        """Number of blocks for multi-token prediction (MTP), 0 without."""
        return self.integer(f"{self.architecture}.nextn_predict_layers") or 0

    @property
    def n_vocab(self) -> int | None:
        """Number of tokens in the vocabulary, None without one."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        return tokens.count if isinstance(tokens, ArrayInfo) else None

    @property
    def file_type(self) -> str | None:
        """The quantization by name, such as "Q4_K_M"; None if the file does not say."""
        number = self.integer("general.file_type")
        return None if number is None else FILE_TYPES.get(number)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all weights in this file."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def repackable(self) -> bool:
        """Whether ggml-cpu would repack some of its matrices for AVX, AMX, NEON or RVV."""
        return any(len(t.dims) > 1 and t.type.name in REPACKED for t in self.tensors)

    @property
    def has_weights(self) -> bool:
        """False for a file that holds only a vocabulary."""
        return bool(self.tensors) or bool(self.integer("split.tensors.count"))

    @property
    def is_split(self) -> bool:
        """Whether it is one of several files that make up the model."""
        return self.split_count > 1

    @property
    def split_count(self) -> int:
        """Number of files that make up the model."""
        return max(1, self.integer("split.count") or 1)

    @property
    def split_no(self) -> int:
        """Which of them this is, from 0; llama.cpp wants to be given the first."""
        return self.integer("split.no") or 0

    @property
    def parts(self) -> tuple[Path, ...]:
        """The files that make up the model, by the naming rule; they need not all exist.

        Raises ModelFileError if this part's own name breaks the rule, as llama.cpp does then.
        """
        if not self.is_split:
            return (self.path,)
        own = f"-{self.split_no + 1:05d}-of-{self.split_count:05d}.gguf"
        if not self.path.name.endswith(own):
            raise ModelFileError(f"{shown(self.path)}: a part of a split model, its name must end in {own}")
        stem = self.path.name[: -len(own)]
        names = (f"{stem}-{no + 1:05d}-of-{self.split_count:05d}.gguf" for no in range(self.split_count))
        return tuple(self.path.with_name(name) for name in names)

    def text(self, key: str) -> str | None:
        """The metadata under `key`, if there is some and it is a string."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def integer(self, key: str) -> int | None:
        """The metadata under `key`, if there is some and it is a whole number."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @contextmanager
    def _reopened(self) -> Iterator[Cursor]:
        with opened(self.path) as cursor:
            if cursor.size != self.file_size:
                raise cursor.error("the file has changed since it was looked at; try again")
            yield cursor


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read and check the header of the GGUF file at `path`; the weights are not touched.

    Raises ModelFileError in one line: no such file, not a GGUF file, incomplete, damaged.
    """
    where = Path(path)
    with opened(where) as cursor:
        version = _check_magic(cursor)
        n_tensors, n_keys = _read_counts(cursor)
        metadata = _read_metadata(cursor, n_keys)
        alignment = _alignment(cursor, metadata)
        tensors = tuple(_read_tensors(cursor, n_tensors))
        start = _padded(cursor.position, alignment) if tensors else cursor.position
        header = Header(where, version, alignment, MappingProxyType(metadata), tensors, start, cursor.size)
        _check_layout(cursor, header)
        _check_split(cursor, header)
        return header


def present_parts(header: Header) -> list[Header]:
    """The headers of a model's files, the given one first; parts that are not there are left out."""
    return [header, *(read_header(p) for p in header.parts if p != header.path and p.is_file())]


def _check_magic(cursor: Cursor) -> int:
    """Step over magic and version; the version, or an error that says what the file is instead."""
    if not cursor.size:
        raise cursor.error("the file is empty; download it again")
    begin = cursor.take(min(cursor.size, 64))
    if b"GGUF".startswith(begin[:4]) and cursor.size < 8:
        raise cursor.incomplete()
    if not begin.startswith(b"GGUF"):
        raise cursor.error(f"not a GGUF file ({_what_is(begin)})")
    cursor.seek(8)
    version = int(struct.unpack_from("<I", begin, 4)[0])
    if version and not version & 0xFFFF:
        raise cursor.error("a big-endian GGUF file; take the little-endian one")
    if version == 1:
        raise cursor.error("GGUF version 1 is no longer read; take a newer file")
    if version not in (2, 3):
        raise cursor.damaged(f"GGUF version {version} is not known, only 2 and 3 are")
    return version


def _what_is(begin: bytes) -> str:
    """What a file that is no GGUF seems to be, from its first bytes."""
    if not begin.strip(b"\0"):
        return "it begins with zeros, as an unfinished download does; download it again"
    if begin[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        return "an old GGML file, from before GGUF; take a newer file or convert it"
    if begin[:4] == b"FUGG":
        return "a GGUF file with its bytes swapped; take the little-endian one"
    if begin.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer; fetch the file itself with git lfs pull"
    if begin.startswith((b"PK\3\4", b"\x80\2")):
        return "a PyTorch or zip file; convert it to GGUF"
    if begin[8:9] == b"{":
        return "a safetensors file, it seems; convert it to GGUF"
    if re.match(rb"\s*<(!doctype|html|\?xml)", begin, re.IGNORECASE):
        return "a web page, saved in its place; download the file itself"
    if begin.isascii() and re.fullmatch(rb"[\s -~]*", begin):
        return "a text file"
    return f"it begins with {begin[:4]!r}"


def _read_counts(cursor: Cursor) -> tuple[int, int]:
    """Number of tensors and of metadata keys, both possible in a file of this size."""
    n_tensors, n_keys = cursor.u64(), cursor.u64()
    if n_tensors > _MAX_TENSORS:
        raise cursor.damaged(f"it claims {n_tensors} tensors")
    if n_keys > _MAX_KEYS:
        raise cursor.damaged(f"it claims {n_keys} metadata keys")
    cursor.require(24 * n_tensors + 14 * n_keys)
    return n_tensors, n_keys


def _read_metadata(cursor: Cursor, n_keys: int) -> dict[str, Scalar | ArrayInfo]:
    metadata: dict[str, Scalar | ArrayInfo] = {}
    begin = cursor.position
    skipped = 0
    for _ in range(n_keys):
        key = cursor.name("a metadata key", 0xFFFF)
        if key in metadata:
            raise cursor.damaged(f"the metadata key {key[:80]} is there twice")
        kind = cursor.u32()
        if key == _ALIGNMENT_KEY and kind != _UINT32:
            raise cursor.damaged(f"{key} is not of type uint32")
        before = cursor.position
        value = metadata[key] = _read_value(cursor, key[:80], kind)
        skipped += cursor.position - before if isinstance(value, ArrayInfo) else 0
        if cursor.position - begin - skipped > _MAX_KEPT:
            raise cursor.damaged(f"its metadata holds more than {_MAX_KEPT} bytes of text")
    return metadata


def _read_value(cursor: Cursor, key: str, kind: int) -> Scalar | ArrayInfo:
    if kind in NUMBERS:
        return cursor.number(kind)
    if kind == _STRING:
        return cursor.string(key)
    if kind != _ARRAY:
        raise cursor.damaged(f"the metadata key {key} has the unknown type {kind}")
    item, count = cursor.u32(), cursor.u64()
    if item == _ARRAY or (item not in NUMBERS and item != _STRING):
        raise cursor.damaged(f"the array {key} has items of type {item}, which cannot be")
    if count > _MAX_ITEMS:
        raise cursor.damaged(f"the array {key} claims {count} items")
    info = ArrayInfo(item, count, cursor.position)
    if item == _STRING:
        cursor.require(8 * count)
        cursor.skip_strings(count)
    else:
        cursor.skip(NUMBERS[item].size * count)
    return info


def _alignment(cursor: Cursor, metadata: Mapping[str, Scalar | ArrayInfo]) -> int:
    alignment = metadata.get(_ALIGNMENT_KEY, 32)
    if not isinstance(alignment, int) or not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.damaged(f"{_ALIGNMENT_KEY} is {alignment}, not a power of two up to {_MAX_ALIGNMENT}")
    return alignment


def _read_tensors(cursor: Cursor, count: int) -> Iterator[Tensor]:
    seen = set()
    for _ in range(count):
        tensor = _read_tensor(cursor)
        if tensor.name in seen:
            raise cursor.damaged(f"the tensor {tensor.name} is there twice")
        seen.add(tensor.name)
        yield tensor


def _read_tensor(cursor: Cursor) -> Tensor:
    name = cursor.name("a tensor's name", _MAX_NAME)
    n_dims = cursor.u32()
    if n_dims > _MAX_DIMS:
        raise cursor.damaged(f"the tensor {name} has {n_dims} dimensions, at most {_MAX_DIMS} can be")
    dims = tuple(cursor.u64() for _ in range(n_dims)) or (1,)
    number, offset = cursor.u32(), cursor.u64()
    if number not in TENSOR_TYPES:
        raise cursor.damaged(f"the tensor {name} has type {number}, unknown or withdrawn")
    kind = TENSOR_TYPES[number]
    n_bytes = prod(dims) // kind.block * kind.block_bytes
    if not all(dims) or max(prod(dims), n_bytes) >= 1 << 63:
        raise cursor.damaged(f"the tensor {name} has dimensions {dims}, which cannot be")
    if dims[0] % kind.block:
        raise cursor.damaged(
            f"the tensor {name} has rows of {dims[0]}, {kind.name} needs a multiple of {kind.block}"
        )
    return Tensor(name, dims, kind, offset, n_bytes)


def _padded(n: int, alignment: int) -> int:
    return (n + alignment - 1) & -alignment


def _check_layout(cursor: Cursor, header: Header) -> None:
    """The tensors follow each other without gap or overlap (llama.cpp loads no others), and end in the file."""
    expected = end = 0
    for tensor in header.tensors:
        if tensor.offset != expected:
            where = f"begins at byte {tensor.offset} of the data instead of {expected}"
            raise cursor.damaged(f"the tensor {tensor.name} {where}")
        end = expected + tensor.n_bytes
        expected = _padded(end, header.alignment)
    if end > _MAX_DATA:
        raise cursor.damaged(f"it claims {end} bytes of weights")
    if header.data_offset + end > header.file_size:  # the padding at the very end may be missing
        raise cursor.incomplete(header.data_offset + expected)


def _check_split(cursor: Cursor, header: Header) -> None:
    """The three split keys, where they are, are counts that agree."""
    for key in ("split.no", "split.count", "split.tensors.count"):
        count = header.integer(key)
        if key in header.metadata and (count is None or not 0 <= count < 1 << 31):
            raise cursor.damaged(f"{key} is not a count")
    if header.split_count > 0xFFFF or header.split_no >= header.split_count:
        raise cursor.damaged(f"it says it is part {header.split_no + 1} of {header.split_count}")
    total = header.integer("split.tensors.count")
    if header.is_split and (total is None or total < len(header.tensors)):
        raise cursor.damaged(
            f"split.tensors.count is {total}, this part alone has {len(header.tensors)} tensors"
        )
