"""Where specli keeps its files, and how it writes them: whole or not at all, and for the owner only.

What is no file of its own (a device, a pipe, a descriptor that is already open) is written into instead.

Each directory can be moved by an environment variable (SPECLI_CONFIG_DIR, SPECLI_CACHE_DIR,
SPECLI_DATA_DIR); otherwise it is the platform's usual place.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from platformdirs import PlatformDirs

from specli.errors import SpecliError

if sys.platform == "win32":
    import msvcrt

    def _grasp(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _grasp(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


_DIRS = PlatformDirs("specli", appauthor=False)


def config_dir(*, create: bool = True) -> Path:
    """The user's settings and own profiles. Created (mode 0700) unless `create` is false."""
    return _directory("SPECLI_CONFIG_DIR", _DIRS.user_config_path, create)


def cache_dir(*, create: bool = True) -> Path:
    """What can be found out again: probe verdicts, measurements. Created unless `create` is false."""
    return _directory("SPECLI_CACHE_DIR", _DIRS.user_cache_path, create)


def data_dir(*, create: bool = True) -> Path:
    """What the user would miss: histories, sessions. Created (mode 0700) unless `create` is false."""
    return _directory("SPECLI_DATA_DIR", _DIRS.user_data_path, create)


def lock(handle: int) -> bool:
    """Take the lock of an open file, which ends when it is closed or its process ends; False if another process
    has it. On a file system without locks all get it: better no lock than nothing done."""
    try:
        _grasp(handle)
    except (BlockingIOError, PermissionError):  # the latter is what Windows says
        return False
    except OSError:
        return True
    return True


def write_atomic(
    path: str | os.PathLike[str], content: str | bytes | Sequence[memoryview], mode: int = 0o600
) -> None:
    """Write `content` (text as UTF-8, or pieces one after another) to `path`, so that a reader sees all of the
    old or all of the new.

    Missing parent directories are made; a link is followed, not replaced; what `in_place` opens is written into.
    Raises SpecliError, in one line, where it cannot be written; the old file then stands as it was.
    """
    shown = os.fspath(path)
    try:
        data = content.encode("utf-8") if isinstance(content, str) else content
        pieces = [memoryview(data)] if isinstance(data, bytes) else data
        handle = in_place(shown)
        if handle is not None:
            with os.fdopen(handle, "wb") as file:
                for piece in pieces:
                    file.write(piece)
            return
        target = Path(os.path.realpath(path))
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(target, pieces, mode)
    except OSError as error:
        raise SpecliError(f"cannot write {shown}: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the path, or text that is not valid Unicode
        raise SpecliError(f"cannot write {shown!r}: {error}") from error


def _replace(target: Path, pieces: Sequence[memoryview], mode: int) -> None:
    """Fill a new file beside `target`, then put it in its place in one step."""
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:40]}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())  # else a power cut can leave the new name on an empty file
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def require_place(folder: Path) -> None:
    """Before long work, make sure that its result can be written into `folder`, which is made if need be.
    Raises SpecliError, in one line, where it cannot."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(prefix=".", suffix=".tmp", dir=folder):  # asked: modes do not tell it all
            pass
    except OSError as error:
        raise SpecliError(f"cannot write {folder}: {error.strerror or error}") from error


def in_place(path: str) -> int | None:
    """A descriptor for what is written into and never replaced, to be closed by the caller: a device, a pipe, or
    what a process holds open, as /dev/stdout, /dev/fd/3 and /proc/self/fd/3 name it. One of our own goes on
    where it stands, one of another process at its end. None for a file, or where there is nothing.

    Raises OSError.
    """
    descriptor = _descriptor(path)
    if descriptor is not None:
        handle = os.dup(descriptor.number) if descriptor.ours else os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            _require_writable(handle)
        except OSError:
            os.close(handle)
            raise
        return handle
    try:
        kind = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    return None if stat.S_ISREG(kind) else os.open(path, os.O_WRONLY)


class _Descriptor(NamedTuple):
    number: int
    ours: bool


def _descriptor(path: str) -> _Descriptor | None:
    """The open descriptor that a path leads to, over links such as /dev/stdout."""
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(os.path.abspath(path))
        folder = os.path.realpath(folder)
        found = _DESCRIPTORS.fullmatch(folder)
        if found is not None and name.isdecimal():
            return _Descriptor(int(name), found["process"] in (None, str(os.getpid())))
        if not os.path.islink(path):
            return None
        path = os.path.join(folder, os.readlink(path))
    return None


_MOST_LINKS = 40
_DESCRIPTORS = re.compile(r"/dev/fd|/proc/(?P<process>\d+)(/task/\d+)?/fd")


def _require_writable(handle: int) -> None:
    """Refuse what was opened for reading before anything is worked out for it."""
    try:
        import fcntl
    except ImportError:  # Windows, which has no such paths
        return
    if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "it is open for reading only")


def _directory(variable: str, usual: Path, create: bool) -> Path:
    override = os.environ.get(variable, "")
    path = Path(os.path.expanduser(override)) if override else usual
    if create:
        # Reading works without it (a read-only home in a container); who writes gets the reason.
        with suppress(OSError):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path
