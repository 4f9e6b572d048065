"""Figures of an answer, folded from its cycles. What was not measured is None."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import median

from specli.core.acceptance import break_even
from specli.core.types import Cycle

_NEAR = 5  # plain decodes before a draft, and behind it, that tell what one would have taken in its place


@dataclass(slots=True)
class MethodStats:
    """Tokens of one method: drafted, tested by the target, accepted.

    Of a tree every node counts as drafted. Tested are places: one for each accepted node, and one, counted
    for the method that grew the tree, where none of the candidates was accepted.
    """

    drafted: int = 0
    tested: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Stats:
    """Counts and times of the cycles folded so far."""

    generated: int = 0
    cycles: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    total_s: float = 0.0
    first_tokens: int = 0  # tokens of the first cycle, and its time: outside the rate
    first_s: float = 0.0
    finish: str | None = None
    by_method: dict[str, MethodStats] = field(default_factory=dict)
    widths: Counter[int] = field(default_factory=Counter)
    drafting_cycles: int = 0  # those whose draft was verified, and what they took
    drafting_s: float = 0.0
    _tested_at: list[int] = field(default_factory=list)
    _accepted_at: list[int] = field(default_factory=list)
    _plain: list[float] = field(default_factory=list)
    # the time of cycles without a draft, looking left out; what those with one emitted, and what that would
    # have taken plain decoding, but for the latest: (plain decodes before them, tokens)
    _undrafted_s: float = 0.0
    _drafted_tokens: int = 0
    _priced_s: float = 0.0
    _unpriced: deque[tuple[int, int]] = field(default_factory=deque)

    def fold(self, cycle: Cycle, plain_width: int = 1) -> None:
        """Add one cycle. `plain_width`: the width that plain decoding would have in this mode."""
        draft, verdict = cycle.draft, cycle.verdict
        if self.cycles == 0:
            self.first_tokens, self.first_s = len(verdict.tokens), cycle.total_s
        self.cycles += 1
        self.generated += len(verdict.tokens)
        self.draft_s += cycle.draft_s
        self.verify_s += cycle.verify_s
        self.total_s += cycle.total_s
        self.finish = cycle.finish
        self.widths[cycle.width] += 1
        if self.cycles > 1:
            if draft.tokens:
                self._price_later(len(verdict.tokens))
            else:
                self._undrafted_s += cycle.total_s - cycle.draft_s
            if cycle.width == plain_width:  # not the first decode, which warms up
                self._plain.append(cycle.verify_s)
                while self._unpriced and self._unpriced[0][0] + _NEAR <= len(self._plain):
                    before, tokens = self._unpriced.popleft()
                    self._priced_s += tokens * self._near(before)
        if draft.tokens:
            for method in (draft.method,) * len(draft) if draft.tree is None else draft.tree.methods:
                self._of(method).drafted += 1
            for method in cycle.accepted_from:
                self._of(method).tested += 1
                self._of(method).accepted += 1
            self._of(draft.method).tested += verdict.tested - verdict.accepted
            self.drafting_cycles += 1
            self.drafting_s += cycle.draft_s + cycle.verify_s
            for i in range(verdict.tested):
                if i == len(self._tested_at):
                    self._tested_at.append(0)
                    self._accepted_at.append(0)
                self._tested_at[i] += 1
                self._accepted_at[i] += i < verdict.accepted

    def _price_later(self, tokens: int) -> None:
        self._drafted_tokens += tokens
        before = len(self._plain)
        if self._unpriced and self._unpriced[-1][0] == before:
            tokens += self._unpriced.pop()[1]
        self._unpriced.append((before, tokens))

    def _near(self, before: int) -> float:
        """Median of the plain decodes around one place, seconds. What else the machine does, heat and a longer
        context change what they take, and drafts may all stand where it is slow."""
        start = max(0, min(before - _NEAR, len(self._plain) - 2 * _NEAR))
        return median(self._plain[start : start + 2 * _NEAR])

    def _of(self, method: str) -> MethodStats:
        return self.by_method.setdefault(method, MethodStats())

    @property
    def drafted(self) -> int:
        return sum(m.drafted for m in self.by_method.values())

    @property
    def tested(self) -> int:
        return sum(m.tested for m in self.by_method.values())

    @property
    def accepted(self) -> int:
        return sum(m.accepted for m in self.by_method.values())

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / tested."""
        return self.accepted / self.tested if self.tested else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens emitted per cycle."""
        return self.generated / self.cycles if self.cycles else None

    @property
    def per_position(self) -> list[float]:
        """Acceptance rate by position in the draft, the positions before being accepted."""
        return [a / t for a, t in zip(self._accepted_at, self._tested_at)]

    def tested_at(self, position: int) -> int:
        """Draft tokens tested at a position, counted from 0."""
        return self._tested_at[position] if position < len(self._tested_at) else 0

    def accepted_at(self, position: int) -> int:
        """Those of them that were accepted."""
        return self._accepted_at[position] if position < len(self._accepted_at) else 0

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens emitted after the first cycle over the time after it."""
        time = self.total_s - self.first_s
        tokens = self.generated - self.first_tokens
        return tokens / time if tokens and time > 0 else None

    @property
    def plain_token_s(self) -> float | None:
        """Seconds of one plain decode in this answer: the median of those that had no draft; where there were
        drafts, of those around each, on average over the tokens that these brought."""
        if not self._plain:
            return None
        if not self._drafted_tokens:
            return median(self._plain)
        later = sum(tokens * self._near(before) for before, tokens in self._unpriced)
        return (self._priced_s + later) / self._drafted_tokens

    @property
    def plain_decodes(self) -> int:
        """Decodes that had no draft, which `plain_token_s` rests on."""
        return len(self._plain)

    @property
    def draft_share(self) -> float | None:
        """Part of the time that went into drafting."""
        return self.draft_s / self.total_s if self.total_s > 0 else None

    @property
    def verify_share(self) -> float | None:
        """Part of the time that went into the target's decodes."""
        return self.verify_s / self.total_s if self.total_s > 0 else None

    @property
    def wasted(self) -> int:
        """Draft tokens that were verified for nothing."""
        return self.drafted - self.accepted

    def break_even_length(self, plain_token_s: float | None = None) -> float | None:
        """Tokens that a drafting cycle must emit to be as fast as plain decoding, at what such cycles cost
        in this answer. `plain_token_s` as in `speedup`."""
        plain = self.plain_token_s or plain_token_s
        if not plain or not self.drafting_cycles:
            return None
        return self.drafting_s / self.drafting_cycles / plain

    def break_even(self, plain_token_s: float | None = None) -> float | None:
        """Acceptance rate, the same at every position, from which on drafts of this answer's mean length
        pay: 1 + a + a² + … + a^K = `break_even_length`. Above 1 where not even full acceptance would, and
        then by how much the cycle costs more than it can emit."""
        needed = self.break_even_length(plain_token_s)
        if needed is None:
            return None
        length = self.drafted / self.drafting_cycles
        if needed >= length + 1:
            return needed / (length + 1)
        return break_even(lambda rate: _emitted(rate, length) >= needed)

    def speedup(self, plain_token_s: float | None = None) -> float | None:
        """What plain decoding would have taken over what it took, first cycle left out.

        A cycle without a draft would have taken plain decoding the same, but for the time spent looking
        for one. `plain_token_s`: seconds of one plain decode where this answer measured none itself.
        """
        time = self.total_s - self.first_s
        if self.cycles < 2 or time <= 0.0:
            return None
        plain = self.plain_token_s or plain_token_s
        if plain is None and self._drafted_tokens:
            return None
        outside = max(0.0, self.total_s - self.verify_s - self.draft_s) / self.cycles
        return (self._undrafted_s + self._drafted_tokens * ((plain or 0.0) + outside)) / time


def _emitted(acceptance: float, length: float) -> float:
    """Tokens a cycle emits on average with drafts of `length`, which need not be whole."""
    if acceptance >= 1.0:
        return length + 1
    return float((1.0 - acceptance ** (length + 1)) / (1.0 - acceptance))
