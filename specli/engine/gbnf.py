"""Grammars in llama.cpp's notation (GBNF), put together: rules with names, literals, classes, ranges of numbers,
and JSON's own values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from specli.errors import UsageError

MOST_REPEATS = 2000
"""The library's parser takes no more of {m} and takes {0,n} beyond it for {0,}."""

_MOST_VISITS = 300_000
_DIGITS = 16  # of a number, at most: more than doubles hold
_FRACTION = rf'("." [0-9]{{1,{_DIGITS}}})?'
_ZEROS = rf'("." "0"{{1,{_DIGITS}}})?'
_NOT_ZERO = rf'"." [0-9]{{0,{_DIGITS - 1}}} [1-9]'

# Halves of surrogate pairs are left out of \u: alone they are no character, and a pair counts as one.
_JSON = {
    "space": r'| " " | "\n"{1,2} [ \t]{0,20}',
    "char": r'bare | "\\" (["\\bfnrt] | "u" ([0-9a-cefA-CEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))',
    "bare": r"[ !#-\[\]-~\x80-\uD7FF\uE000-\U0010FFFF]",
    "string": r'"\"" char* "\"" space',
    "whole": r"[0] | [1-9] [0-9]{0,15}",
    "integer": r'"-"? whole space',
    "number": r'"-"? whole ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})? space',
    "boolean": r'("true" | "false") space',
    "null": r'"null" space',
    "array": r'"[" space (value ("," space value)*)? "]" space',
    "object": r'"{" space (string ":" space value ("," space string ":" space value)*)? "}" space',
    "value": r"object | array | string | number | boolean | null",
}


class RuleBook:
    """Rules by name. Those of JSON (`value`, `string`, `char` and so on) are there already."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._count = 0
        self._visits = 0

    def visit(self, several: int = 1) -> None:
        """Count the parts of a source that were gone through, again and again perhaps: a short text can ask for
        more than all time. Raises UsageError where they are too many."""
        self._visits += several
        if self._visits > _MOST_VISITS:
            raise UsageError("it is too large")

    def clear(self) -> None:
        """Begin anew, but go on counting visits."""
        self._rules.clear()
        self._names.clear()

    def reserve(self) -> str:
        """A name for a rule that is defined later: it may stand in what defines it."""
        self._count += 1
        name = f"r{self._count}"
        self._rules[name] = ""
        return name

    def bar(self, name: str) -> None:
        """Let a reserved name stand for what no text has: something may have taken it in already."""
        self.define(name, r"[^\x00-\U0010FFFF]")

    def define(self, name: str, rule: str) -> None:
        self._rules[name] = rule

    def add(self, rule: str) -> str:
        """The name of a rule; one that says the same is used again."""
        if rule not in self._names:
            self._names[rule] = self.reserve()
            self.define(self._names[rule], rule)
        return self._names[rule]

    def once_or_more(self, rule: str) -> str:
        """The name of a rule for `rule`+. Of that the library keeps apart the first round and the later ones, so
        in loops within loops what it follows at once would double with every level."""
        if f"{rule}+" not in self._names:
            self._names[f"{rule}+"] = name = self.reserve()
            self.define(name, f"{rule} ({name})?")
        return self._names[f"{rule}+"]

    def __len__(self) -> int:
        return len(self._rules)

    def text(self, root: str) -> str:
        """The grammar that begins with the rule `root`."""
        rules = {"root": root, **self._rules, **_JSON}
        return "\n".join(f"{name} ::= {rule}" for name, rule in rules.items())


def literal(text: str) -> str:
    """`text`, without line ends, as a literal."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def json_literal(value: object) -> str:
    """A value's JSON text as a literal."""
    return literal(json.dumps(value, ensure_ascii=False))


def character_class(ranges: Sequence[tuple[int, int]]) -> str:
    """A class of the code points in `ranges`, both ends included."""
    shown = (_point(low) if low == high else f"{_point(low)}-{_point(high)}" for low, high in ranges)
    return f"[{''.join(shown)}]"


def _point(code: int) -> str:
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    return f"\\x{code:02X}" if code < 0x80 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def either(rules: Iterable[str]) -> str:
    """One of several, in parentheses where they are several."""
    several = list(dict.fromkeys(rules))
    return several[0] if len(several) == 1 else f"({' | '.join(several)})"


def repeated(rule: str, low: int, high: int | None) -> str:
    """`rule`, one symbol or in parentheses, so many times. `high` None: without end."""
    if high == 0:
        return '""'
    if (low, high) == (1, 1):
        return rule
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
    if short:
        return rule + short
    return rule + (f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}")


def separated(rule: str, low: int, high: int | None) -> str:
    """`rule`, so many times, with commas between."""
    if high == 0:
        return '""'
    more = repeated(f'("," space {rule})', max(0, low - 1), None if high is None else high - 1)
    several = rule if high == 1 else f"{rule} {more}"
    return several if low else f"({several})?"


# -- numbers ---------------------------------------------------------------------------------------


def integers(low: int | None, high: int | None) -> str | None:
    """The whole numbers from `low` to `high`, of 16 digits where there is no bound; None if there are none."""
    if low is None and high is None:
        return '"-"? whole'
    low, high = _bounded(low, high)
    if low > high:
        return None
    if high < 0:
        return f'"-" {_naturals(-high, -low)}'
    below = [f'"-" {_naturals(1, -low)}'] if low < 0 else []
    return either([*below, _naturals(max(0, low), high)])


def _bounded(low: int | None, high: int | None) -> tuple[int, int]:
    """Both bounds, no further from zero than it takes."""
    digits = max(
        _DIGITS, len(str(abs(low or 0))) if low and low > 0 else 0, len(str(high)) if high and high < 0 else 0
    )
    most = 10**digits - 1
    return max(-most, -most if low is None else low), min(most, most if high is None else high)


def numbers(low: int | None, over: bool, high: int | None, under: bool) -> str | None:
    """The numbers from `low` (left out where `over`) to `high` (left out where `under`), whole bounds; without
    exponents. None if there are none."""
    least, most = _bounded(low, high)
    over, under = over and low is not None, under and high is not None
    parts = []
    if least < 0:
        below = _positive(max(0, -most), under and most <= 0, -least, over)
        parts += [f'"-" {below}'] if below else []
    if most >= 0:
        above = _positive(max(0, least), over and least >= 0, most, under)
        parts += [above] if above else []
    return either(parts) if parts else None


def _positive(low: int, over: bool, high: int, under: bool) -> str | None:
    """As `numbers`, from zero up."""
    parts = []
    first = low + over
    if first < high:
        parts.append(f"{_naturals(first, high - 1)} {_FRACTION}")
    if over and low < high:
        parts.append(f'"{low}" {_NOT_ZERO}')
    if not under and low + over <= high:
        parts.append(f'"{high}" {_ZEROS}')
    return either(parts) if parts else None


def _naturals(low: int, high: int) -> str:
    """Whole numbers from zero up, written without leading zeros; low <= high."""
    parts = []
    free: list[int] = []  # lengths of which all numbers are in
    for length in range(len(str(low)), len(str(high)) + 1):
        least, most = (0 if length == 1 else 10 ** (length - 1)), 10**length - 1
        first, last = max(low, least), min(high, most)
        if length > 1 and (first, last) == (least, most):
            free.append(length)
        else:
            parts.append(_digits(str(first), str(last)))
    if free:
        parts.append(f"[1-9] {repeated('[0-9]', free[0] - 1, free[-1] - 1)}")
    return either(parts)


def _digits(low: str, high: str) -> str:
    """The digits from `low` to `high`, of one length."""
    n = len(low) - 1
    if low == high:
        return f'"{low}"'
    if n == 0:
        return f"[{low}-{high}]"
    if low[0] == high[0]:
        return f'"{low[0]}" {_digits(low[1:], high[1:])}'
    first, last = int(low[0]), int(high[0])
    parts = []
    if int(low[1:]):
        parts.append(f'"{first}" {_digits(low[1:], "9" * n)}')
        first += 1
    behind = []
    if high[1:] != "9" * n:
        behind.append(f'"{last}" {_digits("0" * n, high[1:])}')
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}] {repeated('[0-9]', n, n)}")
    return either([*parts, *behind])
