"""Plain tables: columns by spaces, so that they can be read in a pipe, a note, or with a screen reader."""

from __future__ import annotations

from collections.abc import Sequence

from specli.ui.terminal import cells


def table(header: Sequence[str], rows: Sequence[Sequence[str]], indent: int = 0) -> list[str]:
    """Lines of a table. The first column stands left, the others, being figures, right."""
    widths = [max(cells(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return [" " * indent + _line(row, widths) for row in (header, *rows)]


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
