"""Numbers from runs: medians, spread, and ratios to plain with their bootstrap intervals."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean, median
from typing import TypeVar

from specli.bench.contest import Run
from specli.bench.contestants import PLAIN
from specli.bench.outputs import Difference

T = TypeVar("T")
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Pair:
    """Tokens per second of plain decoding and of another, measured one after the other."""

    plain: float
    other: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speed over plain's: the geometric mean over prompts of the ratio of medians. `low`, `high`: 95%
    bootstrap interval over prompts and repeats; None for fewer than three pairs, which cannot tell."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def clears_plain(self) -> bool:
        """Whether it is above 1 beyond doubt."""
        return self.low is not None and self.low > 1.0


def ratio(by_prompt: Sequence[Sequence[Pair]], seed: int = 0) -> Ratio | None:
    """The ratio of pairs grouped by prompt; None without any."""
    value = speed(by_prompt)
    if value is None:
        return None
    groups = [group for group in by_prompt if group]
    if sum(len(group) for group in groups) < 3:
        return Ratio(value)
    rng = random.Random(seed)
    found = sorted(
        _of_medians([_again(g, rng) for g in (_again(groups, rng) if len(groups) > 1 else groups)])
        for _ in range(RESAMPLES)
    )
    return Ratio(value, found[round(0.025 * RESAMPLES)], found[round(0.975 * RESAMPLES) - 1])


def speed(by_prompt: Sequence[Sequence[Pair]]) -> float | None:
    """The ratio alone, without its interval."""
    groups = [group for group in by_prompt if group]
    return _of_medians(groups) if groups else None


def _again(values: Sequence[T], rng: random.Random) -> Sequence[T]:
    return rng.choices(values, k=len(values))


def _of_medians(groups: Sequence[Sequence[Pair]]) -> float:
    return exp(fmean(log(median(p.other for p in g) / median(p.plain for p in g)) for g in groups))


@dataclass(frozen=True, slots=True)
class Summary:
    """One contestant's figures, over all prompts or one category's. None for what was not measured.

    `tokens_per_second`: the median run. `spread`: half the range of the repeats of a prompt over their
    median, the median over prompts. Shares are parts of the cycles' time. `equal` of `compared` outputs
    were plain's.
    """

    contestant: str
    category: str
    runs: int
    tokens_per_second: float | None
    spread: float | None
    ratio: Ratio | None
    acceptance: float | None
    mean_accepted_length: float | None
    draft_share: float | None
    verify_share: float | None
    wasted: int
    first_token_s: float | None
    equal: int
    compared: int


def summarise(
    runs: Sequence[Run], contestant: str, differences: Sequence[Difference], category: str = ""
) -> Summary:
    """Figures of one contestant; `differences` of all outputs from plain's, `category` "" for all."""
    mine = [r for r in runs if r.contestant == contestant and (not category or r.category == category)]
    rates = [r.rate for r in mine if r.rate is not None]
    stats = [r.stats for r in mine]
    cycles, total = sum(s.cycles for s in stats), sum(s.total_s for s in stats)
    tested = sum(s.tested for s in stats)
    firsts = [r.first_token_s for r in mine if r.first_token_s is not None]
    compared = {r.workload for r in mine} & {r.workload for r in runs if r.contestant == PLAIN}
    differ = {d.workload for d in differences if d.contestant == contestant} & compared
    return Summary(
        contestant,
        category,
        len(mine),
        median(rates) if rates else None,
        _spread(mine),
        ratio(pairs(runs, contestant, category)),
        sum(s.accepted for s in stats) / tested if tested else None,
        sum(s.generated for s in stats) / cycles if cycles else None,
        sum(s.draft_s for s in stats) / total if total else None,
        sum(s.verify_s for s in stats) / total if total else None,
        sum(s.drafted - s.accepted for s in stats),
        median(firsts) if firsts else None,
        len(compared) - len(differ),
        len(compared),
    )


def pairs(runs: Sequence[Run], contestant: str, category: str = "") -> list[list[Pair]]:
    """Speeds beside plain's of the same prompt and repeat, by prompt."""
    plain: dict[tuple[str, int], float] = {
        (r.workload, r.repeat): r.rate for r in runs if r.contestant == PLAIN and r.rate is not None
    }
    out: dict[str, list[Pair]] = {}
    for r in runs:
        base = plain.get((r.workload, r.repeat))
        wanted = r.contestant == contestant and (not category or r.category == category)
        if wanted and r.rate is not None and base is not None:
            out.setdefault(r.workload, []).append(Pair(base, r.rate))
    return list(out.values())


def _spread(runs: Sequence[Run]) -> float | None:
    by_prompt: dict[str, list[float]] = {}
    for run in runs:
        if run.rate is not None:
            by_prompt.setdefault(run.workload, []).append(run.rate)
    several = [rates for rates in by_prompt.values() if len(rates) > 1]
    if not several:
        return None
    return median((max(rates) - min(rates)) / 2 / median(rates) for rates in several)


def categories(runs: Sequence[Run]) -> list[str]:
    """The categories of the runs, in order."""
    return list(dict.fromkeys(run.category for run in runs))
