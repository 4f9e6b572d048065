"""Drafts copied from the text itself: what followed the last n tokens when they occurred before.

Three methods that llama.cpp users know by these names: `ngram-simple` copies, `ngram-map-k`
remembers per key how long a draft held, `ngram-map-k4v` drafts only where the continuations seen
so far agree. `NgramIndex` finds the occurrences, for these and for `draft-self`.

A *place* is a position between tokens: place `e` has `text[:e]` before it and `text[e:]` after it,
and the key at `e` is the n tokens before it. No key ends at place 0, so 0 stands for "none".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from specli.core.decoding import common_prefix
from specli.core.types import NO_DRAFT, Cycle, Draft
from specli.errors import UsageError

MATCH_CAP = 64
"""Tokens of context that are compared to say how long a match is; more is no better evidence."""

MAX_CANDIDATES = 64
"""Most earlier occurrences looked at in one search, so that common keys stay cheap."""

_SLOTS = 4


class NgramIndex:
    """Where every n-gram of a growing text occurred: O(1) per token added or taken back.

    `text`: the tokens. `newest[key]`: the last place of a key. `earlier[e]`: the place before `e`
    with the same key, 0 for none. `count[e]`: occurrences of that key up to and with `e`, 0 where
    no key was indexed. Both lists are as long as the text plus one.
    """

    __slots__ = ("count", "earlier", "newest", "size_n", "text")

    def __init__(self, size_n: int) -> None:
        self.size_n = size_n
        self.text: list[int] = []
        self.newest: dict[tuple[int, ...], int] = {}
        self.earlier: list[int] = [0]
        self.count: list[int] = [0]

    def append(self, token: int, *, indexed: bool = True) -> None:
        """Add a token, and the key it completes unless told not to."""
        text = self.text
        text.append(token)
        end = len(text)
        if not indexed or end < self.size_n:
            self.earlier.append(0)
            self.count.append(0)
            return
        key = tuple(text[end - self.size_n :])
        before = self.newest.get(key, 0)
        self.newest[key] = end
        self.earlier.append(before)
        self.count.append(self.count[before] + 1)

    def extend(self, history: Sequence[int]) -> None:
        """Add what `history`, which begins with the text so far, has beyond it."""
        for token in history[len(self.text) :]:
            self.append(token)

    def truncate(self, length: int) -> None:
        """Take back all but the first `length` tokens, and their occurrences."""
        for end in range(len(self.text), length, -1):
            before = self.earlier.pop()
            if self.count.pop():
                key = tuple(self.text[end - self.size_n : end])
                if before:
                    self.newest[key] = before
                else:
                    del self.newest[key]
        del self.text[length:]

    def sync(self, history: Sequence[int]) -> list[int]:
        """Make `history` the text, keeping the common prefix; return the tokens that fell away."""
        kept = common_prefix(self.text, history)
        lost = self.text[kept:]
        self.truncate(kept)
        self.extend(history)
        return lost

    def last_key(self) -> tuple[int, ...]:
        """The key at the end of the text."""
        return tuple(self.text[-self.size_n :])

    def hits(self) -> int:
        """How often the key at the end of the text occurred before."""
        return max(0, self.count[-1] - 1)

    def newest_followed(self, follow: int) -> int:
        """Newest earlier place of the key at the end, with at least `follow` tokens after it, or 0.

        Places are distinct, so fewer than `follow` are passed over.
        """
        length = len(self.text)
        end = self.earlier[-1]
        while end and length - end < follow:
            end = self.earlier[end]
        return end

    def match_length(self, end: int) -> int:
        """Tokens that agree before place `end` and before the end of the text, at most MATCH_CAP.

        `end` must be a place of the last key, so at least its n agree, even where n is larger.
        """
        return common_suffix(self.text, end, self.text, len(self.text), self.size_n)


def common_suffix(
    left: Sequence[int], left_end: int, right: Sequence[int], right_end: int, known: int, cap: int = MATCH_CAP
) -> int:
    """Number of equal tokens before two places, up to `cap`, when `known` are known to be equal."""
    most = min(left_end, right_end, cap)
    length = known
    while length < most and left[left_end - 1 - length] == right[right_end - 1 - length]:
        length += 1
    return length


class NgramDrafter(ABC):
    """What drafters over an `NgramIndex` share: their three sizes, and keeping the index in step.

    Raises `UsageError`, naming the option, for a size below 1.
    """

    method = ""
    option = ""

    def __init__(self, size_n: int, size_m: int, min_hits: int) -> None:
        for name, value in (("size-n", size_n), ("size-m", size_m), ("min-hits", min_hits)):
            if value < 1:
                raise UsageError(f"{self.option}-{name} must be at least 1, not {value}")
        self.size_n = size_n
        self.size_m = size_m
        self.min_hits = min_hits
        self._index = NgramIndex(size_n)

    def begin(self, history: Sequence[int]) -> None:
        """Index `history`, keeping what it has in common with the text before."""
        self._index.sync(history)

    @abstractmethod
    def propose(self, history: Sequence[int], limit: int) -> Draft:
        """Copy at most min(limit, size_m) tokens, none for a limit of 0."""

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        """Index the tokens that `cycle` added to `history`."""
        self._index.extend(history)

    def close(self) -> None:
        """Forget all text."""
        self._index = NgramIndex(self.size_n)


class NgramSimple(NgramDrafter):
    """`ngram-simple`: up to `size_m` tokens after the newest occurrence of the last `size_n`.

    An occurrence serves once `size_n` tokens follow it, so that a draft is worth its decode. The
    key must have occurred at least `min_hits` times before, whatever follows.
    """

    method = "ngram-simple"
    option = "--spec-ngram-simple"

    def __init__(self, size_n: int = 12, size_m: int = 48, min_hits: int = 1) -> None:
        super().__init__(size_n, size_m, min_hits)

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        """Copy up to min(limit, size_m) tokens; `match` is the true length of the match."""
        if limit <= 0:
            return NO_DRAFT
        index = self._index
        index.extend(history)
        if index.hits() < self.min_hits:
            return NO_DRAFT
        end = index.newest_followed(self.size_n)
        if not end:
            return NO_DRAFT
        tokens = index.text[end : end + min(limit, self.size_m)]
        return Draft(tuple(tokens), self.method, match=index.match_length(end))


@dataclass(slots=True)
class _Continuation:
    """The m tokens after place `start`, and how often they followed the key."""

    start: int
    count: int = 1


@dataclass(slots=True)
class _KeyRecord:
    """What was learned about one key.

    `length`: the longest draft to try next. `seen`: its distinct continuations, oldest first.
    `counted`: the newest place counted into `seen`.
    """

    length: int
    seen: list[_Continuation] = field(default_factory=list)
    counted: int = 0


class NgramMapK(NgramDrafter):
    """`ngram-map-k`: as `ngram-simple`, with a draft length learned for every key.

    After a rejection the key drafts one token more than was accepted, after a full acceptance
    twice as many as were, up to `size_m`. No key falls to zero, so none is lost for good.
    """

    method = "ngram-map-k"
    option = "--spec-ngram-map-k"

    def __init__(self, size_n: int = 12, size_m: int = 48, min_hits: int = 1) -> None:
        super().__init__(size_n, size_m, min_hits)
        self._records: dict[tuple[int, ...], _KeyRecord] = {}
        self._drafted: _KeyRecord | None = None

    def begin(self, history: Sequence[int]) -> None:
        """Index `history`; keep the lengths of keys that still occur, and recount continuations."""
        self._drafted = None
        if not self._index.sync(history):
            return
        newest = self._index.newest
        self._records = {k: _KeyRecord(r.length) for k, r in self._records.items() if k in newest}

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        """Copy up to min(limit, the key's length) tokens; `match` is the length of the match."""
        self._drafted = None
        if limit <= 0:
            return NO_DRAFT
        index = self._index
        index.extend(history)
        if index.hits() < self.min_hits:
            return NO_DRAFT
        record = self._records.setdefault(index.last_key(), _KeyRecord(self.size_m))
        end = self._choose(record)
        if not end:
            return NO_DRAFT
        self._drafted = record
        tokens = index.text[end : end + min(limit, record.length)]
        return Draft(tuple(tokens), self.method, match=index.match_length(end))

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        """Learn from `cycle` if its draft came from here, and index its tokens."""
        if self._drafted is not None and cycle.draft.method == self.method and len(cycle.draft):
            self._learn(self._drafted, cycle)
        self._drafted = None
        super().commit(history, cycle)

    def close(self) -> None:
        """Forget all text and all that was learned."""
        super().close()
        self._records.clear()
        self._drafted = None

    def _choose(self, record: _KeyRecord) -> int:
        """The place to copy from, 0 for none."""
        return self._index.newest_followed(self.size_n)

    def _learn(self, record: _KeyRecord, cycle: Cycle) -> None:
        accepted = cycle.verdict.accepted
        if accepted < cycle.verdict.tested:
            record.length = min(self.size_m, accepted + 1)
        elif accepted == len(cycle.draft):
            # The draft may have been cut by the limit, which says nothing against the key.
            record.length = max(record.length, min(self.size_m, 2 * accepted))


class NgramMapK4V(NgramMapK):
    """`ngram-map-k4v`: drafts only where the continuations of a key agree.

    Counts up to four distinct `size_m`-token continuations per key, the first four met, and drafts
    the most frequent if it is at least twice as frequent as the others together.
    """

    method = "ngram-map-k4v"
    option = "--spec-ngram-map-k4v"

    def _choose(self, record: _KeyRecord) -> int:
        """Where the winning continuation starts, 0 if there is none or none wins."""
        self._count_new(record)
        if not record.seen:
            return 0
        best = max(record.seen, key=lambda one: one.count)
        others = sum(one.count for one in record.seen) - best.count
        return best.start if best.count >= 2 * others else 0

    def _count_new(self, record: _KeyRecord) -> None:
        """Count occurrences completed since the last look; of very many only the newest."""
        fresh: list[int] = []
        end = self._index.newest_followed(self.size_m)
        while end > record.counted and len(fresh) < MAX_CANDIDATES:
            fresh.append(end)
            end = self._index.earlier[end]
        for place in reversed(fresh):
            self._count(record, place)
            record.counted = place

    def _count(self, record: _KeyRecord, place: int) -> None:
        text, size = self._index.text, self.size_m
        follows = text[place : place + size]
        for one in record.seen:
            if text[one.start : one.start + size] == follows:
                one.count += 1
                return
        if len(record.seen) < _SLOTS:
            record.seen.append(_Continuation(place))
