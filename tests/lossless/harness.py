"""Draws many short answers through the real loop and counts what it said."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lossless import drafters
from lossless.gtest import g_test
from lossless.reference import joint
from lossless.replay import replay
from specli.core import decoding
from specli.core.decoding import Rules, decode, sync
from specli.core.noise import Noise
from specli.core.sampling import SamplingParams
from specli.core.table_model import TableModel
from specli.core.types import Distribution
from specli.core.verification import verify

PROMPT = (1, 3, 1, 5)
DRAFTED = 3  # tokens of a draft: enough to test rows 0 to 2 and a bonus

CUTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.1},
    "typical": {"typical_p": 0.7},
}
PENALTIES: dict[str, dict[str, Any]] = {
    "free": {},
    "repeat": {"repeat_penalty": 1.5, "repeat_last_n": 3},
    "frequency": {"frequency_penalty": 0.7, "repeat_last_n": -1},
    "presence": {"presence_penalty": 0.8, "repeat_last_n": 64},
    "bias": {"logit_bias": {2: 1.5, 5: -math.inf}},
}
FACTORS: dict[str, Sequence[Any]] = {
    "draft": ("none", "one-hot", "sampled", "hostile one-hot", "hostile sampled"),
    "temp": (0.3, 1.0, 2.0),
    "cut": tuple(CUTS),
    "penalty": tuple(PENALTIES),
    "coupled": (False, True),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One combination of what may matter."""

    draft: str = "sampled"
    temp: float = 1.0
    cut: str = "whole"
    penalty: str = "free"
    coupled: bool = False

    @property
    def name(self) -> str:
        how = "coupled" if self.coupled else "rejection"
        return f"{self.draft}, T {self.temp}, {self.cut}, {self.penalty}, {how}"

    @property
    def params(self) -> SamplingParams:
        off = SamplingParams(temp=self.temp, top_k=0, top_p=1.0, min_p=0.0)
        return replace(off, **CUTS[self.cut], **PENALTIES[self.penalty])


def every() -> list[Setting]:
    """All combinations."""
    return [Setting(*values) for values in product(*FACTORS.values())]


def pairwise() -> list[Setting]:
    """Few combinations in which every pair of values of two factors occurs together."""
    rows = list(product(*FACTORS.values()))
    pairs = {row: {((i, row[i]), (j, row[j])) for i, j in combinations(range(len(row)), 2)} for row in rows}
    missing = set().union(*pairs.values())
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(pairs[row] & missing))  # the first of equals: repeatable
        missing -= pairs[best]
        chosen.append(Setting(*best))
    return chosen


def target(n_vocab: int) -> TableModel:
    """The model whose law is tested, of order 2, so that a row out of place shows."""
    return TableModel.random(n_vocab, order=2, seed=n_vocab, scale=1.0)


def drafter(kind: str, model: TableModel, params: SamplingParams) -> drafters.Proposer | None:
    """The drafter of that name, its temperature and truncation being the target's."""
    similar, hostile = drafters.near(model), drafters.opposite(model)
    if kind == "none":
        return None
    if kind == "one-hot":
        return drafters.Greedy(drafters.laws(similar, params), DRAFTED)
    if kind == "sampled":
        return drafters.Sampled(drafters.laws(similar, params), DRAFTED)
    if kind == "hostile one-hot":
        return drafters.Greedy(drafters.laws(hostile, params), DRAFTED)
    if kind == "hostile sampled":
        return drafters.Sampled(drafters.laws(hostile, params), DRAFTED)
    raise ValueError(kind)


def draw(
    setting: Setting,
    n_vocab: int,
    n_tokens: int,
    draws: int,
    proposer: drafters.Proposer | None = None,
    verifier: Any = verify,
    stream: int | None = None,
) -> NDArray[np.int64]:
    """How often each text of `n_tokens` came up in `draws` answers, shape (n_vocab,) * n_tokens.

    `proposer`: another drafter than the setting names. `verifier`: stands in for `verify`, to be
    caught. `stream`: of the drafter's noise; the right one unless said otherwise.
    """
    model, params = target(n_vocab), setting.params
    proposer = proposer or drafter(setting.draft, model, params)
    if stream is None:
        stream = 0 if setting.coupled else 1
    first = zlib.crc32(setting.name.encode())  # seeds of their own, one after the other as people choose them
    seeds, positions = range(first, first + draws), range(len(PROMPT), len(PROMPT) + n_tokens + 2 * DRAFTED)
    noises = replay(seeds, 0, positions, n_vocab)
    drafted_with = replay(seeds, stream, positions, n_vocab)
    counts = np.zeros((n_vocab,) * n_tokens, np.int64)
    with _loop(verifier, params) as give:
        rules = Rules(params, coupled=setting.coupled)
        for noise, mine in zip(noises, drafted_with):
            give(noise)
            if proposer is not None:
                proposer.noise = mine
            history = list(PROMPT)
            sync(model, PROMPT[:-1], 64)
            for _ in decode(model, history, [proposer] if proposer else [], rules):
                if len(history) >= len(PROMPT) + n_tokens:
                    break
            counts[tuple(history[len(PROMPT) : len(PROMPT) + n_tokens])] += 1
    return counts


@contextmanager
def _loop(verifier: Any, params: SamplingParams) -> Iterator[Callable[[Noise], None]]:
    """The loop with `verifier`, with noise that is handed to it, and with a memory for distributions,
    because it asks for the same few ever again."""
    known: dict[tuple[bytes, tuple[int, ...]], Distribution] = {}
    handed: list[Noise] = []
    compute = decoding.distribution

    def remembered(logits: Any, context: Sequence[int], asked: SamplingParams) -> Distribution:
        assert asked is params
        key = (logits.tobytes(), tuple(context))
        if key not in known:
            known[key] = compute(logits, context, params)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "distribution", remembered)
        patch.setattr(decoding, "verify", verifier)
        patch.setattr(decoding, "Noise", lambda seed: handed.pop())
        yield handed.append


def joint_p(setting: Setting, draws: int, **how: Any) -> dict[str, float]:
    """The joint law of two tokens at vocabulary 8: one p-value."""
    law = joint(target(8), PROMPT, setting.params, 2)
    return {f"joint of 8: {setting.name}": g_test(draw(setting, 8, 2, draws, **how), law)}


def marginal_p(setting: Setting, draws: int, **how: Any) -> dict[str, float]:
    """The laws of the first three tokens at vocabulary 16, each by itself: three p-values."""
    law = joint(target(16), PROMPT, setting.params, 3)
    counts = draw(setting, 16, 3, draws, **how)
    result = {}
    for at in range(3):
        others = tuple({0, 1, 2} - {at})
        p = g_test(counts.sum(axis=others), law.sum(axis=others))
        result[f"token {at + 1} of 16: {setting.name}"] = p
    return result
