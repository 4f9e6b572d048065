"""Markdown tables set in the width there is."""

from __future__ import annotations

import re
from collections.abc import Sequence

from specli.ui.inline import Inline, plain
from specli.ui.layout import Item, Layout, Run, char_count

_NARROWEST = 6  # cells of a column, below which rows are listed instead
_GAP = "  "
_LEFT = 0.0
_DELIMITER = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")


def begins_table(header: str, line: str) -> bool:
    """Whether `line` is the row of dashes under a table's `header`. Where no bar stands before the header, both
    have as many cells."""
    if "|" not in line or "-" not in line or _DELIMITER.fullmatch(line) is None:
        return False
    return header.lstrip().startswith("|") or len(_cells(header)) == len(_cells(line))


def set_table(lines: Sequence[str], inline: Inline, width: int, rule: str, bold: str) -> list[Item]:
    """The rows of a table, header and row of dashes first. `rule`: the character of the line below it."""
    header, *rows = (_cells(line) for i, line in enumerate(lines) if i != 1)
    count = max(len(row) for row in (header, *rows))
    sides = [_side(cell) for cell in _cells(lines[1])]
    sides += [_LEFT] * (count - len(sides))
    cells = [
        [inline.whole(cell, bold if i == 0 else "") for cell in row] for i, row in enumerate([header, *rows])
    ]
    for row in cells:
        row += [()] * (count - len(row))
    widths = _widths([[char_count(plain(cell)) for cell in row] for row in cells], width)
    if widths is None:
        return _listed(cells)
    items: list[Item] = []
    for i, row in enumerate(cells):
        items += _row(row, widths, sides)
        if i == 0:
            items.append(Run(_GAP.join(rule * w for w in widths) + "\n", hard=True))
    return items


def _cells(line: str) -> list[str]:
    text = line.strip()
    text = text.removeprefix("|")
    if text.endswith("|") and not text.endswith("\\|"):
        text = text[:-1]
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", text)]


def _widths(cells: Sequence[Sequence[int]], width: int) -> list[int] | None:
    """What each column gets: what it needs, or the widest ones less. None where that is too little."""
    widths = [max(1, *(row[i] for row in cells)) for i in range(len(cells[0]))]
    room = width - len(_GAP) * (len(widths) - 1)
    while sum(widths) > room:
        widest = max(widths)
        if widest <= _NARROWEST:
            return None
        widths[widths.index(widest)] = widest - 1
    return widths


def _side(dashes: str) -> float:
    """How much of the room in a cell stands before its text."""
    if not dashes.endswith(":"):
        return _LEFT
    return 0.5 if dashes.startswith(":") else 1.0


def _row(cells: Sequence[Sequence[Item]], widths: Sequence[int], sides: Sequence[float]) -> list[Item]:
    """A row of the table: as many rows of text as its longest cell needs."""
    columns = [_wrapped(cell, width) for cell, width in zip(cells, widths)]
    items: list[Item] = []
    for n in range(max(len(column) for column in columns)):
        for i, (column, width) in enumerate(zip(columns, widths)):
            runs = column[n] if n < len(column) else []
            room = width - char_count(plain(runs))
            before = int(room * sides[i])
            last = i + 1 == len(widths)
            items += [Run(" " * before, hard=True)] if before else []
            items += [*runs, *([] if last or room == before else [Run(" " * (room - before), hard=True)])]
            if not last:
                items.append(Run(_GAP, hard=True))
        items.append(Run("\n", hard=True))
    return items


def _wrapped(cell: Sequence[Item], width: int) -> list[list[Item]]:
    """The runs of each row that a cell takes."""
    rows: list[list[Item]] = [[]]
    layout = Layout(width)
    for item in cell:
        assert isinstance(item, Run)
        for word in re.findall(r"\s+|\S+", item.text):
            text = layout.feed([Run(word)]) + ("" if word.isspace() else layout.flush())
            for n, part in enumerate(text.split("\n")):
                if n:
                    rows.append([])
                if part:
                    rows[-1].append(Run(part, item.style, hard=True))
    return rows


def _listed(cells: Sequence[Sequence[Sequence[Item]]]) -> list[Item]:
    """Each cell on a line of its own, under the name of its column."""
    header, *rows = cells
    items: list[Item] = []
    for row in rows or [header]:
        for name, cell in zip(header, row):
            items += [*name, Run(": "), *cell, Run("\n")]
        items.append(Run("\n"))
    return items[:-1]
