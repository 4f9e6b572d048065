"""Lines typed into a terminal that cannot move its cursor, or must not: it echoes and edits them itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator

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
                line = sys.stdin.buffer.readline()
            except KeyboardInterrupt:
                self._show("\n")
                continue
            if not line:
                self._show("\n")
                return
            yield line.decode(sys.stdin.encoding or "utf-8", "replace").rstrip("\r\n")

    def _show(self, text: str) -> None:
        if self._out is not None:
            self._out.write(text)
            self._out.flush()
