"""Judge a draft against the target: the step that makes speculative decoding lossless.

Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding" (2023),
algorithm 1; Chen et al., "Accelerating large language model decoding with speculative sampling"
(2023). A draft token sampled from q is accepted with probability min(1, p/q); at the first
rejection a token is recovered from max(0, p - q), normalised; if all are accepted a bonus token
follows. Then every emitted token is distributed as p, the target alone.

A deterministic proposal has no q to divide by. For it, and for every kind of draft when `coupled`,
the target's own token is drawn with noise keyed by position and the draft token is accepted if it
is the same: as likely as min(1, p/1), and what is emitted does not depend on the draft at all.
Greedy decoding is the same code with a one-hot p.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import numpy as np

from specli.core.noise import Noise
from specli.core.types import Distribution, Draft, Verdict


def verify(
    draft: Draft,
    target: Callable[[int], Distribution],
    noise: Noise,
    position: int,
    ends: Container[int] = (),
    coupled: bool = False,
) -> Verdict:
    """Accept draft tokens from the left, then recover or add one.

    `target(i)` is the target's distribution for the token after `draft[:i]`; it is asked for only
    as far as needed. `position` numbers the first emitted token for `noise`. Nothing follows a
    token in `ends`, nor comes where the target's distribution is empty.
    """
    emitted: list[int] = []
    for i, proposed in enumerate(draft.tokens):
        p = target(i)
        if p.empty:
            return Verdict(tuple(emitted), i, i)
        if draft.q is None or coupled:
            token = noise.choose(p, position + i)
            accepted = token == proposed
        else:
            q = draft.q[i]
            accepted = noise.uniform(position + i) * q.prob(proposed) < p.prob(proposed)
            token = proposed if accepted else noise.choose(residual(p, q), position + i)
        emitted.append(token)
        if not accepted:
            return Verdict(tuple(emitted), i, i + 1)
        if token in ends:
            return Verdict(tuple(emitted), i + 1, i + 1)
    n = len(draft.tokens)
    last = target(n)
    if not last.empty:
        emitted.append(noise.choose(last, position + n))
    return Verdict(tuple(emitted), n, n)


def residual(p: Distribution, q: Distribution) -> Distribution:
    """max(0, p - q), normalised: what is left of p where q already had its chance."""
    at = np.searchsorted(q.ids, p.ids)
    at[at == len(q.ids)] = 0
    taken = np.where(q.ids[at] == p.ids, q.probs[at], 0.0)
    left = np.maximum(p.probs - taken, 0.0)
    total = float(left.sum())
    if total <= 0.0:  # p equals q up to rounding: a rejection had probability zero
        return p
    keep = left > 0.0
    return Distribution(p.ids[keep], left[keep] / total)
