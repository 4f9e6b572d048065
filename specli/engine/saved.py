"""A cache on the disk: what was decoded once need not be decoded again when a conversation goes on.

A file holds the tokens, the library's state of them, the checkpoints that recurrent models are taken back to, and
what drafting heads stand on; so everything after it is as it would have been without the break, bit for bit. It fits only what
it was made with, see `cache_key`; a digest finds what was damaged on the way.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from specli.engine import backend
from specli.engine.context import Context
from specli.engine.hidden import HeldRows
from specli.engine.rollback import Checkpoint
from specli.errors import SessionError
from specli.paths import write_atomic

_MAGIC = b"specli-cache 1\n"
_LONGEST_HEADER = 1 << 20
_ABANDONED_S = 3600.0  # an unfinished file this old has no writer any more


@dataclass(frozen=True, slots=True, eq=False)
class CacheState:
    """What a cache held: the tokens, all of the library's state (bytes), the checkpoints, ascending; and where
    hidden rows are handed out, those it had, and what `follower` needs beside them (see `Follower.whole`)."""

    tokens: tuple[int, ...]
    data: NDArray[np.uint8]
    saves: tuple[Checkpoint, ...] = ()
    hidden: HeldRows | None = None
    follower: str = ""
    side: tuple[NDArray[np.uint8], ...] = ()


def size_of(context: Context) -> int:
    """Bytes that the state of this cache takes, in memory and on the disk."""
    memory = context.memory
    return memory.whole_bytes() + sum(len(save.data) for save in memory.saves)


def unsavable(context: Context) -> str | None:
    """Why this cache cannot be kept so that it would go on in the same way; None if it can."""
    if context.model.n_swa:
        return "of a sliding window the library saves only a part"
    return None


def cache_key(context: Context, fingerprint: str, chunk: int, exact_width: int | None) -> dict[str, str]:
    """What a saved cache must have in common with a context to serve there, each with a name for people.
    `fingerprint`: the model file's. `chunk`: tokens a prompt is decoded in."""
    p, loaded = context.params, context.model.params
    exact = f"{exact_width} {chunk} {p.threads} {p.threads_batch} {backend.processor_id()}"
    return {
        "model": fingerprint,
        "library": backend.build_id(),
        "context size": str(context.n_ctx),
        "cache type": f"{p.type_k} {p.type_v} {p.flash_attn} {context.snapshots}",
        "placement": f"{loaded.gpu_layers} {loaded.use_extra_bufts}",
        "exact mode": exact if exact_width else "off",
    }


def take(context: Context) -> CacheState:
    """The cache as it is now. Raises EngineError if the library does not hand it out."""
    memory, follower = context.memory, context.follower
    side = () if follower is None else follower.whole()
    return CacheState(
        tuple(context.tokens),
        memory.whole(),
        memory.saves,
        None if context.hidden is None else context.hidden.held,
        "" if follower is None else follower.identity,
        side,
    )


def give(context: Context, state: CacheState) -> bool:
    """Make the cache what `state` says. False, and the cache is empty, if it does not take it."""
    hidden, follower = context.hidden, context.follower
    if hidden is not None and not _rows_fit(state, hidden.width):
        context.clear()
        return False
    if not context.refill(state.tokens, state.data, state.saves):
        return False
    if hidden is not None and state.hidden is not None:
        hidden.refill(state.hidden)
    same = follower is None or follower.identity == state.follower
    if not same or (follower is not None and not follower.refill(state.tokens, state.side)):
        context.clear()
        return False
    return True


def _rows_fit(state: CacheState, width: int) -> bool:
    """Whether the hidden rows end with the tokens, and are as wide as rows are here."""
    held, saves = state.hidden, state.saves
    if held is None or held.rows.shape[1] != width or held.first + len(held.rows) != len(state.tokens):
        return False
    return all(save.hidden is None or len(save.hidden) == width for save in saves)


# -- files --------------------------------------------------------------------------------------


def write_state(path: Path, state: CacheState, key: Mapping[str, str]) -> None:
    """Write a state, whole or not at all. Raises SpecliError where it cannot be written."""
    tokens = np.asarray(state.tokens, "<i4")
    rows = np.empty((0, 1), np.float32) if state.hidden is None else state.hidden.rows
    marks = [np.empty(0, np.float32) if save.hidden is None else save.hidden for save in state.saves]
    datas = [save.data for save in state.saves]
    parts = [_as_bytes(part) for part in (tokens, state.data, rows, *datas, *marks, *state.side)]
    header: dict[str, Any] = {
        "key": dict(key),
        "sizes": [len(part) for part in parts],
        "checkpoints": [save.length for save in state.saves],
        "rows": None if state.hidden is None else [state.hidden.first, rows.shape[1]],
        "follower": state.follower,
    }
    header["digest"] = _digest(header, parts)
    line = json.dumps(header).encode() + b"\n"
    write_atomic(path, [memoryview(_MAGIC), memoryview(line), *(part.data for part in parts)])


def _as_bytes(part: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8)


def read_state(path: Path, key: Mapping[str, str]) -> CacheState | None:
    """The state in a file, None if there is no file. Raises SessionError, without the file's name, if it does not
    serve here."""
    try:
        with path.open("rb") as file:
            header = _header(file)
            _require_key(header["key"], key)
            return _body(file, header, path.stat().st_size)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SessionError("the cache that was kept is damaged") from error


def prune(folder: Path, names: Container[str], most: int) -> None:
    """Remove the caches in `folder` but those of `names`, the oldest until the rest takes at most `most` bytes,
    and what writers that were killed have left."""
    found: list[tuple[float, int, Path]] = []
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):
                about = path.stat()
                if path.suffix == ".cache" and path.stem not in names:
                    path.unlink()
                elif path.suffix == ".cache":
                    found.append((about.st_mtime, about.st_size, path))
                elif path.suffix == ".tmp" and time.time() - about.st_mtime > _ABANDONED_S:
                    path.unlink()
    for _, size, path in sorted(found, reverse=True):
        most -= size
        if most < 0:
            with suppress(OSError):
                path.unlink()


def _header(file: BinaryIO) -> dict[str, Any]:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise SessionError("the cache was kept by another version of specli")
    header = json.loads(file.readline(_LONGEST_HEADER))
    if not isinstance(header, dict):
        raise ValueError("no header")
    return header


def _require_key(found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    for name, value in wanted.items():
        if found[name] != value:
            raise SessionError(f"the cache was kept with another {name}")


def _body(file: BinaryIO, header: Mapping[str, Any], file_size: int) -> CacheState:
    """Sizes are checked before memory is taken, contents before anything is believed."""
    sizes, lengths, rows = header["sizes"], header["checkpoints"], header["rows"]
    n = len(lengths)
    if any(type(each) is not int or each < 0 for each in (*sizes, *lengths, *(rows or ()))):
        raise ValueError("a size is none")
    if file.tell() + sum(sizes) != file_size or len(sizes) < 3 + 2 * n:
        raise ValueError("sizes do not add up")
    parts = [np.fromfile(file, np.uint8, each) for each in sizes]
    if [len(part) for part in parts] != sizes or _digest(header, parts) != header["digest"]:
        raise ValueError("contents changed")
    tokens = tuple(parts[0].view("<i4").tolist())
    if lengths != sorted(set(lengths)) or any(length > len(tokens) for length in lengths):
        raise ValueError("checkpoints out of order")
    marks = [part.view(np.float32) if len(part) else None for part in parts[3 + n : 3 + 2 * n]]
    saves = tuple(map(Checkpoint, lengths, parts[3 : 3 + n], marks))
    held = None if rows is None else HeldRows(rows[0], parts[2].view(np.float32).reshape(-1, rows[1]))
    return CacheState(tokens, parts[1], saves, held, str(header["follower"]), tuple(parts[3 + 2 * n :]))


def _digest(header: Mapping[str, Any], parts: Sequence[NDArray[np.uint8]]) -> str:
    """Of everything in the file but itself."""
    about = {name: value for name, value in header.items() if name != "digest"}
    digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16)
    for part in parts:
        digest.update(part.data)
    return digest.hexdigest()
