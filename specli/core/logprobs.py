"""What the model itself thought: log-probabilities before any sampler, as plain decoding would report them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specli.core.sampling import top_k_ids
from specli.core.types import Candidate, Logits, TokenLogprobs


def token_logprobs(rows: Logits, tokens: Sequence[int], top: int) -> tuple[TokenLogprobs, ...]:
    """One record for each of `tokens`: token i was drawn from row i of `rows`, shape (>= n, n_vocab).

    `top`: how many of the likeliest tokens each names. A token that the row rules out (-inf) is not named.
    """
    found: list[TokenLogprobs] = []
    for row, token in zip(rows, tokens):
        x = row.astype(np.float64)
        x -= x.max()
        x -= np.log(np.exp(x).sum())
        ids = top_k_ids(x, min(top, len(x))) if top > 0 else np.empty(0, np.int64)
        ids = ids[np.argsort(-x[ids], kind="stable")]
        best = tuple(Candidate(int(i), float(x[i])) for i in ids if x[i] > -np.inf)
        found.append(TokenLogprobs(token, float(x[token]), best))
    return tuple(found)
