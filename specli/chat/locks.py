"""One writer at a time: a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _grasp(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _grasp(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Lock:
    """Holds the lock file at `path` until `release`. Raises BlockingIOError if another process does, OSError
    where there can be no such file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = self._open()

    def _open(self) -> int:
        while True:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                _grasp(handle)
                if self._still_there(handle):
                    return handle
            except (BlockingIOError, PermissionError) as error:  # the latter is what Windows says
                os.close(handle)
                raise BlockingIOError(f"{self._path} is locked") from error
            except OSError:  # a file system without locks: better no lock than no session
                return handle
            os.close(handle)  # its holder removed it between our opening and locking it

    def _still_there(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self._path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let others have it. Safe to call twice."""
        if self._handle < 0:
            return
        if os.name != "nt":  # there an open file cannot be removed, and a closed one may be another's
            with suppress(OSError):
                os.unlink(self._path)
        os.close(self._handle)
        self._handle = -1
