"""One verify: what is accepted, what replaces a rejected token. The laws are in test_core_lossless."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specli.core.noise import Noise
from specli.core.types import Distribution, Draft
from specli.core.verification import residual, verify


def law(**probs: float) -> Distribution:
    """`law(_3=0.5, _7=0.5)`."""
    ids = [int(name[1:]) for name in probs]
    return Distribution(np.array(ids, np.int64), np.array(list(probs.values())))


def test_residual_by_hand() -> None:
    left = residual(law(_1=0.5, _2=0.3, _4=0.2), law(_0=0.1, _1=0.2, _2=0.6, _9=0.1))
    assert left.ids.tolist() == [1, 4]
    assert left.probs == pytest.approx([0.6, 0.4])


def test_residual_of_disjoint_supports_is_p() -> None:
    p = law(_1=0.5, _2=0.5)
    left = residual(p, law(_7=1.0))
    assert left.ids.tolist() == [1, 2]
    assert left.probs == pytest.approx(p.probs)


def test_residual_of_equals_is_p() -> None:
    p = law(_1=0.5, _2=0.5)
    assert residual(p, p) is p


supports = st.dictionaries(st.integers(0, 9), st.floats(0.01, 1.0), min_size=1)


@settings(max_examples=300, deadline=None)
@given(supports, supports)
def test_accepted_and_recovered_make_up_p(a: dict[int, float], b: dict[int, float]) -> None:
    """Theorem 1 of Leviathan et al.: min(p, q) + (1 - sum of min(p, q)) * residual = p."""
    p, q = (
        Distribution(np.array(sorted(d)), np.array([d[t] for t in sorted(d)]) / sum(d.values()))
        for d in (a, b)
    )
    accepted = {t: min(p.prob(t), q.prob(t)) for t in range(10)}
    rejected = 1.0 - sum(accepted.values())
    left = residual(p, q)
    for t in range(10):
        assert accepted[t] + rejected * left.prob(t) == pytest.approx(p.prob(t), abs=1e-9)


@pytest.mark.parametrize("coupled", [False, True])
def test_what_the_target_never_says_is_never_accepted(coupled: bool) -> None:
    p, q = law(_1=0.5, _2=0.5), law(_0=0.9, _1=0.1)
    for seed in range(300):
        verdict = verify(Draft((0,), q=(q,)), lambda i: p, Noise(seed), 0, coupled=coupled)
        assert verdict.tokens[0] in (1, 2)
        assert (verdict.accepted, verdict.tested, len(verdict.tokens)) == (0, 1, 1)


def test_a_sampled_token_of_too_low_q_is_always_accepted() -> None:
    p, q = law(_1=0.5, _2=0.5), law(_1=0.4, _2=0.6)
    verdicts = [verify(Draft((1,), q=(q,)), lambda i: p, Noise(seed), 0) for seed in range(300)]
    assert {(v.tokens[0], v.accepted, v.tested, len(v.tokens)) for v in verdicts} == {(1, 1, 1, 2)}


def test_acceptance_is_the_overlap_in_rejection_and_less_when_coupled() -> None:
    """Rejection: sum of min(p, q). Coupled: at least (1 - d) / (1 + d), d the total variation (Daliri
    et al. 2024); and much more than independent draws would agree."""
    p, q = law(_1=0.5, _2=0.3, _3=0.2), law(_1=0.2, _2=0.3, _3=0.5)
    n, taken = 4000, {False: 0, True: 0}
    for coupled in taken:
        for seed in range(n):
            proposed = Noise(seed, 0 if coupled else 1).choose(q, 0)
            verdict = verify(Draft((proposed,), q=(q,)), lambda i: p, Noise(seed), 0, coupled=coupled)
            taken[coupled] += verdict.accepted
    assert taken[False] / n == pytest.approx(0.7, abs=0.03)
    assert (1 - 0.3) / (1 + 0.3) - 0.03 < taken[True] / n < 0.7
    assert float(p.probs @ q.probs) < 0.3


@given(st.integers(0, 2**31), st.lists(st.integers(0, 3), max_size=6))
def test_coupled_says_the_same_whatever_is_proposed(seed: int, proposed: list[int]) -> None:
    p = Distribution(np.arange(4), np.array([0.4, 0.3, 0.2, 0.1]))
    q = Distribution(np.arange(4), np.array([0.1, 0.2, 0.3, 0.4]))
    plain = [Noise(seed).choose(p, 10 + i) for i in range(len(proposed) + 1)]
    for draft in (Draft(tuple(proposed)), Draft(tuple(proposed), q=(q,) * len(proposed))):
        verdict = verify(draft, lambda i: p, Noise(seed), 10, coupled=True)
        assert list(verdict.tokens) == plain[: len(verdict.tokens)]
        agree = next((i for i, (a, b) in enumerate(zip(proposed, plain)) if a != b), len(proposed))
        assert verdict.accepted == agree


def test_probabilities_outside_the_support() -> None:
    p = law(_2=0.25, _5=0.75)
    assert [p.prob(t) for t in (0, 2, 3, 5, 6)] == [0.0, 0.25, 0.0, 0.75, 0.0]
    assert p.mode == 5
    assert law(_2=0.5, _5=0.5).mode == 2
    assert Distribution.one_hot(7).prob(7) == 1.0
