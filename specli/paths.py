"""Where specli keeps its files, and how it writes them: whole or not at all, and for the owner only.

Each directory can be moved by an environment variable (SPECLI_CONFIG_DIR, SPECLI_CACHE_DIR,
SPECLI_DATA_DIR); otherwise it is the platform's usual place.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from platformdirs import PlatformDirs

from specli.errors import SpecliError

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


def write_atomic(
    path: str | os.PathLike[str], content: str | bytes | Sequence[memoryview], mode: int = 0o600
) -> None:
    """Write `content` (text as UTF-8, or pieces one after another) to `path`, so that a reader sees all of the
    old or all of the new.

    Missing parent directories are made; a link is followed, not replaced.
    Raises SpecliError, in one line, where it cannot be written; the old file then stands as it was.
    """
    shown = os.fspath(path)
    try:
        data = content.encode("utf-8") if isinstance(content, str) else content
        pieces = [memoryview(data)] if isinstance(data, bytes) else data
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


def _directory(variable: str, usual: Path, create: bool) -> Path:
    override = os.environ.get(variable, "")
    path = Path(os.path.expanduser(override)) if override else usual
    if create:
        # Reading works without it (a read-only home in a container); who writes gets the reason.
        with suppress(OSError):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path
