"""Verifiers that are wrong in the ways such code goes wrong, to show that the tests would notice.

`faulty()` with nothing said is `verify` written once more; each argument swaps one step.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import numpy as np

from specli.core.noise import Noise
from specli.core.types import Distribution, Draft, Verdict
from specli.core.verification import residual

Verifier = Callable[..., Verdict]


def right_ratio(u: float, token: int, p: Distribution, q: Distribution) -> bool:
    return u * q.prob(token) < p.prob(token)


def right_recovery(p: Distribution, q: Distribution, noise: Noise, position: int) -> int:
    return noise.choose(residual(p, q), position)


def faulty(
    accept: Callable[[float, int, Distribution, Distribution], bool] = right_ratio,
    recover: Callable[[Distribution, Distribution, Noise, int], int] = right_recovery,
    row: Callable[[int, int], int] = lambda i, n: i,
    place: Callable[[int], int] = lambda i: i,
) -> Verifier:
    """`accept`: whether a sampled token passes. `recover`: the token after a rejection. `row`: the row
    that judges token i of n. `place`: the position whose noise token i uses."""

    def verify(
        draft: Draft,
        target: Callable[[int], Distribution],
        noise: Noise,
        position: int,
        ends: Container[int] = (),
        coupled: bool = False,
    ) -> Verdict:
        n = len(draft.tokens)
        emitted: list[int] = []
        for i, proposed in enumerate(draft.tokens):
            p, at = target(row(i, n)), position + place(i)
            if draft.q is None or coupled:
                token = noise.choose(p, at)
                accepted = token == proposed
            else:
                accepted = accept(noise.uniform(at), proposed, p, draft.q[i])
                token = proposed if accepted else recover(p, draft.q[i], noise, at)
            emitted.append(token)
            if not accepted:
                return Verdict(tuple(emitted), i, i + 1)
        emitted.append(noise.choose(target(n), position + place(n)))
        return Verdict(tuple(emitted), n, n)

    return verify


def not_renormalised(p: Distribution, q: Distribution, noise: Noise, position: int) -> int:
    """Walks the sums of max(0, p - q) to a number between 0 and 1, which they do not reach."""
    u = float(np.exp(-np.exp(-noise.gumbel(position, np.zeros(1, np.int64))[0])))
    left = np.array([max(0.0, p.prob(int(t)) - q.prob(int(t))) for t in p.ids])
    return int(p.ids[min(int(np.searchsorted(np.cumsum(left), u)), len(left) - 1)])


def without_temperature(temp: float) -> Callable[[float, int, Distribution, Distribution], bool]:
    """Compares the p of temperature 1 with the q of `temp`."""

    def accept(u: float, token: int, p: Distribution, q: Distribution) -> bool:
        warm = p.probs**temp
        return right_ratio(u, token, Distribution(p.ids, warm / warm.sum()), q)

    return accept


def biased(by: float) -> Verifier:
    """Right, but of every token's law the mass `by` goes from the most to the second most probable:
    a difference of `by` in total variation."""
    right = faulty()

    def verify(
        draft: Draft,
        target: Callable[[int], Distribution],
        noise: Noise,
        position: int,
        ends: Container[int] = (),
        coupled: bool = False,
    ) -> Verdict:
        verdict = right(draft, target, noise, position, ends, coupled)
        for i, token in enumerate(verdict.tokens):
            p = target(i)
            first, second = p.ids[np.argsort(-p.probs, kind="stable")[:2]] if len(p.ids) > 1 else (-1, -1)
            # the noise of this position decided on the token, so the coin comes from its seed elsewhere
            if token == first and _coin(noise, position + i) * p.prob(token) < by:
                emitted = (*verdict.tokens[:i], int(second))
                return Verdict(emitted, min(i, verdict.accepted), min(i + 1, verdict.tested))
        return verdict

    return verify


def _coin(noise: Noise, position: int) -> float:
    """A uniform number that no step of `verify` has used: bits far down those of this position's."""
    return noise.uniform(position) * 2.0**20 % 1.0
