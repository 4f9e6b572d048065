"""The sampler chain against the same written the slow way, and against llama.cpp's own samplers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lossless.reference import chain
from numpy.typing import NDArray

from specli.core.sampling import SamplingParams, distribution, top_k_ids
from specli.core.types import Distribution

OFF = SamplingParams(temp=1.0, top_k=0, top_p=1.0, min_p=0.0)

PARAMS = st.builds(
    SamplingParams,
    temp=st.sampled_from([0.0, 0.3, 0.8, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 40, 1000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.1, 0.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    typical_p=st.sampled_from([1.0, 0.9, 0.4, 0.0]),
    repeat_penalty=st.sampled_from([1.0, 1.1, 2.0, 0.7]),
    repeat_last_n=st.sampled_from([-1, 0, 1, 4, 64]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.5]),
    presence_penalty=st.sampled_from([0.0, 0.5, -0.5]),
    logit_bias=st.dictionaries(st.integers(0, 4), st.sampled_from([-math.inf, -2.0, 3.0]), max_size=3),
)


def dense(p: Distribution, n_vocab: int) -> NDArray[np.float64]:
    """All probabilities, shape (n_vocab,), the rules of `Distribution` being checked."""
    assert (np.diff(p.ids) > 0).all()
    assert (p.probs > 0).all()
    assert p.probs.sum() == pytest.approx(1.0, abs=1e-12)
    result = np.zeros(n_vocab)
    result[p.ids] = p.probs
    return result


def random_logits(n_vocab: int, seed: int, scale: float = 3.0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, scale, n_vocab).astype(np.float32)


@settings(max_examples=600, deadline=None)
@given(PARAMS, st.integers(5, 300), st.integers(0, 10**6), st.lists(st.integers(0, 4), max_size=12))
def test_against_the_plain_way(params: SamplingParams, n_vocab: int, seed: int, context: list[int]) -> None:
    logits = random_logits(n_vocab, seed)
    before = logits.copy()
    wanted = chain(logits, context, params)
    # a sum that meets its mark to the last bits may fall on either side of it
    assume(_stable(logits, context, params, wanted))
    got = dense(distribution(logits, params.window(context, ()), params), n_vocab)
    assert (got > 0).tolist() == (wanted > 0).tolist()
    assert got == pytest.approx(wanted, abs=1e-6)
    assert (logits == before).all()


def _stable(
    logits: NDArray[np.float32], context: Sequence[int], params: SamplingParams, law: NDArray[np.float64]
) -> bool:
    """Whether marks a hair's breadth away leave the same tokens."""
    for by in (-1e-6, 1e-6):
        moved = replace(
            params,
            top_p=params.top_p + by if 0 < params.top_p < 1 else params.top_p,
            min_p=params.min_p * (1 + by) if 0 < params.min_p < 1 else params.min_p,
            typical_p=params.typical_p + by if 0 < params.typical_p < 1 else params.typical_p,
        )
        if ((chain(logits, context, moved) > 0) != (law > 0)).any():
            return False
    return True


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 5000, 64 * 64 + 17])
@pytest.mark.parametrize("k", [1, 2, 40, 64, 999, 6000])
def test_top_k_against_a_sort(n: int, k: int) -> None:
    for seed in range(3):
        values = random_logits(n, seed)
        wanted = np.sort(np.argsort(-values, kind="stable")[:k])
        assert top_k_ids(values, k).tolist() == wanted.tolist()


def test_top_k_of_equals_takes_the_lowest() -> None:
    values = np.zeros(5000, np.float32)
    values[[10, 4999]] = 1.0
    assert top_k_ids(values, 4).tolist() == [0, 1, 10, 4999]


def test_top_k_finds_what_a_group_hides() -> None:
    """All of the largest in one group of maxima, whichever way the groups are cut."""
    for step in (1, 5000 // 64):
        values = np.zeros(5000, np.float32)
        where = 7 + step * np.arange(30)
        values[where] = np.arange(1, 31)
        assert top_k_ids(values, 20).tolist() == where[10:].tolist()


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"typical_p": 0.9}, {"min_p": 0.02}, {"top_k": 40}])
@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0])
def test_a_large_vocabulary(cut: dict[str, Any], scale: float) -> None:
    """Where the nucleus is larger than what is sorted at first, and where it is smaller."""
    logits = random_logits(12_000, 3, scale)
    params = replace(OFF, **cut)
    got = dense(distribution(logits, (), params), len(logits))
    wanted = chain(logits, (), params)
    # which one of two tokens equal to the last bits comes first is of no consequence
    assert abs(int((got > 0).sum()) - int((wanted > 0).sum())) <= 1
    assert got == pytest.approx(wanted, abs=1e-5)


def test_what_is_forbidden_never_comes() -> None:
    params = replace(OFF, logit_bias={1: -math.inf, 3: -math.inf})
    p = distribution(random_logits(5, 0), (), params)
    assert p.ids.tolist() == [0, 2, 4]
    assert distribution(random_logits(5, 0), (), replace(params, temp=0.0)).mode in (0, 2, 4)


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert distribution(np.array([1, 2, 2], np.float32), (), replace(OFF, temp=0.0)).mode == 1


def test_nothing_that_underflows_is_in_the_support() -> None:
    p = distribution(np.array([0, -300, -1], np.float32), (), replace(OFF, temp=0.1))
    assert dense(p, 3)[1] == 0 and p.ids.tolist() == [0, 2]


def test_the_window_of_the_penalties() -> None:
    params = replace(OFF, presence_penalty=1.0, repeat_last_n=3)
    assert list(params.window([1, 2, 3, 4], [5])) in ([2, 3, 4, 5], [3, 4, 5])
    flat = np.zeros(6, np.float32)
    got = dense(distribution(flat, params.window([1, 2, 3, 4], [5]), params), 6)
    assert (got < got.max()).tolist() == [False, False, False, True, True, True]
    assert list(replace(params, repeat_last_n=-1).window([1, 2, 3, 4], [5])) == [1, 2, 3, 4, 5]
    assert list(replace(params, repeat_last_n=0).window([1, 2], [3])) == []
    assert list(OFF.window([1, 2], [3])) == []


def test_a_sum_that_just_meets_its_mark() -> None:
    """Enough for top-p, which must reach it; not for typical, which must pass it: as in llama.cpp."""
    halves = np.zeros(2, np.float32)
    assert distribution(halves, (), replace(OFF, top_p=0.5)).ids.tolist() == [0]
    assert distribution(halves, (), replace(OFF, typical_p=0.5)).ids.tolist() == [0, 1]
    for step in ({"top_p": 0.5}, {"typical_p": 0.5}):
        params = replace(OFF, **step)
        assert (llama_law(halves, (), params) > 0).sum() == len(distribution(halves, (), params).ids)


# llama.cpp's own


@contextmanager
def _sampler_chain(params: SamplingParams, n_vocab: int, context: Sequence[int]) -> Iterator[Any]:
    lc = pytest.importorskip("llama_cpp")
    sampler = lc.llama_sampler_chain_init(lc.llama_sampler_chain_default_params())
    biases = (lc.llama_logit_bias * max(1, len(params.logit_bias)))(*params.logit_bias.items())
    n = len(context) if params.repeat_last_n < 0 else params.repeat_last_n
    penalties = (params.repeat_penalty, params.frequency_penalty, params.presence_penalty)
    for step in (
        lc.llama_sampler_init_logit_bias(n_vocab, len(params.logit_bias), biases),
        lc.llama_sampler_init_penalties(n_vocab, n, *penalties),
        lc.llama_sampler_init_top_k(params.top_k),
        lc.llama_sampler_init_typical(params.typical_p, 0),
        lc.llama_sampler_init_top_p(params.top_p, 0),
        lc.llama_sampler_init_min_p(params.min_p, 0),
        lc.llama_sampler_init_temp(params.temp),
    ):
        lc.llama_sampler_chain_add(sampler, step)
    try:
        for token in context:
            lc.llama_sampler_accept(sampler, token)
        yield sampler
    finally:
        lc.llama_sampler_free(sampler)


def llama_law(
    logits: NDArray[np.float32], context: Sequence[int], params: SamplingParams
) -> NDArray[np.float64]:
    """What llama.cpp's chain leaves, as probabilities, shape (n_vocab,)."""
    lc = pytest.importorskip("llama_cpp")
    n = len(logits)
    data = (lc.llama_token_data * n)(*(lc.llama_token_data(i, x, 0.0) for i, x in enumerate(logits.tolist())))
    array = lc.llama_token_data_array(ctypes.cast(data, ctypes.POINTER(lc.llama_token_data)), n, -1, False)
    with _sampler_chain(params, n, context) as sampler:
        lc.llama_sampler_apply(sampler, ctypes.byref(array))
    left = [(array.data[i].id, array.data[i].logit) for i in range(array.size)]
    result = np.zeros(n)
    peak = max(x for _, x in left)
    for token, x in left:
        result[token] = math.exp(x - peak)
    return result / result.sum()


STEPS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "defaults": {"temp": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "cold": {"temp": 0.3},
    "hot": {"temp": 2.0},
    "greedy": {"temp": 0.0},
    "greedy of the typical": {"temp": 0.0, "typical_p": 0.3},
    "top-k": {"top_k": 7},
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.1},
    "typical": {"typical_p": 0.6},
    "repeat": {"repeat_penalty": 1.3, "repeat_last_n": 6},
    "frequency": {"frequency_penalty": 0.6, "repeat_last_n": -1},
    "presence": {"presence_penalty": 0.6, "repeat_last_n": 64},
    "bias": {"logit_bias": {3: 2.5, 4: -math.inf}},
    "all": {
        "temp": 0.7,
        "top_k": 30,
        "top_p": 0.9,
        "min_p": 0.02,
        "typical_p": 0.95,
        "repeat_penalty": 1.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.1,
        "repeat_last_n": 10,
        "logit_bias": {2: 1.0},
    },
}


@pytest.mark.parametrize("n_vocab", [20, 3000])
@pytest.mark.parametrize("name", STEPS)
def test_against_llama_cpp(name: str, n_vocab: int) -> None:
    pytest.importorskip("llama_cpp")
    params = replace(OFF, **STEPS[name])
    compared = 0
    for seed in range(20 if n_vocab < 100 else 5):
        logits = random_logits(n_vocab, seed)
        context = np.random.default_rng(seed).integers(0, 8, 15).tolist()
        wanted = llama_law(logits, context, params)
        if not _stable(logits, context, params, chain(logits, context, params)):
            continue
        got = dense(distribution(logits, params.window(context, ()), params), n_vocab)
        assert (got > 0).tolist() == (wanted > 0).tolist()
        assert got == pytest.approx(wanted, abs=1e-5)
        compared += 1
    assert compared >= 3
