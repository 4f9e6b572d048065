"""One writer at a time: a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from specli import paths


class Lock:
    """Holds the lock file at `path` until `release`. Raises BlockingIOError if another process does, OSError
    where there can be no such file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = self._open()

    def _open(self) -> int:
        while True:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            if not paths.lock(handle):
                os.close(handle)
                raise BlockingIOError(f"{self._path} is locked")
            if self._still_there(handle):
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
