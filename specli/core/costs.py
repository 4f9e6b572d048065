"""What a verify decode of each width costs, learned while decoding."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median


class Costs:
    """Seconds that a verify decode of each width takes, learned from the decodes of this run.

    A width never used is estimated from the nearest used ones along `shape`, the relative costs known
    beforehand: what is scaled is the cost above one token's. Costs have steps (kernels work in
    blocks), so the shape is a table, not a line. `frozen`: keep to the shape, whatever the clock says.
    """

    KEEP = 9  # the median of so many latest decodes is robust, and follows a deepening context
    OPTIMISM = 0.9  # an unused width is taken to be a little cheaper than estimated, so that it gets used

    def __init__(
        self,
        shape: Mapping[int, float],
        frozen: bool = False,
        measured: bool = False,
        learned: Mapping[int, float] | None = None,
    ) -> None:
        """`measured`: the shape was measured with this model on this machine. `learned`: relative costs of some
        widths that an earlier run learned here; the shape is bent to them."""
        self._shape = sorted(shape.items())
        self.frozen = frozen
        self.known = frozen or measured
        self._widest = 1 << 30 if frozen or measured else 1
        self._times: dict[int, deque[float]] = {}
        self._table: list[float] = []
        self._learned = 0
        if learned:
            self._bend(learned)

    def _bend(self, learned: Mapping[int, float]) -> None:
        for width, cost in learned.items():
            self._times[width] = deque([cost], maxlen=self.KEEP)
        most = max(*(width for width, _ in self._shape), *learned)
        bent = self._estimates(most)
        widths = {width for width, _ in self._shape} | set(learned)
        self._shape = [(width, bent[width]) for width in sorted(widths)]
        self._times = {}
        self.known, self._widest = True, max(self._widest, *learned)

    def learn(self, width: int, seconds: float) -> None:
        """A decode of `width` rows took `seconds`."""
        if self.frozen:
            return
        times = self._times.setdefault(width, deque(maxlen=self.KEEP))
        times.append(seconds)
        self._widest = max(self._widest, width)
        self._learned += 1
        if len(times) <= 3 or self._learned % 16 == 0:
            self._table = []

    @property
    def reach(self) -> int:
        """The widest decode to dare: beyond twice the widest one seen, an estimate is a guess."""
        return 2 * self._widest

    def measured(self, width: int) -> float | None:
        """The median of the latest decodes of `width`, in seconds; None if there were none."""
        times = self._times.get(width)
        return median(times) if times else None

    def seen(self, least: int) -> dict[int, float]:
        """The median seconds of every width that was decoded at least `least` times in this run."""
        return {width: median(times) for width, times in self._times.items() if len(times) >= least}

    def table(self, width: int) -> Sequence[float]:
        """Estimated seconds by width, for widths 1 to at least `width` at their index."""
        if len(self._table) <= width:
            self._table = self._estimates(max(width, 65))
        return self._table

    def _estimates(self, width: int) -> list[float]:
        known = self._rising()
        one = known.get(1) or self._one_token(known)
        above = {w: self._relative(w) - 1.0 for w in known if w > 1}
        scales = sorted((w, (known[w] / one - 1.0) / c) for w, c in above.items() if c > 0.0)
        out = [0.0, one]
        for w in range(2, width + 1):
            scale = _between(w, scales) if scales else 1.0
            estimate = one * (1.0 + scale * (self._relative(w) - 1.0))
            out.append(known.get(w) or max(one, estimate * (self.OPTIMISM if scales else 1.0)))
        return out

    def _rising(self) -> dict[int, float]:
        """The measured medians; no width costs more than a wider one did, so one bad measurement of a
        width that is then avoided does not stand for ever."""
        known: dict[int, float] = {}
        least = math.inf
        for width in sorted(self._times, reverse=True):
            least = min(least, median(self._times[width]))
            known[width] = least
        return known

    def _one_token(self, known: Mapping[int, float]) -> float:
        """The cost of one token where only wider decodes were seen."""
        return min((t / self._relative(w) for w, t in known.items()), default=1.0)

    def _relative(self, width: int) -> float:
        """The shape at `width`, linear between its points and beyond them."""
        return interpolated(self._shape, width)


def interpolated(points: Sequence[tuple[int, float]], width: int) -> float:
    """The value at `width`, linear between known points, given by ascending width, and beyond them."""
    at = bisect_left(points, (width, -math.inf))
    if at < len(points) and points[at][0] == width:
        return points[at][1]
    if len(points) == 1:
        return points[0][1]
    at = min(max(at, 1), len(points) - 1)
    (w0, c0), (w1, c1) = points[at - 1], points[at]
    return c0 + (c1 - c0) * (width - w0) / (w1 - w0)


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
