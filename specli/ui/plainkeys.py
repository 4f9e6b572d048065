"""Lines typed into a terminal that cannot move its cursor, or must not: it echoes and edits them itself."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator

from specli.errors import Terminated
from specli.ui import terminal


class PlainKeys:
    """Iterate for the lines typed; Ctrl-D, the end of input, ends it. Ctrl-C drops what was typed."""

    def __init__(self) -> None:
        self._out = sys.stdout if terminal.is_terminal(sys.stdout) else sys.stderr
        self._mark = terminal.with_fallbacks("› ", self._out)

    def __iter__(self) -> Iterator[str]:
        while True:
            try:
                self._show(self._mark)
                _wait_for_input()
                line = sys.stdin.buffer.readline()
            except Terminated:
                raise
            except KeyboardInterrupt:
                self._show("\n")
                continue
            if not line:
                self._show("\n")
                return
            yield line.decode(sys.stdin.encoding or "utf-8", "replace").rstrip("\r\n")

    def discard(self) -> bool:
        """Drop what was typed ahead; whether there was anything."""
        return terminal.flush_input()

    def _show(self, text: str) -> None:
        if self._out is not None:
            self._out.write(text)
            self._out.flush()


def _wait_for_input() -> None:
    """Until there is a line to read, or a signal. One that comes between Python's last look for signals and the
    beginning of a read would be heard only after the next line; here it wakes the waiting."""
    if os.name == "nt" or threading.current_thread() is not threading.main_thread():
        return
    woken, wake = os.pipe()
    try:
        os.set_blocking(wake, False)
        before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        try:
            select.select([sys.stdin, woken], [], [])
        finally:
            signal.set_wakeup_fd(before)
    finally:
        os.close(woken)
        os.close(wake)
