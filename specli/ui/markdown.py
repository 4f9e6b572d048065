"""Markdown rendered as it comes, a line at a time, nothing taken back.

A line of the source stays a line of its own: models break lines because they mean to. What cannot be
judged yet is held back, to be shown as a guess: the beginning of a line that may become a heading, a fence
or a row of a table, a mark that is not closed yet, a line of code, a table. No character is lost but for the
marks that became style.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from specli.ui import fence, terminal
from specli.ui.fence import QUOTE
from specli.ui.grid import begins_table, set_table
from specli.ui.inline import Inline, Palette, join
from specli.ui.layout import Item, Margin, Run

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(?=\S)")
_LIST = re.compile(r"(\s*)([-*+]|\d{1,9}[.)])([ \t]+)(?=\S)")
_RULE = re.compile(r" {0,3}([-*_])[ \t]*(\1[ \t]*){2,}")
_MAY_BE_RULE = re.compile(r"[-*_ \t]+")
_MAY_BE_DASHES = re.compile(r"[-:| \t]*")
_CODE = re.compile(r"(?: {4}|\t)[ \t]*(?=\S)")
_INDENT = re.compile(r"[ \t]+")
_UNDECIDED = re.compile(
    r"\s*(?:|#{1,6}[ \t]*|[-*+][ \t]*|\d{1,9}[.)]?[ \t]*|> ?|`{1,2}|`{3,}[^`]*|~{1,2}|~{3,}.*|[-*_ \t]+|\|.*)"
)
_ROWS = 60  # of a table to come that are shown, if the window has so many
_BAR, _CELL = 60, 200  # characters before the first bar of a table's header, and of a further row
_HEADER = 400  # characters of a header that does not begin with a bar
_DEEPEST = 20  # containers in containers; marks that stand deeper are text
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
        self._bar = Run(symbol("│") + " ", palette.dim, hard=True)
        self._line = ""  # what is held of the line
        self._begun = False  # the line's kind is known
        self._style = ""  # of the line
        self._before = ""  # the last character rendered of it
        self._verbatim = self._torn = False
        self._margin = ""  # under the marks of the line's own containers
        self._open: list[int] = []  # containers, as `fence` has them
        self._level = 0  # how many of them the line was found to stand in
        self._code: fence.Block | None = None
        self._table: list[str] = []
        self._in_list = False
        self._after_blank = True
        self._after_text = False  # a line without its containers' marks then goes on in them

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
        if not (self._line or self._begun):
            return self._end_table()
        items = [*self._end_line(), *self._end_table()]
        last = items[-1] if items else None
        if isinstance(last, Run) and last.text.endswith("\n"):
            items[-1] = Run(last.text[:-1], last.style, last.hard)
        return items

    @property
    def pending(self) -> list[Item]:
        """What is held back, as it will probably look."""
        if self._code is not None:
            items, line = self._code.part(self._line, final=False) or ([], self._line)
            return [*items, Run(line, hard=True)]
        if len(self._table) > 1:
            return [Run("\n".join([*self._table[-_ROWS:], self._line]), hard=True)]
        if self._verbatim:
            return [Run(self._line, hard=True)]
        if self._begun:
            return [self._styled(item) for item in self._inline.guess(self._line)]
        header = [item for line in self._table for item in (*self._as_text(line), Run("\n"))]
        if not self._line or _UNDECIDED.fullmatch(self._line):
            return [*header, Run(self._line, hard=True)]
        return [*header, *self._as_text(self._line)]

    # -- lines ----------------------------------------------------------------------------------

    def _go_on(self) -> list[Item]:
        """The line goes on: render what is certain of it."""
        items: list[Item] = []
        if self._code is not None:
            if self._torn or self._code.part(self._line, final=False) is not None:
                return self._overlong()
            self._code, self._after_blank = None, True
        if not self._begun:
            items = self._containers(final=False)
            if len(self._line) < _LONGEST and (_UNDECIDED.fullmatch(self._line) or self._may_be_row()):
                return items
            items += self._begin()
        return items + self._text(final=False)

    def _end_line(self) -> list[Item]:
        if self._code is not None and (found := self._end_code_line()) is not None:
            return found
        items, blank = [], False
        if self._begun:
            items = self._text(final=True)
        else:
            if len(self._table) == 1 and begins_table(self._table[0], self._line):
                self._table.append(self._line)
                self._reset()
                return []
            items = self._containers(final=True)
            blank = not self._line.strip()
            whole = self._blank() if blank else self._whole_line()
            if not whole and self._may_be_row(final=True):
                items += self._end_table() if len(self._table) == 1 else []
                self._table.append(self._line)
                self._reset()
                return items
            items += whole or [*self._begin(), *self._text(final=True)]
        self._reset(blank)
        return [*items, Run("\n")]

    def _reset(self, blank: bool = False) -> None:
        """The next line begins. `blank`: code by its indentation may begin or go on there."""
        self._after_blank = blank or self._verbatim
        self._line, self._begun, self._style, self._before = "", False, "", ""
        self._verbatim = self._torn = False
        self._margin, self._level = "", 0

    def _blank(self) -> list[Item]:
        """A line with nothing in it ends tables and the quotes that it does not stand in, not lists."""
        self._after_text = False
        if QUOTE in self._open[self._level :]:
            del self._open[self._open.index(QUOTE, self._level) :]
        return [*self._end_table(), Run(self._line, hard=True)]

    def _whole_line(self) -> list[Item]:
        """Lines that are only known once they are complete: fences and rules."""
        found = fence.opening(self._line)
        if found is not None:
            indent = fence.indent_of(self._line) - self._reached()[1]
            if indent <= 3 or self._in_list:
                self._close()
                self._code = fence.Block(found, self._open, indent, self._bar, self._palette.colour)
                return [*self._end_table(), Run(self._line, self._palette.dim, hard=True)]
        if _RULE.fullmatch(self._line):
            self._close()
            length = min(max(3, self._width() - terminal.cells(self._margin)), 60)
            return [*self._end_table(), Run(self._symbol("─") * length, self._palette.dim, hard=True)]
        return []

    def _begin(self) -> list[Item]:
        """The line's kind is known: what stands in front of its text."""
        self._begun = True
        items = self._end_table()
        heading = _HEADING.match(self._line)
        self._verbatim = self._is_verbatim()
        if heading is None and not self._verbatim:
            return items + self._paragraph()
        self._close()
        if heading is not None:
            self._in_list = any(self._open)
            self._style = terminal.BOLD + (f";{terminal.UNDERLINE}" if len(heading[1]) == 1 else "")
            self._line = self._line[heading.end() :]
        return items

    def _is_verbatim(self) -> bool:
        return not self._in_list and self._after_blank and _CODE.match(self._line) is not None

    def _paragraph(self) -> list[Item]:
        """Text keeps the place where it begins, also on the rows below."""
        if not self._after_text:
            self._close()
        self._after_text = True
        indent = _INDENT.match(self._line)
        self._in_list = any(self._open) or (self._in_list and indent is not None)
        if indent is None:
            return []
        self._line = self._line[indent.end() :]
        return self._indented(indent[0])

    def _indented(self, space: str) -> list[Item]:
        shown = space.expandtabs(4)
        return [Run(shown, hard=True), self._margin_of(shown[: self._width() // 2])]

    def _margin_of(self, more: str) -> Margin:
        margin = self._margin + more
        return Margin(margin, self._palette.dim if margin.strip() else "")

    def _text(self, final: bool) -> list[Item]:
        """What is certain of the line's text."""
        if self._verbatim:
            text, self._line = self._line, ""
            return [Run(text, hard=True)] if text else []
        found = self._inline.certain(self._line, self._before, final)
        self._before = self._line[found.end - 1] if found.end else self._before
        self._line = self._line[found.end :]
        return [self._styled(item) for item in found.runs]

    def _as_text(self, line: str) -> list[Item]:
        """All of a line that is text, as far as it goes."""
        indent = _INDENT.match(line)
        items = self._indented(indent[0]) if indent is not None else []
        rest = line[indent.end() :] if indent is not None else line
        found = self._inline.certain(rest)
        return [*items, *found.runs, *self._inline.guess(rest[found.end :])]

    def _styled(self, item: Item) -> Item:
        if not self._style or isinstance(item, Margin):
            return item
        return Run(item.text, join(self._style, item.style), item.hard)

    # -- what a line stands in ------------------------------------------------------------------

    def _containers(self, final: bool) -> list[Item]:
        """The quotes and list items that begin or go on with a mark in the line, as far as it is certain.

        What they hold stands behind bars and below the text of its item, on each of its rows.
        """
        items: list[Item] = []
        while self._level < _DEEPEST and self._line.strip() and not self._waits(final):
            level, offset = self._reached()
            rest = fence.dedented(self._line, offset)
            quote, point = fence.MARK.match(rest), _LIST.match(self._line)
            if quote is not None and (final or quote.end() < len(rest)):
                new = QUOTE
                lead, shown = Run(" " * offset, hard=True), self._bar
                self._line = rest[quote.end() :]
            elif point is not None:
                marked = fence.indent_of(point[1]) + len(point[2])
                text = len(point[0].expandtabs(4))
                new = (text if text - marked <= 4 else marked + 1) - offset
                lead = Run(point[1].expandtabs(4), hard=True)
                shown = Run((self._symbol("•") if point[2] in "-*+" else point[2]) + " ", hard=True)
                self._line = self._line[point.end() :]
                self._in_list, self._after_text = True, False
            else:
                break
            if new != QUOTE or self._open[level : level + 1] != [QUOTE]:
                self._open[level:] = [new]
                self._after_text = False
            self._level = level + 1
            width = terminal.cells(shown.text)
            self._margin += lead.text + (shown.text if new == QUOTE else " " * width)
            items += [*self._end_table(), *([lead] if lead.text else []), shown, self._margin_of("")]
        return items

    def _waits(self, final: bool) -> bool:
        """Whether the line's marks may be no containers' but a rule's, or the dashes' under a table's header."""
        if final:
            return _RULE.fullmatch(self._line) is not None
        table = len(self._table) == 1 and _MAY_BE_DASHES.fullmatch(self._line) is not None
        return table or _MAY_BE_RULE.fullmatch(self._line) is not None

    def _reached(self) -> tuple[int, int]:
        """How many of the open containers the line stands in, by its marks and then by the white space in
        front of it, and how much of that is theirs."""
        level, offset, indent = self._level, 0, fence.indent_of(self._line)
        while level < len(self._open) and QUOTE < self._open[level] <= indent - offset:
            offset += self._open[level]
            level += 1
        return level, offset

    def _close(self) -> None:
        """Something begins in the line that does not belong to the containers whose marks it lacks."""
        del self._open[self._reached()[0] :]
        self._after_text = False

    # -- blocks ---------------------------------------------------------------------------------

    def _end_code_line(self) -> list[Item] | None:
        """None if the line is not the code's any more."""
        assert self._code is not None
        found = ([], self._line) if self._torn else self._code.part(self._line)
        if found is None:
            self._code, self._after_blank = None, True
            return None
        items, line = found
        if self._torn:
            items = [Run(line, hard=True)]
        elif self._code.closed_by(line):
            items = [*items, Run(line, self._palette.dim, hard=True)]
            self._code = None
        else:
            items = [*items, *self._code.line(line)]
        self._reset(blank=True)
        return [*items, Run("\n")]

    def _overlong(self) -> list[Item]:
        """A line of code that does not end."""
        if len(self._line) < _LONGEST:
            return []
        text, self._line, self._torn = self._line, "", True
        return [Run(text, hard=True)]

    def _may_be_row(self, final: bool = False) -> bool:
        """Whether the line may be a table's header, or goes on with a table. `final`: it is complete."""
        if not final and len(self._table) == 1 and _MAY_BE_DASHES.fullmatch(self._line):
            return True
        goes_on, bar = len(self._table) > 1, self._line.find("|")
        most = _LONGEST if goes_on or self._line.lstrip().startswith("|") else _HEADER
        room = _CELL if goes_on else _BAR
        near = bar < room if bar >= 0 else not final and len(self._line) < room
        return near and len(self._line) < most and self._is_plain()

    def _is_plain(self) -> bool:
        """Whether the line is nothing else that its beginning tells."""
        return not (self._margin or _HEADING.match(self._line) or self._is_verbatim())

    def _end_table(self) -> list[Item]:
        lines, self._table = self._table, []
        if len(lines) > 1:
            return set_table(lines, self._inline, self._width(), self._symbol("─"), terminal.BOLD)
        self._after_text = self._after_text or bool(lines)
        return [item for line in lines for item in (*self._as_text(line), Run("\n"))]
