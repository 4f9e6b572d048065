"""Copies through edits: text that repeats earlier text, but for what was changed.

Who rewrites a file repeats it, with a name changed here and a line there. Where the text leaves what it
copied and takes it up again behind, what stood between in the source was replaced by what was said
instead. The copy is resumed at once; and where the source says the same again, the replacement is drafted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SEPARATOR = -1
"""Stands between discarded texts. No token has this id, so no match and no draft crosses it."""

SOLID = 4
"""Length of a match that counts as copying: where it is left, an edit is likelier than an end."""

REACH = 8
"""Tokens that an edit may put in or leave out for the copy to be resumed behind it."""

MATCH_SAYS_MORE = 8
"""Length of a match that is believed before a copy that was just left."""

LONGEST_EDIT = 4
"""Tokens of the source that a remembered edit may replace."""


@dataclass(frozen=True, slots=True)
class Edit:
    """`before` in the source became `after` in the text."""

    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """A continuation. `ends`: per token the place in the source behind it; `edits`: per token the first
    token of the edit it comes from, SEPARATOR for what was copied as it is."""

    tokens: list[int]
    ends: list[int]
    edits: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """Where a copy was left that had gone on for `run` tokens: `place` in `source`, when the text had `at`."""

    source: list[int]
    place: int
    at: int
    run: int


@dataclass(frozen=True, slots=True, eq=False)
class Resumption:
    """Where a copy of so long a `run` may go on: place `end` in `source`, on the evidence of `length` tokens
    before it."""

    source: list[int]
    end: int
    length: int
    run: int


def copied(source: list[int], place: int, length: int, live: bool, known: Mapping[int, Edit]) -> Copy:
    """Read on in `source` from `place` for `length` tokens, with the known edits made.

    `live`: the source is the text itself, so a copy that reaches its end reads on in what it has said: a
    loop. Any other ends there, or at a separator.
    """
    if not known:  # the usual case, without a look at every token
        tokens = source[place : place + length]
        if SEPARATOR in tokens:
            tokens = tokens[: tokens.index(SEPARATOR)]
        elif live and 0 < len(tokens) < length:
            tokens = (tokens * (length // len(tokens) + 1))[:length]
        return Copy(tokens, list(range(place + 1, place + len(tokens) + 1)), [SEPARATOR] * len(tokens))
    copy = Copy([], [], [])
    size = len(source)
    while len(copy.tokens) < length:
        if place >= size and (not live or place - size >= len(copy.tokens)):
            break
        token = source[place] if place < size else copy.tokens[place - size]
        if token == SEPARATOR:
            break
        edit = known.get(token)
        if edit is not None and tuple(source[place : place + len(edit.before)]) == edit.before:
            n = len(edit.after)
            copy.tokens.extend(edit.after)
            copy.ends.extend([place] * (n - 1) + [place + len(edit.before)])
            copy.edits.extend([token] * n)
            place += len(edit.before)
        else:
            place += 1
            copy.tokens.append(token)
            copy.ends.append(place)
            copy.edits.append(SEPARATOR)
    return copy


class Edits:
    """The edits of one answer. `known`: by the first token that they replace."""

    def __init__(self) -> None:
        self.known: dict[int, Edit] = {}
        self._left: Left | None = None
        self._supposed: Edit | None = None  # what was edited if the copy is rightly resumed

    def forget(self) -> None:
        """Another answer: what was edited before says nothing of it."""
        self.known.clear()
        self._left = self._supposed = None

    def left(self, copy: Copy, followed: int, left: Left | None) -> None:
        """The text followed `copy` for so many tokens and then went elsewhere, leaving it at `left` (None:
        it was hardly a copy)."""
        if followed < len(copy.edits):
            self.known.pop(copy.edits[followed], None)  # this edit was not made again
        if left is not None:
            self._left = left

    def settle(self, followed: bool) -> None:
        """Whether the text went on as the latest continuation said."""
        if followed and self._supposed is not None:
            self.known[self._supposed.before[0]] = self._supposed
            self._left = None
        self._supposed = None

    def resumed(self, text: Sequence[int], source: list[int], end: int, length: int) -> None:
        """A match of `length` tokens was found before place `end` of `source`: what was edited is known if
        it lies behind the place where the copy was left."""
        left = self._left
        if left is None:
            return
        matched = min(length, len(text) - left.at, end - left.place)
        if source is left.source and matched > 0:
            edit = _edit(left, text, end, matched)
            if edit is not None:
                self.known[edit.before[0]] = edit
        self._left = None

    def resume(self, text: Sequence[int], match: int) -> Resumption | None:
        """Where to go on: at the nearest place with the text's last token before it, or, straight after the
        first token that differs, behind what it replaced. None where a match of so many tokens elsewhere
        says more than the copy that was left."""
        left = self._left
        if left is None or match >= min(left.run, MATCH_SAYS_MORE):
            return None
        source, new = left.source, len(text) - left.at
        if not 0 < new <= REACH:
            self._left = None
            return None
        last = text[-1]
        ends = range(left.place + 1, min(left.place + new + REACH, len(source)))
        behind = [end for end in ends if source[end - 1] == last]
        if behind:
            end, length = min(behind, key=lambda place: abs(place - left.place - new)), 1
        elif new == 1 and left.place + 1 < len(source) and source[left.place + 1] != SEPARATOR:
            end, length = left.place + 1, 0
        else:
            return None
        self._supposed = _edit(left, text, end, length)
        return Resumption(source, end, length, left.run)


def _edit(left: Left, text: Sequence[int], end: int, matched: int) -> Edit | None:
    """What stands between the place left and the `matched` tokens before `end`, in source and text."""
    before = left.source[left.place : end - matched]
    after = text[left.at : len(text) - matched]
    if 0 < len(before) <= LONGEST_EDIT and 0 < len(after) <= REACH and SEPARATOR not in before:
        return Edit(tuple(before), tuple(after))
    return None
