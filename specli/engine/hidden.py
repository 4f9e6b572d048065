"""Hidden rows: what the target hands to its prediction heads.

The library keeps those of the latest decode only, in memory it writes over. Here the latest ones are
owned.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specli.errors import EngineError

Rows = NDArray[np.float32]


class Follower(Protocol):
    """Who keeps a cache in step with a context's by its hidden rows. `identity` tells it from others."""

    @property
    def identity(self) -> str: ...

    def decoded(self) -> None:
        """The context holds more tokens; `HiddenRows` may forget older rows hereafter."""
        ...

    def whole(self) -> tuple[NDArray[np.uint8], ...]:
        """All it takes to stand again where the context's tokens end."""
        ...

    def refill(self, tokens: Sequence[int], parts: Sequence[NDArray[np.uint8]]) -> bool:
        """Stand behind `tokens` again, by what `whole` gave; their hidden rows are back. False if it cannot."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class HeldRows:
    """Hidden rows of the positions from `first` on, shape (n, width) float32."""

    first: int
    rows: Rows


def extension() -> Any:
    """The bindings for hidden rows, which llama-cpp-python does not count to its stable ones."""
    try:
        module = importlib.import_module("llama_cpp.llama_cpp_ext")
        for name in (
            "llama_set_embeddings_nextn",
            "llama_get_embeddings_nextn",
            "llama_get_embeddings_nextn_ith",
            "llama_set_nextn_layer_offset",
        ):
            getattr(module, name)
    except (ImportError, AttributeError) as error:
        raise EngineError(f"this llama-cpp-python cannot run prediction heads ({error})") from error
    return module


def copied(pointer: Any, rows: int, width: int) -> Rows:
    """`rows` hidden rows at `pointer`, shape (rows, width), as memory of their own."""
    if not ctypes.cast(pointer, ctypes.c_void_p).value:
        raise EngineError("the library returned no hidden rows")
    return np.array(np.ctypeslib.as_array(pointer, (rows, width)), copy=True)


class HiddenRows:
    """The hidden rows of the latest cached tokens, shape (n, width) float32.

    Rows of positions `first` up to `end` are held, at least the latest `keep` of those appended.
    `low`: the fewest tokens the cache held since `settle`; what lies below has not changed.
    """

    def __init__(self, width: int, keep: int = 1024) -> None:
        self.width = width
        self.keep = keep
        self.first = 0
        self.end = 0
        self.low = 0
        self._rows: Rows = np.empty((2 * keep, width), np.float32)

    def append(self, rows: Rows) -> None:
        """The rows of the next `len(rows)` positions."""
        held, n = self.end - self.first, len(rows)
        if held + n > len(self._rows):
            drop = max(0, held - self.keep)
            held -= drop
            self.first += drop
            latest = self._rows[drop : drop + held].copy()
            if held + n > len(self._rows):
                self._rows = np.empty((held + n, self.width), np.float32)
            self._rows[:held] = latest
        self._rows[held : held + n] = rows
        self.end += n

    def cut(self, length: int, last: Rows | None = None) -> None:
        """Only `length` tokens are left. `last`: the row of the last of them, if it was put aside."""
        self.low = min(self.low, length)
        self.end = length
        if length <= self.first:
            self.first = length
            if last is not None and length > 0:
                self._rows[0], self.first = last, length - 1

    @property
    def held(self) -> HeldRows:
        """A copy of all that is held."""
        return HeldRows(self.first, self._rows[: self.end - self.first].copy())

    def refill(self, held: HeldRows) -> None:
        """Hold these, as if they had been appended."""
        n = len(held.rows)
        if n > len(self._rows):
            self._rows = np.empty((n, self.width), np.float32)
        self._rows[:n] = held.rows
        self.first, self.end = held.first, held.first + n
        self.low = 0

    def settle(self) -> None:
        """Whoever follows has seen all there is."""
        self.low = self.end

    def holds(self, position: int) -> bool:
        """Whether the row of this position is there."""
        return self.first <= position < self.end

    def row(self, position: int) -> Rows | None:
        """A copy of one row, shape (width,), or None."""
        return self._rows[position - self.first].copy() if self.holds(position) else None

    def shifted(self, start: int, stop: int) -> Rows:
        """The rows of positions start - 1 to stop - 2, zeros for -1: what belongs beside the tokens of
        positions start to stop - 1. Shape (stop - start, width)."""
        out = np.zeros((stop - start, self.width), np.float32)
        skip = 1 if start == 0 else 0
        if stop - start > skip:
            low, high = start + skip - 1, stop - 1
            if low < self.first or high > self.end:
                raise EngineError(
                    f"hidden rows {low} to {high} are no longer held ({self.first} to {self.end})"
                )
            out[skip:] = self._rows[low - self.first : high - self.first]
        return out
