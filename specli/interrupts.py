"""Ctrl-C and termination as a flag that the loop looks at between cycles, so nothing said is lost.

Python runs a signal's handler wherever it stands, also in a callback that C code has called, and an exception
raised there goes nowhere. `held` keeps signals back around such calls, `resend_dropped` sends a dropped one again.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from specli.errors import Terminated

_ENDS = tuple(s for s in (signal.SIGTERM, getattr(signal, "SIGHUP", None)) if s is not None)
"""What ends the program: it is asked to, or its terminal is gone."""
TERMINATED = 128 + int(signal.SIGTERM)
"""Exit code after SIGTERM; after SIGINT it is that of KeyboardInterrupt, 130."""
_AGAIN_S = 0.05  # after which a signal whose exception was dropped is sent again


class Interrupts:
    """While entered, the first SIGINT, SIGTERM or SIGHUP makes `stop()` true; a second one raises.

    The second SIGINT raises KeyboardInterrupt, the second of the others Terminated. The handlers
    from before are back afterwards. A signal that was ignored stays ignored (`nohup`, `&` in scripts).
    `patience`: seconds in which a second SIGINT is still the first, of a key pressed twice.
    """

    def __init__(self, patience: float = 0.0) -> None:
        self._patience = patience
        self._since = 0.0
        self._received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def stop(self) -> bool:
        """Whether to stop at the next chance."""
        return self._received is not None

    @property
    def exit_code(self) -> int | None:
        """130, 143 or 129 once stopped, None before."""
        return None if self._received is None else 128 + int(self._received)

    @property
    def terminated(self) -> bool:
        """Whether it was SIGTERM or SIGHUP: then the program is to end, not just the answer."""
        return self._received in _ENDS

    def __enter__(self) -> Interrupts:
        if _settable():
            for number in (signal.SIGINT, *_ENDS):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._received is None:
            self._received, self._since = signal.Signals(number), time.monotonic()
        elif number in _ENDS:
            raise Terminated(128 + number)
        elif time.monotonic() - self._since >= self._patience:
            raise KeyboardInterrupt


@contextmanager
def held() -> Iterator[Callable[[], bool]]:
    """Around a call into C that calls back into Python: signals wait, and are handled as ever once it is over.

    Gives a function that says whether one waits, for calls that can be given up.
    """
    waiting: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def wait(number: int, frame: FrameType | None) -> None:
        waiting.append(number)

    try:
        if _settable():
            for number in (signal.SIGINT, *_ENDS):
                handler = signal.getsignal(number)
                if callable(handler):  # neither ignored nor the end of the process
                    before[number] = handler
                    signal.signal(number, wait)
        yield lambda: bool(waiting)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for received in waiting:
            signal.raise_signal(received)


def resend_dropped() -> None:
    """For a program that owns its process: what a signal raises where Python can only drop it, in a callback
    from C or a finaliser, is not lost. The signal is sent again until its exception gets through."""
    global _otherwise
    if sys.unraisablehook is not _resend:
        _otherwise, sys.unraisablehook = sys.unraisablehook, _resend


_otherwise: Callable[[Any], Any] = sys.unraisablehook


def _resend(dropped: Any) -> None:
    if isinstance(dropped.exc_value, Terminated):
        _send_soon(dropped.exc_value.exit_code - 128)
    elif isinstance(dropped.exc_value, KeyboardInterrupt):
        _send_soon(int(signal.SIGINT))
    else:
        _otherwise(dropped)


def ignore_signals() -> None:
    """At the end of a program, when all is said and its exit code is known: one more signal must not change it."""
    if _settable():
        for number in (signal.SIGINT, *_ENDS):
            signal.signal(number, signal.SIG_IGN)


def _send_soon(number: int) -> None:
    def send() -> None:
        main = threading.main_thread().ident
        if hasattr(signal, "pthread_kill") and main is not None:
            signal.pthread_kill(main, number)  # it may be waiting in a system call
        else:
            signal.raise_signal(number)

    again = threading.Timer(_AGAIN_S, send)
    again.daemon = True
    again.start()


def _settable() -> bool:
    """Only the main thread may set handlers."""
    return threading.current_thread() is threading.main_thread()


def end_on_sigterm() -> None:
    """Outside of answers, too, these end the program in order: Terminated is raised."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise Terminated(128 + number)

    if _settable():
        for number in _ENDS:
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, handle)
