"""Pacing on recorded answers under many costs: never much slower than plain, near the best length in hindsight.

The texts are greedy answers of Qwen2.5-Coder models to prompts of nine kinds, as token ids; for the second
file a smaller model's proposals were recorded at every token (tests/measure/record_traces.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from simulation import Capped, Clock, Curve, ScriptedDrafter, Trace, load_traces, simulate

from specli.core.pacing import CPU_SHAPE, Costs, Pacer, ProfitPacer
from specli.core.types import Draft, Drafter
from specli.drafters.history import HistoryDrafter

TRACES = Path(__file__).parent / "traces"
WIDTHS = (1, 2, 3, 4, 5, 8, 12, 16, 17, 24, 32, 33, 48, 64)
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 15, 31, 63)

STEPPED = Costs(CPU_SHAPE).table(65)
CURVES: dict[str, Curve] = {
    **{f"slope {s}": (lambda n, s=s: 1.0 + s * (n - 1)) for s in (0.01, 0.1, 0.3, 0.6)},
    "stepped": lambda n: STEPPED[n],
}
Cast = Callable[[Pacer, Clock], Sequence[Drafter]]


def known(curve: Curve) -> Costs:
    """Costs as a stored measurement of this machine gives them."""
    return Costs({w: curve(w) for w in WIDTHS}, measured=True)


@dataclass(frozen=True, slots=True)
class Result:
    """Geometric means over the texts, as multiples of plain decoding."""

    ours: float
    best: float  # the one length that does best over all texts, in hindsight
    drafted: int


def measure(
    traces: Sequence[Trace],
    curve: Curve,
    cast: Callable[[Trace], Cast],
    lengths: Sequence[int],
    step: float = 0.0,
) -> Result:
    """Each text on its own, from nothing learned but the costs, a draft token's `step` among them."""

    def speed(trace: Trace, pacer: Pacer) -> float:
        return math.log(curve(1) / simulate(trace, curve, pacer, cast(trace)).seconds)

    def mean(pacer: Callable[[], Pacer]) -> float:
        return math.exp(sum(speed(t, pacer()) for t in traces) / len(traces))

    runs = [
        simulate(t, curve, ProfitPacer(known(curve), steps={"draft-model": step}), cast(t)) for t in traces
    ]
    ours = math.exp(sum(math.log(curve(1) / r.seconds) for r in runs) / len(runs))
    best = max(mean(lambda k=k: Capped(k)) for k in lengths)
    return Result(ours, best, sum(r.stats.drafted for r in runs))


def free(trace: Trace) -> Cast:
    return lambda pacer, clock: [HistoryDrafter()]


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_free_drafts(curve: Curve) -> None:
    result = measure(load_traces(TRACES / "answers.jsonl"), curve, free, LENGTHS)
    assert result.ours >= 0.99
    assert result.ours >= 0.95 * result.best
    if result.best > 1.05:
        assert result.drafted


@pytest.mark.parametrize("step", [0.0, 0.02, 0.1, 0.5])
@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_drafts_of_a_model(curve: Curve, step: float) -> None:
    def cast(trace: Trace) -> Cast:
        return lambda pacer, clock: [ScriptedDrafter(trace, pacer, step, clock, n_max=6)]

    result = measure(load_traces(TRACES / "drafts.jsonl"), curve, cast, range(7), step)
    assert result.ours >= 0.99
    assert result.ours >= 0.95 * result.best
    if result.best > 1.05:
        assert result.drafted


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_costs_that_are_not_known_yet_do_little_harm(curve: Curve) -> None:
    """A fresh machine: the curve has to be found while decoding."""
    traces = load_traces(TRACES / "answers.jsonl")
    speeds = [curve(1) / simulate(t, curve, ProfitPacer(Costs(CPU_SHAPE)), free(t)).seconds for t in traces]
    lost = [len(t.output) * (1 / speed - 1) for t, speed in zip(traces, speeds)]
    assert max(lost) <= 13  # the time of so many tokens, once, while nothing was known
    assert math.exp(sum(map(math.log, speeds)) / len(speeds)) >= 0.99


@pytest.mark.parametrize("step", [0.05, 0.2, 0.45, 0.8])
@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_a_model_that_has_to_read_up_first_does_little_harm(curve: Curve, step: float) -> None:
    """A fresh machine, a short answer: of the draft model only its size is known, and it has not read the
    prompt, which may be longer than the answer."""
    traces = [replace(t, output=t.output[:80]) for t in load_traces(TRACES / "drafts.jsonl")]

    def speed(trace: Trace) -> float:
        def cast(pacer: Pacer, clock: Clock) -> list[Drafter]:
            model = ScriptedDrafter(trace, pacer, step, clock, n_max=4, reading=0.12)
            return [HistoryDrafter(), model]

        pacer = ProfitPacer(Costs(CPU_SHAPE), steps={"draft-model": 0.9 * step})
        return curve(1) / simulate(trace, curve, pacer, cast, compete=True).seconds

    speeds = [speed(trace) for trace in traces]
    assert math.exp(sum(map(math.log, speeds)) / len(speeds)) >= 0.99
    assert max(len(t.output) * (1 / s - 1) for t, s in zip(traces, speeds)) <= 6


@pytest.mark.parametrize(("step", "winner"), [(0.02, "draft-model"), (0.9, "draft-self")])
def test_the_drafter_of_the_largest_expected_profit_goes(step: float, winner: str) -> None:
    trace = next(t for t in load_traces(TRACES / "drafts.jsonl") if t.id.startswith("code-gen"))
    curve = CURVES["slope 0.1"]

    def cast(pacer: Pacer, clock: Clock) -> list[Drafter]:
        return [HistoryDrafter(), ScriptedDrafter(trace, pacer, step, clock, n_max=6)]

    run = simulate(trace, curve, ProfitPacer(known(curve), steps={"draft-model": step}), cast, compete=True)
    drafted = {method: s.drafted for method, s in run.stats.by_method.items()}
    assert max(drafted, key=lambda m: drafted[m]) == winner


def test_a_script_that_is_not_followed_would_be_noticed() -> None:
    trace = Trace("own", (1, 2, 3), (4, 5, 6))

    class Wrong(Capped):
        def choose(self, draft: Draft, depth: int) -> Draft:
            return Draft((0, 0), "wrong") if depth == 3 else super().choose(draft, depth)

    run = simulate(trace, CURVES["stepped"], Wrong(2), free(trace))
    assert run.stats.by_method["wrong"].accepted == 0
