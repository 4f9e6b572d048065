"""The search for layers to leave out: pure, over whoever judges a set.

Greedy from the whole model: leave out the layer whose loss costs least agreement, again and again. In
each round the candidates race over the parts of the text, and the better half goes on, so that most of the
time goes into telling the good ones apart. Layers that were harmful once are not tried again: leaving out
others rarely makes them less needed (the lazy evaluation of Minoux 1978). What time is left goes into
random exchanges, as in SWIFT.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from typing import Protocol

SHORTLIST = 6
"""Layers tried in each round but the first, which tries all."""

PATIENCE = 3
"""Rounds without a better expected speed after which leaving out more is given up."""

_IDLE = 16  # exchanges in a row that brought nothing, after which no more are tried
_DESCENT = 0.8  # share of the budget that may pass before exchanges get their turn


@dataclass(frozen=True, slots=True)
class Agreement:
    """How whole and pruned model agree on text: `matches` of `positions` with the same likeliest token,
    `overlap`: the sum of min(p, q) over them."""

    matches: int = 0
    overlap: float = 0.0
    positions: int = 0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            self.matches + other.matches, self.overlap + other.overlap, self.positions + other.positions
        )

    @property
    def top1(self) -> float:
        """Part of the positions with the same likeliest token: what greedy answers accept."""
        return self.matches / self.positions if self.positions else 0.0

    @property
    def shared(self) -> float:
        """Σ min(p, q) on average: what sampled answers accept."""
        return self.overlap / self.positions if self.positions else 0.0

    @property
    def value(self) -> float:
        """What the search goes by: the mean of both, which is steadier than either."""
        return (self.top1 + self.shared) / 2


class Judge(Protocol):
    """Knows how well the model does without a set of layers, on each of `parts` pieces of text."""

    @property
    def parts(self) -> int: ...

    def judge(self, dropped: frozenset[int], part: int) -> Agreement: ...


@dataclass(frozen=True, slots=True)
class Step:
    """A set of layers to leave out, ascending, with its agreement on all parts."""

    dropped: tuple[int, ...]
    agreement: Agreement


class Search:
    """One search over the layers `blocks`.

    `worth(dropped, agreement)`: the expected speed, which says how many to leave out. `used()`: the share of
    the budget that has passed. `stop()`: end at once. `tell(what)` hears what is being done.
    """

    def __init__(
        self,
        blocks: int,
        judge: Judge,
        worth: Callable[[frozenset[int], float], float],
        used: Callable[[], float] = lambda: 0.0,
        stop: Callable[[], bool] = lambda: False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._blocks, self._judge, self._worth = blocks, judge, worth
        self._used, self._stop, self._tell = used, stop, tell
        self._known: dict[int, float] = {}  # value without this layer, when it was last tried
        self._seen: dict[tuple[frozenset[int], int], Agreement] = {}

    def run(self, drop: int | None = None) -> list[Step]:
        """The best sets found, one for each size that was reached, from 1 up; the last round's may have seen
        part of the text only. With `drop`, the last one has so many layers. Empty if nothing was judged."""
        steps = self._descend(drop)
        if not steps or self._stop():
            return steps
        at = len(steps) - 1 if drop is not None else self._best(steps)
        steps[at] = self._exchange(steps[at])
        return steps

    def best(self, steps: list[Step]) -> Step:
        """The one of the greatest expected speed."""
        return steps[self._best(steps)]

    def _best(self, steps: list[Step]) -> int:
        worths = [self._worth(frozenset(s.dropped), s.agreement.value) for s in steps]
        return max(range(len(steps)), key=worths.__getitem__)

    def _past(self, share: float) -> bool:
        return self._stop() or self._used() >= share

    # -- leaving out one after another ----------------------------------------------------------

    def _descend(self, drop: int | None) -> list[Step]:
        most = drop if drop is not None else self._blocks // 2
        dropped: frozenset[int] = frozenset()
        steps: list[Step] = []
        while len(dropped) < most and not self._past(_DESCENT):
            self._tell(f"layer {len(dropped) + 1} to leave out")
            candidates = self._candidates(dropped)
            found = self._race(dropped, candidates, len(dropped))
            if found is None:
                break
            dropped |= {found}
            steps.append(self._step(dropped))
            if drop is None and len(steps) - 1 - self._best(steps) >= PATIENCE:
                break
        if drop is not None and 0 < len(dropped) < drop and not self._stop():
            rest = self._ranked(dropped)[: drop - len(dropped)]  # no time to try them together
            steps.append(self._step(dropped | set(rest)))
        return steps

    def _candidates(self, dropped: frozenset[int]) -> list[int]:
        if not self._known:
            return list(range(self._blocks))
        return self._ranked(dropped)[:SHORTLIST]

    def _ranked(self, dropped: frozenset[int]) -> list[int]:
        """Layers still there, the least needed first."""
        left = (layer for layer in self._known if layer not in dropped)
        return sorted(left, key=lambda layer: -self._known[layer])

    def _race(self, dropped: frozenset[int], candidates: list[int], turn: int) -> int | None:
        """The candidate that is needed least: all run on one part of the text, the better half on the next."""
        parts = self._judge.parts
        alive, scores = list(candidates), dict.fromkeys(candidates, Agreement())
        for i in range(parts):
            for candidate in alive:
                if self._past(_DESCENT if i else 1.0):
                    break
                scores[candidate] += self._look(dropped | {candidate}, (turn + i) % parts)
            alive = sorted((c for c in alive if scores[c].positions), key=lambda c: -scores[c].value)
            alive = alive[: max(1, ceil(len(alive) / 2))]
        self._known.update({c: s.value for c, s in scores.items() if s.positions})
        return alive[0] if alive else None

    def _look(self, dropped: frozenset[int], part: int) -> Agreement:
        if (dropped, part) not in self._seen:
            self._seen[dropped, part] = self._judge.judge(dropped, part)
        return self._seen[dropped, part]

    def _step(self, dropped: Iterable[int]) -> Step:
        """The set with what is known of it, looked at once more where nothing is."""
        key = frozenset(dropped)
        total = Agreement()
        for part in range(self._judge.parts):
            if (key, part) in self._seen or not self._past(1.0):
                total += self._look(key, part)
        if not total.positions:
            total = self._look(key, 0)
        return Step(tuple(sorted(key)), total)

    # -- exchanging -----------------------------------------------------------------------------

    def _exchange(self, step: Step) -> Step:
        """Put one layer back and leave out another, as long as that may bring something."""
        rng = random.Random(0)
        better: Step | None = step
        while better is not None:
            step, better = better, None
            others = self._ranked(frozenset(step.dropped))[: 2 * SHORTLIST]
            pairs = [(back, out) for back in step.dropped for out in others]
            for back, out in rng.sample(pairs, min(_IDLE, len(pairs))):
                if self._past(1.0):
                    break
                self._tell(f"layer {out} instead of {back}")
                better = self._better(step, frozenset(step.dropped) - {back} | {out})
                if better is not None:
                    break
        return step

    def _better(self, step: Step, dropped: frozenset[int]) -> Step | None:
        """`dropped` as a step if it does better on the whole text; given up as soon as it falls behind."""
        current, mine, theirs = frozenset(step.dropped), Agreement(), Agreement()
        for part in range(self._judge.parts):
            if self._past(1.0):
                return None
            mine += self._look(dropped, part)
            theirs += self._look(current, part)
            if mine.value < theirs.value:
                return None
        return Step(tuple(sorted(dropped)), mine) if mine.value > theirs.value else None
