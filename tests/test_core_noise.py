"""The noise: a function of seed, stream, position and token, and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from specli.core.noise import Noise, derive, entropy_seed
from specli.core.types import Distribution

IDS = np.arange(1000)


def test_it_depends_on_no_order_and_no_company() -> None:
    noise = Noise(42)
    whole = noise.gumbel(7, IDS)
    noise.uniform(3)
    assert (noise.gumbel(7, IDS[[5, 900, 31]]) == whole[[5, 900, 31]]).all()
    assert (Noise(42).gumbel(7, IDS) == whole).all()
    assert noise.uniform(7) == Noise(42).uniform(7)


def test_it_is_the_same_tomorrow() -> None:
    """A seed that someone noted must go on giving the same text: these figures may not change."""
    assert Noise(42).uniform(7) == 0.4161276981738832
    gumbels = [-2.2707099129835284, -1.597858611744933, 0.7152253388211817]
    assert Noise(42).gumbel(7, np.array([0, 1, 151935])).tolist() == pytest.approx(gumbels, rel=1e-13)


@pytest.mark.parametrize("seed", [-1, 0, 2**31, 2**64 - 1, 2**80])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    assert 0 < Noise(seed).uniform(0) < 1
    assert np.isfinite(Noise(seed).gumbel(0, IDS)).all()


@pytest.mark.parametrize(
    "others",
    [
        [Noise(1).gumbel(5, IDS), Noise(2).gumbel(5, IDS)],
        [Noise(1).gumbel(5, IDS), Noise(1).gumbel(6, IDS)],
        [Noise(1).gumbel(5, IDS), Noise(1, stream=1).gumbel(5, IDS)],
        [Noise(1).gumbel(5, IDS), Noise(1).gumbel(5, IDS + 1)],
        [Noise(1).gumbel(5, IDS), Noise(2).gumbel(4, IDS)],
    ],
    ids=["seed", "position", "stream", "token", "seed and position"],
)
def test_neighbours_do_not_resemble_each_other(others: list[np.ndarray]) -> None:
    a, b = others
    assert stats.spearmanr(a, b).pvalue > 0.001


def test_its_laws() -> None:
    gumbels = np.concatenate([Noise(seed).gumbel(p, IDS[:100]) for seed in range(10) for p in range(20)])
    assert stats.kstest(gumbels, stats.gumbel_r.cdf).pvalue > 0.001
    uniforms = np.array([Noise(seed).uniform(p) for seed in range(100) for p in range(200)])
    assert stats.kstest(uniforms, "uniform").pvalue > 0.001
    across = np.array([Noise(seed).gumbel(0, IDS[:1])[0] for seed in range(5000)])
    assert stats.kstest(across, stats.gumbel_r.cdf).pvalue > 0.001
    # the coin of a position and the noise of its tokens are independent
    pairs = [(Noise(s).uniform(0), Noise(s).gumbel(0, IDS[:1])[0]) for s in range(5000)]
    assert stats.spearmanr(pairs).pvalue > 0.001


def test_choose_samples() -> None:
    p = Distribution(np.array([3, 8, 11]), np.array([0.6, 0.3, 0.1]))
    chosen = [Noise(seed).choose(p, 4) for seed in range(5000)]
    counts = [chosen.count(token) for token in p.ids]
    assert sum(counts) == 5000
    assert stats.chisquare(counts, 5000 * p.probs).pvalue > 0.001
    assert Noise(0).choose(Distribution.one_hot(9), 0) == 9


def test_derived_seeds_differ() -> None:
    assert len({derive(7, turn, retry) for turn in range(100) for retry in range(3)}) == 300
    assert derive(7) == 7


def test_an_entropy_seed_can_be_typed_again() -> None:
    seeds = {entropy_seed() for _ in range(20)}
    assert len(seeds) > 15
    assert all(0 <= seed < 2**31 for seed in seeds)
