"""The reader of model files: what it says of good ones."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_builder import (
    ARCH,
    BOOL,
    DRAFT,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    MODELS,
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
    tensor,
    written,
)

from specli.engine.gguf import read_header
from specli.engine.gguf_types import FILE_TYPES, TENSOR_TYPES
from specli.errors import ModelFileError


def test_tiny_draft() -> None:
    header = read_header(DRAFT)
    assert (header.version, header.alignment, header.file_size) == (3, 32, DRAFT.stat().st_size)
    assert (header.architecture, header.name) == ("llama", "tiny-draft")
    assert (header.context_length, header.block_count, header.nextn_predict_layers) == (2048, 2, 0)
    assert (header.n_vocab, header.file_type) == (1280, "Q8_0")
    assert header.repackable and header.has_weights and not header.is_split
    assert header.parts == (DRAFT,)
    embedding = next(t for t in header.tensors if t.name == "token_embd.weight")
    assert (embedding.dims, embedding.type.name, embedding.n_bytes) == (
        (128, 1280),
        "Q8_0",
        128 * 1280 // 32 * 34,
    )
    assert header.data_offset + header.tensors[-1].offset + header.tensors[-1].n_bytes == header.file_size
    tokens = header.array("tokenizer.ggml.tokens")
    assert len(tokens) == 1280
    assert tokens[:3] == ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    assert set(header.array("tokenizer.ggml.token_type")) <= {1, 3}


def test_tiny_target_has_a_prediction_block() -> None:
    header = read_header(MODELS / "tiny-target-mtp.gguf")
    assert (header.architecture, header.block_count, header.nextn_predict_layers) == ("hy_v3", 5, 1)


def test_every_type_of_value(tmp_path: Path) -> None:
    numbers = {U8: 255, I8: -128, U16: 65535, I16: -32768, U32: 2**32 - 1, I32: -(2**31), F32: 0.5}
    numbers.update({BOOL: True, U64: 2**64 - 1, I64: -(2**63), F64: 0.1})
    entries = [entry(f"k.{kind}", kind, item) for kind, item in numbers.items()]
    entries += [array(f"a.{kind}", kind, [item, item, item]) for kind, item in numbers.items()]
    entries += [
        entry("k.text", STRING, "zwölf"),
        array("a.text", STRING, ["", "ß", b"\xff", b"\xfe"]),
        array("a.none", U8, []),
    ]
    header = read_header(written(tmp_path, build(entries)))
    for kind, item in numbers.items():
        assert header.metadata[f"k.{kind}"] == item
        assert type(header.metadata[f"k.{kind}"]) is type(item)
        assert header.array(f"a.{kind}") == (item,) * 3
    assert header.text("k.text") == "zwölf"
    assert header.array("a.text") == ("", "ß", "\\xff", "\\xfe")
    assert header.array("a.none") == ()
    for missing in ("k.text", "no.such.key"):
        with pytest.raises(KeyError):
            header.array(missing)
    assert not header.has_weights and not header.repackable and header.architecture == ""


def test_arrays_longer_than_the_window(tmp_path: Path) -> None:
    words = [f"{n}" * (n % 40) for n in range(30_000)] + ["x" * 600_000, "after"]
    words += ["abcde"] * 30_000  # with its length 13 bytes: the last one in a window lacks a single byte
    numbers = list(range(200_000))
    data = build([array("words", STRING, words), array("numbers", U32, numbers), entry("last", U8, 7)])
    header = read_header(written(tmp_path, data))
    assert header.array("words") == tuple(words)
    assert header.array("numbers") == tuple(numbers)
    assert header.metadata["last"] == 7


def test_layout_of_tensors(tmp_path: Path) -> None:
    header = read_header(written(tmp_path, build([ARCH], TWO, 112)))
    assert [(t.name, t.dims, t.type.name, t.offset, t.n_bytes) for t in header.tensors] == [
        ("a", (32, 2), "Q8_0", 0, 68),
        ("b", (4,), "F32", 96, 16),
    ]
    assert header.data_offset % 32 == 0
    assert header.file_size == header.data_offset + 112
    assert header.tensor_bytes == 84


def test_alignment_of_its_own(tmp_path: Path) -> None:
    entries = [entry("general.alignment", U32, 128)]
    tensors = [tensor("a", (4,), 0, 0), tensor("b", (4,), 0, 128)]
    header = read_header(written(tmp_path, build(entries, tensors, 144, alignment=128)))
    assert header.alignment == 128
    assert header.data_offset % 128 == 0


@pytest.mark.parametrize(
    ("kind", "dims", "repackable"),
    [
        (Q8_0, (32, 8), True),
        (Q8_0, (32,), False),
        (0, (32, 8), False),
        (1, (32, 8), False),
        (3, (32, 8), True),
    ],
)
def test_repackable(tmp_path: Path, kind: int, dims: tuple[int, ...], repackable: bool) -> None:
    data = build([ARCH], [tensor("w", dims, kind, 0)], 4096)
    assert read_header(written(tmp_path, data)).repackable is repackable


def test_part_of_a_split_model(tmp_path: Path) -> None:
    split = [entry("split.no", U16, 1), entry("split.count", U16, 3), entry("split.tensors.count", I32, 9)]
    header = read_header(written(tmp_path, build([ARCH, *split], TWO, 112), "m-00002-of-00003.gguf"))
    assert (header.is_split, header.split_no, header.split_count) == (True, 1, 3)
    assert [part.name for part in header.parts] == [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    with pytest.raises(ModelFileError, match=r"must end in -00002-of-00003\.gguf"):
        _ = read_header(written(tmp_path, build([ARCH, *split], TWO, 112), "renamed.gguf")).parts


def test_types_are_those_of_the_library() -> None:
    pytest.importorskip("llama_cpp")
    from llama_cpp import _ggml

    library = _ggml.libggml
    library.ggml_type_name.restype = ctypes.c_char_p
    library.ggml_blck_size.restype = ctypes.c_int64
    library.ggml_type_size.restype = ctypes.c_size_t
    for number in range(max(TENSOR_TYPES) + 1):
        kind = TENSOR_TYPES.get(number)
        if kind is None:
            assert library.ggml_blck_size(number) == 0
            continue
        assert library.ggml_type_name(number).decode().lower() == kind.name.lower()
        assert library.ggml_blck_size(number) == kind.block
        assert library.ggml_type_size(number) == kind.block_bytes


def test_file_types() -> None:
    assert [FILE_TYPES.get(n) for n in (0, 1, 5, 7, 15, 18, 25, 30, 32, 33, 38, 41)] == [
        *("F32", "F16", None, "Q8_0", "Q4_K_M", "Q6_K", "IQ4_NL", "IQ4_XS", "BF16", None, "MXFP4", "Q2_0")
    ]


def test_fingerprint(tmp_path: Path) -> None:
    original = DRAFT.read_bytes()
    header = read_header(DRAFT)
    assert read_header(written(tmp_path, original, "copy.gguf")).fingerprint == header.fingerprint
    renamed = original.replace(b"tiny-draft", b"tiny-drafT", 1)
    weights = bytearray(original)
    weights[header.data_offset + 100] ^= 1
    for changed in (renamed, bytes(weights)):
        assert read_header(written(tmp_path, changed, "changed.gguf")).fingerprint != header.fingerprint


def test_a_file_that_changes_meanwhile(tmp_path: Path) -> None:
    path = written(tmp_path, DRAFT.read_bytes())
    header = read_header(path)
    path.write_bytes(DRAFT.read_bytes()[:5000])
    for look in (lambda: header.array("tokenizer.ggml.tokens"), lambda: header.fingerprint):
        with pytest.raises(ModelFileError, match="changed"):
            look()
    path.unlink()
    with pytest.raises(ModelFileError, match="no such file"):
        header.array("tokenizer.ggml.tokens")


def test_needs_neither_the_library_nor_numpy() -> None:
    code = (
        "import sys, specli.engine.gguf; print(sorted({'llama_cpp', 'numpy', 'gguf'} & sys.modules.keys()))"
    )
    root = Path(__file__).parent.parent
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
