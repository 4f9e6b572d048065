"""A cache on the disk: what was decoded once need not be decoded again when a conversation goes on.

A file holds the tokens, the library's state of them, and the checkpoints that recurrent models are taken
back to; so everything after it is as it would have been without the break, bit for bit. It fits only what
it was made with, see `cache_key`; a digest finds what was damaged on the way.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from specli.engine import backend
from specli.engine.context import Context
from specli.engine.rollback import Checkpoint
from specli.errors import SessionError
from specli.paths import write_atomic

_MAGIC = b"specli-cache 1\n"
_LONGEST_HEADER = 1 << 20
_ABANDONED_S = 3600.0  # an unfinished file this old has no writer any more


@dataclass(frozen=True, slots=True, eq=False)
class CacheState:
    """What a cache held: the tokens, all of the library's state (bytes), the checkpoints, ascending."""

    tokens: tuple[int, ...]
    data: NDArray[np.uint8]
    saves: tuple[Checkpoint, ...] = ()


def size_of(context: Context) -> int:
    """Bytes that the state of this cache takes, in memory and on the disk."""
    memory = context.memory
    return memory.whole_bytes() + sum(len(save.data) for save in memory.saves)


def unsavable(context: Context) -> str | None:
    """Why this cache cannot be kept so that it would go on in the same way; None if it can."""
    if context.model.n_swa:
        return "of a sliding window the library saves only a part"
    if context.hidden is not None:
        return "the prediction heads need rows that no state holds"
    return None


def cache_key(context: Context, chunk: int, exact_width: int | None) -> dict[str, str]:
    """What a saved cache must have in common with a context to serve there, each with a name for people.
    `chunk`: tokens a prompt is decoded in."""
    p = context.params
    exact = f"{exact_width} {chunk} {p.threads} {p.threads_batch} {backend.processor_id()}"
    return {
        "model": context.model.header.fingerprint,
        "library": backend.build_id(),
        "context size": str(context.n_ctx),
        "cache type": f"{p.type_k} {p.type_v} {p.flash_attn} {context.snapshots}",
        "placement": str(asdict(context.model.params)),
        "exact mode": exact if exact_width else "off",
    }


def take(context: Context) -> CacheState:
    """The cache as it is now. Raises EngineError if the library does not hand it out."""
    memory = context.memory
    return CacheState(tuple(context.tokens), memory.whole(), memory.saves)


def give(context: Context, state: CacheState) -> bool:
    """Make the cache what `state` says. False, and the cache is empty, if it does not take it."""
    return context.refill(state.tokens, state.data, state.saves)


# -- files --------------------------------------------------------------------------------------


def write_state(path: Path, state: CacheState, key: Mapping[str, str]) -> None:
    """Write a state, whole or not at all. Raises SpecliError where it cannot be written."""
    tokens = np.asarray(state.tokens, "<i4")
    parts = [tokens.view(np.uint8), state.data, *(save.data for save in state.saves)]
    header = {
        "key": dict(key),
        "tokens": len(state.tokens),
        "state": len(state.data),
        "checkpoints": [[save.length, len(save.data)] for save in state.saves],
        "digest": _digest(parts),
    }
    line = json.dumps(header).encode() + b"\n"
    write_atomic(path, [memoryview(_MAGIC), memoryview(line), *(part.data for part in parts)])


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
    n_tokens, size = header["tokens"], header["state"]
    lengths = [length for length, _ in header["checkpoints"]]
    sizes = [4 * n_tokens, size, *(each for _, each in header["checkpoints"])]
    numbers = [*lengths, *sizes]
    if any(type(n) is not int or n < 0 for n in numbers) or file.tell() + sum(sizes) != file_size:
        raise ValueError("sizes do not add up")
    if lengths != sorted(set(lengths)) or any(length > n_tokens for length in lengths):
        raise ValueError("checkpoints out of order")
    parts = [np.fromfile(file, np.uint8, each) for each in sizes]
    if [len(part) for part in parts] != sizes or _digest(parts) != header["digest"]:
        raise ValueError("contents changed")
    saves = tuple(Checkpoint(length, part, None) for length, part in zip(lengths, parts[2:]))
    return CacheState(tuple(parts[0].view("<i4").tolist()), parts[1], saves)


def _digest(parts: Sequence[NDArray[np.uint8]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part.data)
    return digest.hexdigest()
