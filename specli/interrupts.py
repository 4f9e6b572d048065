"""Ctrl-C and termination as a flag that the loop looks at between cycles, so nothing said is lost."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from specli.errors import Interrupted

_ENDS = tuple(s for s in (signal.SIGTERM, getattr(signal, "SIGHUP", None)) if s is not None)
"""What ends the program: it is asked to, or its terminal is gone."""
TERMINATED = 128 + int(signal.SIGTERM)
"""Exit code after SIGTERM; after SIGINT it is that of KeyboardInterrupt, 130."""


class Interrupts:
    """While entered, the first SIGINT, SIGTERM or SIGHUP makes `stop()` true; a second one raises.

    The second SIGINT raises KeyboardInterrupt, the second of the others Interrupted (143). The handlers
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
        if threading.current_thread() is threading.main_thread():  # only there can handlers be set
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
            raise Interrupted("terminated", 128 + number)
        elif time.monotonic() - self._since >= self._patience:
            raise KeyboardInterrupt


def end_on_sigterm() -> None:
    """Outside of answers, too, these end the program in order: Interrupted (143, or 129) is raised."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise Interrupted("terminated", 128 + number)

    if threading.current_thread() is threading.main_thread():
        for number in _ENDS:
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, handle)
