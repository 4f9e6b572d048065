"""Plain tables: columns by spaces, so that they can be read in a pipe, a note, or with a screen reader."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from specli.ui.terminal import cells, columns, echo, is_terminal


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table. The first column stands left, the others, being figures, right."""
    widths = [max(cells(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return [_line(row, widths) for row in (header, *rows)]


def echo_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to stdout. On a terminal too narrow for it, its columns go on below, beside the first one
    again."""
    room = columns(sys.stdout) if is_terminal(sys.stdout) else None
    for part in fold(header, rows, room):
        for line in part:
            echo(line)


def fold(header: Sequence[str], rows: Sequence[Sequence[str]], room: int | None) -> list[list[str]]:
    """The table as tables of at most `room` cells, where None is no bound: the first column with as many others
    as fit, at least one."""
    parts: list[list[str]] = []
    at = 1
    while at < len(header):
        for end in range(len(header), at, -1):
            kept = [0, *range(at, end)]
            lines = table([header[i] for i in kept], [[row[i] for i in kept] for row in rows])
            if room is None or max(map(cells, lines)) <= room:
                break
        parts.append(lines)
        at = end
    return parts


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first = row[0] + " " * (widths[0] - cells(row[0]))
    rest = [" " * (width - cells(text)) + text for text, width in zip(row[1:], widths[1:])]
    return "  ".join([first, *rest]).rstrip()


def percent(share: float | None, digits: int = 0) -> str:
    """A share as percent, "-" for none."""
    return "-" if share is None else f"{100 * share:.{digits}f}%"


def number(value: float | None, digits: int = 2) -> str:
    """A number, "-" for none."""
    return "-" if value is None else f"{value:.{digits}f}"
