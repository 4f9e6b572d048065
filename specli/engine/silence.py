"""A model whose blocks can be left out and taken back in a moment, to find out which are needed.

A block adds its part to what passes through it. With the tensors that write this part set to zero it adds
nothing, so the model answers as its pruned copy would, bit for bit. The weights are mapped from a working
copy of the file, and what is written there is what the next decode reads: a few MiB instead of a new
file for each set of blocks. The working copy has no name once it is open, so nothing can be left behind.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from specli.engine.context import Context, ContextParams
from specli.engine.gguf import read_header
from specli.engine.model import Model, ModelParams
from specli.engine.prune import parts_of, prune_problem, silencing
from specli.errors import EngineError

WORK = "work-"
"""How the names of folders with working copies begin."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes of a block: where they stand in the working copy `view` and in the file `original`."""

    view: mmap.mmap
    original: BinaryIO
    offset: int
    n_bytes: int

    def clear(self) -> None:
        self.view[self.offset : self.offset + self.n_bytes] = bytes(self.n_bytes)

    def restore(self) -> None:
        self.original.seek(self.offset)
        self.view[self.offset : self.offset + self.n_bytes] = self.original.read(self.n_bytes)


class Silencer:
    """The model `source` on the CPU, over a working copy in `folder`.

    `context` decodes with what is not silenced; clear it after each change, since what it holds was decoded
    with other blocks. Raises EngineError where blocks cannot be left out, or changes do not take effect.
    """

    def __init__(self, source: Path, folder: Path, params: ContextParams) -> None:
        header = read_header(source)
        problem = prune_problem(header)
        if problem:
            raise EngineError(problem)
        self._spans: dict[int, list[_Span]] = {}
        self._silent: frozenset[int] = frozenset()
        self.n_blocks = header.block_count or 0
        with ExitStack() as stack:
            work = Path(tempfile.mkdtemp(prefix=WORK, dir=folder))
            stack.callback(shutil.rmtree, work, ignore_errors=True)
            copies = []
            for part in parts_of(header):
                copies.append(work / part.path.name)  # parts of a split model are found by their names
                shutil.copyfile(part.path, copies[-1])
                self._map(part.path, copies[-1], stack)
            self.model = stack.enter_context(
                Model(copies[0], ModelParams(gpu_layers=0, use_extra_bufts=False, mapped=True))
            )
            self.context = stack.enter_context(Context(self.model, params))
            with suppress(OSError):  # Windows keeps it until it is closed
                for copy in copies:
                    copy.unlink()
                work.rmdir()
            self._check()
            self._stack = stack.pop_all()

    def _map(self, original: Path, copy: Path, stack: ExitStack) -> None:
        os.chmod(copy, 0o600)
        source = stack.enter_context(original.open("rb"))
        with open(copy, "r+b") as file:
            view = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE))
        part = read_header(original)
        for block, tensor in silencing(part):
            span = _Span(view, source, part.data_offset + tensor.offset, tensor.n_bytes)
            self._spans.setdefault(block, []).append(span)

    def silence(self, blocks: Collection[int]) -> None:
        """From now on leave out these blocks and no others. The cache must be cleared before the next decode."""
        wanted = frozenset(blocks)
        for block in self._silent - wanted:
            for span in self._spans[block]:
                span.restore()
        for block in wanted - self._silent:
            for span in self._spans[block]:
                span.clear()
        self._silent = wanted

    def _check(self) -> None:
        """The library must read the mapped file itself: no copy of it, no repacked one."""
        whole = self._look()
        self.silence(range(self.n_blocks))
        silent = self._look()
        self.silence(())
        if np.array_equal(whole, silent) or not np.array_equal(whole, self._look()):
            raise EngineError(
                f"{self.model.name}: this build of llama.cpp does not compute from the mapped file, so layers "
                "cannot be tried out here"
            )

    def _look(self) -> NDArray[np.float32]:
        self.context.clear()
        row: NDArray[np.float32] = self.context.decode([0, 0], rows=1)[0].copy()
        self.context.clear()
        return row

    def close(self) -> None:
        """Free all, the working copy too. Safe to call twice."""
        self._stack.close()

    def __enter__(self) -> Silencer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
