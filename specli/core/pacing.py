"""How long the next draft may be: as long as it pays.

Drafting K tokens costs their drafting and a verify of width K + 1, and emits on average
1 + sum over k <= K of P(the first k are accepted). `ProfitPacer` takes the K >= 0 that emits most
per second; K = 0 is plain decoding. What widths cost and how often drafts are accepted is learned
from the cycles themselves.

How often is kept per evidence, see `acceptance`. A free draft teaches even where it is not used: it is
compared with what the target says anyway.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from statistics import median
from typing import Protocol

from specli.core.acceptance import Acceptance, Evidence, confidence_bucket
from specli.core.costs import CPU_SHAPE, GPU_SHAPE, Costs
from specli.core.trees import Prices, best_size
from specli.core.types import NO_DRAFT, Cycle, Draft, Tree

__all__ = ["CPU_SHAPE", "GPU_SHAPE", "Acceptance", "Costs", "FixedPacer", "Pacer", "ProfitPacer"]


class Pacer(Protocol):
    """Decides the length of drafts."""

    def begin(self) -> None:
        """A new answer starts."""
        ...

    def drafted(self, draft: Draft, seconds: float) -> None:
        """A drafter was asked and proposed `draft`, whether it will be used or not: that took so long."""
        ...

    def choose(self, draft: Draft, depth: int) -> Draft:
        """As much of a finished `draft` as pays; `depth` is the length of the history. What is kept of a
        draft with q must not hang on what was drawn, or it is not distributed as q any more."""
        ...

    def goes_on(self, method: str, confidence: Sequence[float], limit: int) -> bool:
        """Whether a neural drafter that has drafted tokens of these confidences drafts one more."""
        ...

    def joins(self, method: str, behind: int, limit: int) -> bool:
        """Whether a neural drafter that has `behind` tokens to read before it can draft does so now."""
        ...

    def prices(self, method: str, limit: int) -> Prices:
        """What nodes and levels of a tree of up to `limit` nodes cost; of fewer if no more may be."""
        ...

    def chance(self, method: str, evidence: Evidence) -> float:
        """Estimated probability that a candidate of a tree is the one accepted at its place."""
        ...

    def reach(self, draft: Draft, depth: int) -> list[float]:
        """Per token of a free `draft`, as far as it is trusted, the estimated probability that it and all
        before it are accepted: for its branch in a tree. `depth` is the length of the history."""
        ...

    def observe(self, history: Sequence[int], cycle: Cycle) -> None:
        """A cycle is done and `history` holds its tokens."""
        ...


class FixedPacer:
    """Every draft as long as the drafter and its limit make it, every tree of its full size: of the nodes
    that may be, those accepted most often."""

    TYPICAL = 0.75  # acceptance of a draft token of which nothing is known

    def __init__(self) -> None:
        self._acceptance = Acceptance()

    def begin(self) -> None:
        pass

    def drafted(self, draft: Draft, seconds: float) -> None:
        pass

    def choose(self, draft: Draft, depth: int) -> Draft:
        return draft

    def goes_on(self, method: str, confidence: Sequence[float], limit: int) -> bool:
        return len(confidence) < limit

    def joins(self, method: str, behind: int, limit: int) -> bool:
        return True

    def prices(self, method: str, limit: int) -> Prices:
        return Prices([0.0] * (limit + 2), 0.0, self.TYPICAL)

    def chance(self, method: str, evidence: Evidence) -> float:
        return self._acceptance.chance(method, evidence)

    def reach(self, draft: Draft, depth: int) -> list[float]:
        rate = self._acceptance.match_rate
        return list(accumulate((rate(draft.method, draft.match + i) for i in range(len(draft))), mul))

    def observe(self, history: Sequence[int], cycle: Cycle) -> None:
        if cycle.draft.tree is not None:
            self._acceptance.learn_tree(cycle)


class ProfitPacer:
    """Draft length by expected profit.

    A draft of K tokens that is expected to emit E tokens in T seconds is worth E - rate * T, where rate
    is the tokens per second of the run so far: the rule that maximises tokens over time in the long
    run (Dinkelbach 1967, for ratios; renewal reward). The K >= 0 of the largest worth goes.

    A neural drafter that does not pay is silent but for probes; what probes lose stays below
    `PROBE_SHARE` of the time.
    """

    PROBE_SHARE = 0.01
    MEMORY = 0.98  # of the running rate: about 50 cycles
    FIRST_CHANCE = 0.75  # acceptance of a draft token before anything is known
    HORIZON = 256  # tokens, the most that are taken to be still to come
    READING = 0.25  # cost of a token read with others, beside one drafted
    FIRST_TRUST = 4  # most tokens of a free draft until one was accepted in full; then twice as many

    def __init__(
        self, costs: Costs, fixed_width: int | None = None, steps: Mapping[str, float] | None = None
    ) -> None:
        """`steps`: what a draft token is expected to cost, by method, relative to one of the target's."""
        self.costs = costs
        self._expected_steps = steps or {}
        self.acceptance = Acceptance()
        self._fixed_width = fixed_width
        self._shadow: _Shadow | None = None
        self._first = False
        self._steps: dict[str, deque[float]] = {}
        self._emitted, self._spent = 0.0, 0.0  # of the latest cycles, for the rate
        self._time, self._lost = 0.0, 0.0  # of all cycles; lost by probes
        self._said = 0  # tokens of all cycles
        self._probing = False  # whether the drafter that is asked probes
        self._probed = False  # whether one did in this cycle
        self._trust: dict[str, int] = {}
        self._joined = False  # the drafter that is asked reads up: its time says nothing of a step's
        self._bar = -math.inf  # worth of the best draft of this cycle so far, which another must beat
        self._drafting = 0.0  # what all that was drafted in this cycle costs, used or not

    def begin(self) -> None:
        self._first = True
        self._shadow = None  # it foretold another answer
        self._probing = self._probed = self._joined = False
        self._bar, self._drafting = -math.inf, 0.0

    # -- how long ---------------------------------------------------------------------------------

    def choose(self, draft: Draft, depth: int) -> Draft:
        if not draft.tokens or self._measures_plain():
            return NO_DRAFT
        if draft.tree is not None:
            return self._choose_tree(draft, draft.tree)
        chances = self._chances(draft)
        if not draft.confidence and self._shadow is None:
            self._shadow = _Shadow(draft, depth)
        if draft.confidence:
            for chance in chances:  # dropped or not: so likely is a token of this drafter to be accepted
                self.acceptance.learn(draft.method, -1, chance)
            if self._probing:
                return draft.first(1)  # enough to learn from
        if draft.q is not None:  # dropping tokens for what was drawn would bias what is proposed
            return draft
        if not draft.confidence:
            chances = chances[: self._trust.get(draft.method, self.FIRST_TRUST)]
        if self._fixed_width is None:
            chances = chances[: self.costs.reach - 1]
        cost, rate = self._verify_costs(len(chances) + 1), self._rate()
        best, best_worth = 0, max(self._bar, 1.0 - rate * cost[1])
        emitted, survive = 1.0, 1.0
        for k, chance in enumerate(chances, start=1):
            survive *= chance
            emitted += survive
            worth = emitted - rate * cost[k + 1]
            if worth > best_worth:
                best, best_worth = k, worth
        self._bar = best_worth
        return draft.first(best) if best else NO_DRAFT

    def _choose_tree(self, draft: Draft, tree: Tree) -> Draft:
        """The likeliest nodes, as many as pay, of a tree that was drafted at a cost already paid."""
        if tree.levels:
            for chance in _first_chances(draft, tree):
                self.acceptance.learn(draft.method, -1, chance)
        if self._probing:
            return draft.first(1)
        if draft.q is not None:
            return draft
        best, worth = best_size(tree.reach, self.prices(draft.method, len(draft)))
        if worth <= self._bar:
            return NO_DRAFT
        self._bar = worth
        return draft.first(best) if best else NO_DRAFT

    def prices(self, method: str, limit: int) -> Prices:
        if self._fixed_width is None:
            limit = max(1, min(limit, self.costs.reach - 1))
        if self._probing:
            limit = 1  # enough to learn from
        cost, rate = self._verify_costs(limit + 1), self._rate()
        typical = self.acceptance.rate(method, -1, self.FIRST_CHANCE)
        return Prices([rate * c for c in cost[: limit + 2]], rate * self._step(method), typical)

    def chance(self, method: str, evidence: Evidence) -> float:
        return self.acceptance.chance(method, evidence)

    def reach(self, draft: Draft, depth: int) -> list[float]:
        if self._shadow is None:
            self._shadow = _Shadow(draft, depth)
        trusted = draft.first(self._trust.get(draft.method, self.FIRST_TRUST))
        return list(accumulate(self._chances(trusted), mul))

    def goes_on(self, method: str, confidence: Sequence[float], limit: int) -> bool:
        drafted = len(confidence)
        if drafted >= limit or self._measures_plain():
            return False
        if drafted == 0:
            self._probing = False
        elif self._probing:
            return False
        cost, rate, step = self._verify_costs(limit + 1), self._rate(), self._step(method)
        emitted, survive = 1.0, 1.0
        stop = max(self._bar, 1.0 - rate * cost[1])
        for k, c in enumerate(confidence, start=1):
            survive *= self.acceptance.rate(method, confidence_bucket(c), c)
            emitted += survive
            stop = max(stop, emitted - rate * cost[k + 1])
        typical = self.acceptance.rate(method, -1, self.FIRST_CHANCE)
        for k in range(drafted + 1, limit + 1):  # steps in the cost may hide profit further on
            survive *= typical
            emitted += survive
            if emitted - rate * (cost[k + 1] + (k - drafted) * step) > stop:
                return True
        if drafted == 0 and self._may_probe(step + cost[2] - cost[1]):
            self._probing = self._probed = True
            return True
        return False

    def joins(self, method: str, behind: int, limit: int) -> bool:
        """If what it is expected to gain is more than the reading costs.

        Nobody knows how long an answer gets; as many tokens are taken to be still to come as were said. So
        a short answer is never spent on reading up for it.
        """
        if self._measures_plain() or limit < 1:
            return False
        cost, rate, step = self._verify_costs(limit + 1), self._rate(), self._step(method)
        typical = self.acceptance.rate(method, -1, self.FIRST_CHANCE)
        gain, emitted, survive = 0.0, 1.0, 1.0
        for k in range(1, limit + 1):
            survive *= typical
            emitted += survive
            more = emitted - 1.0 - rate * (cost[k + 1] + k * step - cost[1])
            gain = max(gain, more / emitted)  # tokens gained for each one emitted
        ahead = min(self.HORIZON, self._said)
        self._joined = gain * ahead > rate * behind * step * self.READING
        return self._joined

    def _chances(self, draft: Draft) -> list[float]:
        """Estimated probability of each draft token to be accepted, the ones before it being so."""
        rate, method = self.acceptance.rate, draft.method
        if draft.confidence:
            return [rate(method, confidence_bucket(c), c) for c in draft.confidence]
        return [self.acceptance.match_rate(method, draft.match + i) for i in range(len(draft))]

    def _measures_plain(self) -> bool:
        """The first decode of all is plain, unless it is known what drafting must beat."""
        return self._fixed_width is None and not self.costs.known and self.costs.measured(1) is None

    def _verify_costs(self, width: int) -> Sequence[float]:
        if self._fixed_width is None:
            return self.costs.table(width)
        w = self._fixed_width  # every decode has so many rows
        same = self.costs.measured(w) or self.costs.table(w)[w]
        return [same] * (width + 1)

    def _step(self, method: str) -> float:
        """Seconds that one draft token takes; before that is known, what is expected of it, or else a quarter
        of a target token alone."""
        times = self._steps.get(method)
        return median(times) if times else self._expected_steps.get(method, 0.25) * self.costs.table(1)[1]

    def learned_steps(self, least: int) -> dict[str, float]:
        """Seconds of a draft token by method, of those that drafted at least `least` times."""
        return {name: median(times) for name, times in self._steps.items() if len(times) >= least}

    def _rate(self) -> float:
        """Tokens per second: what the run does, and no less than what plain decoding would."""
        plain = 1.0 / self._verify_costs(1)[1]
        return max(plain, self._emitted / self._spent) if self._spent else plain

    def _may_probe(self, price: float) -> bool:
        """Whether a probe that may lose `price` seconds keeps the losses within their share."""
        return self._lost + price <= self.PROBE_SHARE * self._time

    # -- learning ---------------------------------------------------------------------------------

    def drafted(self, draft: Draft, seconds: float) -> None:
        if draft.confidence and draft.steps:
            if not self.costs.frozen and not self._joined:
                self._steps.setdefault(draft.method, deque(maxlen=9)).append(seconds / draft.steps)
            self._drafting += draft.steps * self._step(draft.method)
        self._joined = False

    def observe(self, history: Sequence[int], cycle: Cycle) -> None:
        self._bar = -math.inf
        if not self._first:  # the first decode after a prompt warms up
            self.costs.learn(cycle.width, cycle.verify_s)
        self._first = False
        draft, verdict = cycle.draft, cycle.verdict
        if draft.tree is not None:
            self.acceptance.learn_tree(cycle)
        elif draft.confidence:
            self._learn_neural(cycle)
        elif draft.tokens and verdict.accepted == len(draft):
            trust = self._trust.get(draft.method, self.FIRST_TRUST)
            self._trust[draft.method] = max(trust, 2 * len(draft))
        spent = self._drafting + self._verify_costs(cycle.width)[cycle.width]
        self._emitted = self._emitted * self.MEMORY + len(verdict.tokens)
        self._spent = self._spent * self.MEMORY + spent
        self._time += spent
        self._said += len(verdict.tokens)
        if self._probed:
            self._lost += max(0.0, spent - len(verdict.tokens) * self._verify_costs(1)[1])
        self._probing = self._probed = False
        self._drafting = 0.0
        if self._shadow is not None and self._shadow.resolve(history, self.acceptance):
            self._shadow = None

    def _learn_neural(self, cycle: Cycle) -> None:
        draft, verdict = cycle.draft, cycle.verdict
        for i in range(verdict.tested):
            accepted = i < verdict.accepted
            self.acceptance.learn(draft.method, confidence_bucket(draft.confidence[i]), float(accepted))


def _first_chances(draft: Draft, tree: Tree) -> list[float]:
    """Of every place with candidates of the drafter itself, the chance of the likeliest one."""
    best: dict[int, float] = {}
    for node, parent in enumerate(tree.parents):
        if draft.confidence[node] > 0.0:
            before = tree.reach[parent] if parent >= 0 else 1.0
            best[parent] = max(best.get(parent, 0.0), tree.reach[node] / max(before, 1e-9))
    return list(best.values())


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
            acceptance.learn_match(draft.method, draft.match + i, hit)
            self.compared += 1
            if not hit:
                return True
        return self.compared >= len(draft)
