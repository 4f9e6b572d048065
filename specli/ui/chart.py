"""Bars with their intervals, in the terminal and as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from specli.ui.terminal import cells

_BLOCKS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Bar:
    """`value` with its interval, None where that is not known. `group`: bars of one stand together."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    group: str = ""

    @property
    def end(self) -> float:
        """The rightmost value drawn."""
        return max(self.value, self.high or 0.0)


def bars(data: Sequence[Bar], width: int = 80, ascii_only: bool = False) -> list[str]:
    """One line a bar, from 0, with the value behind it; `|` (or │) marks 1."""
    if not data:
        return []
    labels = max(cells(bar.label) for bar in data)
    room = max(10, width - labels - 10)
    scale = room / max(1.0, *(bar.value for bar in data))
    lines: list[str] = []
    group = ""
    for bar in data:
        if bar.group != group:
            group = bar.group
            lines.append(group)
        drawn = _bar(bar.value * scale, ascii_only)
        mark = round(scale) - 1
        drawn = drawn.ljust(room)
        if 0 <= mark < room and drawn[mark] == " ":
            drawn = drawn[:mark] + ("|" if ascii_only else "│") + drawn[mark + 1 :]
        lines.append(f"{bar.label}{' ' * (labels - cells(bar.label))}  {drawn}  {bar.value:.2f}")
    return lines


def _bar(length: float, ascii_only: bool) -> str:
    if ascii_only:
        return "#" * max(1, round(length))
    eighths = max(1, round(length * 8))
    return "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()


_LEFT, _ROW, _RIGHT, _WIDTH = 190, 24, 70, 760
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#e15759", "#9c755f", "#edc948")


def svg(title: str, subtitle: str, data: Sequence[Bar]) -> str:
    """A picture of the bars, with whiskers for the intervals and a line at 1. Needs no fonts or scripts."""
    labels = list(dict.fromkeys(bar.label for bar in data))
    most = max(1.0, *(bar.end for bar in data)) if data else 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / most
    parts: list[str] = []
    y, group = 62, ""
    for bar in data:
        if bar.group != group:
            group = bar.group
            y += 10
            parts.append(_text(12, y + 14, group, 'font-weight="bold"'))
            y += _ROW
        parts += _row(bar, y, scale, _COLOURS[labels.index(bar.label) % len(_COLOURS)])
        y += _ROW
    one = _LEFT + scale
    height = y + 34
    line = f'<line x1="{one:.1f}" y1="56" x2="{one:.1f}" y2="{y + 6}" stroke="#444" stroke-dasharray="4 3"/>'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
            f'height="{height}" font-family="sans-serif" font-size="13">',
            f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
            _text(12, 24, title, 'font-size="16" font-weight="bold"'),
            _text(12, 44, subtitle, 'fill="#555"'),
            *parts,
            line,
            _text(round(one), y + 22, "plain = 1", 'fill="#444" text-anchor="middle"'),
            "</svg>",
            "",
        ]
    )


def _row(bar: Bar, y: int, scale: float, colour: str) -> list[str]:
    width = bar.value * scale
    parts = [
        _text(_LEFT - 8, y + 14, bar.label, 'text-anchor="end"'),
        f'<rect x="{_LEFT}" y="{y + 3}" width="{width:.1f}" height="{_ROW - 8}" fill="{colour}"/>',
        _text(round(_LEFT + bar.end * scale) + 8, y + 14, f"{bar.value:.2f}"),
    ]
    if bar.low is not None and bar.high is not None:
        low, high, middle = _LEFT + bar.low * scale, _LEFT + bar.high * scale, y + _ROW // 2 - 1
        parts.append(
            f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8" '
            'stroke="#222" fill="none"/>'
        )
    return parts


def _text(x: int, y: int, text: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}"{" " + more if more else ""}>{escape(text)}</text>'
