"""The G-test of counts against a known law, and Holm's correction for many of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEAST_EXPECTED = 5.0
"""Cells expected less often than this are pooled: the chi-square law of G needs some in each."""


def g_test(counts: NDArray[np.int64], law: NDArray[np.float64]) -> float:
    """p-value of `counts` under `law`, both of any one shape. What cannot happen and did gives 0."""
    observed, p = counts.ravel().astype(np.float64), law.ravel()
    assert abs(p.sum() - 1.0) < 1e-9
    if observed[p == 0.0].any():
        return 0.0
    observed, expected = pooled(observed[p > 0.0], p[p > 0.0] * observed.sum())
    if len(observed) < 2:
        return 1.0
    return float(stats.power_divergence(observed, expected, lambda_="log-likelihood").pvalue)


def pooled(
    observed: NDArray[np.float64], expected: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The same cells, the rarest joined until each is expected often enough."""
    order = np.argsort(-expected, kind="stable")
    observed, expected = observed[order], expected[order]
    keep = int((expected >= LEAST_EXPECTED).sum())
    while keep > 0 and keep < len(expected) and expected[keep:].sum() < LEAST_EXPECTED:
        keep -= 1
    if keep < len(expected):
        observed = np.append(observed[:keep], observed[keep:].sum())
        expected = np.append(expected[:keep], expected[keep:].sum())
    return observed, expected


def homogeneity(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
    """p-value of the chi-square test that two samples of counts come from one law."""
    both = np.stack([a.ravel(), b.ravel()]).astype(np.float64)
    order = np.argsort(-both.sum(axis=0), kind="stable")
    both = both[:, order]
    rare = both.sum(axis=0) < 2 * LEAST_EXPECTED
    cells = np.column_stack([both[:, ~rare], both[:, rare].sum(axis=1)])
    cells = cells[:, cells.sum(axis=0) > 0]
    return float(stats.chi2_contingency(cells).pvalue)


def holm(p_values: Mapping[str, float], alpha: float = 0.01) -> list[str]:
    """Names of those rejected when at most `alpha` is the chance of any false rejection (Holm 1979)."""
    rejected: list[str] = []
    for i, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        if p > alpha / (len(p_values) - i):
            break
        rejected.append(name)
    return rejected
