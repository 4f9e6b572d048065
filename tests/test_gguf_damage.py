"""The reader of model files: no bad one gets past it or harms it, each is refused in one line."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from gguf_builder import (
    ARCH,
    ARRAY,
    DRAFT,
    I16,
    I32,
    Q8_0,
    STRING,
    TWO,
    U8,
    U16,
    U32,
    U64,
    array,
    build,
    entry,
    string,
    tensor,
    written,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specli.engine.gguf import ArrayInfo, Header, read_header
from specli.errors import ModelFileError


def refusal(path: str | os.PathLike[str]) -> str:
    """The message `path` is refused with: one printable line that begins with the path."""
    with pytest.raises(ModelFileError) as caught:
        read_header(path)
    message = str(caught.value)
    assert message.isprintable()
    return message


# Paths that hold no such file


def test_paths_without_a_model(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.gguf") == f"{tmp_path / 'none.gguf'}: no such file"
    assert "no such file" in refusal(written(tmp_path, b"x") / "below.gguf")
    assert "a directory" in refusal(tmp_path)
    assert "the file is empty" in refusal(written(tmp_path, b""))
    assert "cannot be the name of a file" in refusal("nul\0.gguf")
    assert "cannot be read" in refusal(tmp_path / ("x" * 5000))
    assert "no such file" in refusal(tmp_path / "two\nlines\x1b[31m.gguf")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_one_may_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, DRAFT.read_bytes())
    path.chmod(0)
    assert "cannot be read" in refusal(path)


@pytest.mark.parametrize(
    ("begin", "says"),
    [
        (b"# A model card\n", "a text file"),
        (b"G", "incomplete"),
        (b"GGUF\3\0", "incomplete"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "git lfs pull"),
        (b"PK\3\4\0\0\0\0", "PyTorch"),
        (struct.pack("<Q", 900) + b'{"__metadata__"', "safetensors"),
        (b"tjgg\3\0\0\0", "an old GGML file"),
        (b"lmgg\3\0\0\0", "an old GGML file"),
        (b"FUGG\0\0\0\3", "bytes swapped"),
        (b"\0" * 4096, "unfinished download"),
        (b"\x7fELF\2\1\1", r"b'\x7fELF'"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(16), "version 1 is no longer read"),
        (b"GGUF" + struct.pack("<I", 4) + bytes(16), "version 4 is not known"),
        (b"GGUF" + struct.pack("<I", 0) + bytes(16), "version 0 is not known"),
    ],
)
def test_other_kinds_of_file(tmp_path: Path, begin: bytes, says: str) -> None:
    assert says in refusal(written(tmp_path, begin))


# Damage, one kind at a time

F32_4 = tensor("a", (4,), 0, 0)
DAMAGED = {
    "tensor count": (build(counts=(2**63, 0)), "claims 9223372036854775808 tensors"),
    "key count": (build(counts=(0, 2**40)), "claims 1099511627776 metadata keys"),
    "key length": (build([struct.pack("<Q", 2**62) + b"abc" * 9]), "at most 65535"),
    "empty key": (build([entry("", U8, 1)]), "no name"),
    "key of control characters": (build([entry("a\x1b[2J\n", U8, 1)]), "no name"),
    "same key twice": (build([ARCH, ARCH]), "general.architecture is there twice"),
    "value type": (build([string("k") + struct.pack("<II", 13, 0)]), "k has the unknown type 13"),
    "string length": (
        build([string("k") + struct.pack("<IQ", STRING, 2**40) + bytes(99)]),
        "k has 1099511627776 bytes",
    ),
    "array count": (build([array("k", U64, [], 2**61) + bytes(99)]), "the array k claims"),
    "array of arrays": (build([array("k", ARRAY, [], 1) + bytes(99)]), "the array k has items of type 9"),
    "array item type": (build([array("k", 99, [], 1) + bytes(99)]), "the array k has items of type 99"),
    "array string": (build([array("k", STRING, [], 1) + struct.pack("<Q", 2**60) + bytes(99)]), "more bytes"),
    "alignment 0": (build([entry("general.alignment", U32, 0)], [F32_4], 16), "general.alignment is 0"),
    "alignment 24": (build([entry("general.alignment", U32, 24)], [F32_4], 16), "general.alignment is 24"),
    "alignment huge": (
        build([entry("general.alignment", U32, 2**31)], [F32_4], 16),
        "not a power of two up to",
    ),
    "alignment type": (build([entry("general.alignment", U64, 32)], [F32_4], 16), "not of type uint32"),
    "same tensor twice": (build([], [F32_4, tensor("a", (4,), 0, 32)], 64), "the tensor a is there twice"),
    "long tensor name": (build([], [tensor("n" * 64, (4,), 0, 0)], 16), "has 64 bytes, at most 63"),
    "five dimensions": (build([], [tensor("a", (1,) * 5, 0, 0)], 16), "a has 5 dimensions"),
    "many dimensions": (build([], [tensor("a", (4,), 0, 0, n_dims=2**32 - 1)], 16), "dimensions, at most 4"),
    "dimension 0": (build([], [tensor("a", (4, 0), 0, 0)], 16), "dimensions (4, 0)"),
    "dimension overflow": (build([], [tensor("a", (2**32, 2**32), 0, 0)], 16), "which cannot be"),
    "bytes overflow": (build([], [tensor("a", (2**62,), 0, 0)], 16), "which cannot be"),
    "a petabyte": (build([], [tensor("a", (2**48,), 0, 0)], 16), "claims 1125899906842624 bytes of weights"),
    "tensor type": (build([], [tensor("a", (4,), 43, 0)], 16), "type 43, unknown or withdrawn"),
    "withdrawn type": (build([], [tensor("a", (32,), 31, 0)], 64), "type 31, unknown or withdrawn"),
    "row of half a block": (
        build([], [tensor("a", (48, 2), Q8_0, 0)], 128),
        "rows of 48, Q8_0 needs a multiple of 32",
    ),
    "not aligned": (
        build([], [F32_4, tensor("b", (4,), 0, 16)], 64),
        "b begins at byte 16 of the data instead of 32",
    ),
    "overlap": (
        build([], [F32_4, tensor("b", (4,), 0, 0)], 64),
        "b begins at byte 0 of the data instead of 32",
    ),
    "gap": (
        build([], [F32_4, tensor("b", (4,), 0, 64)], 99),
        "b begins at byte 64 of the data instead of 32",
    ),
    "split number": (build([entry("split.no", U16, 3), entry("split.count", U16, 3)]), "part 4 of 3"),
    "split count": (build([entry("split.count", STRING, "3")]), "split.count is not a count"),
    "split total": (
        build([entry("split.count", U16, 2), entry("split.tensors.count", I32, 0)], TWO, 112),
        "is 0, this",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage(tmp_path: Path, case: str) -> None:
    data, says = DAMAGED[case]
    path = written(tmp_path, data)
    tracemalloc.start()
    try:
        message = refusal(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert message.startswith(f"{path}: the file is damaged: ")
    assert says in message
    assert peak < 2**20


# Files cut off


@pytest.mark.parametrize("fiftieth", range(1, 50))
def test_a_file_cut_off(tmp_path: Path, fiftieth: int) -> None:
    whole = DRAFT.stat().st_size
    kept = whole * fiftieth // 50
    path = written(tmp_path, DRAFT.read_bytes()[:kept])
    begin = f"{path}: the file is incomplete: {kept}"
    if kept < read_header(DRAFT).data_offset:
        assert refusal(path) == f"{begin} bytes, cut off in its header; download it again"
    else:
        assert refusal(path) == f"{begin} of {whole} bytes; download it again"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0.0002, 0.9999))
def test_a_header_cut_off_anywhere(tmp_path: Path, share: float) -> None:
    kept = int(read_header(DRAFT).data_offset * share)
    assert f"the file is incomplete: {kept} " in refusal(written(tmp_path, DRAFT.read_bytes()[:kept]))


def test_only_the_last_padding_is_missing(tmp_path: Path) -> None:
    data = build([ARCH], [tensor("a", (5,), 0, 0)], 20)
    assert read_header(written(tmp_path, data)).tensor_bytes == 20
    assert "incomplete" in refusal(written(tmp_path, data[:-1]))


# Any damage at all

SMALL = build(
    [
        ARCH,
        array("words", STRING, ["one", "two", ""]),
        array("n", I16, [1, 2, 3]),
        entry("general.alignment", U32, 32),
    ],
    TWO,
    112,
)


def survives(path: Path) -> Header | None:
    """Read all that can be read of a damaged file; nothing but a ModelFileError may come of it."""
    try:
        header = read_header(path)
        for key, item in header.metadata.items():
            if isinstance(item, ArrayInfo):
                assert len(header.array(key)) == item.count
        assert len(header.fingerprint) == 32
    except ModelFileError as error:
        assert str(error).isprintable()
        return None
    assert header.data_offset + sum(t.n_bytes for t in header.tensors) <= header.file_size
    return header


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), min_size=1, max_size=6)
)
def test_random_bytes_in_a_small_file(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(SMALL)
    for at, byte in changes:
        data[at] = byte
    survives(written(tmp_path, bytes(data)))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 36703), st.integers(0, 7)), min_size=1, max_size=4))
def test_flipped_bits_in_a_real_header(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(DRAFT.read_bytes())
    for at, bit in changes:
        data[at] ^= 1 << bit
    survives(written(tmp_path, bytes(data)))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rest=st.binary(max_size=300), counts=st.tuples(st.integers(0, 4), st.integers(0, 4)))
def test_anything_after_the_counts(tmp_path: Path, rest: bytes, counts: tuple[int, int]) -> None:
    survives(written(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, *counts) + rest))


def test_the_small_file_is_whole(tmp_path: Path) -> None:
    header = survives(written(tmp_path, SMALL))
    assert header is not None and header.array("words") == ("one", "two", "")
