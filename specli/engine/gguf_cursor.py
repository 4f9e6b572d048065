"""Reading on through a model file, a window at a time.

Nothing is allocated by a number from the file before that number has been checked. The file is read,
not mapped: one that shrinks meanwhile, or a disk that fails, is then an error and not a signal.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from specli.errors import ModelFileError

WINDOW = 1 << 18
MAX_STRING = 1 << 24  # bytes; the longest chat templates have some 50 thousand
_FAR = 1 << 30  # a length this far past the end is damage, a shorter one a file cut off

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

Number = int | float | bool

NUMBERS = {
    kind: struct.Struct("<" + code)
    for kind, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
"""How a number of each GGUF value type is stored; 8 is a string and 9 an array."""


class Cursor:
    """Reads on through the open file at `path` of `size` bytes, little-endian."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self._file = file
        self._window, self._start, self._at = b"", 0, 0

    @property
    def position(self) -> int:
        """Where the next byte comes from, in bytes from the start of the file."""
        return self._start + self._at

    def error(self, what: str) -> ModelFileError:
        """The error to raise about this file."""
        return ModelFileError(f"{shown(self.path)}: {what}")

    def damaged(self, what: str) -> ModelFileError:
        """The error for content that cannot be."""
        return self.error(f"the file is damaged: {what}; download it again")

    def incomplete(self, needed: int | None = None) -> ModelFileError:
        """The error for a file cut off, of `needed` bytes where that is known."""
        extent = (
            f"{self.size} bytes, cut off in its header"
            if needed is None
            else f"{self.size} of {needed} bytes"
        )
        return self.error(f"the file is incomplete: {extent}; download it again")

    def require(self, n: int) -> None:
        """Raise unless the file has `n` more bytes."""
        beyond = self.position + n - self.size
        if beyond > _FAR:
            raise self.damaged(f"at byte {self.position} it claims {n} more bytes")
        if beyond > 0:
            raise self.incomplete()

    def seek(self, position: int) -> None:
        """Go to a place in the file that was read or skipped before."""
        self._window, self._start, self._at = b"", position, 0

    def skip(self, n: int) -> None:
        """Step over `n` bytes, which must be there."""
        self.require(n)
        self._at += n

    def take(self, n: int) -> bytes:
        """The next `n` bytes; the caller has bounded `n`."""
        self._fill(n)
        self._at += n
        return self._window[self._at - n : self._at]

    def u32(self) -> int:
        """The next four bytes as an unsigned number."""
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        """The next eight bytes as an unsigned number."""
        return int(_U64.unpack(self.take(8))[0])

    def string(self, what: str, limit: int = MAX_STRING, errors: str = "replace") -> str:
        """A string of at most `limit` bytes; `what` names it in errors."""
        length = self.u64()
        if length > limit:
            raise self.damaged(f"{what} has {length} bytes, at most {limit} can be")
        return self.take(length).decode("utf-8", errors)

    def name(self, what: str, limit: int) -> str:
        """A string that can be a name: not empty, nothing that does not print."""
        begin = self.position
        name = self.string(f"{what} at byte {begin}", limit, "backslashreplace")
        if not name.isprintable() or not name:
            raise self.damaged(f"{what} at byte {begin} is {name[:80]!a}, which is no name")
        return name

    def number(self, kind: int) -> Number:
        """A number of that value type, a key of `NUMBERS`."""
        form = NUMBERS[kind]
        value: Number = form.unpack(self.take(form.size))[0]
        return value

    def numbers(self, kind: int, count: int) -> tuple[Number, ...]:
        """`count` numbers of that value type."""
        form = NUMBERS[kind]
        self.require(count * form.size)
        items: list[Number] = []
        while len(items) < count:
            block = self.take(form.size * min(count - len(items), WINDOW // 8))
            items.extend(value for (value,) in form.iter_unpack(block))
        return tuple(items)

    def strings(self, count: int, what: str) -> tuple[str, ...]:
        """`count` strings. Bytes that are not UTF-8 become escapes, so that different ones stay different."""
        items: list[str] = []
        while len(items) < count:
            self._fill(8)
            window, at, end = self._window, self._at, len(self._window)
            while len(items) < count and at + 8 <= end:
                stop = at + 8 + int(_U64.unpack_from(window, at)[0])
                if stop > end:
                    break
                items.append(window[at + 8 : stop].decode("utf-8", "backslashreplace"))
                at = stop
            if at == self._at:  # this one reaches beyond the window
                items.append(self.string(what, errors="backslashreplace"))
            else:
                self._at = at
        return tuple(items)

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings. The one hot loop: a vocabulary takes half a million turns."""
        unpack = _U64.unpack_from
        while count:
            self._fill(8)
            window, at, last = self._window, self._at, len(self._window) - 8
            while count and at <= last:
                at += 8 + unpack(window, at)[0]
                count -= 1
            self.skip(at - self._at)

    def _fill(self, n: int) -> None:
        """See to it that the next `n` bytes are in the window."""
        if self._at + n <= len(self._window):
            return
        self.require(n)
        self._start, self._at = self.position, 0
        self._file.seek(self._start)
        self._window = self._file.read(min(max(n, WINDOW), self.size - self._start))
        if len(self._window) < n:
            raise self.error("the file shrank while it was read; try again")


@contextmanager
def opened(path: Path) -> Iterator[Cursor]:
    """A cursor at the start of the file; whatever the system says against it becomes a ModelFileError."""
    try:
        _check_kind(path)
        with open(path, "rb", buffering=0) as file:
            yield Cursor(file, path, os.fstat(file.fileno()).st_size)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFileError(f"{shown(path)}: no such file") from None
    except OSError as error:
        raise ModelFileError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None


def _check_kind(path: Path) -> None:
    try:
        mode = os.stat(path).st_mode
    except ValueError:  # a NUL, or what the file system cannot encode
        raise ModelFileError(f"{shown(path)}: cannot be the name of a file") from None
    if stat.S_ISDIR(mode):
        raise ModelFileError(f"{shown(path)}: a directory; name a .gguf file in it")
    if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
        raise ModelFileError(f"{shown(path)}: not a regular file")


def shown(text: object) -> str:
    """The text on one line, safe to print."""
    text = str(text)
    return text if text.isprintable() else ascii(text)
