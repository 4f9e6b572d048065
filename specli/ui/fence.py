"""Blocks of code between fences, and the quotes and list items that they stand in (CommonMark 0.31, 4.5 and 5)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from specli.ui.code import Highlighter
from specli.ui.layout import Item, Run

QUOTE = 0
"""A container that is a quote; another number is a list item, whose text begins so many columns further in."""
MARK = re.compile(r" {0,3}> ?")
"""What goes before each line of a quote."""
_FENCE = re.compile(r"\s*(?:(`{3,})([^`]*)|(~{3,})(.*))")
_TAB = 4


def indent_of(line: str) -> int:
    """Columns of the white space in front."""
    return len(line[: len(line) - len(line.lstrip(" \t"))].expandtabs(_TAB))


def dedented(line: str, columns: int) -> str:
    """`line` without that many columns of the white space it has in front."""
    rest = line.lstrip(" \t")
    return line[: len(line) - len(rest)].expandtabs(_TAB)[columns:] + rest


@dataclass(frozen=True, slots=True)
class Fence:
    """An opening fence: its mark, and the language behind it."""

    mark: str
    language: str


def opening(line: str) -> Fence | None:
    """The fence that `line` is, however far in it stands."""
    found = _FENCE.fullmatch(line)
    if found is None:
        return None
    info = (found[2] or found[4] or "").split()
    return Fence(found[1] or found[3], info[0].strip("{}.,:").lower() if info else "")


class Block:
    """Code as its lines come. `inside`: the containers it stands in, outermost first. `indent`: columns of its
    fence in the innermost. `bar`: what shows a quote.

    Where models are careless, nobody means what CommonMark reads: code at the margin right below a fence in a
    list item belongs to it, and a bare fence there closes it.
    """

    def __init__(self, fence: Fence, inside: Sequence[int], indent: int, bar: Run, colour: bool) -> None:
        self._mark, self._inside, self._bar = fence.mark, list(inside), bar
        self._deepest = max(3, indent)  # columns in front of a closing fence
        self._highlighter = Highlighter(fence.language, colour)
        self._empty = True

    def part(self, line: str, final: bool = True) -> tuple[list[Item], str] | None:
        """What shows its containers, and the line without them; None if it stands outside of them, which ends
        the code. `final`: the line is complete."""
        items: list[Item] = []
        for n, width in enumerate(self._inside):
            if not line.strip() and (width != QUOTE or not final):
                continue
            if width == QUOTE:
                mark = MARK.match(line)
                if mark is None:
                    return None
                items.append(self._bar)
                line = line[mark.end() :]
            elif indent_of(line) >= width:
                items.append(Run(" " * width, hard=True))
                line = dedented(line, width)
            elif self.closed_by(line) or (not final and self._mark.startswith(line.strip())):
                break
            elif self._empty and QUOTE not in self._inside[n:]:
                if final:
                    self._deepest += sum(self._inside[n:])
                    del self._inside[n:]
                break
            else:
                return None
        return items, line

    def closed_by(self, line: str) -> bool:
        """Whether it is the closing fence."""
        mark = line.strip()
        near = indent_of(line) <= self._deepest
        return near and mark.startswith(self._mark) and not mark.strip(self._mark[0])

    def line(self, text: str) -> list[Item]:
        """A line of the code, without its containers and its newline, in its styles."""
        self._empty = False
        return self._highlighter.line(text)
