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

from specli.core.types import NO_DRAFT, Draft
from specli.drafters.ngram import MATCH_CAP, MAX_CANDIDATES, NgramDrafter, NgramIndex, common_suffix

SEPARATOR = -1
"""Stands between discarded texts. No token has this id, so no match and no draft crosses it."""

ARCHIVE_CANDIDATES = MAX_CANDIDATES // 2
"""Most places tried in discarded text, after those in the text."""

ARCHIVE_CAP = 1 << 17
"""Tokens of discarded text that are kept; beyond, the oldest half is forgotten."""

EDIT_REACH = 8
"""Tokens that an edit of copied text may put in or leave out for the copy to be resumed behind it."""

SOLID = 4
"""Length of a match that counts as copying: where it is left, an edit is likelier than an end."""


@dataclass(frozen=True, slots=True, eq=False)
class _Match:
    """`length` tokens before place `end` of `index` equal the last ones of the text."""

    index: NgramIndex
    end: int
    length: int


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
    `min_hits` times before. Where no match is found just after copied text was left, as by an edit,
    the copy is resumed behind the edit, on the evidence of one token or none.
    """

    method = "draft-self"
    option = "--spec-self"

    def __init__(self, size_n: int = 2, size_m: int = 64, min_hits: int = 1) -> None:
        super().__init__(size_n, size_m, min_hits)
        self._archive = _Archive(size_n)
        self._cap = max(MATCH_CAP, size_n)
        self._last: _Match | None = None
        self._last_at = 0
        self._copied: _Match | None = None  # the latest solid match, when the text had so many tokens
        self._copied_at = 0

    def begin(self, history: Sequence[int]) -> None:
        """Index `history`; what it no longer contains moves to the archive."""
        self._last = self._copied = None
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
        match = self._longest()
        if match is not None and match.length >= SOLID:
            self._copied, self._copied_at = match, len(self._index.text)
        elif match is None and self.min_hits == 1:
            match = self._resumed()
        self._last, self._last_at = match, len(self._index.text)
        if match is None:
            return NO_DRAFT
        tokens = self._continue(match, min(limit, self.size_m))
        return Draft(tuple(tokens), self.method, match=match.length)

    def close(self) -> None:
        """Forget all text, the discarded too."""
        super().close()
        self._archive = _Archive(self.size_n)
        self._last = self._copied = None

    def _longest(self) -> _Match | None:
        live, archive = self._index, self._archive.index
        if len(live.text) < self.size_n:
            return None
        archived = archive.newest.get(live.last_key(), 0) if archive.text else 0
        if live.hits() + archive.count[archived] < self.min_hits:
            return None
        tail = live.text[-self._cap :]
        running = self._running(len(tail))
        # One less, so that a newer match as long as the running one is preferred to it.
        floor = (running.length if running else self.size_n) - 1
        best = _search(live, live.earlier[-1], tail, floor, MAX_CANDIDATES)
        beaten = best.length if best else floor
        other = _search(archive, archived, tail, beaten, ARCHIVE_CANDIDATES)
        return other or best or running

    def _running(self, cap: int) -> _Match | None:
        """The last match, moved along, if the text has since followed it.

        It may lie further back than a search looks.
        """
        last, text = self._last, self._index.text
        if last is None:
            return None
        added = len(text) - self._last_at
        end = last.end + added
        source = last.index.text
        if source[last.end : end] != text[self._last_at :]:
            return None
        if end >= len(source) or source[end] == SEPARATOR:
            return None
        return _Match(last.index, end, min(cap, last.length + added))

    def _resumed(self) -> _Match | None:
        """Behind an edit of what was copied: the nearest place there that has the text's last token
        before it, or, straight after the first token that differs, the place behind what it replaced."""
        copied, text = self._copied, self._index.text
        if copied is None or len(text) - self._copied_at > self.size_m + EDIT_REACH:
            return None
        source, left = copied.index.text, copied.end
        for token in text[self._copied_at :]:  # how far the copy went on before it was left
            if left >= len(source) or source[left] != token:
                break
            left += 1
        edited = len(text) - self._copied_at - (left - copied.end)
        if not 0 < edited <= EDIT_REACH:
            return None
        last = text[-1]
        ends = range(left + 1, min(left + edited + EDIT_REACH, len(source)))
        behind = [end for end in ends if source[end - 1] == last]
        if behind:
            return _Match(copied.index, min(behind, key=lambda end: abs(end - left - edited)), 1)
        end = left + 1
        if edited == 1 and end < len(source) and source[end] != SEPARATOR:
            return _Match(copied.index, end, 0)
        return None

    def _continue(self, match: _Match, length: int) -> list[int]:
        tokens = match.index.text[match.end : match.end + length]
        if match.index is self._index:
            # The copy reached the end of the text: a loop, whose period is what was copied.
            period = len(tokens)
            return tokens if period == length else (tokens * (length // period + 1))[:length]
        return tokens[: tokens.index(SEPARATOR)] if SEPARATOR in tokens else tokens


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
    return _Match(index, best, length) if best else None
