"""How often draft tokens are accepted, by what is known of them beforehand.

The *evidence* of a token is, for n-gram drafts, the length of the match behind it (the match found plus
the draft tokens before it), for neural drafts the drafter's own confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from specli.core.types import Cycle


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a candidate in a tree before it is judged: the drafter's probability for it, or, where
    candidates are `drawn`, for the likeliest token of its rank; and whether it is the drafter's `first` there."""

    confidence: float
    first: bool = True
    drawn: bool = False

    @property
    def bucket(self) -> int:
        """Its class."""
        low = 0 if self.confidence >= 0.1 else -min(9, int(-math.log2(max(self.confidence, 1e-6) * 10)))
        return confidence_bucket(self.confidence) + low + 100 * (2 * (not self.first) + self.drawn)

    @property
    def prior(self) -> float:
        """How often such a candidate is accepted where nothing was learned yet: the first of drawn ones as often
        as draft and target agree, not as often as its rank comes up."""
        return math.sqrt(self.confidence) if self.first and self.drawn else self.confidence


class Acceptance:
    """How often draft tokens are accepted, by class of evidence, shrunk towards a prior."""

    DECAY = 0.99  # forgets with a half-life of about 70 observations of the class
    WEIGHT = 8.0  # observations that the prior is worth
    # rejections of copies expected at first, over what the prior foretells: a draft that is not used is judged
    # all the same, so waiting for proof costs little, and early texts repeat least
    CAUTION = 1.5

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], list[float]] = {}
        self._misses: dict[str, list[float]] = {}  # by method: rejections seen, and foretold by the priors

    def rate(self, method: str, bucket: int, prior: float) -> float:
        """Estimated probability that a token of this evidence is accepted, the ones before it being so."""
        accepted, tested = self._seen.get((method, bucket), (0.0, 0.0))
        return (accepted + prior * self.WEIGHT) / (tested + self.WEIGHT)

    def match_rate(self, method: str, match: int) -> float:
        """The same for a token behind a match of so many tokens.

        The prior, from texts at large, is scaled by how this text compares with it so far: one edit of a
        long file says something about matches of every length.
        """
        match = min(match, _LONGEST)
        seen, foretold = self._misses.get(method, (0.0, 0.0))
        scale = (seen + self.CAUTION * self.WEIGHT) / (foretold + self.WEIGHT)
        return self.rate(method, _MATCH_BUCKETS[match], 1.0 - min(0.95, scale * _MATCH_HAZARDS[match]))

    def learn_match(self, method: str, match: int, accepted: bool) -> None:
        """A token behind a match of so many tokens was accepted, or not."""
        match = min(match, _LONGEST)
        misses = self._misses.setdefault(method, [0.0, 0.0])
        misses[0] = misses[0] * self.DECAY + (not accepted)
        misses[1] = misses[1] * self.DECAY + _MATCH_HAZARDS[match]
        self.learn(method, _MATCH_BUCKETS[match], float(accepted))

    def chance(self, method: str, evidence: Evidence) -> float:
        """Estimated probability that a candidate of a tree is the one accepted at its place."""
        return self.rate(method, evidence.bucket, evidence.prior)

    def learn_tree(self, cycle: Cycle) -> None:
        """From every place of a tree that was judged, what became of each candidate of the drafter there."""
        draft, path = cycle.draft, cycle.verdict.path
        assert draft.tree is not None
        judged = {-1, *path}
        if cycle.verdict.tested == cycle.verdict.accepted and path:
            judged.discard(path[-1])  # an end, or nothing behind it
        likeliest: dict[int, int] = {}
        for node, parent in enumerate(draft.tree.parents):
            best = likeliest.get(parent)
            if parent in judged and (best is None or draft.confidence[node] > draft.confidence[best]):
                likeliest[parent] = node
        for node, parent in enumerate(draft.tree.parents):
            if parent in judged and draft.confidence[node] > 0.0:
                evidence = Evidence(draft.confidence[node], likeliest[parent] == node, draft.tree.drawn)
                self.learn(draft.method, evidence.bucket, float(node in path))

    def learn(self, method: str, bucket: int, accepted: float) -> None:
        """A token of this evidence was accepted (1.0) or not (0.0)."""
        seen = self._seen.setdefault((method, bucket), [0.0, 0.0])
        seen[0] = seen[0] * self.DECAY + accepted
        seen[1] = seen[1] * self.DECAY + 1.0


def mean_length(rates: Iterable[float]) -> float:
    """Tokens that a cycle emits on average: 1, and for each place the chance that its draft token and all
    before it are accepted. `rates`: by place, the tokens before it being accepted."""
    return float(sum(accumulate(rates, mul, initial=1.0)))


def break_even(pays: Callable[[float], bool]) -> float | None:
    """The acceptance rate from which on `pays` holds, by bisection; None if not even at 1."""
    if not pays(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def _match_bucket(match: int) -> int:
    """Evidence class of a match length: fine for short ones, coarse for long ones."""
    return match if match < 8 else 4 + int(2 * math.log2(match)) if match < 64 else 16


_LONGEST = 64  # longer matches are all alike
_MATCH_BUCKETS = [_match_bucket(m) for m in range(_LONGEST + 1)]
# measured on greedy answers of a 0.5B model to prompts of nine kinds: the chance of a rejection is 0.85 / match
_MATCH_HAZARDS = [0.85, 0.7, *(0.85 / m for m in range(2, _LONGEST + 1))]


def confidence_bucket(confidence: float) -> int:
    """Evidence class of a drafter's probability: tenths, the last one split near certainty."""
    return 100 + (int(confidence * 10) if confidence < 0.9 else 9 + int((confidence - 0.9) * 50))
