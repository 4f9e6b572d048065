"""A page in a terminal that is only ever written on: what is certain stays, a guess and a live line under it
come and go.

The cursor rests at the end of what is certain. All that may change stands behind it and below: room is
made there with IND, which keeps the column, the place is saved, the rows are drawn, and the cursor goes
back. So "erase what is below" removes all of it, wherever a resize has moved it meanwhile. One step is one
write; rows are overwritten rather than erased first, so nothing flickers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from specli.ui import terminal
from specli.ui.layout import RAN_OVER, Item, Layout, Run, char_count

_END_OF_ROW, _BELOW = "\x1b[K", "\x1b[J"
_CUT, _WRAP = "\x1b[?7l", "\x1b[?7h"
"""Rows too wide are cut off, or go on below. A row drawn for a window that has just become narrower must not
take two rows: the place to go back to would no longer be right."""
NARROWEST = 20
"""Cells below which there is no room for a live line."""


class Page:
    """Writes to `out`, a terminal that can move its cursor. It starts at the beginning of a row."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._layout = Layout(self._measure())
        self._drawn = ""  # what drew that which stands below and is to go

    @property
    def width(self) -> int:
        """Cells that a row of text may have. The last one of the window stays free: a row that ends there
        would leave it open whether the next character wraps."""
        return self._layout.width

    @property
    def blank(self) -> bool:
        """Whether the cursor is at the beginning of a row."""
        return self._layout.column == 0

    def write(self, items: Sequence[Item], guess: Sequence[Item] = (), live: str = "", most: int = 0) -> None:
        """Set `items` for good, show `guess` behind them and `live` below.

        `most`: rows of the guess, as many as there is room for if 0; the last ones are shown.
        """
        self._layout.width = self._measure()
        text = self._rows(self._layout.feed(items))
        rows = self._layout.preview(guess).split("\n")
        room = max(2, self._height() // 2 - 1)  # so that half the width makes no more than a window of it
        rows = self._last(rows, min(most or room, room))
        if self.width < NARROWEST:
            live = ""
        below = self._below(rows, live) if live or rows != [""] else ""
        if text or below != self._drawn:
            self._out.write(text + (below or (_BELOW if self._drawn else "")))
            self._out.flush()
        self._drawn = below

    def end(self, items: Sequence[Item] = ()) -> None:
        """Set the last items, end the row, leave nothing else behind."""
        self._layout.width = self._measure()
        text = self._layout.feed(items) + self._layout.flush()
        if not self.blank:
            text += self._layout.feed([Run("\n")])
        text = self._rows(text)
        self._out.write(text + (_BELOW if self._drawn else ""))
        self._out.flush()
        self._drawn = ""

    def _rows(self, text: str) -> str:
        """With what was drawn under its rows erased: row by row, or at once where a row may be full to the
        edge, whose last character would go, too."""
        if RAN_OVER in text:
            return (_BELOW if self._drawn else "") + text.replace(RAN_OVER, "\n")
        return text.replace("\n", _END_OF_ROW + "\n") if self._drawn else text

    def _last(self, rows: list[str], most: int) -> list[str]:
        """The last `most` of them; the first one goes on in the cursor's row."""
        if len(rows) <= most:
            return rows
        return rows[-most:] if self.blank else ["", *rows[1 - most :]]

    def _below(self, rows: Sequence[str], live: str) -> str:
        """What draws `rows` from the cursor on, and `live` on the row below."""
        drawn = [*rows, live] if live else list(rows)
        n = len(drawn) - 1
        make_room = "\x1bD" * n + f"\x1b[{n}A" if n else ""
        rows_below = (_END_OF_ROW + "\r\n").join(drawn) + _BELOW
        return f"{make_room}\x1b7{_CUT}{rows_below}{_WRAP}\x1b8"

    def _measure(self) -> int:
        return max(8, terminal.columns(self._out) - 1)

    def _height(self) -> int:
        try:
            return os.get_terminal_size(self._out.fileno()).lines or 24
        except (OSError, ValueError):
            return 24


def fitted(text: str, width: int) -> str:
    """`text` cut to `width` cells."""
    while char_count(text) > width:
        text = text[:-1]
    return text
