"""Text set in rows: words wrapped by cells as they come, nothing taken back that was set.

What counts is that no row is wider than it may be. Terminals differ in how wide they draw joined emoji,
so the widest reading is taken: a row may end early, it never runs over.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from specli.ui.terminal import styled

RAN_OVER = "\v"
"""Ends a line that may have filled its last row to the edge; no text holds it."""
_TAB = 4
_JOINER, _EMOJI_STYLE = "\u200d", "\ufe0f"
_CLOSING = set("、。，．！？：；）」』】》〉〕”’…,.!?:;)]}%")  # never the first of a row
_OPENING = set("（「『【《〈〔“‘([{")  # never the last of one
_CHUNKS = re.compile(r"\n|[ \t]+|[^ \t\n]+")


@dataclass(frozen=True, slots=True)
class Run:
    """Text in one style (SGR codes). `hard`: white space counts, and a row may end anywhere. `free`: a part of
    a line that is there as a whole; where it ends the rows is the terminal's business, so that it is one line
    to whoever copies it."""

    text: str
    style: str = ""
    hard: bool = False
    free: bool = False


@dataclass(frozen=True, slots=True)
class Margin:
    """What the further rows of the line begin with. Every line starts without."""

    text: str
    style: str = ""


Item = Run | Margin


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a terminal draws as one: a character with its marks. `cells`: the most that it may take."""

    text: str
    cells: int


@dataclass(slots=True)
class Layout:
    """Sets items in rows of at most `width` cells. `column`: cells set in the row so far."""

    width: int
    column: int = 0
    _margin: Margin = field(default_factory=lambda: Margin(""))
    _space: list[Run] = field(default_factory=list)  # before the word; lost where a row ends
    _word: list[Run] = field(default_factory=list)  # not set yet: it may have to go below
    _word_cells: int = 0
    _long: bool = False  # in the midst of a word that no row can hold
    _guessing: bool = False
    _last: str = ""  # character set; a mark may come late

    def feed(self, items: Iterable[Item]) -> str:
        """What is certain now, rows divided by newlines."""
        out: list[str] = []
        for item in items:
            if isinstance(item, Margin):
                self._margin = item
            elif item.hard or item.free:
                self._place(out)
                self._set_spaces(out)
                if item.free and not self._guessing:
                    self._free(item.text.expandtabs(_TAB), item.style, out)
                else:
                    self._hard(item.text, item.style, out)
            else:
                for chunk in _CHUNKS.findall(item.text):
                    self._soft(chunk, item.style, out)
        return "".join(out)

    def flush(self) -> str:
        """The word held back."""
        out: list[str] = []
        self._place(out)
        return "".join(out)

    def preview(self, items: Iterable[Item]) -> str:
        """What the word held back and `items` would look like, with nothing set."""
        other = copy.copy(self)
        other._space, other._word, other._guessing = list(self._space), list(self._word), True
        return other.feed(items) + other.flush()

    # -- words ----------------------------------------------------------------------------------

    def _soft(self, chunk: str, style: str, out: list[str]) -> None:
        if chunk == "\n":
            self._place(out)
            self._end_line(out)
        elif chunk[0] in " \t":
            self._place(out)
            self._space.append(Run(chunk.expandtabs(_TAB), style))
        else:
            for cluster in [Cluster(chunk, len(chunk))] if chunk.isascii() else clusters(chunk):
                if self._may_break_before(cluster):
                    self._place(out)
                late = _widened(self._word[-1].text, cluster.text) if self._word else 0
                self._grow(cluster.text, cluster.cells + late, style, out)

    def _may_break_before(self, cluster: Cluster) -> bool:
        """Between wide characters a row may end, but not before what closes or after what opens."""
        if not self._word:
            return False
        first, last = cluster.text[0], self._word[-1].text[-1]
        if char_cells(first) == 0 or _is_skin_tone(first) or (_is_flag(first) and _is_flag(last)):
            return False  # a mark that comes late
        if last == _JOINER or last in _OPENING or first in _CLOSING:
            return False
        return (cluster.cells > 1 and not first.isascii()) or char_cells(last) > 1

    def _grow(self, text: str, cells: int, style: str, out: list[str]) -> None:
        if self._long:
            self._hard(text, style, out)
            return
        self._word.append(Run(text, style))
        self._word_cells += cells
        if self._word_cells > self.width - char_count(self._margin.text):
            self._place(out)
            self._long = True

    def _place(self, out: list[str]) -> None:
        """Set the word, below if it does not fit; in pieces if no row can hold it."""
        self._long = False
        if not self._word:
            return
        spaces = sum(len(s.text) for s in self._space)
        start = char_count(self._margin.text)
        if self.column + spaces + self._word_cells > self.width and self.column > start:
            self._next_row(out)
        else:
            self._set_spaces(out)
        if self.column + self._word_cells <= self.width:
            out += [styled(run.text, run.style, on=bool(run.style)) for run in self._word]
            self.column += self._word_cells
            self._last = self._word[-1].text[-1]
        else:
            for run in self._word:
                self._hard(run.text, run.style, out)
        self._word.clear()
        self._word_cells = 0

    def _set_spaces(self, out: list[str]) -> None:
        spaces, self._space = self._space, []
        for space in spaces:
            self._hard(space.text, space.style, out)

    # -- rows -----------------------------------------------------------------------------------

    def _hard(self, text: str, style: str, out: list[str]) -> None:
        """Set text as it is, row after row."""
        for n, line in enumerate(text.split("\n")):
            if n:
                self._end_line(out)
            for part, cells in _cut(
                line.expandtabs(_TAB), self.width - self.column, self.width, self._margin
            ):
                if cells and self.column + cells > self.width:
                    self._next_row(out)
                out.append(styled(part, style, on=bool(style)))
                self.column += cells + _widened(self._last, part)
                self._last = part[-1]

    def _free(self, text: str, style: str, out: list[str]) -> None:
        out.append(styled(text, style, on=bool(style)))
        self.column += char_count(text)

    def _next_row(self, out: list[str]) -> None:
        out.append("\n" + styled(self._margin.text, self._margin.style, on=bool(self._margin.style)))
        self.column = char_count(self._margin.text)
        self._space.clear()

    def _end_line(self, out: list[str]) -> None:
        self._space.clear()
        self._long = False
        out.append(RAN_OVER if self.column > self.width else "\n")
        self.column = 0
        self._margin = Margin("")


def _cut(line: str, room: int, width: int, margin: Margin) -> Iterator[tuple[str, int]]:
    """Pieces of a line that fit: the first into `room`, each further one into a row."""
    row = max(1, width - char_count(margin.text))
    piece, taken, room = "", 0, max(0, room)
    if line.isascii():
        for begin, end in zip([0, *range(room, len(line), row)], [*range(room, len(line), row), len(line)]):
            if begin < end:
                yield line[begin:end], end - begin
        return
    for cluster in clusters(line):
        if taken + cluster.cells > room and (piece or room < row):
            if piece:
                yield piece, taken
            piece, taken, room = "", 0, row
        piece += cluster.text
        taken += cluster.cells
    if piece:
        yield piece, taken


def clusters(text: str) -> Iterator[Cluster]:
    """`text` in pieces that must not be torn apart."""
    held, width = "", 0
    for char in text:
        cells = char_cells(char)
        joins = held and (
            cells == 0 or held[-1] == _JOINER or _is_skin_tone(char) or (_is_flag(char) and _is_flag(held))
        )
        if not joins:
            if held:
                yield Cluster(held, width)
            held, width = char, cells
            continue
        held += char
        width += cells
        if char == _EMOJI_STYLE and width == 1:
            width = 2
    if held:
        yield Cluster(held, width)


def _widened(before: str, mark: str) -> int:
    """Cells by which a mark that comes late widens what stands before it."""
    return int(mark[0] == _EMOJI_STYLE and char_cells(before[-1:]) == 1)


def _is_skin_tone(char: str) -> bool:
    return "\U0001f3fb" <= char <= "\U0001f3ff"


def _is_flag(char: str) -> bool:
    return len(char) == 1 and "\U0001f1e6" <= char <= "\U0001f1ff"


def char_cells(char: str) -> int:
    """Cells of one character."""
    if char.isascii():
        return 1
    from rich.cells import get_character_cell_size

    return get_character_cell_size(char)


def char_count(text: str) -> int:
    """The most cells that `text`, without control characters, may take."""
    return len(text) if text.isascii() else sum(cluster.cells for cluster in clusters(text))
