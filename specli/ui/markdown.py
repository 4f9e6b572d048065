"""Markdown rendered as it comes, a line at a time, nothing taken back.

A line of the source stays a line of its own: models break lines because they mean to. What cannot be
judged yet is held back, to be shown as a guess: the beginning of a line that may become a heading or a
fence, a mark that is not closed yet, a line of code, a table. No character is lost but for the marks
that became style.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from specli.ui import terminal
from specli.ui.code import Highlighter
from specli.ui.grid import is_delimiter, set_table
from specli.ui.inline import Inline, Palette, join
from specli.ui.layout import Item, Margin, Run

_FENCE = re.compile(r"(\s*)(`{3,}|~{3,})\s*([^`]*)")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(?=\S)")
_LIST = re.compile(r"(\s*)([-*+]|\d{1,9}[.)])([ \t]+)(?=\S)")
_QUOTE = re.compile(r" {0,3}> ?")
_RULE = re.compile(r" {0,3}([-*_])[ \t]*(\1[ \t]*){2,}")
_CODE = re.compile(r"(?: {4}|\t)[ \t]*(?=\S)")
_INDENT = re.compile(r"[ \t]+")
_UNDECIDED = re.compile(
    r"\s*(?:|#{1,6}[ \t]*|[-*+][ \t]*|\d{1,9}[.)]?[ \t]*|> ?|`{1,2}|`{3,}[^`]*|~{1,2}|~{3,}[^`]*|[-*_ \t]+|\|.*)"
)
_ROWS = 60  # of a table to come that are shown, if the window has so many
_LONGEST = 4000  # characters of a line that is held back; then it is text


class Markdown:
    """Feed it the answer, set what it returns. `pending` is a guess at what it still holds back.

    `width`: cells of a row now. `symbol`: one of our own symbols as the terminal can show it.
    """

    def __init__(
        self, palette: Palette, width: Callable[[], int], symbol: Callable[[str], str] = lambda s: s
    ) -> None:
        self._palette, self._width, self._symbol = palette, width, symbol
        self._inline = Inline(palette)
        self._line = ""  # what is held of the line
        self._begun = False  # the line's kind is known
        self._style = ""  # of the line
        self._before = ""  # the last character rendered of it
        self._verbatim = False
        self._margin = ""  # what the line quotes stands behind
        self._fence = ""
        self._code: Highlighter | None = None
        self._table: list[str] = []
        self._in_list = False
        self._after_blank = True

    def feed(self, text: str) -> list[Item]:
        """Take the next text, return what is certain."""
        items: list[Item] = []
        *lines, rest = text.split("\n")
        for line in lines:
            self._line += line
            items += self._end_line()
        if rest:
            self._line += rest
            items += self._go_on()
        return items

    def finish(self) -> list[Item]:
        """All was said: return the rest."""
        items: list[Item] = []
        if self._line or self._begun:
            items = self._end_line()
            if items and isinstance(items[-1], Run) and items[-1].text.endswith("\n"):
                items[-1] = Run(items[-1].text[:-1], items[-1].style, items[-1].hard)
        return [*items, *self._end_table()]

    @property
    def pending(self) -> list[Item]:
        """What is held back, as it will probably look."""
        if self._table:
            return [Run("\n".join([*self._table[-_ROWS:], self._line]), hard=True)]
        if self._code is not None or self._verbatim:
            return [Run(self._line, hard=True)]
        if self._begun:
            return [self._styled(item) for item in self._inline.guess(self._line)]
        return [Run(self._line, hard=True)]

    # -- lines ----------------------------------------------------------------------------------

    def _go_on(self) -> list[Item]:
        """The line goes on: render what is certain of it."""
        if self._code is not None:
            return self._overlong()
        items: list[Item] = []
        if not self._begun:
            items = self._quotes(final=False)
            if _UNDECIDED.fullmatch(self._line) and len(self._line) < _LONGEST:
                return items
            items += self._begin()
        return items + self._text(final=False)

    def _end_line(self) -> list[Item]:
        line = self._line
        if self._code is not None:
            return self._end_code_line(line)
        blank = not self._begun and not line.strip()
        items = [] if self._begun else self._quotes(final=True)
        if self._begun:
            items += self._text(final=True)
        elif not self._margin and line.lstrip().startswith("|"):
            self._table.append(line)
            self._line = ""
            return [] if len(self._table) < 2 or is_delimiter(self._table[1]) else self._end_table()
        else:
            items += self._whole_line(line) or [*self._begin(), *self._text(final=True)]
        self._after_blank = blank
        self._line, self._begun, self._style, self._before, self._verbatim = "", False, "", "", False
        self._margin = ""
        return [*items, Run("\n")]

    def _whole_line(self, line: str) -> list[Item]:
        """Lines that are only known once they are complete: fences and rules."""
        if self._margin:
            return []
        fence = _FENCE.fullmatch(line)
        if fence is not None:
            language = fence[3].split()[0].strip("{}.,:").lower() if fence[3].split() else ""
            self._fence, self._code = fence[2], Highlighter(language, self._palette.colour)
            self._begun = True
            return [*self._end_table(), Run(line, self._palette.dim, hard=True)]
        if _RULE.fullmatch(line):
            self._begun = True
            return [
                *self._end_table(),
                Run(self._symbol("─") * min(self._width(), 60), self._palette.dim, hard=True),
            ]
        return []

    def _begin(self) -> list[Item]:
        """The line's kind is known: what stands in front of its text."""
        self._begun = True
        items = self._end_table()
        margin, style = self._margin, self._palette.dim if self._margin else ""
        heading, point = _HEADING.match(self._line), _LIST.match(self._line)
        if heading is not None:
            self._style = terminal.BOLD + (f";{terminal.UNDERLINE}" if len(heading[1]) == 1 else "")
            self._line = self._line[heading.end() :]
        elif point is not None:
            items += self._point(point, margin, style)
        elif not self._in_list and self._after_blank and _CODE.match(self._line):
            self._verbatim = True
        else:
            items += self._indented(margin, style)
        return items

    def _quotes(self, final: bool) -> list[Item]:
        """What the line quotes stands behind bars, on each of its rows."""
        items: list[Item] = []
        while (quote := _QUOTE.match(self._line)) is not None and (final or quote.end() < len(self._line)):
            bar = self._symbol("│") + " "
            self._margin += bar
            self._line = self._line[quote.end() :]
            items += [*self._end_table(), Run(bar, self._palette.dim, hard=True)]
            items.append(Margin(self._margin, self._palette.dim))
        return items

    def _point(self, point: re.Match[str], margin: str, style: str) -> list[Item]:
        indent, mark = point[1].expandtabs(4), point[2]
        shown = f"{indent}{self._symbol('•') if mark in '-*+' else mark} "
        self._line = self._line[point.end() :]
        self._in_list = True
        return [Run(shown, hard=True), Margin(margin + " " * terminal.cells(shown), style)]

    def _indented(self, margin: str, style: str) -> list[Item]:
        """Text keeps the place where it begins, also on the rows below."""
        indent = _INDENT.match(self._line)
        if indent is None:
            self._in_list = self._in_list and not self._line
            return []
        self._line = self._line[indent.end() :]
        shown = indent[0].expandtabs(4)
        return [Run(shown, hard=True), Margin(margin + shown[: self._width() // 2], style)]

    def _text(self, final: bool) -> list[Item]:
        """What is certain of the line's text."""
        if self._verbatim:
            text, self._line = self._line, ""
            return [Run(text, hard=True)] if text else []
        found = self._inline.certain(self._line, self._before, final)
        self._before = self._line[found.end - 1] if found.end else self._before
        self._line = self._line[found.end :]
        return [self._styled(item) for item in found.runs]

    def _styled(self, item: Item) -> Item:
        if not self._style or isinstance(item, Margin):
            return item
        return Run(item.text, join(self._style, item.style), item.hard)

    # -- blocks ---------------------------------------------------------------------------------

    def _end_code_line(self, line: str) -> list[Item]:
        assert self._code is not None
        self._line = ""
        mark = line.strip()
        if mark.startswith(self._fence) and not mark.strip(self._fence[0]):
            self._code, self._begun, self._after_blank = None, False, True
            return [Run(line, self._palette.dim, hard=True), Run("\n")]
        return [*self._code.line(line), Run("\n")]

    def _overlong(self) -> list[Item]:
        """A line of code that does not end."""
        if len(self._line) < _LONGEST:
            return []
        text, self._line = self._line, ""
        return [Run(text, hard=True)]

    def _end_table(self) -> list[Item]:
        lines, self._table = self._table, []
        if not lines:
            return []
        if len(lines) > 1 and is_delimiter(lines[1]):
            return set_table(lines, self._inline, self._width(), self._symbol("─"), terminal.BOLD)
        return [item for line in lines for item in (*self._inline.whole(line), Run("\n"))]
