"""N-gram drafters on answers that were recorded, at costs that were measured: no model runs.

What the target says is known, and a greedy target says it whatever is proposed; so what a drafter would
have proposed, and how much of it would have been accepted, are real counts. Only the seconds are
reckoned, from the cost of each width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

from specli.core.decoding import propose
from specli.core.pacing import Costs, FixedPacer, Pacer, ProfitPacer
from specli.core.stats import Stats
from specli.core.types import Cycle, Drafter, Verdict
from specli.costs import WidthCosts
from specli.drafters.free import FREE
from specli.settings import key
from specli.sizes import SIZE_STEMS
from specli.tune.candidates import Candidate


@dataclass(frozen=True, slots=True)
class Recording:
    """A prompt and what plain decoding answered, as tokens. `outside_s`: a cycle's time outside its decode."""

    workload: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    outside_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a candidate would have done on all recordings. `speedup`: reckoned, over plain decoding;
    the first cycle left out, and the geometric mean over recordings, as where it is measured."""

    candidate: Candidate
    speedup: float
    drafted: int
    tested: int
    accepted: int
    cycles: int


def screen(
    candidates: Sequence[Candidate], recordings: Sequence[Recording], costs: WidthCosts, max_rows: int = 64
) -> list[Replayed]:
    """Every candidate on every recording, the fastest first."""
    found = [_replayed(each, recordings, costs, max_rows) for each in candidates]
    return sorted(found, key=lambda r: (-r.speedup, r.candidate.name))


def _replayed(
    candidate: Candidate, recordings: Sequence[Recording], costs: WidthCosts, max_rows: int
) -> Replayed:
    several = [replay(candidate, each, costs, max_rows) for each in recordings]
    gains = [
        log(rate * (costs.at(1) + each.outside_s))
        for each, stats in zip(recordings, several)
        if (rate := stats.tokens_per_second) is not None
    ]
    return Replayed(
        candidate,
        exp(fmean(gains)) if gains else 1.0,
        sum(s.drafted for s in several),
        sum(s.tested for s in several),
        sum(s.accepted for s in several),
        sum(s.cycles for s in several),
    )


def replay(candidate: Candidate, recording: Recording, costs: WidthCosts, max_rows: int = 64) -> Stats:
    """The cycles of one answer, folded; its times are reckoned from `costs`."""
    drafters = [_drafter(candidate, method) for method in candidate.types if method != "none"]
    pacer: Pacer = FixedPacer() if candidate.fixed else ProfitPacer(Costs(costs.shape))
    pacer.begin()
    history, script = list(recording.prompt), [*recording.prompt, *recording.output]
    for drafter in drafters:
        drafter.begin(history)
    stats = Stats()
    while len(history) < len(script):
        limit = min(max_rows, len(script) - len(history)) - 1
        draft = propose(drafters, history, limit, pacer)
        depth = len(history)
        accepted = next((i for i, t in enumerate(draft.tokens) if t != script[depth + i]), len(draft.tokens))
        tokens = tuple(script[depth : depth + accepted + 1])
        history.extend(tokens)
        width = len(draft) + 1
        taken = costs.at(width)
        cycle = Cycle(
            draft,
            Verdict(tokens, accepted, min(accepted + 1, len(draft))),
            width,
            depth - 1,
            0.0,
            taken,
            taken + recording.outside_s,
        )
        pacer.observe(history, cycle)
        for drafter in drafters:
            drafter.commit(history, cycle)
        stats.fold(cycle)
    return stats


def _drafter(candidate: Candidate, method: str) -> Drafter:
    stem = SIZE_STEMS[method]
    sizes = [candidate.spec.get(f"{stem}-{size}") for size in ("size-n", "size-m", "min-hits")]
    defaults = [key(f"{stem}-{size}").default for size in ("size-n", "size-m", "min-hits")]
    n, m, hits = (int(str(d if s is None else s)) for s, d in zip(sizes, defaults))
    return FREE[method](n, m, hits)
