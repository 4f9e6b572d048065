"""Sampling with speculation has the target's own law, by G-tests; and these tests can fail.

`SPECLI_TEST_LONG=1` runs every combination of settings, and every mutant on all that it can touch:
about two hours of one core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from itertools import pairwise as neighbours
from typing import Any

import numpy as np
import pytest
from lossless import drafters, mutants
from lossless.gtest import g_test, holm, homogeneity
from lossless.harness import FACTORS, PROMPT, Setting, draw, every, joint_p, marginal_p, pairwise, target
from lossless.reference import joint
from lossless.replay import replay
from numpy.typing import NDArray

from specli.core.decoding import Rules, decode, sync
from specli.core.noise import Noise
from specli.core.pacing import Costs, FixedPacer, Pacer, ProfitPacer
from specli.core.table_model import TableModel
from specli.core.trees import Shape
from specli.core.types import Cycle
from specli.drafters.model import ModelDrafter
from specli.drafters.neural import Voice
from specli.drafters.tree import TreeDrafter

ALPHA = 0.01
LONG = bool(os.environ.get("SPECLI_TEST_LONG"))
long_run = pytest.mark.skipif(not LONG, reason="SPECLI_TEST_LONG is not set")

DRAWS, DEEP_DRAWS = 2_500, 20_000
WHOLE_DRAWS = 6_000  # for each of the 750 combinations
DEEP = [Setting("sampled", temp) for temp in (0.3, 1.0, 2.0)]
"""Settings in which many draws are made, so that small faults show."""
FAMILY_SIZE = 4 * len(pairwise()) + len(DEEP)


def test_pairwise_meets_every_pair() -> None:
    """…or settings that fail only together would go untested."""
    met = set()
    for setting in pairwise():
        values = [(name, getattr(setting, name)) for name in FACTORS]
        met |= set(combinations(values, 2))
    wanted = {
        ((a, x), (b, y)) for (a, xs), (b, ys) in combinations(FACTORS.items(), 2) for x in xs for y in ys
    }
    assert met == wanted


@pytest.mark.parametrize("stream", [0, 1])
def test_replayed_noise_is_the_real_one(stream: int) -> None:
    ids = np.arange(16)
    seeds, positions = range(2**31 - 5, 2**31 + 5), range(4, 13)
    for seed, replayed in zip(seeds, replay(seeds, stream, positions, 16), strict=True):
        noise = Noise(seed, stream)
        for position in positions:
            assert noise.uniform(position) == replayed.uniform(position)
            assert (noise.gumbel(position, ids) == replayed.gumbel(position, ids)).all()


def test_the_law_is_the_targets() -> None:
    """Every kind of draft, temperature, truncation, penalty and verification, in pairs."""
    p_values: dict[str, float] = {}
    for setting in pairwise():
        p_values |= joint_p(setting, DRAWS)
        p_values |= marginal_p(setting, DRAWS)
    for setting in DEEP:
        p_values |= {f"deep {name}": p for name, p in joint_p(setting, DEEP_DRAWS).items()}
    assert len(p_values) == FAMILY_SIZE
    assert holm(p_values, ALPHA) == []


@long_run
def test_the_law_is_the_targets_in_every_combination() -> None:
    p_values: dict[str, float] = {}
    for setting in every():
        p_values |= joint_p(setting, WHOLE_DRAWS)
        p_values |= marginal_p(setting, WHOLE_DRAWS)
    assert holm(p_values, ALPHA) == []


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to be wrong: a verifier, or a drafter that says another q than it drew from."""

    verifier: Callable[[Setting], mutants.Verifier] = lambda setting: mutants.faulty()
    drafter: type[drafters.Sampled] | None = None
    stream: int | None = None
    coupled: bool = False

    def p_value(self, setting: Setting, draws: int) -> float:
        how: dict[str, Any] = {"verifier": self.verifier(setting), "stream": self.stream}
        if self.drafter is not None:
            model = target(8)
            law = drafters.laws(drafters.near(model), setting.params)
            how["proposer"] = self.drafter(law, 3)
        (p,) = joint_p(setting, draws, **how).values()
        return p


FAULTS = {
    "residual not renormalised": Fault(lambda s: mutants.faulty(recover=mutants.not_renormalised)),
    "p/q without temperature": Fault(lambda s: mutants.faulty(accept=mutants.without_temperature(s.temp))),
    "accepts with p": Fault(lambda s: mutants.faulty(accept=lambda u, token, p, q: u < p.prob(token))),
    "recovers from p": Fault(lambda s: mutants.faulty(recover=lambda p, q, noise, at: noise.choose(p, at))),
    "off by one row": Fault(lambda s: mutants.faulty(row=lambda i, n: min(i + 1, n))),
    "0.03 in total variation": Fault(lambda s: mutants.biased(0.03)),
    "same noise for draft and verdict": Fault(stream=0),
    "claims another q": Fault(drafter=drafters.Liar),
    "drops drafts for what was drawn": Fault(drafter=drafters.Picky),
    "noise stands still": Fault(lambda s: mutants.faulty(place=lambda i: 0), coupled=True),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught(name: str) -> None:
    """By the same test with as many draws, at the level at which Holm begins for the whole family."""
    fault = FAULTS[name]
    settings = [Setting("sampled", s.temp, coupled=fault.coupled) for s in reversed(DEEP)]
    assert any(fault.p_value(setting, DEEP_DRAWS) < ALPHA / FAMILY_SIZE for setting in settings)


@long_run
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_in_the_whole_family(name: str) -> None:
    fault = FAULTS[name]
    caught = {}
    for setting in every():
        if setting.draft.endswith("sampled") and setting.coupled == fault.coupled:
            caught[setting.name] = fault.p_value(setting, WHOLE_DRAWS)
    assert holm(caught, ALPHA)


def test_the_mutants_differ_from_the_real_one_only_where_they_say() -> None:
    """…or a slip in writing it once more could be what is caught."""
    for coupled in (False, True):
        setting = Setting("sampled", 1.0, coupled=coupled)
        again = draw(setting, 8, 2, 1000, verifier=mutants.faulty())
        assert (again == draw(setting, 8, 2, 1000)).all()
        assert (again != draw(setting, 8, 2, 1000, verifier=mutants.biased(0.03))).any()


@pytest.mark.parametrize("temp", [0.5, 2.0])
def test_case_33_on_against_off(temp: float) -> None:
    """A vocabulary of 16, 20,000 draws of two tokens, speculation on and off, chi-square."""
    on = Setting("sampled", temp)
    off = Setting("none", temp)
    counts = draw(on, 16, 2, 20_000)
    plain = draw(off, 16, 2, 20_000)
    assert homogeneity(counts, plain) > ALPHA
    law = joint(target(16), PROMPT, off.params, 2)
    assert g_test(counts, law) > ALPHA
    assert g_test(plain, law) > ALPHA
    wrong = draw(on, 16, 2, 20_000, verifier=mutants.biased(0.03))
    assert homogeneity(wrong, plain) < ALPHA


SURE = 0.27
"""The draft below is surer than that behind token 3, and nowhere else."""


class Watchful(FixedPacer):
    """Drafts where the last draft was sure at its end, or where there was none."""

    def __init__(self) -> None:
        super().__init__()
        self.last = 1.0

    def goes_on(self, method: str, confidence: Sequence[float], limit: int) -> bool:
        if confidence:
            self.last = confidence[-1]
            return len(confidence) < limit
        return self.last > SURE

    def observe(self, history: Sequence[int], cycle: Cycle) -> None:
        super().observe(history, cycle)
        if not cycle.draft.tokens:
            self.last = 1.0


def _answer(drafter: ModelDrafter, pacer: Pacer, n: int, seed: int) -> list[Cycle]:
    """`n` tokens of a target that says 3 most often, whatever came before, drafts being sampled."""
    drafter._samples = lambda: True  # type: ignore[method-assign]  # the likeliest are not drawn
    params = Setting().params
    drafter.speak(Voice(params, seed))
    law = np.log(np.array([[0.1, 0.1, 0.1, 0.7]] * 4)).astype(np.float32)
    target, history = TableModel(law, n_ctx=n + 9), [0, 1]
    sync(target, history[:-1], 64)
    drafter.begin(history)
    return list(decode(target, history, [drafter], Rules(params, seed, max_tokens=n), pacer))


def _even() -> TableModel:
    """A draft that gives all tokens nearly the same, and shows by how sure it is which one it drew last."""
    return TableModel(np.log(np.array([[0.26, 0.25, 0.25, 0.24]] * 3 + [[0.28, 0.24, 0.24, 0.24]])))


def test_a_pacer_may_look_at_tokens_that_were_discarded() -> None:
    """What it sees of them says nothing of what is drawn at their places next."""
    pacer = Watchful()
    cycles = _answer(ModelDrafter(_even(), pacer, 4, 3), pacer, 4000, seed=1)
    said = np.zeros(4, np.int64)
    for before, cycle in neighbours(cycles):
        if before.draft.tokens and cycle.draft.tokens:
            said[cycle.tokens[0]] += 1
    assert said.sum() > 300
    assert g_test(said, np.array([0.1, 0.1, 0.1, 0.7])) > ALPHA


@pytest.mark.parametrize("tree", [False, True])
def test_nothing_is_drawn_twice_with_the_same_noise(tree: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """…in one answer, by one drafter."""
    pacer = ProfitPacer(Costs({1: 1.0, 64: 8.0}, frozen=True), steps={"draft-model": 0.01})
    model = TableModel.random(4, 1, seed=1, scale=2.0)
    drafter = ModelDrafter(model, pacer, 4, 3)
    if tree:
        drafter = TreeDrafter("draft-model", model, pacer, 4, Shape(3, 4))
    drawn: list[int] = []
    gumbel = Noise.gumbel

    def noted(noise: Noise, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        if noise is drafter._noise:
            drawn.append(position)
        return gumbel(noise, position, ids)

    monkeypatch.setattr(Noise, "gumbel", noted)
    _answer(drafter, pacer, 300, seed=2)
    assert len(drawn) > 200
    assert len(set(drawn)) == len(drawn)


def test_holm() -> None:
    assert holm({"a": 0.001, "b": 0.004, "c": 0.2}, 0.01) == ["a", "b"]
    assert holm({"a": 0.001, "b": 0.006, "c": 0.2}, 0.01) == ["a"]
    assert holm({"a": 0.004, "b": 0.004, "c": 0.004}, 0.01) == []


def test_g_test_is_level_and_sees_the_impossible() -> None:
    """Of p-values of the right law about one in twenty is below 0.05, sparse cells and all."""
    rng = np.random.default_rng(5)
    law = rng.dirichlet(np.full(64, 0.3)).reshape(8, 8)
    p = [g_test(rng.multinomial(4000, law.ravel()).reshape(8, 8), law) for _ in range(1000)]
    assert 0.03 < np.mean(np.array(p) < 0.05) < 0.075
    law = np.array([0.5, 0.5, 0.0])
    assert g_test(np.array([500, 499, 1]), law) == 0.0
    assert g_test(np.array([500, 500, 0]), law) == 1.0
