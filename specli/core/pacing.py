"""How long the next draft may be: as long as it pays.

Drafting K tokens costs their drafting and a verify of width K + 1, and emits on average
1 + sum over k <= K of P(the first k are accepted). `ProfitPacer` takes the K >= 0 that emits most
per second; K = 0 is plain decoding. What widths cost and how often drafts are accepted is learned
from the cycles themselves.

Acceptance is kept per *evidence*: for n-gram drafts the length of the match behind a token (the
match found plus the draft tokens before it), for neural drafts the drafter's own confidence. A free
draft teaches even where it is not used: it is compared with what the target says anyway.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Protocol

from specli.core.types import NO_DRAFT, Cycle, Draft


class Pacer(Protocol):
    """Decides the length of drafts."""

    def choose(self, draft: Draft, depth: int) -> Draft:
        """As much of a finished `draft` as pays; `depth` is the length of the history."""
        ...

    def goes_on(self, method: str, confidence: Sequence[float], limit: int) -> bool:
        """Whether a neural drafter that has drafted tokens of these confidences drafts one more."""
        ...

    def observe(self, history: Sequence[int], cycle: Cycle) -> None:
        """A cycle is done and `history` holds its tokens."""
        ...


class FixedPacer:
    """Every draft as long as the drafter and its limit make it."""

    def choose(self, draft: Draft, depth: int) -> Draft:
        return draft

    def goes_on(self, method: str, confidence: Sequence[float], limit: int) -> bool:
        return len(confidence) < limit

    def observe(self, history: Sequence[int], cycle: Cycle) -> None:
        pass


class Costs:
    """Seconds that a verify decode of each width takes, learned from the decodes of this run.

    A width never used is estimated from the nearest used ones along `shape`, the relative costs
    known beforehand. Costs have steps (kernels work in blocks), so the shape is a table, not a line.
    """

    KEEP = 9  # the median of so many latest decodes is robust, and follows a deepening context

    def __init__(self, shape: Mapping[int, float], frozen: bool = False) -> None:
        self._shape = sorted(shape.items())
        self._frozen = frozen
        self._times: dict[int, deque[float]] = {}
        self._table: list[float] = []
        self._version = 0

    def learn(self, width: int, seconds: float) -> None:
        """A decode of `width` rows took `seconds`."""
        if self._frozen:  # a seed was given: what is drafted must not depend on the clock
            return
        times = self._times.setdefault(width, deque(maxlen=self.KEEP))
        times.append(seconds)
        self._version += 1
        if len(times) <= 3 or self._version % 16 == 0:
            self._table = []

    def measured(self, width: int) -> float | None:
        """The median of the latest decodes of `width`, in seconds; None if there were none."""
        times = self._times.get(width)
        return median(times) if times else None

    def table(self, width: int) -> Sequence[float]:
        """Estimated seconds by width, for widths 1 to at least `width` at their index."""
        if len(self._table) <= width:
            known = sorted((w, median(t) / self._relative(w)) for w, t in self._times.items())
            self._table = [0.0, *(self._estimate(w, known) for w in range(1, max(width, 64) + 1))]
        return self._table

    def _relative(self, width: int) -> float:
        """The shape at `width`, linear between its points and beyond them."""
        at = bisect_left(self._shape, (width, 0.0))
        if at < len(self._shape) and self._shape[at][0] == width:
            return self._shape[at][1]
        at = min(max(at, 1), len(self._shape) - 1)
        (w0, c0), (w1, c1) = self._shape[at - 1], self._shape[at]
        return c0 + (c1 - c0) * (width - w0) / (w1 - w0)

    def _estimate(self, width: int, known: list[tuple[int, float]]) -> float:
        scale = _between(width, known) if known else 1.0
        return scale * self._relative(width)


def _between(width: int, known: list[tuple[int, float]]) -> float:
    """The value at `width`, linear in log(width) between known neighbours, constant beyond."""
    at = bisect_left(known, (width, -math.inf))
    if at < len(known) and known[at][0] == width:
        return known[at][1]
    if at == 0 or at == len(known):
        return known[0 if at == 0 else -1][1]
    (w0, v0), (w1, v1) = known[at - 1], known[at]
    share = math.log(width / w0) / math.log(w1 / w0)
    return v0 + (v1 - v0) * share


CPU_SHAPE: Mapping[int, float] = {
    1: 1.0, 2: 1.35, 3: 1.68, 4: 2.09, 5: 2.41, 8: 3.27, 12: 3.43, 16: 3.53, 17: 4.78, 24: 5.08,
    32: 5.18, 33: 6.39, 48: 6.75, 64: 7.79,
}  # fmt: skip
"""A 1.5B model, Q4_K_M, on two AVX-512 cores: measured, and replaced by the run's own figures."""

GPU_SHAPE: Mapping[int, float] = {1: 1.0, 8: 1.15, 9: 1.6, 64: 2.5}
"""A guess that invites drafting; the first cycles correct it."""


class Acceptance:
    """How often draft tokens are accepted, by class of evidence, shrunk towards a prior."""

    DECAY = 0.99  # forgets with a half-life of about 70 observations of the class
    WEIGHT = 4.0  # observations that the prior is worth

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], list[float]] = {}

    def rate(self, method: str, bucket: int, prior: float) -> float:
        """Estimated probability that a token of this evidence is accepted, the ones before it being so."""
        accepted, tested = self._seen.get((method, bucket), (0.0, 0.0))
        return (accepted + prior * self.WEIGHT) / (tested + self.WEIGHT)

    def learn(self, method: str, bucket: int, accepted: bool) -> None:
        """A token of this evidence was tested."""
        seen = self._seen.setdefault((method, bucket), [0.0, 0.0])
        seen[0] = seen[0] * self.DECAY + accepted
        seen[1] = seen[1] * self.DECAY + 1.0


def _match_bucket(match: int) -> int:
    """Evidence class of a match length: fine for short ones, coarse for long ones."""
    return match if match < 8 else 4 + int(2 * math.log2(match)) if match < 64 else 16


_MATCH_BUCKETS = [_match_bucket(m) for m in range(65)]
_MATCH_PRIORS = [0.1, *(1.0 - 0.62 / m**0.75 for m in range(1, 65))]  # 0.38, 0.63, 0.73, 0.78, …


def _confidence_bucket(confidence: float) -> int:
    """Evidence class of a drafter's probability: tenths, the last one split near certainty."""
    return 100 + (int(confidence * 10) if confidence < 0.9 else 9 + int((confidence - 0.9) * 50))


class ProfitPacer:
    """Draft length by expected profit."""

    PROBE_EVERY = (8, 1024)  # cycles between trial drafts of a silenced neural drafter, first and last

    def __init__(self, costs: Costs, fixed_width: int | None = None) -> None:
        self.costs = costs
        self.acceptance = Acceptance()
        self._fixed_width = fixed_width
        self._shadow: _Shadow | None = None
        self._step_s: dict[str, deque[float]] = {}
        self._wait: dict[str, int] = {}  # cycles until a silenced method may try again
        self._back_off: dict[str, int] = {}

    # -- free drafts: n-grams -------------------------------------------------------------------

    def choose(self, draft: Draft, depth: int) -> Draft:
        if not draft.tokens or draft.confidence:
            return draft  # a neural draft was paced while it was made
        if self._shadow is None:
            self._shadow = _Shadow(draft, depth)
        chances = [self._match_rate(draft.method, draft.match + i) for i in range(len(draft))]
        k = self._best_length(chances)
        return draft.first(k) if k else NO_DRAFT

    def _match_rate(self, method: str, match: int) -> float:
        match = min(match, 64)
        return self.acceptance.rate(method, _MATCH_BUCKETS[match], _MATCH_PRIORS[match])

    def _best_length(self, chances: Sequence[float]) -> int:
        cost = self._verify_costs(len(chances) + 1)
        best, best_rate = 0, 1.0 / cost[1]
        emitted, survive = 1.0, 1.0
        for k, chance in enumerate(chances, start=1):
            survive *= chance
            emitted += survive
            rate = emitted / cost[k + 1]
            if rate > best_rate:
                best, best_rate = k, rate
        return best

    def _verify_costs(self, width: int) -> Sequence[float]:
        if self._fixed_width is not None:  # every decode has the same rows
            return [1.0] * (width + 1)
        return self.costs.table(width)

    # -- drafts that cost time: neural ----------------------------------------------------------

    def goes_on(self, method: str, confidence: Sequence[float], limit: int) -> bool:
        drafted = len(confidence)
        if drafted >= limit:
            return False
        if drafted == 0 and self._wait.get(method, 0) > 0:
            return False
        probing = method in self._back_off
        cost = self._verify_costs(limit + 1)
        step = self._step(method, cost[1])
        survive, emitted, last = 1.0, 1.0, 0.75
        for c in confidence:
            last = self.acceptance.rate(method, _confidence_bucket(c), c)
            survive *= last
            emitted += survive
        now = emitted / (cost[drafted + 1] + drafted * step)
        typical = self.acceptance.rate(method, -1, 0.7)
        ahead = 0.0
        for k in range(drafted + 1, limit + 1):  # steps in the cost may hide profit further on
            survive *= typical
            emitted += survive
            ahead = max(ahead, emitted / (cost[k + 1] + k * step))
        if drafted == 0 and ahead <= now and not probing:
            self._silence(method)
            return False
        return ahead > now or (probing and drafted == 0)

    def _step(self, method: str, one_token: float) -> float:
        """Seconds that one draft token takes; before it was measured, a quarter of a target token."""
        times = self._step_s.get(method)
        return median(times) if times else 0.25 * one_token

    def _silence(self, method: str) -> None:
        first, last = self.PROBE_EVERY
        wait = min(last, 2 * self._back_off.get(method, first // 2))
        self._back_off[method] = self._wait[method] = wait

    # -- learning -------------------------------------------------------------------------------

    def observe(self, history: Sequence[int], cycle: Cycle) -> None:
        self.costs.learn(cycle.width, cycle.verify_s)
        for method in self._wait:
            self._wait[method] -= 1
        if cycle.draft.confidence:
            self._learn_neural(cycle)
        if self._shadow is not None and self._shadow.resolve(history, self.acceptance):
            self._shadow = None

    def _learn_neural(self, cycle: Cycle) -> None:
        draft, verdict = cycle.draft, cycle.verdict
        self._step_s.setdefault(draft.method, deque(maxlen=9)).append(cycle.draft_s / len(draft))
        for i in range(verdict.tested):
            accepted = i < verdict.accepted
            self.acceptance.learn(draft.method, _confidence_bucket(draft.confidence[i]), accepted)
            self.acceptance.learn(draft.method, -1, accepted)
        if draft.method in self._back_off:
            if verdict.accepted:
                del self._back_off[draft.method]
                self._wait[draft.method] = 0
            else:
                self._silence(draft.method)


class _Shadow:
    """A whole free draft, compared token by token with what the answer really became."""

    def __init__(self, draft: Draft, depth: int) -> None:
        self.draft = draft
        self.depth = depth
        self.compared = 0

    def resolve(self, history: Sequence[int], acceptance: Acceptance) -> bool:
        """Learn from the tokens that are known by now; True once there is no more to learn."""
        draft = self.draft
        while self.compared < len(draft) and self.depth + self.compared < len(history):
            i = self.compared
            hit = draft.tokens[i] == history[self.depth + i]
            acceptance.learn(draft.method, _MATCH_BUCKETS[min(draft.match + i, 64)], hit)
            self.compared += 1
            if not hit:
                return True
        return self.compared >= len(draft)
