"""`draft-self`: self-speculation from the conversation's own history.

The longest suffix of the text that was said before, in this text or in one since discarded (an
answer taken back, a turn edited), says what comes next. The search is that of LZ77 compressors: a
chain of earlier places with the same last n tokens, newest first, each tried only for beating the
best match so far; and as there, a copy that reaches the end of the text reads on in itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from specli.core.decoding import common_prefix
from specli.core.types import NO_DRAFT, Draft
from specli.drafters.edits import SEPARATOR, SOLID, Copy, Edits, Left, copied
from specli.drafters.ngram import (
    MATCH_CAP,
    MAX_CANDIDATES,
    NgramDrafter,
    NgramIndex,
    common_suffix,
)

ARCHIVE_CANDIDATES = MAX_CANDIDATES // 2
"""Most places tried in discarded text, after those in the text."""

ARCHIVE_CAP = 1 << 15
"""Tokens of discarded text that are kept; beyond, the oldest half is forgotten."""


@dataclass(frozen=True, slots=True, eq=False)
class _Match:
    """`length` tokens before place `end` of `index` equal the last ones of the text. `run`: for how long
    the text has followed this copy, edits of it included."""

    index: NgramIndex
    end: int
    length: int
    run: int


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """How the text would go on by `match` when it had `at` tokens."""

    match: _Match
    copy: Copy
    at: int


@dataclass(frozen=True, slots=True)
class _Segment:
    """Discarded text: the first `context` of its `tokens` only say what it followed."""

    tokens: tuple[int, ...]
    context: int


class _Archive:
    """Text that was said and then discarded, searchable like the text itself."""

    __slots__ = ("_segments", "_size", "index")

    def __init__(self, size_n: int) -> None:
        self.index = NgramIndex(size_n)
        self._segments: deque[_Segment] = deque()
        self._size = 0

    def add(self, segment: _Segment) -> None:
        """Keep `segment`, forgetting the oldest ones once there is too much."""
        self._segments.append(segment)
        self._size += len(segment.tokens)
        if self._size <= ARCHIVE_CAP:
            self._write(segment)
            return
        while self._size > ARCHIVE_CAP // 2 and len(self._segments) > 1:
            self._size -= len(self._segments.popleft().tokens)
        self.index = NgramIndex(self.index.size_n)
        for kept in self._segments:
            self._write(kept)

    def _write(self, segment: _Segment) -> None:
        # A key serves only where discarded text follows it: neither inside the context, which the
        # live text holds too, nor at the very end.
        first, last = max(segment.context, self.index.size_n), len(segment.tokens) - 1
        self.index.append(SEPARATOR, indexed=False)
        for at, token in enumerate(segment.tokens, start=1):
            self.index.append(token, indexed=first <= at <= last)


class HistoryDrafter(NgramDrafter):
    """`draft-self`: continue the longest earlier match of at least `size_n` tokens.

    The newest of equally long matches wins; the text wins over discarded text. Lengths beyond 64
    (or `size_n`, if larger) count as equal. The last `size_n` tokens must have occurred at least
    `min_hits` times before. `edits`: copies are followed through edits, see `drafters.edits`.
    """

    method = "draft-self"
    option = "--spec-self"

    def __init__(self, size_n: int = 2, size_m: int = 64, min_hits: int = 1, edits: bool = True) -> None:
        super().__init__(size_n, size_m, min_hits)
        self._archive = _Archive(size_n)
        self._cap = max(MATCH_CAP, size_n)
        self._plan: _Plan | None = None
        self._edits = Edits() if edits and min_hits == 1 else None

    def begin(self, history: Sequence[int]) -> None:
        """Index `history`; what it no longer contains moves to the archive."""
        self._forget_plan()
        before = self._index.text.copy()
        lost = self._index.sync(history)
        if lost:
            kept = len(before) - len(lost)
            context = min(kept, self._cap)
            self._archive.add(_Segment(tuple(before[kept - context :]), context))

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        """Continue the longest match for min(limit, size_m) tokens, or to the end of its segment."""
        if limit <= 0:
            return NO_DRAFT
        self._index.extend(history)
        running = self._running()
        match = self._longest(running)
        if self._edits is not None:
            match = self._behind_an_edit(match)
        if match is None:
            self._plan = None
            return NO_DRAFT
        copy = self._continue(match, self.size_m)
        self._plan = _Plan(match, copy, len(self._index.text))
        return Draft(tuple(copy.tokens[: min(limit, self.size_m)]), self.method, match=match.length)

    def close(self) -> None:
        """Forget all text, the discarded too."""
        super().close()
        self._archive = _Archive(self.size_n)
        self._forget_plan()

    def _forget_plan(self) -> None:
        self._plan = None
        if self._edits is not None:
            self._edits.forget()

    def _longest(self, running: _Match | None) -> _Match | None:
        live, archive = self._index, self._archive.index
        if len(live.text) < self.size_n:
            return None
        archived = archive.newest.get(live.last_key(), 0) if archive.text else 0
        if live.hits() + archive.count[archived] < self.min_hits:
            return running if self._edits is not None else None
        tail = live.text[-self._cap :]
        # One less, so that a newer match as long as the running one is preferred to it, but for a copy
        # with edits: what a search sees of that is its end.
        edited = running is not None and running.run > running.length
        floor = max(self.size_n, running.run if running else 0) - (not edited)
        best = _search(live, live.earlier[-1], tail, floor, MAX_CANDIDATES)
        beaten = best.length if best else floor
        other = _search(archive, archived, tail, beaten, ARCHIVE_CANDIDATES)
        return other or best or running

    def _running(self) -> _Match | None:
        """The last match, moved along, if the text has since followed its continuation.

        It may lie further back than a search looks, and behind edits that a search cannot see through.
        """
        plan, text = self._plan, self._index.text
        if plan is None:
            return None
        match, copy = plan.match, plan.copy
        added = text[plan.at :]
        followed = common_prefix(added, copy.tokens)
        place = copy.ends[followed - 1] if followed else match.end
        if self._edits is not None:
            self._edits.settle(followed > 0)
        if followed < len(added):
            if self._edits is not None:
                solid = match.length + followed >= SOLID
                self._edits.left(
                    copy,
                    followed,
                    Left(match.index.text, place, plan.at + followed, match.run + followed)
                    if solid
                    else None,
                )
            return None
        source = match.index.text
        if place >= len(source) or source[place] == SEPARATOR:
            return None
        length = min(self._cap, len(text), match.length + followed)
        return _Match(match.index, place, length, max(length, match.run + followed))

    def _behind_an_edit(self, match: _Match | None) -> _Match | None:
        """`match`, or the place behind an edit where a copy goes on."""
        assert self._edits is not None
        text = self._index.text
        resumption = self._edits.resume(text, match.length if match is not None else 0)
        if resumption is not None:
            index = self._index if resumption.source is self._index.text else self._archive.index
            return _Match(index, resumption.end, resumption.length, resumption.run)
        if match is not None:
            self._edits.resumed(text, match.index.text, match.end, match.length)
        return match

    def _continue(self, match: _Match, length: int) -> Copy:
        known = self._edits.known if self._edits is not None else {}
        return copied(match.index.text, match.end, length, match.index is self._index, known)


def _search(index: NgramIndex, end: int, tail: list[int], floor: int, tries: int) -> _Match | None:
    """The longest match of `tail` that is longer than `floor` in so many tries, the newest of equals.

    `end` and the places chained to it are known to match `size_n` tokens. One token decides most
    candidates: the one that would make the match longer than the best.
    """
    text, earlier = index.text, index.earlier
    cap = len(tail)
    best, length = 0, floor
    suffix = tail[cap - length :]
    for _ in range(tries):
        if not end or length >= cap:
            break
        if (
            end > length
            and text[end - 1 - length] == tail[-1 - length]
            and text[end - length : end] == suffix
        ):
            best, length = end, common_suffix(text, end, tail, cap, length + 1, cap)
            suffix = tail[cap - length :]
        end = earlier[end]
    return _Match(index, best, length, length) if best else None
