"""The measuring half of `specli tune`, within a budget of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from specli import profiles
from specli.assembly import Generator
from specli.bench.contest import Contest, Run
from specli.bench.contestants import PLAIN, Contestant
from specli.core.stats import Stats
from specli.costs import WidthCosts, costs_key, measure_widths, remember_costs
from specli.engine.gguf import read_header
from specli.keys import Value
from specli.profiles import Profile, Settings
from specli.settings import NEURAL
from specli.tune.candidates import LONGEST, OFF, Candidate, auto, free, neural, off, sized
from specli.tune.halving import Standing, affordable, halve
from specli.tune.replay import Recording, Replayed, screen
from specli.tune.verdict import Choice, Scouted, choose

METHODS = ("draft-self", "ngram-simple", "ngram-map-k", "ngram-map-k4v")
"""What is tried without a draft model."""
_FREE_FINALISTS, _LENGTHS = (
    3,
    2,
)  # that really run, of the n-gram settings, and of each neural drafter's lengths
_UNTIL_WIDTHS, _UNTIL_RECORDED, _UNTIL_SCOUTED = 0.15, 0.3, 0.4  # of the budget
_WEIGHT = 4.0  # tested tokens that a drafter's average over all positions is worth at each one


@dataclass(frozen=True, slots=True)
class Plan:
    """What to tune. `methods`: that may draft; `longest`: bound of neural drafts; `budget`: seconds;
    `reverse`: try the candidates in reverse order."""

    profile: Profile
    flags: dict[str, object]
    methods: tuple[str, ...]
    longest: int = LONGEST
    budget: float = 300.0
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Tuning:
    """What came out. `screened`: the n-gram settings as reckoned on recorded answers; `as_auto`: the one that
    is what `auto` does, and ran as it."""

    choice: Choice
    costs: WidthCosts
    screened: Sequence[Replayed]
    scouted: Sequence[Scouted]
    standings: Sequence[Standing]
    interrupted: bool = False
    as_auto: Mapping[str, Value] | None = None


class Session:
    """One tuning of one loaded generator, whose methods must include the plan's.

    `at(share, what)` is told how far it is; `stop()` ends it early.
    """

    def __init__(
        self,
        contest: Contest,
        plan: Plan,
        began: float,
        at: Callable[[float, str], None] = lambda share, what: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._contest, self._plan, self._stop = contest, plan, stop
        self._generator: Generator = contest.generator
        self._able = list(self._generator.methods)  # now: who drafts changes with every run
        self._deadline = began + plan.budget
        self._at = at
        self._run_s: list[float] = []
        self._settings: dict[str, Settings] = {}

    def tune(self) -> Tuning:
        """Measure, and choose."""
        recordings, costs = self._record()
        screened = screen(free(self._drafting), recordings, costs, self._rows)
        scouted = [] if self._stop() else [s for m in self._drafting if (s := self._scout(m, costs))]
        self._remember(costs, scouted)
        tried = self._tried(screened, scouted, costs)
        standings = [] if self._stop() else halve(off(), tried, self._n, self._trial, self._left)
        self._at(1.0, "")
        return Tuning(choose(standings), costs, screened, scouted, standings, self._stop(), self._as_auto)

    # -- time -----------------------------------------------------------------------------------

    def _left(self) -> float:
        return self._deadline - time.perf_counter()

    def _past(self, share: float) -> bool:
        return self._stop() or self._left() < (1 - share) * self._plan.budget

    def _progress(self, what: str) -> None:
        self._at(min(1.0, 1 - self._left() / self._plan.budget), what)

    @property
    def _n(self) -> int:
        return len(self._contest.workloads)

    @property
    def _rows(self) -> int:
        return self._generator.settings.fixed_width or self._generator.target.max_rows

    @property
    def _drafting(self) -> list[str]:
        """The plan's methods, as far as they can draft here."""
        return [m for m in self._plan.methods if m in self._able]

    # -- stages ---------------------------------------------------------------------------------

    def _record(self) -> tuple[list[Recording], WidthCosts]:
        """Plain answers, and what decodes cost behind the first of them."""
        self._contest.warm_up([self._contestant(off())])
        recordings: list[Recording] = []
        costs: WidthCosts | None = None
        for i, workload in enumerate(self._contest.workloads):
            if recordings and self._past(_UNTIL_RECORDED):
                break
            self._progress(f"recording {workload.id}")
            run = self._run(off(), i, 0, self._stop)
            if run is None:
                break
            prompt = tuple(self._contest.prompt(workload))
            recordings.append(Recording(workload.id, prompt, run.tokens, _outside(run.stats)))
            if costs is None:
                self._progress("what decodes cost by width")
                costs = measure_widths(self._generator.target, lambda: self._past(_UNTIL_WIDTHS))
        if costs is None:  # stopped at once
            costs = WidthCosts({1: 1.0, 2: 1.0, 4: 1.0})
        return recordings, self._flat(costs) if self._generator.settings.fixed_width else costs

    def _flat(self, costs: WidthCosts) -> WidthCosts:
        """In exact mode every decode has the same rows."""
        width = self._rows
        return replace(costs, seconds={1: costs.at(width), width: costs.at(width)})

    def _scout(self, method: str, costs: WidthCosts) -> Scouted | None:
        """A few answers with full-length drafts: acceptance by position, and the cost of a step."""
        if method not in NEURAL:
            return None
        length = min(self._plan.longest, self._rows - 1)
        runs: list[Run] = []
        for i in range(min(self._n, 4)):
            if runs and self._past(_UNTIL_SCOUTED):
                break
            self._progress(f"scouting {method}")
            run = self._run(neural(method, length, fixed=True), i, 0, self._stop)
            if run is not None:
                runs.append(run)
        steps = [run.step_s for run in runs if run.step_s is not None]
        if not steps:
            return None
        return Scouted(method, _rates([run.stats for run in runs], length), median(steps))

    def _remember(self, costs: WidthCosts, scouted: Sequence[Scouted]) -> None:
        """Later runs, and those of this tuning, start from these costs."""
        generator = self._generator
        if self._stop() or generator.settings.fixed_width is not None:
            return
        files = ((generator.draft_file(s.method), s.step_s) for s in scouted)
        steps = {read_header(file).fingerprint: step_s for file, step_s in files if file is not None}
        costs = replace(costs, steps=steps)
        generator.stored_costs = costs
        remember_costs(costs_key(generator.target, generator.on_gpu), costs)

    def _tried(
        self, screened: Sequence[Replayed], scouted: Sequence[Scouted], costs: WidthCosts
    ) -> list[Candidate]:
        """Who really runs: auto, the best n-gram settings, and the likeliest lengths of neural drafters."""
        longest = min(self._plan.longest, self._rows - 1)
        found = [auto(longest if self._computes else None)] if self._able else []
        found += [neural(s.method, longest, fixed=False) for s in scouted]
        found += [r.candidate for r in screened if r.candidate.spec != self._as_auto][:_FREE_FINALISTS]
        for each in scouted:
            found += [neural(each.method, k, fixed=True) for k in each.lengths(costs, longest)[:_LENGTHS]]
        typical = median(self._run_s) if self._run_s else 0.0
        found = found[: affordable(len(found), self._left() / typical)] if typical else found
        return found[::-1] if self._plan.reverse else found

    @property
    def _computes(self) -> bool:
        """Whether any of those who can draft is a network."""
        return bool(set(self._able) & set(NEURAL))

    @property
    def _as_auto(self) -> Mapping[str, Value] | None:
        """The n-gram setting that is what `auto` does, None where `auto` has more to draft with."""
        if self._computes:
            return None
        s = self._contestant(auto(None)).settings
        return sized("draft-self", s.self_size_n, s.self_size_m).spec

    def _trial(self, candidate: Candidate, workload: int, repeat: int) -> Run | None:
        self._progress("plain decoding" if candidate.name == OFF else candidate.name)
        late = self._deadline
        if self._left() < 0.5 * median(self._run_s):
            return None
        return self._run(candidate, workload, repeat, lambda: self._stop() or time.perf_counter() > late)

    def _run(self, candidate: Candidate, workload: int, repeat: int, stop: Callable[[], bool]) -> Run | None:
        began = time.perf_counter()
        run = self._contest.run(self._contestant(candidate), self._contest.workloads[workload], repeat, stop)
        self._run_s.append(time.perf_counter() - began)
        return run

    def _contestant(self, candidate: Candidate) -> Contestant:
        name = PLAIN if candidate.types == ("none",) else candidate.name
        if name not in self._settings:
            self._settings[name] = profiles.resolve(
                self._plan.profile, {**self._plan.flags, **_as_flags(candidate)}
            )
        return Contestant(name, self._settings[name])


def _as_flags(candidate: Candidate) -> dict[str, Value | list[str]]:
    return {"spec-type" if k == "types" else k: v for k, v in candidate.spec.items()}


def _outside(stats: Stats) -> float:
    """Time of a cycle outside its decode."""
    return max(0.0, stats.total_s - stats.verify_s - stats.draft_s) / max(1, stats.cycles)


def _rates(several: Sequence[Stats], length: int) -> tuple[float, ...]:
    """Acceptance by position over several answers, drawn towards the average where little was tested."""
    tested = sum(s.tested for s in several)
    average = sum(s.accepted for s in several) / max(1, tested)
    out = []
    for i in range(length):
        t = sum(s.tested_at(i) for s in several)
        a = sum(s.accepted_at(i) for s in several)
        out.append((a + _WEIGHT * average) / (t + _WEIGHT))
    return tuple(out)
