"""Successive halving: all candidates run a little, the better half runs on, until few are left or time is
up (Karnin, Koren, Somekh 2013: best arm within a fixed budget)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from typing import Protocol

from specli.bench.contest import Run
from specli.bench.figures import Pair, Ratio, ratio, speed
from specli.core.stats import MethodStats
from specli.tune.candidates import AUTO, Candidate

ENOUGH = 5
"""Prompts on which a candidate should have run at the end: an interval takes three pairs with plain decoding."""
MOST_PASSES = 36
"""Pairs with plain decoding after which more would not change the choice."""


_FINALISTS = 2  # that the last round begins with, beside `auto`


class Trial(Protocol):
    """Runs a candidate on a prompt, by its place in the list; None if it was stopped."""

    def __call__(self, candidate: Candidate, workload: int, repeat: int) -> Run | None: ...


@dataclass(slots=True)
class Standing:
    """A candidate and what it did, beside plain decoding of the same prompts at the same time."""

    candidate: Candidate
    pairs: dict[int, list[Pair]] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    round: int = 0  # the last one it took part in

    @property
    def ratio(self) -> Ratio | None:
        """Its speed over plain's."""
        return ratio(list(self.pairs.values()))

    @property
    def value(self) -> float:
        """The ratio, 0 where nothing was measured."""
        return speed(list(self.pairs.values())) or 0.0

    @property
    def has_interval(self) -> bool:
        """Whether it was measured often enough for one."""
        found = self.ratio
        return found is not None and found.low is not None

    @property
    def drafted(self) -> bool:
        """Whether it proposed anything at all."""
        return any(run.stats.drafted for run in self.runs)

    @property
    def n_pairs(self) -> int:
        return sum(len(each) for each in self.pairs.values())

    @property
    def by_method(self) -> dict[str, MethodStats]:
        """Tokens of its runs, by method."""
        out: dict[str, MethodStats] = {}
        for run in self.runs:
            for name, each in run.stats.by_method.items():
                mine = out.setdefault(name, MethodStats())
                mine.drafted += each.drafted
                mine.tested += each.tested
                mine.accepted += each.accepted
        return out

    @property
    def acceptance(self) -> float | None:
        """Accepted / tested."""
        tested = sum(m.tested for m in self.by_method.values())
        return sum(m.accepted for m in self.by_method.values()) / tested if tested else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens emitted per cycle."""
        cycles = sum(run.stats.cycles for run in self.runs)
        return sum(run.stats.generated for run in self.runs) / cycles if cycles else None

    @property
    def draft_length(self) -> float | None:
        """Draft tokens of a cycle that had a draft."""
        cycles = sum(run.stats.drafting_cycles for run in self.runs)
        return sum(run.stats.drafted for run in self.runs) / cycles if cycles else None


def affordable(n: int, runs: float) -> int:
    """How many of `n` candidates can be tried, at least one, if there is time for so many runs of one prompt in
    all: fewer that can be told apart are better than many that cannot."""
    for several in range(n, 1, -1):
        share = runs / _rounds(several)
        passes, alive = 0, several
        for _ in range(_rounds(several)):
            passes += int(share / (alive + 1))  # with plain decoding beside them
            alive = max(_FINALISTS + 1, ceil(alive / 2))  # and `auto`
        if passes >= ENOUGH:
            return several
    return 1


def _rounds(n: int, finalists: int = _FINALISTS) -> int:
    return max(1, ceil(log2(max(1, n) / finalists)) + 1)


def halve(
    plain: Candidate,
    candidates: Sequence[Candidate],
    n_workloads: int,
    trial: Trial,
    left: Callable[[], float],
    finalists: int = _FINALISTS,
) -> list[Standing]:
    """Standings of all, the best first: by the last round they took part in, then by speed.

    Each round has an equal share of the time `left()` (seconds) says there is, and at least one prompt.
    Every candidate of a round runs on the same prompts, in turns with `plain`. `auto` stays to the end: it is what
    a winner has to be better than. The last round has `finalists`, and `auto`.
    """
    standings = [Standing(each) for each in candidates]
    alive = list(standings)
    rounds = _rounds(len(alive), finalists)
    passes = 0
    for turn in range(rounds):
        until = left() * (1 - 1 / (rounds - turn))  # what must remain for the rounds to come
        for each in alive:
            each.round = turn
        while True:
            before = left()
            if not _run_all(plain, alive, passes, n_workloads, trial):
                return _sorted(standings)
            passes += 1
            another = before - left()  # what one more pass would take
            if left() - another < until or passes >= MOST_PASSES:
                break
        if turn < rounds - 1:
            kept = _sorted(alive)[: max(finalists, ceil(len(alive) / 2))]
            kept += [
                each for each in alive if each.candidate.name == AUTO and all(each is not k for k in kept)
            ]
            if left() < another * (len(kept) + 1) / (len(alive) + 1):
                break  # the next round would have no time for a single prompt
            alive = kept
    return _sorted(standings)


def _run_all(plain: Candidate, alive: Sequence[Standing], passes: int, n: int, trial: Trial) -> bool:
    """One prompt for all; False if it was stopped in between, and then it does not count."""
    workload, repeat = passes % n, passes // n
    base = trial(plain, workload, repeat)
    runs = [trial(each.candidate, workload, repeat) if base else None for each in alive]
    if base is None or any(run is None for run in runs):
        return False
    for each, run in zip(alive, runs):
        if run is not None and run.rate and base.rate:
            each.pairs.setdefault(workload, []).append(Pair(base.rate, run.rate))
            each.runs.append(run)
    return True


def _sorted(standings: Sequence[Standing]) -> list[Standing]:
    return sorted(standings, key=lambda s: (-s.round, -s.value, s.candidate.name))
