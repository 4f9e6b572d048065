"""What is said when the library below crashes: one line, where there would be none.

A crash in a C library ends a Python program without a word, and may leave the terminal without echo. New model
files are tried in a child process first; this is for what happens later, such as a file that is cut
off while it is mapped.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
from typing import Any

_WORDS = {
    "SIGBUS": "the model file was cut off or changed while it was in use, or its disk failed",
    "SIGABRT": "llama.cpp gave up",
}
_ADVICE = "; if it happens again, --no-repack or --flash-attn off may avoid it; please report it"
_PATIENCE_S = 5  # after which even this has got stuck

_kept: list[Any] = []  # the handler that C calls, and the terminal as it was
_reason = ""


def installed() -> bool:
    """Whether last words will be said."""
    return bool(_kept)


def because(reason: str) -> None:
    """What the library said before it ended the process."""
    global _reason
    _reason = without_folders(reason)[:200]


def without_folders(said: str) -> str:
    """What the library said on one line, without where it was built."""
    return re.sub(r"\S*[/\\](?=\S)", "", " ".join(said.split()))


def install() -> None:
    """For a program that owns its process, from its main thread. Not where faults are shown otherwise."""
    if os.name != "posix" or _kept or faulthandler.is_enabled() or os.environ.get("SPECLI_DEBUG"):
        return
    import ctypes

    libc = ctypes.CDLL(None)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, kind], ctypes.c_void_p

    def die(number: int) -> None:
        libc.alarm(_PATIENCE_S)
        with contextlib.suppress(BaseException):
            _restore_terminal()
            os.write(2, f"\nspecli: {words(signal.Signals(number).name)}\n".encode("ascii", "replace"))
        os._exit(1)

    handler = kind(die)
    _kept.extend([handler, _terminal()])
    for name in ("SIGBUS", "SIGSEGV", "SIGILL", "SIGFPE", "SIGABRT"):
        libc.signal(signal.Signals[name], handler)


def words(name: str) -> str:
    """The line for a signal."""
    said = f": {_reason}" if _reason and name == "SIGABRT" else ""
    return f"{_WORDS.get(name, 'llama.cpp crashed')}{said} ({name})" + ("" if name == "SIGBUS" else _ADVICE)


def _terminal() -> Any:
    """How the terminal is set; None without one."""
    with contextlib.suppress(Exception):
        import termios

        if sys.stdin is not None and sys.stdin.isatty():
            return termios.tcgetattr(sys.stdin.fileno())
    return None


def _restore_terminal() -> None:
    if _kept[1] is not None:
        import termios

        termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, _kept[1])
