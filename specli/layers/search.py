"""The search for layers to leave out: pure, over whoever judges a set.

It starts from the best run of neighbouring layers, found from coarse to fine: most models bear the loss of
layers behind their middle best, and the agreement changes smoothly with the place. Then layers are exchanged,
one for one: those first that promise most by what each costs alone, then some at random, as in SWIFT. An
exchange is proposed on one part of the text and must be better on the parts that it was not proposed on,
so that the set fits more than the text it was found on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

TRIES = 6
"""Promising exchanges that are tried after each look at every layer."""

SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2)
"""Parts of the layers that are left out where the number is not given."""

_RANDOM = 16  # exchanges at random in a row that brought nothing, after which no more are tried
_COARSE = 7  # places at which a run of layers is tried first


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
    """One search over the layers 0 to `blocks` - 1.

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
        self._seen: dict[tuple[frozenset[int], int], Agreement] = {}

    def run(self, drop: int | None = None) -> list[Step]:
        """The best sets found, one for each size that was tried, `drop` layers or SHARES of all; where time ran
        out, judged on part of the text only. Empty if nothing was judged."""
        sizes = [drop] if drop is not None else sorted({max(1, round(s * self._blocks)) for s in SHARES})
        steps: list[Step] = []
        for size in sizes:
            self._tell(f"runs of {size} layer{'s' if size > 1 else ''}")
            block = None if self._late() else self.block(size)
            if block is not None:
                steps.append(block)
        if steps:
            at = self._best(steps)
            steps[at] = self._exchanged_at_random(self._exchanged(steps[at]))
        return steps

    def best(self, steps: list[Step]) -> Step:
        """The one of the greatest expected speed."""
        return steps[self._best(steps)]

    def _best(self, steps: list[Step]) -> int:
        worths = [self._worth(frozenset(s.dropped), s.agreement.value) for s in steps]
        return max(range(len(steps)), key=worths.__getitem__)

    def _late(self) -> bool:
        return self._stop() or self._used() >= 1.0

    def _look(self, dropped: frozenset[int], part: int) -> Agreement:
        if (dropped, part) not in self._seen:
            self._seen[dropped, part] = self._judge.judge(dropped, part)
        return self._seen[dropped, part]

    # -- runs of neighbours ---------------------------------------------------------------------

    def block(self, size: int) -> Step | None:
        """The best run of so many neighbours: coarse to fine on one part of the text, the best three on all.
        None where there was no time."""
        last = self._blocks - size
        stride = max(1, -(-last // (_COARSE - 1)))
        values: dict[int, float] = {}

        def look(starts: Iterable[int]) -> None:
            for start in starts:
                if 0 <= start <= last and start not in values and not self._late():
                    values[start] = self._look(_run(start, size), 0).value

        look([*range(0, last + 1, stride), last])
        while stride > 1 and values:
            stride //= 2
            best = max(values, key=values.__getitem__)
            look((best - stride, best + stride))
        finalists = sorted(values, key=lambda start: -values[start])[:3]
        found = [self._step(_run(start, size)) for start in finalists]
        return max(found, key=lambda step: (step.agreement.positions, step.agreement.value), default=None)

    def _step(self, dropped: frozenset[int]) -> Step:
        """The set with what is known of it, on all parts as far as there is time."""
        total = Agreement()
        for part in range(self._judge.parts):
            if (dropped, part) in self._seen or not self._late():
                total += self._look(dropped, part)
        return Step(tuple(sorted(dropped)), total)

    # -- exchanges ------------------------------------------------------------------------------

    def _exchanged(self, step: Step) -> Step:
        """Exchange layers one for one as long as what they cost alone promises a gain that proves true."""
        part, failed = 0, 0
        while failed < self._judge.parts and not self._late():
            better = self._promising(step, part)
            failed = 0 if better is not None else failed + 1
            step, part = better or step, (part + 1) % self._judge.parts
        return step

    def _promising(self, step: Step, part: int) -> Step | None:
        """Look at each layer alone, on one part of the text; then try the pairs that promise most."""
        dropped = frozenset(step.dropped)
        back: dict[int, float] = {}
        out: dict[int, float] = {}
        for layer in range(self._blocks):
            if self._late():
                return None
            self._tell(f"layer {layer}, whether it is needed")
            values, other = (back, dropped - {layer}) if layer in dropped else (out, dropped | {layer})
            values[layer] = 1.0 if not other else self._look(other, part).value
        pairs = [(b, o) for b in back for o in out]
        pairs.sort(key=lambda pair: -(back[pair[0]] + out[pair[1]]))
        return self._first_better(step, pairs[:TRIES], part)

    def _exchanged_at_random(self, step: Step) -> Step:
        """Exchange any layers, as long as that brings something now and then."""
        rng = random.Random(0)
        better: Step | None = step
        while better is not None:
            step = better
            others = [layer for layer in range(self._blocks) if layer not in step.dropped]
            pairs = [(back, out) for back in step.dropped for out in others]
            better = self._first_better(step, rng.sample(pairs, min(_RANDOM, len(pairs))), 0)
        return step

    def _first_better(self, step: Step, pairs: Iterable[tuple[int, int]], part: int) -> Step | None:
        """The first exchange that does better on the whole text, and on what is not the part it rests on."""
        for back, out in pairs:
            if self._late():
                return None
            self._tell(f"layer {out} instead of {back}")
            better = self._better(step, frozenset(step.dropped) - {back} | {out}, part)
            if better is not None:
                return better
        return None

    def _better(self, step: Step, dropped: frozenset[int], part: int) -> Step | None:
        """`dropped` as a step if it does better; given up as soon as it falls behind, `part` looked at last."""
        current, mine, theirs = frozenset(step.dropped), Agreement(), Agreement()
        n = self._judge.parts
        for i in range(n):
            if self._late():
                return None
            at = (part + 1 + i) % n
            mine += self._look(dropped, at)
            theirs += self._look(current, at)
            if mine.value <= theirs.value:
                return None
        return Step(tuple(sorted(dropped)), mine)


def _run(start: int, size: int) -> frozenset[int]:
    return frozenset(range(start, start + size))
