"""Regular expressions of JSON schemas, read: ECMA-262 as far as a grammar can say it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specli.engine.gbnf import MOST_REPEATS
from specli.errors import UsageError

Ranges = tuple[tuple[int, int], ...]
_LAST = 0x10FFFF
_MOST_BRANCHES = 200
_DEEPEST = 60
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_NO_CHARACTERS: Ranges = ((0xD800, 0xDFFF),)  # halves of surrogate pairs


@dataclass(frozen=True, slots=True)
class Set:
    """One character of these."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Repeat:
    """`of`, so many times; `high` None: without end."""

    of: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Sequel:
    """One after another."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of them."""

    of: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Anchor:
    """The place before all, or behind all."""

    start: bool


Node = Set | Repeat | Sequel | Choice | Anchor


@dataclass(frozen=True, slots=True)
class Branch:
    """An alternative without anchors, and whether anything may stand before and behind it."""

    open_start: bool
    parts: tuple[Node, ...]
    open_end: bool


def branches(pattern: str) -> list[Branch]:
    """The alternatives of `pattern`. Raises UsageError, in one line, for what is no pattern or not supported."""
    return [_ends(parts) for parts in _alternatives(_Reader(pattern).whole())]


# -- reading ---------------------------------------------------------------------------------------


class _Reader:
    """Reads one pattern from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def whole(self) -> Node:
        found = self._choice()
        if self._at < len(self._text):
            raise UsageError("there is a ) without its (")
        return found

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, what: str) -> bool:
        if not self._text.startswith(what, self._at):
            return False
        self._at += len(what)
        return True

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise UsageError("it ends in the middle")
        self._at += 1
        return self._text[self._at - 1]

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UsageError(f"parentheses are nested more than {_DEEPEST} deep")
        found = [self._sequel()]
        while self._take("|"):
            found.append(self._sequel())
        self._depth -= 1
        return found[0] if len(found) == 1 else Choice(tuple(found))

    def _sequel(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Sequel(tuple(parts))

    def _atom(self) -> Node:
        char = self._next()
        if char == "(":
            return self._group()
        if char in "^$":
            return Anchor(char == "^")
        if char == ".":
            return Set(inverse(((10, 10), (13, 13), (0x2028, 0x2029))))
        if char == "[":
            return Set(self._class())
        if char == "\\":
            return Set(self._escape())
        if char in "*+?":
            raise UsageError(f"nothing stands before {char}")
        if char in "{}]":
            raise UsageError(f"write \\{char} for the character {char}")
        return Set(_one(ord(char)))

    def _group(self) -> Node:
        if self._take("?"):
            if self._take("<") and self._peek() not in ("=", "!"):
                name, closed, rest = self._text[self._at :].partition(">")
                if not closed or not name.isidentifier():
                    raise UsageError("the name of a group is not whole")
                self._at = len(self._text) - len(rest)
            elif not self._take(":"):
                raise UsageError("a grammar cannot look ahead or behind, nor change flags: (?…")
        found = self._choice()
        if not self._take(")"):
            raise UsageError("there is a ( without its )")
        return found

    def _repeated(self, node: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        self._take("?")  # lazy: the same strings
        if self._peek() in ("*", "+", "?"):
            raise UsageError(f"{self._peek()} follows another count")
        low, high = bounds
        if high is not None and high < low:
            raise UsageError(f"{{{low},{high}}} counts down")
        if max(low, high or 0) > MOST_REPEATS:
            raise UsageError(f"more than {MOST_REPEATS} repetitions")
        if _has_anchor(node):
            raise UsageError("^ and $ cannot be repeated")
        some = _nonempty(node)
        if some is None or high == 0:
            return Sequel(())
        if isinstance(some, Repeat) and (some.low, some.high) == (
            1,
            None,
        ):  # (a+)+ is a+, with one way to say it
            some, high = some.of, None
        return Repeat(some, 0 if _may_be_empty(node) else low, high)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if not self._take("{"):
            return None
        inside, closed, rest = self._text[self._at :].partition("}")
        low, comma, high = inside.partition(",")
        if not closed or not _is_number(low) or (high and not _is_number(high)):
            raise UsageError("counts are {2}, {2,} or {2,5}; write \\{ for the character {")
        self._at = len(self._text) - len(rest)
        return int(low), (int(high) if high else None) if comma else int(low)

    # -- characters ------------------------------------------------------------------------------

    def _class(self) -> Ranges:
        negative = self._take("^")
        found: list[tuple[int, int]] = []
        disputed: Ranges = ()
        while not self._take("]"):
            if negative and self._text.startswith(("\\s", "\\S"), self._at):
                disputed = _OTHER_SPACES
            first = self._member()
            follows = self._text[self._at + 1 : self._at + 2]
            if is_one(first) and self._peek() == "-" and follows not in ("]", ""):
                self._at += 1
                last = self._member()
                if not is_one(last) or first[0][0] > last[0][0]:
                    raise UsageError("a range in [] is not one from a character to a later one")
                found.append((first[0][0], last[0][0]))
            else:
                found.extend(first)
        return inverse((*found, *disputed)) if negative else inverse(inverse(found))

    def _member(self) -> Ranges:
        char = self._next()
        if char != "\\":
            return _one(ord(char))
        if self._take("b"):
            return _one(8)
        if self._take("-"):
            return _one(ord("-"))
        return self._escape()

    def _escape(self) -> Ranges:
        char = self._next()
        named = _CLASSES.get(char.lower()) if char.isascii() else None
        if named is not None:
            return named if char.islower() else inverse((*named, *(_OTHER_SPACES if char == "S" else ())))
        if char in _CONTROLS and not (char == "0" and self._peek().isdecimal()):
            return _one(_CONTROLS[char])
        if char in "xu":
            return _one(self._code(2 if char == "x" else 4))
        if char == "c" and self._peek().isascii() and self._peek().isalpha():
            return _one(ord(self._next()) % 32)
        if char.isalnum() and char.isascii():
            raise UsageError(f"\\{char} is not supported")
        return _one(ord(char))

    def _code(self, digits: int) -> int:
        code = self._hexadecimal(digits)
        if 0xD800 <= code < 0xDC00 and self._take("\\u"):  # a pair of halves
            second = self._hexadecimal(4)
            if not 0xDC00 <= second < 0xE000:
                raise UsageError("half a surrogate pair is no character")
            return 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00)
        return code

    def _hexadecimal(self, digits: int) -> int:
        if digits == 4 and self._take("{"):
            shown, closed, rest = self._text[self._at :].partition("}")
            self._at = len(self._text) - len(rest)
        else:
            shown, closed = self._text[self._at : self._at + digits], "}"
            self._at += len(shown)
            closed = closed if len(shown) == digits else ""
        if not closed or not shown or set(shown) - set("0123456789abcdefABCDEF") or int(shown, 16) > _LAST:
            raise UsageError("the number of a character is not whole")
        return int(shown, 16)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 9


def _one(code: int) -> Ranges:
    return ((code, code),)


def is_one(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def inverse(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All other characters, in order."""
    found, start = [], 0
    for low, high in sorted((*ranges, *_NO_CHARACTERS)):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    if start <= _LAST:
        found.append((start, _LAST))
    return tuple(found)


_CLASSES: dict[str, Ranges] = {
    "d": ((48, 57),),
    "w": ((48, 57), (65, 90), (95, 95), (97, 122)),
    "s": ((9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
          (0x205F, 0x205F), (0x3000, 0x3000)),
}  # fmt: skip
_OTHER_SPACES: Ranges = (
    (0x1C, 0x1F),
    (0x85, 0x85),
    (0xFEFF, 0xFEFF),
)  # to some readers: in neither \s nor \S


# -- what may be empty -----------------------------------------------------------------------------


def _may_be_empty(node: Node) -> bool:
    if isinstance(node, Repeat):  # what is in it is not empty, see _Reader
        return node.low == 0
    if isinstance(node, Choice):
        return any(map(_may_be_empty, node.of))
    return all(map(_may_be_empty, node.parts)) if isinstance(node, Sequel) else False


def _nonempty(node: Node) -> Node | None:
    """What `node` matches beside nothing; None if there is nothing else. Repeated so, no round is idle: the library
    would keep count of each way to leave some out."""
    if not _may_be_empty(node):
        return node
    if isinstance(node, Repeat):
        return None if node.high == 0 else Repeat(node.of, 1, node.high)
    if isinstance(node, Choice):
        several = [some for each in node.of if (some := _nonempty(each)) is not None]
    else:
        parts = node.parts if isinstance(node, Sequel) else ()
        if len(parts) > _MOST_BRANCHES:  # what follows grows with their square
            raise UsageError(f"more than {_MOST_BRANCHES} parts are repeated that may all be left out")
        several = [
            Sequel((some, *parts[i + 1 :]))
            for i, part in enumerate(parts)
            if (some := _nonempty(part)) is not None
        ]
    return Choice(tuple(several)) if several else None


# -- anchors ---------------------------------------------------------------------------------------


def _alternatives(node: Node) -> list[tuple[Node, ...]]:
    """The alternatives, each one after another, with anchors in none of their parts but as parts."""
    if isinstance(node, Choice):
        return [branch for each in node.of for branch in _alternatives(each)]
    if not isinstance(node, Sequel):
        return [(node,)]
    found: list[tuple[Node, ...]] = [()]
    for part in node.parts:
        ways = _alternatives(part) if _has_anchor(part) else [(part,)]
        if len(found) * len(ways) > _MOST_BRANCHES:
            raise UsageError("too many alternatives")
        found = [(*before, *way) for before in found for way in ways]
    return found


def _has_anchor(node: Node) -> bool:
    if isinstance(node, Repeat):  # where they are refused
        return False
    parts = node.of if isinstance(node, Choice) else node.parts if isinstance(node, Sequel) else ()
    return isinstance(node, Anchor) or any(list(map(_has_anchor, parts)))  # all are looked at


def _ends(parts: tuple[Node, ...]) -> Branch:
    first, last = 0, len(parts)
    while first < last and parts[first] == Anchor(True):
        first += 1
    while first < last and parts[last - 1] == Anchor(False):
        last -= 1
    inner = parts[first:last]
    if any(_has_anchor(part) for part in inner):
        raise UsageError("^ and $ can only stand at the ends")
    return Branch(first == 0, inner, last == len(parts))
