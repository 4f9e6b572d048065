"""Regular expressions of JSON schemas as grammars of what stands between the quotes of a JSON string.

As JSON Schema has it: a pattern may match anywhere unless it is anchored. Characters that JSON writes with a
backslash are written so. What cannot be said in a grammar is refused, never passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from specli.engine.gbnf import MOST_REPEATS, RuleBook, character_class, either, literal, repeated
from specli.engine.pattern_syntax import (
    Anchor,
    Branch,
    Choice,
    Node,
    Ranges,
    Repeat,
    Sequel,
    Set,
    branches,
    inverse,
    is_one,
)
from specli.errors import UsageError

_MOST_STEPS = 1_000_000
_SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}


@lru_cache(256)
def pattern_of(pattern: str) -> Pattern:
    """The pattern, read. Raises UsageError, in one line, for what is no pattern, and what a grammar cannot say."""
    try:
        return Pattern(branches(pattern))
    except UsageError as error:
        shown = pattern if len(pattern) <= 60 else pattern[:59] + "…"
        raise UsageError(f"pattern {shown}: {error}") from error


@dataclass(frozen=True, slots=True)
class Pattern:
    """What it matches, branch by branch."""

    branches: Sequence[Branch]

    def rule(self, rules: RuleBook) -> str:
        """As the inside of a JSON string."""
        known: dict[int, str] = {}
        return either(self._branch(each, rules, known) for each in self.branches)

    def _branch(self, branch: Branch, rules: RuleBook, known: dict[int, str]) -> str:
        inner = _rule(Sequel(branch.parts), rules, known)
        return f"{'char* ' * branch.open_start}{inner}{' char*' * branch.open_end}"

    def found_in(self, text: str) -> bool:
        """Whether it matches. Raises UsageError where that takes too long to say."""
        search = _Search(text)
        for branch in self.branches:
            starts = set(range(len(text) + 1)) if branch.open_start else {0}
            ends = search.ends(Sequel(branch.parts), starts)
            if ends and (branch.open_end or len(text) in ends):
                return True
        return False

    def lengths(self) -> tuple[int, int | None]:
        """Characters of the shortest and of the longest match; None: without end."""
        known: dict[int, tuple[int, int | None]] = {}
        found = [_length(Sequel(each.parts), known) for each in self.branches]
        least = min(low for low, _ in found)
        if any(b.open_start or b.open_end for b in self.branches) or any(high is None for _, high in found):
            return least, None
        return least, max(high or 0 for _, high in found)

    def within(self, low: int, high: int | None) -> Pattern:
        """The same, but repeated so often that the length is as asked, where that is easily said: for patterns
        such as ^[a-z]+$. Else as it is."""
        if len(self.branches) != 1 or len(self.branches[0].parts) != 1:
            return self
        branch = self.branches[0]
        part = branch.parts[0]
        if (
            branch.open_start
            or branch.open_end
            or not isinstance(part, Repeat)
            or not isinstance(part.of, Set)
        ):
            return self
        least = max(low, part.low)
        most = part.high if high is None else high if part.high is None else min(high, part.high)
        if (most is not None and (least > most or most > MOST_REPEATS)) or least > MOST_REPEATS:
            return self
        return Pattern([Branch(False, (Repeat(part.of, least, most),), False)])


# -- as rules --------------------------------------------------------------------------------------


def _rule(node: Node, rules: RuleBook, known: dict[int, str]) -> str:
    """The rule of a node without anchors. `known`: the rules of what is repeated, by identity. The same nodes stand
    in several places, see _nonempty: gone through anew in each they would double with every level."""
    rules.visit()
    if isinstance(node, Set):
        return _set_rule(node.ranges)
    if isinstance(node, Choice):
        return either(_rule(each, rules, known) for each in node.of)
    if isinstance(node, Repeat):
        if id(node.of) not in known:
            inner = _rule(node.of, rules, known)
            simple = isinstance(node.of, Set) and inner[0] == "["
            known[id(node.of)] = inner if simple else rules.add(inner)
        rule = known[id(node.of)]
        if (node.low, node.high) == (1, None) and rule[0] != "[":
            return rules.once_or_more(rule)
        return repeated(rule, node.low, node.high)
    return " ".join(_sequel(node.parts, rules, known)) if isinstance(node, Sequel) and node.parts else '""'


def _sequel(parts: Iterable[Node], rules: RuleBook, known: dict[int, str]) -> Iterator[str]:
    """The rules of parts, characters that follow each other as one literal."""
    text = ""
    for part in parts:
        if isinstance(part, Set) and is_one(part.ranges):
            text += _written(part.ranges[0][0])
            continue
        if text:
            yield literal(text)
            text = ""
        yield _rule(part, rules, known)
    if text:
        yield literal(text)


def _set_rule(ranges: Ranges) -> str:
    """One of these characters, as it stands in a JSON string."""
    raw = _without_specials(ranges)
    special = [code for code in (*range(0x20), 0x22, 0x5C, 0x7F) if any(a <= code <= b for a, b in ranges)]
    if raw:  # controls without a short form are only said where nothing else may be
        special = [code for code in special if code in _SHORT]
    found = [character_class(raw)] if raw else []
    found += [literal(_written(code)) for code in special]
    if not found:
        raise UsageError("it asks for a character that there is not")
    return either(found)


def _without_specials(ranges: Ranges) -> Ranges:
    others = inverse(ranges)
    return inverse((*others, (0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F)))


def _written(code: int) -> str:
    """A character as JSON writes it."""
    if code in _SHORT:
        return "\\" + _SHORT[code]
    if 0xD800 <= code <= 0xDFFF:
        raise UsageError("it asks for half a surrogate pair, which is no character")
    return f"\\u{code:04x}" if code < 0x20 or code == 0x7F else chr(code)


# -- lengths ---------------------------------------------------------------------------------------


def _length(node: Node, known: dict[int, tuple[int, int | None]]) -> tuple[int, int | None]:
    """`known`: of the nodes seen before, by identity."""
    if id(node) not in known:
        known[id(node)] = _new_length(node, known)
    return known[id(node)]


def _new_length(node: Node, known: dict[int, tuple[int, int | None]]) -> tuple[int, int | None]:
    if isinstance(node, Set):
        return 1, 1
    if isinstance(node, Repeat):
        low, high = _length(node.of, known)
        return (
            low * node.low,
            0 if high == 0 else None if high is None or node.high is None else high * node.high,
        )
    if isinstance(node, Anchor):
        return 0, 0
    found = [_length(each, known) for each in (node.of if isinstance(node, Choice) else node.parts)]
    highs = [high for _, high in found]
    if isinstance(node, Choice):
        return min(low for low, _ in found), None if None in highs else max(high or 0 for high in highs)
    return sum(low for low, _ in found), None if None in highs else sum(high or 0 for high in highs)


# -- in texts --------------------------------------------------------------------------------------


class _Search:
    """Where matches in one text end. All ways are followed at once, so that none is tried again and again."""

    def __init__(self, text: str) -> None:
        self._codes = [ord(char) for char in text]
        self._steps = 0

    def ends(self, node: Node, starts: set[int]) -> set[int]:
        """The places behind a match of `node`, which has no anchors, that begins at one of `starts`."""
        self._steps += 1 + len(starts)
        if self._steps > _MOST_STEPS:
            raise UsageError("a pattern takes too long to be looked for")
        if not starts:
            return starts
        if isinstance(node, Set):
            return {at + 1 for at in starts if at < len(self._codes) and _holds(node, self._codes[at])}
        if isinstance(node, Choice):
            return set().union(*(self.ends(each, starts) for each in node.of))
        if isinstance(node, Sequel):
            for part in node.parts:
                starts = self.ends(part, starts)
            return starts
        return self._repeats(node, starts) if isinstance(node, Repeat) else starts

    def _repeats(self, node: Repeat, starts: set[int]) -> set[int]:
        for _ in range(node.low):
            starts = self.ends(node.of, starts)
            if not starts:
                return starts
        found, more = set(starts), 0 if node.high is None else node.high - node.low
        # No round is idle, see _nonempty: it comes to an end.
        while starts and (node.high is None or more > 0):
            starts = self.ends(node.of, starts) - found
            found |= starts
            more -= 1
        return found


def _holds(node: Set, code: int) -> bool:
    return any(low <= code <= high for low, high in node.ranges)
