"""How long drafts may be: by costs and chances that are given, never by the clock of the test."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from scripted import GREEDY, run, said
from simulation import Clock

from specli.core.acceptance import break_even, mean_length
from specli.core.decoding import Rules, decode, sync
from specli.core.pacing import CPU_SHAPE, GPU_SHAPE, Acceptance, Costs, FixedPacer, ProfitPacer
from specli.core.sampling import SamplingParams
from specli.core.table_model import TableModel
from specli.core.types import NO_DRAFT, Cycle, Distribution, Draft, Verdict
from specli.drafters.history import HistoryDrafter
from specli.drafters.model import ModelDrafter

FLAT = {1: 1.0, 64: 1.0}
STEEP = {1: 1.0, 64: 64.0}


def ngram(tokens: Sequence[int], match: int) -> Draft:
    return Draft(tuple(tokens), "ngram", match=match)


def cycle(draft: Draft, accepted: int, draft_s: float = 0.1, verify_s: float = 1.0) -> Cycle:
    verdict = Verdict((1,) * (accepted + 1), accepted, min(len(draft), accepted + 1))
    return Cycle(draft, verdict, len(draft) + 1, 0, draft_s, verify_s, draft_s + verify_s)


def plain(verify_s: float = 1.0) -> Cycle:
    return cycle(NO_DRAFT, 0, 0.0, verify_s)


def pacer(shape: dict[int, float], fixed_width: int | None = None, frozen: bool = True) -> ProfitPacer:
    return ProfitPacer(Costs(shape, frozen), fixed_width)


# costs


def test_costs_known_beforehand() -> None:
    table = Costs(CPU_SHAPE).table(16)
    assert [table[w] for w in (1, 2, 8, 16)] == [1.0, 1.35, 3.27, 3.53]
    assert 2.41 < table[6] < table[7] < 3.27
    assert Costs(CPU_SHAPE).table(100)[96] > Costs(CPU_SHAPE).table(100)[64]


def test_costs_learned_scale_the_shape() -> None:
    costs = Costs(CPU_SHAPE)
    costs.learn(1, 0.2)
    assert costs.table(8)[8] == pytest.approx(0.2 * 3.27)
    costs.learn(8, 0.4)
    table = costs.table(16)
    assert (table[1], table[8]) == pytest.approx((0.2, 0.4))
    scale = (0.4 / 0.2 - 1) / (3.27 - 1)  # of what a width costs above one token; beyond 8 it holds
    assert table[16] == pytest.approx(0.2 * (1 + scale * (3.53 - 1)) * Costs.OPTIMISM)
    assert 0.2 <= table[2] <= table[3] < 0.4


def test_costs_where_width_is_free() -> None:
    costs = Costs(FLAT)
    costs.learn(1, 0.2)
    costs.learn(4, 0.3)
    assert (costs.table(8)[4], costs.table(8)[8]) == (0.3, 0.2)


def test_costs_are_medians_of_the_latest() -> None:
    costs = Costs(FLAT)
    for seconds in (9.0, 1.0, 1.0):
        costs.learn(2, seconds)
    assert costs.measured(2) == 1.0
    for _ in range(Costs.KEEP):
        costs.learn(2, 3.0)
    assert costs.measured(2) == 3.0
    assert costs.measured(3) is None


def test_frozen_costs_do_not_learn() -> None:
    costs = Costs(CPU_SHAPE, frozen=True)
    costs.learn(4, 99.0)
    assert costs.measured(4) is None
    assert costs.table(4)[4] == 2.09


# acceptance


def test_acceptance_starts_at_the_prior_and_follows_what_it_sees() -> None:
    acceptance = Acceptance()
    assert acceptance.rate("a", 1, 0.4) == 0.4
    acceptance.learn("a", 1, True)
    assert acceptance.rate("a", 1, 0.4) == pytest.approx(
        (1 + 0.4 * Acceptance.WEIGHT) / (1 + Acceptance.WEIGHT)
    )
    for _ in range(500):
        acceptance.learn("a", 1, False)
    assert acceptance.rate("a", 1, 0.4) < 0.03
    assert acceptance.rate("a", 2, 0.4) == acceptance.rate("b", 1, 0.4) == 0.4  # classes apart
    for _ in range(150):
        acceptance.learn("a", 1, True)
    assert acceptance.rate("a", 1, 0.4) > 0.6  # what is long past is forgotten


def test_the_mean_length_of_what_a_cycle_emits() -> None:
    assert mean_length([]) == 1.0
    assert mean_length([0.5, 0.5, 0.0, 1.0]) == 1.75


def test_break_even_is_where_it_begins_to_pay() -> None:
    assert break_even(lambda rate: rate >= 0.3) == pytest.approx(0.3)
    assert break_even(lambda rate: True) == pytest.approx(0.0)
    assert break_even(lambda rate: rate > 1.0) is None


# drafts that cost nothing


def test_fixed_leaves_all_as_it_is() -> None:
    fixed, draft = FixedPacer(), ngram(range(9), 1)
    assert fixed.choose(draft, 5) is draft
    assert [fixed.goes_on("m", (0.1,) * n, 3) for n in range(5)] == [True, True, True, False, False]


def test_a_draft_is_as_long_as_it_pays() -> None:
    draft = ngram(range(20), 8)
    assert (
        len(pacer(FLAT).choose(draft, 5)) == ProfitPacer.FIRST_TRUST
    )  # width is free, but is the drafter good?
    assert pacer(STEEP).choose(draft, 5) is NO_DRAFT  # width costs what tokens cost
    step = {1: 1.0, 4: 1.0, 5: 9.0, 64: 9.0}
    assert pacer(step).choose(draft, 5).tokens == (0, 1, 2)  # up to the step


def accepted(n: int) -> Cycle:
    return Cycle(ngram(range(n), 8), Verdict((*range(n), 0), n, n), n + 1, 5, 0.0, 1.0, 1.0)


def test_trust_grows_with_drafts_accepted_in_full() -> None:
    paced, first = pacer(FLAT), ProfitPacer.FIRST_TRUST
    assert len(paced.choose(ngram(range(60), 8), 5)) == first
    paced.observe([0] * 99, accepted(first))
    assert len(paced.choose(ngram(range(60), 8), 5)) == 2 * first
    short = accepted(2)
    paced.observe([0] * 99, short)  # a short one says nothing of long ones
    assert len(paced.choose(ngram(range(60), 8), 5)) == 2 * first
    cut = Cycle(short.draft, Verdict((9,), 0, 1), 3, 5, 0.0, 1.0, 1.0)
    paced.observe([0] * 99, cut)
    assert len(paced.choose(ngram(range(60), 8), 5)) == 2 * first


def test_no_width_beyond_twice_the_widest_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProfitPacer, "FIRST_TRUST", 40)
    costs = Costs(FLAT)
    paced = ProfitPacer(costs)
    costs.learn(1, 1.0)
    assert len(paced.choose(ngram(range(60), 40), 5)) == 1
    costs.learn(3, 1.0)
    assert len(paced.choose(ngram(range(60), 40), 5)) == 5
    known = ProfitPacer(Costs(FLAT, measured=True))
    known.costs.learn(1, 1.0)
    assert len(known.choose(ngram(range(60), 40), 5)) == ProfitPacer.FIRST_TRUST


def test_a_text_that_is_copied_lends_credit_to_matches_of_every_length() -> None:
    acceptance = Acceptance()
    before = acceptance.match_rate("a", 3)
    for match in range(20, 60):
        acceptance.learn_match("a", match, True)
    assert acceptance.match_rate("a", 3) > before
    for match in range(20, 60):
        acceptance.learn_match("b", match, False)
    assert acceptance.match_rate("b", 3) < before


def test_longer_evidence_allows_a_longer_draft() -> None:
    lengths = [len(pacer(dict(CPU_SHAPE)).choose(ngram(range(48), match), 5)) for match in (1, 4, 12, 40)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_a_fixed_width_makes_drafts_free_up_to_it() -> None:
    assert len(pacer(STEEP, fixed_width=4).choose(ngram(range(3), 1), 5)) == 3


def test_what_is_accepted_lengthens_drafts_and_what_is_not_shortens_them() -> None:
    shape = {1: 1.0, 2: 1.5, 3: 2.0, 64: 32.0}
    for truth, better in ((True, True), (False, False)):
        paced = pacer(shape)
        before = paced.choose(ngram([7] * 8, 2), 10)
        history = [0] * 10
        paced.observe(history, plain())
        for _ in range(60):
            paced.choose(ngram([7] * 8, 2), len(history))
            history += [7 if truth else 8]
            paced.observe(history, plain())
        after = paced.choose(ngram([7] * 8, 2), len(history))
        assert (len(after) > len(before)) is better
        assert (len(after) == 0) is not better


def test_a_free_draft_teaches_even_where_it_is_not_used() -> None:
    paced = pacer(STEEP)
    assert paced.choose(ngram([7, 7], 3), 4) is NO_DRAFT
    before = paced.acceptance.rate("ngram", 3, 0.5)
    paced.observe([0, 0, 0, 0, 7], plain())
    assert paced.acceptance.rate("ngram", 3, 0.5) > before


def test_what_lies_behind_a_miss_teaches_nothing() -> None:
    """It was drafted for a text that the answer is not."""
    paced = pacer(FLAT)
    paced.choose(ngram([7, 8, 9], 3), 2)
    paced.observe([0, 0, 7, 1, 9], plain())
    rate = paced.acceptance.rate
    assert rate("ngram", 3, 0.5) > 0.5 > rate("ngram", 4, 0.5)
    assert rate("ngram", 5, 0.5) == 0.5


# drafts that cost time


def offered(paced: ProfitPacer, draft: Draft, seconds: float = 0.1) -> Draft:
    paced.drafted(draft, seconds)
    return paced.choose(draft, 1)


def test_a_costly_drafter_is_silent_but_for_probes() -> None:
    """Of one token each, and what they lose in all stays within its share of the time."""
    paced, tried, n = pacer(STEEP), [], 3000
    for at in range(n):
        if paced.goes_on("m", (), 4):
            tried.append(at)
            assert not paced.goes_on("m", (0.1,), 4)
            draft = offered(paced, Draft((1,), "m", confidence=(0.1,)))
            assert len(draft) == 1
            paced.observe([0], cycle(draft, 0))
        else:
            paced.observe([0], plain())
    lost_by_one = 1.25  # a second row, and a quarter of a row for drafting
    assert 2 <= len(tried) <= ProfitPacer.PROBE_SHARE * n / lost_by_one + 1
    assert max(b - a for a, b in pairwise(tried)) < 2 * min(b - a for a, b in pairwise(tried))


def test_accepted_probes_bring_it_back() -> None:
    paced = pacer({1: 1.0, 2: 1.6, 64: 60.0})

    def tries(accepted: bool, cycles: int = 20) -> int:
        """In how many of so many cycles it drafts, its tokens being accepted or not."""
        count = 0
        for _ in range(cycles):
            if paced.goes_on("m", (), 1):
                draft = offered(paced, Draft((1,), "m", confidence=(0.99,)))
                paced.observe([0], cycle(draft, len(draft) * accepted))
                count += 1
            else:
                paced.observe([0], plain())
        return count

    tries(False, 200)
    assert tries(False) <= 1
    tries(True, 5000)
    assert tries(True) == 20


def test_confidence_decides_on_one_more() -> None:
    paced = pacer({1: 1.0, 64: 10.0})
    assert paced.goes_on("m", (0.99, 0.99), 8)
    assert not paced.goes_on("m", (0.99, 0.05), 8)
    assert not paced.goes_on("m", (0.99,) * 8, 8)


@pytest.mark.parametrize("fixed_width", [None, 2])
def test_drafting_and_verifying_are_weighed_in_one_unit(fixed_width: int | None) -> None:
    """Milliseconds both: a draft token that costs as much as a target token does not pay, though
    each takes only a thousandth of a second."""
    cheap, dear = (pacer(FLAT, fixed_width, frozen=False) for _ in range(2))
    draft = Draft((1,), "m", confidence=(0.9,))
    for paced, draft_s in ((cheap, 0.0001), (dear, 0.002)):
        paced.observe([0], plain(0.001))
        for _ in range(5):
            paced.drafted(draft, draft_s)
            paced.observe([0], cycle(draft, 1, draft_s, verify_s=0.001))
    assert cheap.goes_on("m", (0.9,), 3)
    assert not dear.goes_on("m", (0.9,), 3)


class Timed(TableModel):
    """A draft model whose every decode takes `seconds` of `clock`."""

    def __init__(self, table: np.ndarray, seconds: float, clock: Clock) -> None:
        super().__init__(table)
        self.seconds, self.clock = seconds, clock

    def decode(self, tokens: Sequence[int], rows: int = 1) -> np.ndarray:
        self.clock.now += self.seconds
        return super().decode(tokens, rows)


class Heads(ModelDrafter):
    method = "draft-mtp"


@pytest.mark.parametrize("rival", [None, 0.1])
def test_a_drafter_is_charged_for_its_own_time(rival: float | None) -> None:
    """…and not for that of others that were asked in the same cycle."""
    rng = np.random.default_rng(0)
    table = rng.normal(0, 3, (64, 64)).astype(np.float32)
    worse = table + rng.normal(0, 2, (64, 64)).astype(np.float32)
    clock = Clock()
    steps = {"draft-mtp": 0.1, "draft-model": 0.05}
    paced = ProfitPacer(Costs({1: 1.0, 64: 7.3}, measured=True), steps=steps)
    drafters = [ModelDrafter(Timed(table, 0.05, clock), paced, 64, 4)]
    if rival is not None:
        drafters.insert(0, Heads(Timed(worse, rival, clock), paced, 64, 4))
    history = [1, 2]
    target = Timed(table, 1.0, clock)
    sync(target, history[:-1], 16)
    rules = Rules(GREEDY, max_tokens=400, compete=True)
    drafted = {c.draft.method for c in decode(target, history, drafters, rules, paced, clock)}
    assert "draft-model" in drafted
    learned = paced.learned_steps(1)
    # a draft of four that was accepted in full is read up by one more decode
    assert 0.05 - 1e-9 <= learned["draft-model"] <= 0.05 * 5 / 4 + 1e-9
    if rival is not None:
        assert learned["draft-mtp"] >= rival - 1e-9


def test_all_that_was_drafted_is_paid_for() -> None:
    """By the rate that drafting must beat, whichever of two drafts was used."""

    def rate(second: bool) -> float:
        paced = ProfitPacer(Costs({1: 1.0, 64: 1.0}, frozen=True), steps={"a": 0.5, "b": 0.5})
        for _ in range(20):
            first = Draft((1, 1), "a", confidence=(0.9, 0.9))
            paced.drafted(first, 0.0)
            if second:
                paced.drafted(Draft((1,), "b", confidence=(0.9,)), 0.0)
            paced.observe([0], cycle(first, 2))
        return paced._rate()

    assert rate(False) == pytest.approx(3 / 2.0)
    assert rate(True) == pytest.approx(3 / 2.5)


def test_a_probe_counts_as_one_though_another_is_asked_behind_it() -> None:
    """…or the share of the time that probes may lose would not bound them."""
    paced, n = ProfitPacer(Costs(STEEP, frozen=True), steps={"dear": 50.0}), 1000
    probes = 0
    for _ in range(n):
        draft = NO_DRAFT
        if paced.goes_on("cheap", (), 4):
            draft = offered(paced, Draft((1,), "cheap", confidence=(0.1,)))
            probes += 1
        assert not paced.goes_on("dear", (), 4)
        paced.observe([0], cycle(draft, 0))
    assert 1 <= probes <= ProfitPacer.PROBE_SHARE * n / 1.25 + 1


def test_a_sampled_draft_is_not_cut_for_what_was_drawn() -> None:
    """Its tokens must stay distributed as q, so only what came before a token may decide on it."""
    paced = pacer(dict(CPU_SHAPE))
    q = Distribution(np.arange(2), np.array([0.99, 0.01]))
    sampled = Draft((0, 1), "m", (q, q), confidence=(0.99, 0.01))
    assert paced.choose(sampled, 5) is sampled
    assert paced.choose(Draft((0, 1), "m", confidence=(0.99, 0.01)), 5).tokens == (0,)


@pytest.mark.parametrize("shape", [CPU_SHAPE, GPU_SHAPE])
def test_under_frozen_costs_no_time_changes_a_choice(shape: dict[int, float]) -> None:
    """What a seed was given for: one cycle after the other, at whatever speed."""
    texts = []
    for slow in (0.0, 50.0):
        table = TableModel.random(6, 2, seed=2, scale=3.0)
        paced = Watched(Costs(shape, frozen=True), slow)
        mine = ModelDrafter(TableModel(table.table + 0.3, 2), paced, 6, 4)
        rules = Rules(SamplingParams(temp=0.7), 3, 200)
        cycles = run(table, [0, 1], [HistoryDrafter(2, 16, 1), mine], rules, paced)
        texts.append([(c.draft.method, c.draft.tokens, c.tokens) for c in cycles])
    assert texts[0] == texts[1]
    assert {method for method, _, _ in texts[0]} >= {"draft-self", "draft-model"}


class Watched(ProfitPacer):
    """Is told other times than were."""

    def __init__(self, costs: Costs, slow: float) -> None:
        super().__init__(costs)
        self.slow = slow

    def drafted(self, draft: Draft, seconds: float) -> None:
        super().drafted(draft, seconds + self.slow)

    def observe(self, history: Sequence[int], cycle: Cycle) -> None:
        times = (cycle.draft_s + self.slow, cycle.verify_s + self.slow / 9, cycle.total_s + 2 * self.slow)
        super().observe(history, Cycle(cycle.draft, cycle.verdict, cycle.width, cycle.depth, *times))


@pytest.mark.parametrize("shape", [FLAT, STEEP, dict(CPU_SHAPE)])
def test_pacing_never_changes_what_is_said(shape: dict[int, float]) -> None:
    table = TableModel.random(6, 2, seed=2)
    paced = pacer(shape)
    drafters = [HistoryDrafter(2, 16, 1), ModelDrafter(TableModel(table.table, 2), paced, 6, 4)]
    rules = Rules(GREEDY, max_tokens=120)
    assert said(run(table, [0, 1], drafters, rules, paced)) == said(
        run(TableModel(table.table, 2), [0, 1], [], rules)
    )
