"""From a row of logits and its context to the distribution that the next token is drawn from.

The order is llama.cpp's default one: logit bias, penalties, top-k, typical, top-p, min-p,
temperature. Temperature comes last, so the truncations see the model's own probabilities.
Temperature 0 leaves one token: the most probable of those that the truncations left.

A constraint comes before the truncations: they choose among legal tokens only. To ask it about a whole
vocabulary is slow, so it is asked from the most probable token down, until no further one can matter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specli.core.types import Distribution
from specli.errors import EngineError

Legal = Callable[[NDArray[np.int64]], NDArray[np.bool_]]
"""Which of some tokens, shape (n,), may come next."""

_GROUP = 64
_ASKED = (256, 4096)  # likeliest tokens that a constraint is asked about, before it is about all


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target is sampled. Values that switch a step off: top_k 0, top_p 1, min_p 0,
    typical_p 1, repeat_penalty 1, the other penalties 0. `repeat_last_n`: tokens of context that
    the penalties see, -1 for all."""

    temp: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    @property
    def penalised(self) -> bool:
        """Whether any penalty is on."""
        on = self.repeat_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0
        return on and self.repeat_last_n != 0

    def window(self, history: Sequence[int], draft: Sequence[int]) -> Sequence[int]:
        """As much of the context `history + draft` as the penalties look at."""
        if not self.penalised:
            return ()
        n = self.repeat_last_n
        return [*(history if n < 0 else history[-n:]), *draft]


def distribution(
    logits: NDArray[np.float32], context: Sequence[int], params: SamplingParams, legal: Legal | None = None
) -> Distribution:
    """The target distribution after `context`. `logits`, shape (n_vocab,), is left as it is.

    `legal`: only such tokens are in it; it is empty if there is none. Bias for ids that the row does not
    have is passed over. Raises EngineError for a row of no numbers (NaN).
    """
    if params.logit_bias or params.penalised:
        logits = _adjusted(logits, context, params)
    if legal is None:
        if params.temp <= 0.0 and params.typical_p >= 1.0:  # no other truncation drops the most probable
            best = int(np.argmax(logits))  # of a NaN, if there is one
            _require_numbers(logits[best : best + 1])
            return Distribution.one_hot(best)
        ids = _candidates(logits, params)
    else:
        ids = _legal_candidates(logits, params, legal)
        if not len(ids):
            return Distribution.nothing()
    candidates = logits[ids]
    _require_numbers(candidates)
    ids, x = _truncated(ids, candidates.astype(np.float64), params)
    if len(ids) == 1 or params.temp <= 0.0:
        return Distribution.one_hot(int(ids[int(np.argmax(x))]))
    probs = np.exp((x - x.max()) / params.temp)
    probs /= probs.sum()
    if not probs.all():  # what underflows to zero is not in the support
        keep = probs > 0.0
        ids, probs = ids[keep], probs[keep]
    return Distribution(ids, probs)


def _require_numbers(x: NDArray[np.float32]) -> None:
    if not len(x) or math.isnan(float(x.max())):
        raise EngineError(
            "the model computes no numbers any more (NaN): its file is damaged, or --flash-attn or --cache-type-k/v "
            "does not suit it"
        )


def _adjusted(
    logits: NDArray[np.float32], context: Sequence[int], params: SamplingParams
) -> NDArray[np.float32]:
    logits = logits.copy()
    for token, bias in params.logit_bias.items():
        if token < len(logits):
            logits[token] += bias
    if params.penalised:
        n = params.repeat_last_n
        window = context if n < 0 else context[max(0, len(context) - n) :]
        counts = Counter(window)
        ids = np.fromiter(counts.keys(), np.int64, len(counts))
        times = np.fromiter(counts.values(), np.float32, len(counts))
        if len(ids) and ids.max() >= len(logits):  # a row of a drafter with the smaller vocabulary
            ids, times = ids[ids < len(logits)], times[ids < len(logits)]
        x = logits[ids]
        x = np.where(x <= 0.0, x * params.repeat_penalty, x / params.repeat_penalty)
        logits[ids] = x - times * params.frequency_penalty - params.presence_penalty
    return logits


def _candidates(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.int64]:
    """Ids in ascending order after top-k; without it, less those that min-p drops anyway."""
    n = len(logits)
    if 0 < params.top_k < n:
        return top_k_ids(logits, params.top_k)
    if params.min_p > 0.0 and params.typical_p >= 1.0 and params.top_p >= 1.0:
        return np.flatnonzero(logits >= float(logits.max()) + math.log(params.min_p))
    return np.arange(n)


def _legal_candidates(logits: NDArray[np.float32], params: SamplingParams, legal: Legal) -> NDArray[np.int64]:
    """Legal ids in ascending order after top-k; those that cannot matter any more may be missing."""
    n = len(logits)
    greedy = params.temp <= 0.0 and params.typical_p >= 1.0
    known = np.empty(0, np.int64)  # asked about
    found = np.empty(0, np.int64)  # of these the legal ones
    for size in (*((1,) if greedy else ()), *_ASKED, n):
        asked = top_k_ids(logits, min(size, n))
        new = np.setdiff1d(asked, known, assume_unique=True)
        new = new[logits[new] > -np.inf]
        found = np.sort(np.concatenate([found, new[legal(new)]])) if len(new) else found
        if size >= n or (len(found) and (greedy or _settled(logits[found], logits[asked], n, params))):
            break
        known = asked
    if 0 < params.top_k < len(found):
        found = found[top_k_ids(logits[found], params.top_k)]
    return found


def _settled(found: NDArray[np.float32], asked: NDArray[np.float32], n: int, params: SamplingParams) -> bool:
    """Whether the legal logits `found` among those `asked` about decide what the truncations leave, whatever
    is legal among the other n - len(asked), none of which is larger."""
    wanted = params.top_k if params.top_k > 0 else n
    if len(found) >= wanted:
        return True
    if params.typical_p < 1.0:
        return False
    best, lowest = float(found.max()), float(asked.min())
    probs = np.sort(np.exp(found.astype(np.float64) - best))[::-1]
    survive = math.inf  # how many min-p leaves
    if params.min_p > 0.0 and lowest < best + math.log(params.min_p):
        survive = int((probs >= params.min_p * (1.0 - 1e-9)).sum())
    fewest = most = math.inf  # how many top-p leaves, with nothing more and with as much more as can be
    if params.top_p < 1.0:
        reached = np.cumsum(probs)
        more = min(wanted - len(found), n - len(asked)) * math.exp(lowest - best)
        fewest = int(np.searchsorted(reached, params.top_p * reached[-1] * (1.0 - 1e-9))) + 1
        most = int(np.searchsorted(reached, params.top_p * (reached[-1] + more) * (1.0 + 1e-9))) + 1
    return min(fewest, survive) == min(most, survive) <= len(found)


def _truncated(
    ids: NDArray[np.int64], x: NDArray[np.float64], params: SamplingParams
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids in ascending order and their logits, after typical, top-p and min-p."""
    if np.isneginf(x).any():
        keep = ~np.isneginf(x)
        ids, x = ids[keep], x[keep]
    if params.typical_p < 1.0:
        at = _typical(x, params.typical_p)
        ids, x = ids[at], x[at]
    if params.top_p < 1.0:
        at = _nucleus(x, params.top_p)
        ids, x = ids[at], x[at]
    if params.min_p > 0.0:
        keep = x >= x.max() + math.log(params.min_p)
        ids, x = ids[keep], x[keep]
    return ids, x


def top_k_ids(values: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Indices of the `k` largest of `values`, ascending; of equals at the border the lowest ones.

    Cut into groups, the k-th largest of the groups' maxima is a bound that at least k values reach,
    and few more do: two cheap passes over the vocabulary instead of a sort. A group is every
    (n / 64)-th value, because maxima over such columns are taken many at a time.
    """
    n = len(values)
    groups = n // _GROUP
    if groups > k:
        maxima = values[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
        bound = np.partition(maxima, groups - k)[groups - k]
        ids = np.flatnonzero(values >= bound)
    else:
        ids = np.arange(n)
    if len(ids) > k:
        best = np.argsort(-values[ids], kind="stable")[:k]
        ids = np.sort(ids[best])
    return ids


def _softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    e: NDArray[np.float64] = np.exp(x - x.max())
    e /= e.sum()
    return e


def _nucleus(x: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Indices of the fewest most probable tokens whose probabilities reach `top_p`
    (Holtzman et al. 2020), ascending."""
    return _first_to_reach(top_p, x, _softmax(x), "left")


def _typical(x: NDArray[np.float64], typical_p: float) -> NDArray[np.int64]:
    """Indices of the tokens whose surprise is nearest the entropy, the fewest of more than
    `typical_p` probability (Meister et al. 2022), ascending."""
    p = _softmax(x)
    surprise = -np.log(np.maximum(p, 1e-300))
    return _first_to_reach(typical_p, -np.abs(surprise - float((p * surprise).sum())), p, "right")


def _first_to_reach(
    mass: float, values: NDArray[np.float64], probs: NDArray[np.float64], side: Literal["left", "right"]
) -> NDArray[np.int64]:
    """Indices of the fewest largest `values` whose `probs` sum to `mass` ("left") or to more than it
    ("right"), ascending. Sorts no more than it must: hundreds of values are enough as a rule."""
    k = 512
    while True:
        ids = top_k_ids(values, k)
        order = np.argsort(-values[ids], kind="stable")
        size = int(np.searchsorted(np.cumsum(probs[ids][order]), mass, side)) + 1
        if size <= len(ids) or len(ids) == len(values):
            return np.sort(ids[order[:size]])
        k *= 16
