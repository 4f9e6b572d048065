"""The loop over tables: what is drafted never changes what is said, and its promises hold each cycle."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import GREEDY, ScriptedDrafter, greedy, run, said, spoil

from specli.core.decoding import Rules, common_prefix, decode, sync
from specli.core.noise import Noise
from specli.core.sampling import SamplingParams, distribution
from specli.core.table_model import TableModel
from specli.core.types import Draft, Drafter
from specli.drafters.history import HistoryDrafter
from specli.drafters.ngram import NgramMapK, NgramMapK4V, NgramSimple

VOCAB = 12
PROMPT = [3, 1, 4, 1, 5]
WARM = SamplingParams(temp=1.0, top_k=0, top_p=1.0, min_p=0.0)


def model(n_ctx: int = 4096, order: int = 3) -> TableModel:
    return TableModel.random(VOCAB, order, seed=7, n_ctx=n_ctx)


def oracle(length: int, wrong_at: int | None = None) -> ScriptedDrafter:
    """Knows what the target will say and spoils one token of it."""
    knows = model()

    def script(history: Sequence[int]) -> list[int]:
        truth = greedy(knows, history, length)
        return truth if wrong_at is None else spoil(truth, wrong_at, VOCAB)

    return ScriptedDrafter(script)


@pytest.mark.parametrize("exact_width", [None, 8])
@pytest.mark.parametrize(("length", "wrong_at"), [(n, at) for n in range(8) for at in range(n + 1)])
def test_a_rejection_at_every_position(length: int, wrong_at: int, exact_width: int | None) -> None:
    """`wrong_at` equal to `length` spoils nothing: then a bonus token follows."""
    drafter = oracle(length, wrong_at)
    cycles = run(model(), PROMPT, [drafter], Rules(GREEDY, max_tokens=60, exact_width=exact_width))
    assert said(cycles) == greedy(model(), PROMPT, 60)
    for cycle in cycles[:-1]:
        if len(cycle.draft) == length:  # not cut by the limit
            assert cycle.verdict.accepted == wrong_at
            assert cycle.verdict.tested == min(wrong_at + 1, length)
            assert len(cycle.tokens) == wrong_at + 1
    assert drafter.committed == cycles
    assert cycles[-1].finish == "length"


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "drafter",
    [NgramSimple(2, 5, 1), NgramMapK(2, 5, 1), NgramMapK4V(2, 5, 1), HistoryDrafter(1, 9, 1)],
    ids=lambda d: d.method,
)
def test_any_drafter_says_what_plain_says(drafter: Drafter, params: SamplingParams) -> None:
    """At a temperature too: one-hot drafts are matched with the target's own draw."""
    rules = Rules(params, seed=5, max_tokens=300)
    few = TableModel.random(4, 2, seed=3, scale=3.0)
    plain = run(few, [1, 2, 1], [], rules)
    drafted = run(TableModel.random(4, 2, seed=3, scale=3.0), [1, 2, 1], [drafter], rules)
    assert said(drafted) == said(plain)
    assert sum(c.verdict.accepted for c in drafted) > 0
    assert len(drafted) < len(plain)


@settings(max_examples=200, deadline=None)
@given(
    drafts=st.lists(st.lists(st.integers(0, 1), max_size=9), min_size=1, max_size=12),
    temp=st.sampled_from([0.0, 1.0]),
    max_tokens=st.none() | st.integers(0, 40),
    ends=st.sampled_from([frozenset(), frozenset({2}), frozenset({1, 2})]),
    exact_width=st.sampled_from([None, 1, 4]),
    n_ctx=st.integers(5, 60),
    penalty=st.sampled_from([0.0, 0.9]),
)
def test_whatever_is_drafted(
    drafts: list[list[int]],
    temp: float,
    max_tokens: int | None,
    ends: frozenset[int],
    exact_width: int | None,
    n_ctx: int,
    penalty: float,
) -> None:
    """Few tokens, so that chance drafts are accepted often. The reason for the end is the same too."""
    table = TableModel.random(3, 3, seed=7, scale=1.0).table - np.array([0, 0, 2.0], np.float32)
    rules = Rules(SamplingParams(temp=temp, frequency_penalty=penalty), 3, max_tokens, ends, exact_width)
    turns = itertools.cycle(drafts)
    drafter = ScriptedDrafter(lambda history: next(turns))
    drafted = run(TableModel(table, 3, n_ctx), [0, 1, 0, 2, 1], [drafter], rules)
    plain = run(TableModel(table, 3, n_ctx), [0, 1, 0, 2, 1], [], rules)
    assert said(drafted) == said(plain)
    assert [c.finish for c in drafted[-1:]] == [c.finish for c in plain[-1:]]


def test_the_first_with_something_to_say_drafts() -> None:
    mute, first, second = oracle(0), oracle(2), oracle(4)
    cycles = run(model(), PROMPT, [mute, first, second], Rules(GREEDY, max_tokens=12))
    assert {len(c.draft) for c in cycles} == {2}
    assert mute.limits
    assert second.limits == []
    assert mute.committed == second.committed == cycles  # all are told, whoever drafted


@pytest.mark.parametrize("length", [0, 1, 3])
@pytest.mark.parametrize("stop_after", range(1, 6))
def test_early_close_leaves_all_in_order(stop_after: int, length: int) -> None:
    """`run` checks that the history holds what was yielded and the cache all but its last token."""
    target = model()
    cycles = run(target, PROMPT, [oracle(length)], cycles=stop_after)
    assert len(cycles) == stop_after
    history = [*PROMPT, *said(cycles)]
    more = run(target, history, [oracle(length)], Rules(GREEDY, max_tokens=10))
    assert said(more) == greedy(model(), history, 10)
    fresh = len(PROMPT) - 1 + sum(c.width for c in [*cycles, *more])
    assert target.decoded == fresh  # going on decoded nothing again


def test_nothing_is_decoded_before_it_is_asked_for() -> None:
    target = model()
    history = list(PROMPT)
    sync(target, history[:-1], 16)
    generator = decode(target, history, [], Rules(GREEDY))
    assert target.decoded == len(PROMPT) - 1
    next(generator)
    assert target.decoded == len(PROMPT)


def test_the_same_seed_repeats_and_another_differs() -> None:
    texts = [said(run(model(), PROMPT, [oracle(3)], Rules(WARM, seed, 40))) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("length", [0, 3])
def test_a_token_is_drawn_with_the_noise_of_its_position(length: int) -> None:
    """Position: its place in the history. A drafter that shares the noise counts on it."""
    rules = Rules(WARM, 9, 30)
    text = list(PROMPT)
    for token in said(run(model(), PROMPT, [oracle(length)], rules)):
        law = distribution(model().row(text), (), WARM)
        assert token == Noise(9).choose(law, len(text))
        text.append(token)


def test_every_accepted_token_counts_for_the_penalty_at_once() -> None:
    """Case 35: the draft repeats what a penalty forbids by the second time."""
    always_two = TableModel.random(VOCAB, 1, seed=1, scale=0.1)
    always_two.table[:, 2] += 1.0
    params = SamplingParams(temp=0.0, frequency_penalty=1.0, repeat_last_n=-1)
    cycles = run(always_two, [0], [ScriptedDrafter(lambda h: [2, 2, 2])], Rules(params, max_tokens=30))
    plain = TableModel(always_two.table)
    assert said(cycles) == said(run(plain, [0], [], Rules(params, max_tokens=30)))
    assert cycles[0].verdict.accepted == 1


def test_timing_is_of_the_given_clock() -> None:
    ticks = itertools.count()
    history = list(PROMPT)
    target = model()
    sync(target, history[:-1], 16)
    first, second = itertools.islice(decode(target, history, [], Rules(GREEDY), clock=lambda: next(ticks)), 2)
    for cycle in (first, second):
        assert (cycle.draft_s, cycle.verify_s, cycle.total_s) == (1, 1, 4)


# sync and common_prefix


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12), st.integers(1, 5))
def test_sync_decodes_what_differs_and_no_more(had: list[int], wanted: list[int], chunk: int) -> None:
    target = TableModel.random(3)
    assert sync(target, had, chunk)
    shared = 0
    while shared < min(len(had), len(wanted)) and had[shared] == wanted[shared]:
        shared += 1
    assert common_prefix(had, wanted) == shared
    assert sync(target, wanted, chunk)
    assert list(target.tokens) == wanted
    assert target.decoded == len(had) + len(wanted) - shared


def test_sync_stops_between_chunks() -> None:
    target = model()
    answers = iter([False, False, True])
    assert not sync(target, [1] * 10, 3, lambda: next(answers))
    assert list(target.tokens) == [1] * 6
    assert sync(target, [1] * 10, 3)
    assert target.decoded == 10


def test_sync_on_a_cache_that_keeps_less() -> None:
    """A recurrent state cannot be cut anywhere; what it lost is decoded again."""

    class Stubborn(TableModel):
        def rewind(self, length: int) -> int:
            return super().rewind(length if length == len(self.tokens) else 0)

    target = Stubborn(model().table, 3)
    sync(target, [1, 2, 3, 4], 8)
    assert sync(target, [1, 2, 5], 8)
    assert list(target.tokens) == [1, 2, 5]


def test_a_draft_is_cut_whole() -> None:
    draft = Draft((1, 2, 3), "x", None, 4, (0.5, 0.6, 0.7))
    assert (draft.first(2).tokens, draft.first(2).method) == ((1, 2), "x")
    assert draft.first(2).confidence == (0.5, 0.6)
    assert draft.first(2).match == 4
    assert draft.first(3) is draft
    assert len(draft.first(0)) == 0


def test_nothing_is_drafted_behind_an_end() -> None:
    """From the answer alone, however far the drafter sees: what follows an end can never be said."""
    end = greedy(model(), PROMPT, 9)[8]
    rules = Rules(GREEDY, ends={end})
    plain = said(run(model(), PROMPT, [], rules))
    cycles = run(model(), PROMPT, [oracle(40)], rules)
    assert said(cycles) == plain and plain[-1] == end
    assert sum(len(cycle.draft) for cycle in cycles) <= len(plain)
    assert all(end not in cycle.draft.tokens[:-1] for cycle in cycles)
    beyond = run(model(), PROMPT, [oracle(40)], Rules(GREEDY, max_tokens=60))
    assert any(end in cycle.draft.tokens[:-1] for cycle in beyond)
