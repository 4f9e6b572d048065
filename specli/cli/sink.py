"""Where answers go: standard output, or a file that appears only when all has been said."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from contextlib import suppress
from types import TracebackType
from typing import TextIO

from specli.errors import Interrupted, SpecliError, UsageError
from specli.paths import in_place

_NO_ROOM = {errno.ENOSPC, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC)}


class Sink:
    """Enter it before the model is loaded: what cannot be written is then said at once, as SpecliError.

    `path`: None or "-" for standard output. A regular file is written beside and takes its place at the end, in one
    step; if an error comes in between, the old one stays as it was. What was said until an interruption goes to
    FILE.partial. Devices, pipes and open descriptors (/dev/stdout) are written to as they are. `flag`: what it was
    given with, for the UsageError where it is empty.
    """

    def __init__(self, path: str | None, flag: str = "--output") -> None:
        if path == "":
            raise UsageError(f"{flag}: the name of the file is empty")
        self._shown = path or "-"
        self._file: TextIO | None = None
        self._temporary = self._target = ""
        self.interrupted = False
        self.partial: str | None = None  # where the part that was said went

    @property
    def out(self) -> TextIO | None:
        """Where to write; None where standard output is closed."""
        return self._file or sys.stdout

    def __enter__(self) -> Sink:
        if self._shown == "-":
            return self
        try:
            self._open(os.path.expanduser(self._shown))
        except (OSError, ValueError) as error:
            raise self._failure(error) from error
        return self

    def _open(self, path: str) -> None:
        handle = in_place(path)
        if handle is not None:
            self._file = _text(handle)
            return
        kind = _kind(path)
        if kind is not None and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        self._target = os.path.realpath(path)  # a link is followed, not replaced
        directory, name = os.path.split(self._target)
        self._temporary = os.path.join(directory, f".{name[:40]}.{secrets.token_hex(4)}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        handle = os.open(self._temporary, flags, 0o666)
        self._file = _text(handle)
        if kind is not None:
            with suppress(OSError):  # not the owner
                os.chmod(self._temporary, stat.S_IMODE(kind))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        stopped = self.interrupted or isinstance(error, (KeyboardInterrupt, Interrupted))
        try:
            if error is not None and not stopped:
                with suppress(OSError):
                    self._file.close()
                if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:
                    raise self._failure(error) from error
            else:
                self._finish(self._target + ".partial" if stopped else self._target)
        finally:
            if self._temporary:
                with suppress(OSError):
                    os.unlink(self._temporary)

    def _finish(self, target: str) -> None:
        assert self._file is not None
        try:
            self._file.flush()
            wrote = bool(self._temporary) and os.fstat(self._file.fileno()).st_size > 0
            if self._temporary:
                os.fsync(self._file.fileno())
            self._file.close()
            if self._temporary and (wrote or target == self._target):
                os.replace(self._temporary, target)
                self.partial = None if target == self._target else self._shown + ".partial"
        except OSError as error:
            with suppress(OSError):
                self._file.close()
            raise self._failure(error) from error

    def _failure(self, error: OSError | ValueError) -> SpecliError:
        return SpecliError(f"cannot write {self._shown}: {getattr(error, 'strerror', None) or error}")


def _kind(path: str) -> int | None:
    """The mode of what stands there, None if nothing does."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _text(handle: int) -> TextIO:
    return open(handle, "w", encoding="utf-8", errors="replace", newline="\n")
