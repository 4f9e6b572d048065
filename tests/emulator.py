"""A terminal emulator of what specli uses, for tests of what a reader sees in the end.

`reflow`: on a resize, lines that ran over the edge are joined and wrapped anew, as most terminals do; the
others cut them off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rich.cells import get_character_cell_size

_SEQUENCE = re.compile(
    r"\x1b\[(?P<private>\??)(?P<params>[\d;]*)(?P<final>[A-Za-z])|\x1b(?P<plain>[78DM=>])|\x1b\][^\x07]*\x07"
)


@dataclass
class Cell:
    """A character with its marks; `wide`: it takes the next cell, too."""

    text: str = " "
    wide: bool = False
    style: str = ""


@dataclass
class Row:
    cells: list[Cell] = field(default_factory=list)
    wrapped: bool = False  # goes on in the next row

    def text(self) -> str:
        return "".join(c.text for c in self.cells)


class Emulator:
    def __init__(self, columns: int = 80, lines: int = 24, reflow: bool = True) -> None:
        self.columns, self.lines, self.reflow = columns, lines, reflow
        self.rows = [Row()]  # scrollback and screen
        self.top = 0  # first row of the screen
        self.y = self.x = 0  # y counts from the first row of all
        self.saved = (0, 0, False)
        self.pending = False  # a wrap is due
        self.wraps = True
        self.style = ""
        self.unknown: list[str] = []
        self._rest = ""

    # -- what is seen ---------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """All rows, scrollback too, those that ran over joined."""
        out = ""
        for row in self.rows:
            out += row.text() if row.wrapped else row.text().rstrip() + "\n"
        return out.rstrip("\n") + "\n" if out.strip() else ""

    def styled(self, word: str) -> str:
        """The style in which `word` was first written."""
        for row in self.rows:
            at = row.text().find(word)
            if at >= 0:
                cells = [c for c in row.cells for _ in c.text]
                return cells[at].style
        raise AssertionError(f"{word!r} is not on the screen:\n{self.text}")

    # -- what is written ------------------------------------------------------------------------

    def feed(self, text: str) -> None:
        text = self._rest + text
        self._rest = ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                match = _SEQUENCE.match(text, at)
                if match is None:
                    if len(text) - at < 40:
                        self._rest = text[at:]
                    else:
                        self.unknown.append(text[at : at + 10])
                    return
                self._steer(match)
                at = match.end()
            else:
                self._put(text[at])
                at += 1

    def _steer(self, match: re.Match[str]) -> None:
        if match["plain"]:
            self._escape(match["plain"])
            return
        if not match["final"]:
            return
        first = int(match["params"].split(";")[0] or 0)
        final = match["final"]
        if final == "m":
            self.style = "" if match["params"] in ("", "0") else match["params"]
            return
        if match["private"] and match["params"] == "7":
            self.wraps = final == "h"
        if match["private"] or final in "nhltq":
            return
        self.pending = False
        if final == "A":
            self.y = max(self.top, self.y - max(1, first))
        elif final == "B":
            self.y = min(self.top + self.lines - 1, self.y + max(1, first))
        elif final == "C":
            self.x = min(self.columns - 1, self.x + max(1, first))
        elif final == "D":
            self.x = max(0, self.x - max(1, first))
        elif final == "K":
            self._row().cells[self.x :] = []
            self._row().wrapped = False
        elif final == "J":
            if first == 2:
                del self.rows[self.top :]
            elif (self.y, self.x) == (self.top, 0) and any(row.text().strip() for row in self.rows[self.y :]):
                self.y = self.top = len(self.rows)  # as tmux has it, the window goes to the scrollback
            else:
                self._row().cells[self.x :] = []
                self._row().wrapped = False
                del self.rows[self.y + 1 :]
        else:
            self.unknown.append(match[0])
        self._fill()

    def _escape(self, char: str) -> None:
        if char == "D":
            self.pending = False
            self._down()
        elif char == "7":
            self.saved = (self.y - self.top, self.x, self.pending)
        elif char == "8":
            y, self.x, self.pending = self.saved
            self.y = self.top + min(y, self.lines - 1)
            self.x = min(self.x, self.columns - 1)

    def _put(self, char: str) -> None:
        if char == "\r":
            self.x, self.pending = 0, False
        elif char == "\n":
            self.pending = False
            self._down()
        elif char == "\b":
            self.x, self.pending = max(0, self.x - 1), False
        elif char == "\x07":
            return
        else:
            self._draw(char)

    def _draw(self, char: str) -> None:
        width = get_character_cell_size(char)
        row = self._row()
        if width == 0 or (
            row.cells[: self.x] and row.cells[min(self.x, len(row.cells)) - 1].text[-1:] == "\u200d"
        ):
            if self.x:
                at = len(row.cells) if self.pending else self.x
                row.cells[at - 1].text += char
            return
        if not self.wraps and self.x + width > self.columns:
            self.x = self.columns - width
        elif self.pending or self.x + width > self.columns:
            row.wrapped = True
            self.x, self.pending = 0, False
            self._down()
            row = self._row()
        while len(row.cells) < self.x:
            row.cells.append(Cell())
        row.cells[self.x : self.x + width] = [Cell(char, width > 1, self.style), *[Cell("")] * (width - 1)]
        self.x += width
        if self.x >= self.columns:
            self.x, self.pending = self.columns - 1, self.wraps

    def _down(self) -> None:
        self.y += 1
        self._fill()
        if self.y - self.top >= self.lines:
            self.top = self.y - self.lines + 1

    def _row(self) -> Row:
        self._fill()
        return self.rows[self.y]

    def _fill(self) -> None:
        while len(self.rows) <= self.y:
            self.rows.append(Row())

    # -- resizing -------------------------------------------------------------------------------

    def resize(self, columns: int) -> None:
        if not self.reflow:
            if columns < self.columns:
                for row in self.rows[self.top :]:
                    del row.cells[columns:]
            self.x = min(self.x, columns - 1)
            self.columns, self.pending = columns, False
            return
        lines: list[list[Cell]] = [[]]
        place = (0, 0)
        for y, row in enumerate(self.rows):
            if y == self.y:
                place = (len(lines) - 1, len(lines[-1]) + self.x + self.pending)
            lines[-1] += row.cells
            if not row.wrapped:
                lines.append([])
        self.columns, self.rows, self.pending = columns, [], False
        for n, line in enumerate(lines[:-1] if len(lines) > 1 else lines):
            parts = [line[i : i + columns] for i in range(0, max(1, len(line)), columns)]
            if n == place[0]:
                self.y = len(self.rows) + min(place[1] // columns, len(parts) - 1)
                self.x = min(place[1] - (self.y - len(self.rows)) * columns, columns - 1)
            self.rows += [Row(p, i + 1 < len(parts)) for i, p in enumerate(parts)]
        self._fill()
        self.top = max(0, len(self.rows) - self.lines, self.y - self.lines + 1)
        self.y = max(self.y, self.top)
