"""A copy of a model without some of its blocks, written by llama.cpp's own prune function.

    python -m specli.engine.prune SOURCE COPY LAYERS

Not for people to run: `write_pruned` does, in a child process, so that an interrupt ends it at once and
a crash hits nobody. Exit code 0: written; REFUSED: the library said no, its reason is the last line of
stdout.

Blocks can only be left out where all of them are of one kind, and each only adds to what passes through.
Otherwise those that stay would be run as another kind, or the library would abort.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from specli.engine.compat import compare_vocabularies
from specli.engine.gguf import ArrayInfo, Header, Tensor, read_header
from specli.engine.probe import REFUSED, child_environment
from specli.errors import EngineError, Interrupted, ModelFileError, SpecliError

UNIFORM = frozenset(
    {
        "arcee", "command-r", "ernie4_5", "exaone", "gemma", "glm4", "granite", "granitemoe", "internlm2", "llama",
        "mistral3", "nemotron", "olmo", "olmo2", "olmoe", "phi2", "phi3", "qwen2", "qwen2moe", "qwen3", "qwen3moe",
        "seed_oss", "stablelm", "starcoder2",
    }
)  # fmt: skip
"""Architectures whose blocks are all alike in llama.cpp, whatever their number."""

ADDING = ("attn_output", "ffn_down", "ffn_down_exps", "ffn_down_shexp")
"""The tensors, with or without bias, that write a block's part into what passes through."""

_WINDOWLESS = frozenset({"phi3"})  # names a window in its files, and llama.cpp uses none
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_ALIGNMENT = 32  # what the library writes, whatever the header says
_DAMAGING: tuple[tuple[str, str], ...] = (
    ("nextn_predict_layers", "it carries prediction heads behind its last block"),
    ("full_attention_interval", "attention and recurrence alternate in it"),
    ("ssm.inner_size", "it keeps a recurrent state"),
    ("leading_dense_block_count", "its first blocks are of another kind"),
    ("attention.sliding_window", "its attention window changes from block to block"),
)


def prune_problem(header: Header) -> str | None:
    """Why no block of this model can be left out, in words; None if blocks can. Reads headers only."""
    arch, name = header.architecture, header.path.name.removesuffix(".gguf")
    for key, why in _DAMAGING:
        window = key == "attention.sliding_window" and arch in _WINDOWLESS
        if header.integer(f"{arch}.{key}") and not window:
            return f"no layer of {name} can be left out: {why}"
    own = (key for key, value in header.metadata.items() if isinstance(value, ArrayInfo) and value.count > 1)
    listed = next((key for key in own if key.startswith(f"{arch}.")), None)
    if listed is not None:
        return f"no layer of {name} can be left out: its layers differ by a list, {listed}"
    if arch not in UNIFORM:
        return f"no layer of {name} can be left out: it is not known whether those of {arch} models are all alike"
    if header.alignment != _ALIGNMENT:
        return f"no layer of {name} can be left out: its file is aligned to {header.alignment} bytes"
    return _unlike_blocks(header, name)


def _unlike_blocks(header: Header, name: str) -> str | None:
    """What speaks against it among the tensors: blocks of different make, or ones that cannot be silent."""
    by_block: dict[int, set[tuple[str, tuple[int, ...]]]] = {}
    for tensor, block, kind in _in_blocks(header):
        by_block.setdefault(block, set()).add((kind, tensor.dims))
    n = header.block_count or 0
    if n < 3 or sorted(by_block) != list(range(n)):
        return f"no layer of {name} can be left out: it names {n} layers and holds {len(by_block)}"
    odd = next((block for block in range(n) if by_block[block] != by_block[0]), None)
    if odd is not None:
        return f"no layer of {name} can be left out: layer {odd} is made otherwise than layer 0"
    kinds = {kind for kind, _ in by_block[0]}
    if "attn_output.weight" not in kinds or not {"ffn_down.weight", "ffn_down_exps.weight"} & kinds:
        return f"no layer of {name} can be left out: its layers do not only add to what passes through them"
    return None


def _in_blocks(header: Header) -> Iterator[tuple[Tensor, int, str]]:
    """Each tensor that belongs to a block, with the block's number and its own name in it."""
    for part in parts_of(header):
        for tensor in part.tensors:
            if match := _BLOCK.match(tensor.name):
                yield tensor, int(match[1]), match[2]


def parts_of(header: Header) -> list[Header]:
    """The headers of all files of the model, the given one first."""
    return [header, *(read_header(path) for path in header.parts if path != header.path)]


def silencing(part: Header) -> Iterator[tuple[int, Tensor]]:
    """The tensors of one file, with their block, that make the block add nothing once they are zero."""
    names = {f"{stem}.{end}" for stem in ADDING for end in ("weight", "bias")}
    for tensor in part.tensors:
        match = _BLOCK.match(tensor.name)
        if match and match[2] in names:
            yield int(match[1]), tensor


def pruned_header(header: Header, layers: Collection[int], path: Path | None = None) -> Header:
    """What the header of the copy without `layers` will say, as far as sizes go; nothing is written."""
    tensors = tuple(t for part in parts_of(header) for t in part.tensors if _block(t.name) not in layers)
    metadata = {k: v for k, v in header.metadata.items() if not k.startswith("split.")}
    metadata[f"{header.architecture}.block_count"] = (header.block_count or 0) - len(layers)
    data = sum((t.n_bytes + _ALIGNMENT - 1) & -_ALIGNMENT for t in tensors)
    return replace(
        header,
        path=path or header.path,
        metadata=MappingProxyType(metadata),
        tensors=tensors,
        file_size=header.data_offset + data,
    )


def _block(name: str) -> int:
    match = _BLOCK.match(name)
    return int(match[1]) if match else -1


def write_pruned(
    source: Path, copy: Path, layers: Sequence[int], stop: Callable[[], bool] = lambda: False
) -> None:
    """Write the model `source` without the blocks `layers` to `copy`, and check what was written.

    On any error, or when `stop()` says so, `copy` is gone again. Raises EngineError or ModelFileError, in one
    line; Interrupted where it was stopped.
    """
    header = read_header(source)
    _require(header, layers)
    try:
        _run_child(source, copy, sorted(layers), stop)
        with open(copy, "r+b") as file:
            os.fsync(file.fileno())
        _check(header, copy, len(layers))
    except OSError as error:
        copy.unlink(missing_ok=True)
        raise EngineError(f"{copy}: {error.strerror or error}") from error
    except BaseException:
        copy.unlink(missing_ok=True)
        raise


def _require(header: Header, layers: Sequence[int]) -> None:
    """Nothing reaches the library that it would abort on, or answer with a file that is not meant."""
    problem = prune_problem(header)
    n = header.block_count or 0
    if problem is None and not (layers and len(set(layers)) == len(layers) < n):
        problem = f"{len(layers)} of {n} layers cannot be left out"
    if problem is None and not all(0 <= layer < n for layer in layers):
        problem = f"{header.path.name} has the layers 0 to {n - 1} only"
    if problem:
        raise EngineError(problem)


def _run_child(source: Path, copy: Path, layers: Sequence[int], stop: Callable[[], bool]) -> None:
    root, env = child_environment()
    command = [sys.executable, "-m", "specli.engine.prune", str(source.absolute()), str(copy.absolute())]
    child = subprocess.Popen(
        [*command, json.dumps(list(layers))],
        cwd=root, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        while True:
            if stop():
                raise Interrupted("interrupted while a copy was written; nothing is left of it")
            with suppress(subprocess.TimeoutExpired):
                said, _ = child.communicate(timeout=0.2)
                break
    except BaseException:
        child.kill()
        child.wait()
        raise
    if child.returncode:
        lines = said.decode(errors="replace").strip().splitlines()
        how = lines[-1] if lines else f"it ended with code {child.returncode}"
        raise EngineError(f"llama.cpp could not write a copy of {source.name} without some layers: {how}")


def _check(header: Header, copy: Path, left_out: int) -> None:
    """The copy is whole, has so many layers fewer, and speaks the same vocabulary."""
    made = read_header(copy)  # raises for a file cut off
    expected = (header.block_count or 0) - left_out
    vocabulary = compare_vocabularies(header, made)
    if made.block_count != expected or _lacks_blocks(made):
        raise ModelFileError(f"{copy}: has {made.block_count} layers, {expected} were to be written")
    if vocabulary.problem or made.n_vocab != header.n_vocab:
        raise ModelFileError(f"{copy}: its vocabulary is another than {header.path.name}'s")


def _lacks_blocks(made: Header) -> bool:
    """Whether the tensors do not make up the layers that the header names."""
    return {block for _, block, _ in _in_blocks(made)} != set(range(made.block_count or 0))


def main(arguments: list[str]) -> int:
    """Write one copy; returns the exit code."""
    source, copy, layers = Path(arguments[0]), Path(arguments[1]), json.loads(arguments[2])
    try:
        _prune(source, copy, layers)
    except SpecliError as error:
        print(error, flush=True)
        return REFUSED
    return 0


def _prune(source: Path, copy: Path, layers: Sequence[int]) -> None:
    import ctypes

    from specli.engine import backend

    _require(read_header(source), layers)
    lib = backend.load_library()
    params = lib.llama_model_quantize_default_params()
    params.only_copy, params.nthread = True, 1
    ascending = (ctypes.c_int32 * (len(layers) + 1))(*sorted(layers), -1)
    params.prune_layers = ctypes.cast(ascending, type(params.prune_layers))
    if lib.llama_model_quantize(os.fsencode(source), os.fsencode(copy), ctypes.byref(params)):
        raise EngineError(backend.library_reason() or "it gives no reason")


if __name__ == "__main__":
    # as in a trial run: the end of the process must not be what crashes
    os._exit(main(sys.argv[1:]))
