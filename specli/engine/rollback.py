"""Taking tokens back, for every kind of cache. The one place where a cache is shortened.

What cannot be cut is restored from a checkpoint, a saved state at some earlier length: the nearest
one at or below the length wanted. What lies between is decoded again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specli.engine.hidden import Rows
from specli.errors import EngineError


class Rollback(Enum):
    """How a cache drops its latest tokens."""

    CUT = "cut"  # plain attention: any suffix goes
    WINDOW = "window"  # sliding window: as deep as nothing was evicted
    SNAPSHOT = "snapshot"  # recurrent: within the latest decode, by the library's snapshots
    CHECKPOINT = "checkpoint"  # recurrent without snapshots: saved before a draft, restored, replayed


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """What cannot be cut, as it was when the cache held `length` tokens; `hidden`: the hidden row of the
    last of them, where those are kept."""

    length: int
    data: NDArray[np.uint8]
    hidden: Rows | None


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """`length` tokens are left in the cache. `hidden`: as in the checkpoint that was restored."""

    length: int
    hidden: Rows | None = None


class Memory:
    """The library's memory of one sequence: cut, saved and restored by its kind's rules.

    `n_swa`: width of the attention window. `snapshots`: recurrent states the library keeps.
    Ask `wants_save` before every decode, and `save` if so; tell `after` and `asked` behind it. `sequences`: where more than one, branches of a tree share
    the cells of the conversation, sequence 0; for caches that can be cut anywhere.
    """

    BUDGET = 256 << 20  # bytes of checkpoints
    MOST = 8
    PROMPT_STEP = 512  # tokens between two checkpoints within a prompt
    REPLAY = 64  # tokens that one restored checkpoint may have to decode again
    _PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: what cannot be cut, nothing else

    def __init__(
        self,
        lib: Any,
        handle: Any,
        kind: Rollback,
        n_swa: int,
        n_ubatch: int,
        snapshots: int,
        sequences: int = 1,
    ) -> None:
        self.kind = kind
        self.snapshots = snapshots
        self._lib, self._handle = lib, handle
        self._memory = lib.llama_get_memory(handle)
        self._n_swa, self._n_ubatch = n_swa, n_ubatch
        self._start = 0  # where the latest decode began; snapshots reach back to behind it
        self._floor = 0  # what the window had at this length, and later, is still whole
        self._after_prompt = False
        self._saves: list[Checkpoint] = []
        self._shared = [0] * sequences  # tokens of the conversation that each sequence holds too

    @property
    def positions(self) -> int:
        """Tokens that the library itself believes to hold."""
        return int(self._lib.llama_memory_seq_pos_max(self._memory, 0)) + 1

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Lengths at which a state is saved, ascending."""
        return tuple(save.length for save in self._saves)

    # -- around a decode ------------------------------------------------------------------------

    def wants_save(self, held: int, rows: int) -> bool:
        """Whether the state must or should be saved before a decode that asks for `rows`.

        At the end of a prompt always: there a regenerated answer and the next turn begin. With
        snapshots never within an answer: what a later cut can restore must not depend on drafts.
        """
        if self.kind is Rollback.CUT or held == 0 or held in self.checkpoints:
            return False
        since = held - (self._saves[-1].length if self._saves else 0)
        if rows == 0:
            return since >= self.PROMPT_STEP
        if self._after_prompt:
            return True
        return self.kind is Rollback.CHECKPOINT and (rows > 1 or since >= self.REPLAY)

    def after(self, start: int, n: int) -> None:
        """A batch of `n` tokens was decoded behind `start`."""
        self._start = start
        last = start + (n - 1) // self._n_ubatch * self._n_ubatch
        if last >= self._n_swa:
            self._floor = max(self._floor, last)

    def asked(self, rows: int) -> None:
        """A whole decode is done that asked for `rows`."""
        self._after_prompt = rows == 0

    # -- cutting --------------------------------------------------------------------------------

    def cut(self, held: int, length: int) -> Kept:
        """Leave at most `length` of the `held` tokens; exactly so many where the kind allows it."""
        if self._cut_in_place(held, length):
            self._drop_saves(length)
            return Kept(length)
        while self._saves and self._saves[-1].length > length:
            self._saves.pop()
        if self._saves and self._restore(self._saves[-1]):
            return Kept(self._saves[-1].length, self._saves[-1].hidden)
        self.clear()
        return Kept(0)

    def _cut_in_place(self, held: int, length: int) -> bool:
        if length == 0:
            return False  # clearing is always possible
        if self.kind is Rollback.CHECKPOINT:
            return False
        if self.kind is Rollback.WINDOW and length < self._floor:
            return False
        # the library also says yes to cuts that reach the whole latest decode, and is wrong then
        if self.kind is Rollback.SNAPSHOT and (length <= self._start or held - length > self.snapshots):
            return False
        every = 0 if len(self._shared) == 1 else -1
        done = bool(self._lib.llama_memory_seq_rm(self._memory, every, length, -1))
        if done:
            self._shared = [min(length, shared) for shared in self._shared]
            self.end_cycle(length)
        return done

    def end_cycle(self, held: int) -> None:
        """A snapshot serves once, and only the cycle that made it: what can be cut later must not
        depend on how many tokens the latest decode happened to hold."""
        self._start = held

    def clear(self) -> None:
        """Empty the cache."""
        self._lib.llama_memory_clear(self._memory, True)
        self._saves.clear()
        self._start = self._floor = 0
        self._after_prompt = False
        self._shared = [0] * len(self._shared)

    # -- branches -------------------------------------------------------------------------------

    def share(self, sequence: int, length: int) -> None:
        """Let a branch's sequence hold the first `length` tokens of the conversation."""
        if self._shared[sequence] < length:
            self.copy(0, sequence, self._shared[sequence], length)
            self._shared[sequence] = length

    def copy(self, source: int, sequence: int, start: int, end: int) -> None:
        """Let a sequence hold the tokens that `source` has at these positions."""
        self._lib.llama_memory_seq_cp(self._memory, source, sequence, start, end)

    def keep(self, base: int, sequence: int, length: int, used: int) -> None:
        """Of the branches behind `base` tokens keep one as the conversation, up to `length`, and drop the
        others. `used`: sequences in use, from 0."""
        remove = self._lib.llama_memory_seq_rm
        if sequence:
            remove(self._memory, 0, base, -1)
            self.copy(sequence, 0, base, length)
        for other in range(1, used):
            remove(self._memory, other, base, -1)
        remove(self._memory, 0, length, -1)
        self.end_cycle(length)

    # -- checkpoints ----------------------------------------------------------------------------

    def save(self, held: int, hidden: Rows | None) -> None:
        """Put the state aside, unless it is too big for that and can be done without."""
        size = self.state_bytes()
        if size > self.BUDGET and self.kind is not Rollback.CHECKPOINT:
            return
        data = np.empty(size, np.uint8)
        if self._lib.llama_state_seq_get_data_ext(self._handle, _bytes(data), size, 0, self._PARTIAL) != size:
            raise EngineError("the state of the cache could not be saved before drafting")
        self._saves.append(Checkpoint(held, data, hidden))
        while len(self._saves) > max(2, min(self.MOST, self.BUDGET // max(1, size))):
            del self._saves[self._most_dispensable()]

    def state_bytes(self) -> int:
        """Bytes of one checkpoint taken now."""
        return int(self._lib.llama_state_seq_get_size_ext(self._handle, 0, self._PARTIAL))

    # -- the whole state ------------------------------------------------------------------------

    def whole(self) -> NDArray[np.uint8]:
        """All that the library holds of the sequence. Raises EngineError if it does not hand it out."""
        return state_of(self._lib, self._handle)

    def whole_bytes(self) -> int:
        """Bytes of what `whole` gives now."""
        return _whole_bytes(self._lib, self._handle)

    @property
    def saves(self) -> tuple[Checkpoint, ...]:
        """The states put aside, ascending."""
        return tuple(self._saves)

    def refill(self, held: int, data: NDArray[np.uint8], saves: Sequence[Checkpoint]) -> bool:
        """Into an empty memory: what `whole` and `saves` gave when `held` tokens were in it. False, and the
        memory is empty, if the library does not take it."""
        if not put_state(self._lib, self._handle, data) or self.positions != held:
            self.clear()
            return False
        self._saves = list(saves)
        self.end_cycle(held)
        return True

    def _most_dispensable(self) -> int:
        """Of all but the two newest the one nearest its predecessor, so that ends of turns stay."""
        lengths = [0, *self.checkpoints]
        gaps = [lengths[i + 1] - lengths[i] for i in range(len(self._saves) - 2)]
        return gaps.index(min(gaps))

    def _restore(self, saved: Checkpoint) -> bool:
        size = len(saved.data)
        done = self._lib.llama_state_seq_set_data_ext(
            self._handle, _bytes(saved.data), size, 0, self._PARTIAL
        )
        if done != size or not self._lib.llama_memory_seq_rm(self._memory, 0, saved.length, -1):
            return False
        self._start = saved.length
        self._floor = saved.length if saved.length >= self._n_swa else 0
        return True

    def _drop_saves(self, length: int) -> None:
        while self._saves and self._saves[-1].length > length:
            self._saves.pop()


def state_of(lib: Any, handle: Any) -> NDArray[np.uint8]:
    """All that the context at `handle` holds of its one sequence. Raises EngineError if it cannot be had."""
    size = _whole_bytes(lib, handle)
    data = np.empty(size, np.uint8)
    if lib.llama_state_seq_get_data_ext(handle, _bytes(data), size, 0, 0) != size:
        raise EngineError("the library does not hand out the state of the cache")
    return data


def put_state(lib: Any, handle: Any, data: NDArray[np.uint8]) -> bool:
    """What `state_of` gave, into an empty context of the same kind. False if the library does not take it."""
    return bool(lib.llama_state_seq_set_data_ext(handle, _bytes(data), len(data), 0, 0) == len(data))


def _whole_bytes(lib: Any, handle: Any) -> int:
    return int(lib.llama_state_seq_get_size_ext(handle, 0, 0))


def _bytes(data: NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
