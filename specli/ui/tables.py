"""Plain tables: columns by spaces, so that they can be read in a pipe, a note, or with a screen reader."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from specli.ui.terminal import cells, columns, echo, is_terminal


def table(header: Sequence[str], rows: Sequence[Sequence[str]], indent: int = 0) -> list[str]:
    """Lines of a table. The first column stands left, the others, being figures, right."""
    widths = [max(cells(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return [" " * indent + _line(row, widths) for row in (header, *rows)]


def echo_table(header: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str]) -> None:
    """Print a table to stdout. On a terminal too narrow for it, it goes without as many of the columns named in
    `spare`, the first ones first, as that takes; a line names them."""
    left_out: list[str] = []
    while True:
        kept = [i for i, name in enumerate(header) if name not in left_out]
        lines = table([header[i] for i in kept], [[row[i] for i in kept] for row in rows])
        if fits(lines) or len(left_out) == len(spare):
            break
        left_out.append(spare[len(left_out)])
    for line in lines:
        echo(line)
    if left_out:
        echo(f"(no room for: {', '.join(left_out)}; a wider terminal shows them, and --json)")


def fits(lines: Sequence[str]) -> bool:
    """Whether stdout shows them unbroken."""
    return not is_terminal(sys.stdout) or max(map(cells, lines)) <= columns(sys.stdout)


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
