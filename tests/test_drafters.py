"""The n-gram drafters: by hand-made texts, and against searches written the slow, plain way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specli.core.types import NO_DRAFT, Cycle, Draft, Drafter, Verdict
from specli.drafters import edits as edits_module
from specli.drafters import history as history_module
from specli.drafters.history import HistoryDrafter
from specli.drafters.ngram import MATCH_CAP, NgramDrafter, NgramIndex, NgramMapK, NgramMapK4V, NgramSimple
from specli.errors import UsageError

ALL = (NgramSimple, NgramMapK, NgramMapK4V, HistoryDrafter)
SAMPLE = [1, 2, 3, 4, 5, 6, 7, 8]


def cycle(draft: Draft, accepted: int, emitted: Sequence[int], tested: int | None = None) -> Cycle:
    """A cycle in which `accepted` of the draft's tokens were, and the next, if any, was not."""
    if tested is None:
        tested = min(len(draft), accepted + 1)
    verdict = Verdict(tuple(emitted), accepted, tested)
    return Cycle(draft, verdict, len(draft) + 1, 0, 0.0, 0.0, 0.0)


def say(drafter: Drafter, history: list[int], tokens: Sequence[int]) -> None:
    """Commit `tokens` one at a time, as plain decoding does."""
    for token in tokens:
        history.append(token)
        drafter.commit(history, cycle(NO_DRAFT, 0, [token]))


def start(drafter: Drafter, tokens: Sequence[int]) -> list[int]:
    history = list(tokens)
    drafter.begin(history)
    return history


# What all of them have in common


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("name", ["size_n", "size_m", "min_hits"])
def test_sizes_below_one_name_the_option(kind: type[NgramDrafter], name: str) -> None:
    sizes = {"size_n": 2, "size_m": 4, "min_hits": 1, name: 0}
    make: Callable[..., NgramDrafter] = kind
    with pytest.raises(UsageError, match=f"{kind.option}-{name.replace('_', '-')} must be at least 1, not 0"):
        make(**sizes)


@pytest.mark.parametrize("kind", ALL)
def test_methods_and_defaults(kind: type[NgramDrafter]) -> None:
    make: Callable[[], NgramDrafter] = kind
    drafter = make()
    expected = (2, 64, 1) if kind is HistoryDrafter else (12, 48, 1)
    assert (drafter.size_n, drafter.size_m, drafter.min_hits) == expected

    assert [kind.method for kind in ALL] == ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "draft-self"]


@pytest.mark.parametrize("kind", ALL)
def test_no_room_no_draft_and_the_limit_holds(kind: type[NgramDrafter]) -> None:
    drafter = kind(2, 4, 1)
    history = start(drafter, [*SAMPLE, 1, 2])
    assert drafter.propose(history, 0) is NO_DRAFT
    assert drafter.propose(history, -1) is NO_DRAFT
    draft = drafter.propose(history, 3)
    assert (draft.tokens, draft.method, draft.match, draft.q) == ((3, 4, 5), kind.method, 2, None)
    assert drafter.propose(history, 100).tokens == (3, 4, 5, 6)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 2, 3, 4, 5]])
def test_nothing_repeated_nothing_drafted(kind: type[NgramDrafter], text: list[int]) -> None:
    drafter = kind(2, 4, 1)
    assert drafter.propose(start(drafter, text), 8) is NO_DRAFT


@pytest.mark.parametrize("kind", ALL)
def test_min_hits_counts_earlier_occurrences(kind: type[NgramDrafter]) -> None:
    drafter = kind(2, 2, 2)
    history = start(drafter, [1, 2, 3, 4, 8, 1, 2])
    assert drafter.propose(history, 4) is NO_DRAFT
    say(drafter, history, [3, 4, 9, 1, 2])
    assert drafter.propose(history, 4).tokens == (3, 4)


@pytest.mark.parametrize("kind", ALL)
def test_commit_indexes_what_was_said(kind: type[NgramDrafter]) -> None:
    drafter = kind(2, 3, 1)
    history = start(drafter, [])
    say(drafter, history, [1, 2, 3, 4, 5, 6, 7])
    history += [1, 2]  # several tokens in one cycle
    drafter.commit(history, cycle(NO_DRAFT, 0, [1, 2]))
    assert drafter.propose(history, 8).tokens == (3, 4, 5)


@pytest.mark.parametrize("kind", [NgramSimple, NgramMapK, NgramMapK4V])
def test_begin_forgets_what_was_cut(kind: type[NgramDrafter]) -> None:
    drafter = kind(2, 3, 1)
    start(drafter, [*SAMPLE, 9, 9, 1, 2, 30, 31, 32, 33])
    history = start(drafter, [*SAMPLE, 40, 1, 2])
    assert drafter.propose(history, 8).tokens == (3, 4, 5)
    history = start(drafter, [40, 41, 1, 2])
    assert drafter.propose(history, 8) is NO_DRAFT


@pytest.mark.parametrize("kind", ALL)
def test_close_forgets(kind: type[NgramDrafter]) -> None:
    drafter = kind(2, 3, 1)
    start(drafter, SAMPLE)
    start(drafter, [7])
    drafter.close()
    assert drafter.propose(start(drafter, [1, 2]), 8) is NO_DRAFT


# The index


@given(st.lists(st.lists(st.integers(0, 3), max_size=20), max_size=6), st.integers(1, 3))
def test_an_index_synced_equals_one_built_anew(texts: list[list[int]], size_n: int) -> None:
    index = NgramIndex(size_n)
    previous: list[int] = []
    for text in texts:
        lost = index.sync(text)
        anew = NgramIndex(size_n)
        anew.extend(text)
        assert (index.text, index.newest, index.earlier, index.count) == (
            anew.text,
            anew.newest,
            anew.earlier,
            anew.count,
        )
        kept = len(previous) - len(lost)
        assert previous[:kept] == text[:kept]
        assert previous[kept:] == lost
        assert not lost or kept == len(text) or text[kept] != lost[0]
        previous = text


# ngram-simple


def test_simple_takes_the_newest_occurrence_that_enough_tokens_follow() -> None:
    drafter = NgramSimple(2, 4)
    history = start(drafter, [1, 2, 3, 4, 1, 2, 5, 6, 1, 2])
    assert drafter.propose(history, 8).tokens == (5, 6, 1, 2)
    history = start(drafter, [1, 2, 3, 4, 7, 2, 2, 2])
    assert drafter.propose(history, 8) is NO_DRAFT  # one token follows the only occurrence


def test_simple_drafts_with_fewer_than_n_to_copy_where_m_is_small() -> None:
    drafter = NgramSimple(4, 2)
    assert drafter.propose(start(drafter, [*SAMPLE, 1, 2, 3, 4]), 8).tokens == (5, 6)


def test_simple_reports_the_true_match_length() -> None:
    drafter = NgramSimple(2, 4)
    assert drafter.propose(start(drafter, [*SAMPLE, 0, 2, 3, 4, 5]), 4).match == 4
    text = list(range(100))
    assert drafter.propose(start(drafter, [*text, *text[:90]]), 4).match == MATCH_CAP


def slow_simple(text: list[int], n: int, m: int, hits: int, limit: int) -> tuple[list[int], int]:
    """Scan backwards, as llama.cpp does."""
    places = [e for e in range(n, len(text)) if text[e - n : e] == text[len(text) - n :]]
    usable = [e for e in places if len(text) - e >= n]
    if len(places) < hits or not usable:
        return [], 0
    return text[usable[-1] :][: min(m, limit)], slow_suffix(text[: usable[-1]], text)


def slow_suffix(left: list[int], right: list[int]) -> int:
    length = 0
    while length < min(len(left), len(right)) and left[-1 - length] == right[-1 - length]:
        length += 1
    return length


@settings(max_examples=300)
@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.lists(st.integers(0, 2), max_size=20),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 8),
)
def test_simple_equals_a_backward_scan(
    prompt: list[int], said: list[int], n: int, m: int, hits: int, limit: int
) -> None:
    drafter = NgramSimple(n, m, hits)
    history = start(drafter, prompt)
    for token in [*said, 0]:
        draft = drafter.propose(history, limit)
        assert (list(draft.tokens), draft.match) == slow_simple(history, n, m, hits, limit)
        say(drafter, history, [token])


# ngram-map-k


def test_map_k_learns_a_length_per_key_down_and_up() -> None:
    drafter = NgramMapK(2, 8)
    history = start(drafter, list(range(1, 20)))
    lengths = []
    for accepted in (3, 0, 1, 2, 4, 8, 5):
        say(drafter, history, [1, 2])
        draft = drafter.propose(history, 8)
        lengths.append(len(draft))
        emitted = [*draft.tokens[:accepted], *range(3 + accepted, 20)]
        history += emitted
        drafter.commit(history, cycle(draft, accepted, emitted))
    assert lengths == [8, 4, 1, 2, 4, 8, 8]
    say(drafter, history, [1, 2])
    assert len(drafter.propose(history, 8)) == 6
    say(drafter, history, [99, 7, 8])
    assert len(drafter.propose(history, 8)) == 8  # another key, another length


def test_map_k_learns_nothing_from_others_nor_from_an_end_token() -> None:
    drafter = NgramMapK(2, 6)
    history = start(drafter, [*range(1, 20), 1, 2])
    draft = drafter.propose(history, 6)
    foreign = Draft(draft.tokens, "draft-model")
    say_cycle = cycle(foreign, 0, [*range(90, 95), 1, 2])
    history += say_cycle.tokens
    drafter.commit(history, say_cycle)
    assert len(drafter.propose(history, 6)) == 6
    draft = drafter.propose(history, 6)
    ended = cycle(draft, 2, [*draft.tokens[:2]], tested=2)  # cut by an end token, none rejected
    history += [*ended.tokens, *range(70, 80), 1, 2]
    drafter.commit(history, ended)
    assert len(drafter.propose(history, 6)) == 6


def test_map_k_does_not_lengthen_what_an_end_token_cut() -> None:
    drafter = NgramMapK(2, 6)
    history = start(drafter, [*range(1, 20), 1, 2])
    lengths = []
    for accepted, tested in ((2, 3), (2, 2), (0, 0)):
        draft = drafter.propose(history, 6)
        lengths.append(len(draft))
        history += [*range(70, 75), 1, 2]
        drafter.commit(history, cycle(draft, accepted, [], tested=tested))
    assert lengths == [6, 3, 3]


def test_map_k_keeps_a_length_over_a_cut_only_for_keys_that_remain() -> None:
    drafter = NgramMapK(2, 6)
    prompt = [*range(1, 12), 1, 2]
    history = start(drafter, prompt)
    draft = drafter.propose(history, 6)
    history.append(50)
    drafter.commit(history, cycle(draft, 0, [50]))
    history = start(drafter, prompt)
    assert len(drafter.propose(history, 6)) == 1
    start(drafter, [60])
    history = start(drafter, prompt)
    assert len(drafter.propose(history, 6)) == 6


# ngram-map-k4v


def test_k4v_refuses_where_continuations_disagree_and_emits_the_winner() -> None:
    drafter = NgramMapK4V(2, 2)
    history = start(drafter, [1, 2, 3, 4, 1, 2, 5, 6, 1, 2])
    assert drafter.propose(history, 4) is NO_DRAFT  # 1 against 1
    say(drafter, history, [3, 4, 1, 2])
    draft = drafter.propose(history, 4)  # 2 against 1, and the newest place of all is not the winner's
    assert draft.tokens == (3, 4)
    say(drafter, history, [5, 6, 1, 2])
    assert drafter.propose(history, 4) is NO_DRAFT  # 2 against 2
    say(drafter, history, [5, 6, 1, 2, 5, 6, 1, 2])
    assert drafter.propose(history, 4).tokens == (5, 6)  # 4 against 2


def test_k4v_counts_four_continuations_at_most() -> None:
    drafter = NgramMapK4V(1, 1)
    text = [0, 1] * 6 + [0, 2, 0, 3, 0, 4] + [0, 5, 0, 6] + [0]
    assert drafter.propose(start(drafter, text), 1).tokens == (1,)  # 6 against 3: 5 and 6 found no slot
    text = [0, 1] * 5 + [0, 2, 0, 3, 0, 4] + [0]
    assert drafter.propose(start(drafter, text), 1) is NO_DRAFT  # 5 against 3


def test_k4v_needs_whole_continuations() -> None:
    drafter = NgramMapK4V(2, 4)
    assert drafter.propose(start(drafter, [1, 2, 3, 1, 2]), 4) is NO_DRAFT
    assert drafter.propose(start(drafter, [1, 2, 3, 7, 1, 2]), 4).tokens == (3, 7, 1, 2)


def test_k4v_recounts_after_a_cut() -> None:
    drafter = NgramMapK4V(2, 2)
    prompt = [1, 2, 3, 4, 1, 2]
    history = start(drafter, prompt)
    say(drafter, history, [5, 6, 1, 2])
    assert drafter.propose(history, 4) is NO_DRAFT
    assert drafter.propose(start(drafter, prompt), 4).tokens == (3, 4)


def test_k4v_shortens_too() -> None:
    drafter = NgramMapK4V(2, 4)
    history = start(drafter, [*SAMPLE, 1, 2])
    draft = drafter.propose(history, 4)
    history += [3, 9, 9, 9, 9]
    drafter.commit(history, cycle(draft, 1, [3, 9, 9, 9, 9]))
    history += [*SAMPLE[2:], 9, *SAMPLE, 9, *SAMPLE, 9, 1, 2]
    drafter.commit(history, cycle(NO_DRAFT, 0, []))
    assert drafter.propose(history, 4).tokens == (3, 4)


# draft-self


def test_self_prefers_the_longest_then_the_newest() -> None:
    drafter = HistoryDrafter(2, 3)
    history = start(drafter, [7, 1, 2, 50, 51, 52, 8, 1, 2, 60, 61, 62, 7, 1, 2])
    draft = drafter.propose(history, 8)
    assert (draft.tokens, draft.match) == ((50, 51, 52), 3)
    history = start(drafter, [7, 1, 2, 50, 51, 52, 8, 1, 2, 60, 61, 62, 9, 1, 2])
    draft = drafter.propose(history, 8)
    assert (draft.tokens, draft.match) == ((60, 61, 62), 2)


def test_self_needs_size_n() -> None:
    drafter = HistoryDrafter(3, 4)
    assert drafter.propose(start(drafter, [1, 2, 3, 9, 2, 3]), 4) is NO_DRAFT
    assert drafter.propose(start(drafter, [1, 2, 3, 9, 1, 2, 3]), 4).tokens == (9, 1, 2, 3)


def test_self_reads_on_in_its_own_draft() -> None:
    drafter = HistoryDrafter(2, 7)
    assert drafter.propose(start(drafter, [1, 2, 3, 1, 2, 3]), 8).tokens == (1, 2, 3, 1, 2, 3, 1)
    assert drafter.propose(start(drafter, [9, 4, 4, 4]), 5).tokens == (4, 4, 4, 4, 4)


def test_self_remembers_an_answer_taken_back() -> None:
    drafter = HistoryDrafter(2, 8, edits=False)
    prompt = [10, 11, 12]
    history = start(drafter, prompt)
    say(drafter, history, [20, 21, 22, 23])
    history = start(drafter, prompt)
    draft = drafter.propose(history, 8)
    assert (draft.tokens, draft.match) == ((20, 21, 22, 23), 3)
    say(drafter, history, [20, 99, 22])
    assert drafter.propose(history, 8) is NO_DRAFT
    say(drafter, history, [21, 22])
    assert drafter.propose(history, 8).tokens == (23,)


def test_self_does_not_draft_or_match_across_discarded_texts() -> None:
    drafter = HistoryDrafter(2, 8)
    start(drafter, [1, 2, 3])
    start(drafter, [4, 5, 6])
    history = start(drafter, [1, 2])
    draft = drafter.propose(history, 8)
    assert draft.tokens == (3,)  # not on into 4 5 6
    assert drafter.propose(start(drafter, [3, 4]), 8) is NO_DRAFT  # adjacent only in the archive
    assert drafter.propose(start(drafter, [5, 6]), 8) is NO_DRAFT  # nothing followed
    draft = drafter.propose(start(drafter, [0, 3, 4, 5]), 8)
    assert (draft.tokens, draft.match) == ((6,), 2)  # the match stops where the text began


def test_self_lets_a_running_match_end_with_its_text() -> None:
    drafter = HistoryDrafter(2, 2)
    start(drafter, [9, 1, 2, 3])
    start(drafter, [7, 7, 7])
    history = start(drafter, [2, 3, 5, 6, 9, 1, 2])
    assert drafter.propose(history, 2).tokens == (3,)
    say(drafter, history, [3])
    draft = drafter.propose(history, 2)
    assert (draft.tokens, draft.match) == ((5, 6), 2)


def test_self_counts_discarded_occurrences_as_hits() -> None:
    drafter = HistoryDrafter(2, 4, 2)
    start(drafter, [1, 2, 3, 4])
    history = start(drafter, [7, 1, 2, 5, 6, 1, 2])
    assert drafter.propose(history, 2).tokens == (5, 6)
    assert HistoryDrafter(2, 4, 2).propose(history, 2) is NO_DRAFT


def test_self_keeps_a_running_match_that_a_bounded_search_would_miss() -> None:
    drafter = HistoryDrafter(1, 4)
    noise = [token for i in range(100) for token in (3, 1000 + i)]
    history = start(drafter, [1, 2, 3, 4, 5, *noise, 1, 2])
    assert drafter.propose(history, 1).tokens == (3,)
    say(drafter, history, [3])  # a hundred newer places of [3], all worse
    draft = drafter.propose(history, 2)
    assert (draft.tokens, draft.match) == ((4, 5), 3)
    say(drafter, history, [9, 3])  # it did not go on as it ran
    assert drafter.propose(history, 1).tokens == (9,)


def test_self_forgets_the_oldest_discarded_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "ARCHIVE_CAP", 24)
    drafter = HistoryDrafter(2, 4)
    for base in (100, 200, 300, 400, 500):
        start(drafter, range(base, base + 5))
    history = start(drafter, [100, 101])  # 25 tokens are too many, the last two texts remain
    assert drafter.propose(history, 4) is NO_DRAFT
    assert drafter.propose(start(drafter, [300, 301]), 4) is NO_DRAFT
    assert drafter.propose(start(drafter, [400, 401]), 4).tokens == (402, 403, 404)
    assert drafter.propose(start(drafter, [500, 501]), 4).tokens == (502, 503, 504)
    start(drafter, range(30))  # more than all there is room for: the newest stays even so
    assert drafter.propose(start(drafter, [40, 5, 6]), 2).tokens == (7, 8)


@pytest.mark.parametrize(
    ("said", "match", "draft"),
    [
        ([90], 0, (15, 16, 17)),  # 14 became 90: straight after it, the place behind 14
        ([90, 15], 1, (16, 17, 18)),  # and then the nearest place behind a 15
        ([90, 91, 92, 15], 1, (16, 17, 18)),  # one token became three
        ([16], 1, (17, 18, 19)),  # 14 and 15 were left out
        ([90, 91], 0, ()),  # nothing says where to go on
        ([90] * edits_module.REACH + [15], 0, ()),  # too much is new
    ],
)
def test_self_resumes_a_copy_behind_an_edit(said: list[int], match: int, draft: tuple[int, ...]) -> None:
    drafter = HistoryDrafter(2, 8)
    history = start(drafter, [*range(40), 50])
    for token in [9, 10, 11, 12, 13]:
        say(drafter, history, [token])
        drafter.propose(history, 3)
    for token in said:
        say(drafter, history, [token])
    found = drafter.propose(history, 3)
    assert (found.tokens, found.match) == (draft, match)


def test_self_resumes_nothing_that_was_no_copy() -> None:
    drafter = HistoryDrafter(2, 8)
    history = start(drafter, [*range(40), 50])
    for token in [12, 13]:  # a match of two tokens is not copying yet
        say(drafter, history, [token])
        drafter.propose(history, 3)
    say(drafter, history, [90])
    assert drafter.propose(history, 3) is NO_DRAFT


def follow(drafter: Drafter, history: list[int], said: Sequence[int]) -> int:
    """Cycles until `said` is said, each as long as the draft goes with it and one token more."""
    cycles, at = 0, 0
    while at < len(said):
        draft = drafter.propose(history, 63).tokens
        n = 0
        while n < min(len(draft), len(said) - at - 1) and draft[n] == said[at + n]:
            n += 1
        say(drafter, history, said[at : at + n + 1])
        at, cycles = at + n + 1, cycles + 1
    return cycles


NAME, OTHER = 70, 90


@pytest.mark.parametrize(
    ("before", "after"), [([70], [90]), ([70], [90, 91, 92]), ([70, 71, 72], [90])], ids=["1:1", "1:3", "3:1"]
)
def test_self_makes_an_edit_again(before: list[int], after: list[int]) -> None:
    """A name is changed throughout: once seen, the change is drafted with the rest."""
    parts = [list(range(10 * i, 10 * i + 9)) for i in range(6)]
    source = [t for part in parts for t in [*part, *before]]
    edited = [t for part in parts for t in [*part, *after]]
    drafter, plain = HistoryDrafter(2, 64), HistoryDrafter(2, 64, edits=False)
    ours = follow(drafter, start(drafter, [*source, 99]), edited)
    assert 2 * ours <= follow(plain, start(plain, [*source, 99]), edited)


def test_self_gives_up_an_edit_that_was_not_made_again() -> None:
    parts = [list(range(10 * i, 10 * i + 9)) for i in range(6)]
    source = [t for part in parts for t in [*part, NAME]]
    edited = [*parts[0], OTHER, *(t for part in parts[1:] for t in [*part, NAME])]
    drafter = HistoryDrafter(2, 64)
    assert follow(drafter, start(drafter, [*source, 99]), edited) <= 7


def test_self_forgets_edits_with_the_answer() -> None:
    drafter = HistoryDrafter(2, 64)
    source = [*range(10), NAME, *range(20, 30), NAME, *range(40, 50)]
    history = start(drafter, [*source, 99])
    follow(drafter, history, [*range(10), OTHER, *range(20, 30), OTHER, *range(40, 50)])
    start(drafter, [*history, 98, *source, 97])
    say(drafter, history := [*history, 98, *source, 97], [0, 1, 2])
    assert NAME in drafter.propose(history, 12).tokens


class SlowSelf:
    """draft-self by trying every place of every text there was."""

    def __init__(self, n: int, m: int, hits: int) -> None:
        self.n, self.m, self.hits = n, m, hits
        self.live: list[int] = []
        self.gone: list[tuple[list[int], int]] = []

    def begin(self, history: list[int]) -> None:
        kept = 0
        while kept < min(len(self.live), len(history)) and self.live[kept] == history[kept]:
            kept += 1
        if kept < len(self.live):
            context = min(kept, MATCH_CAP)
            self.gone.append((self.live[kept - context :], context))
        self.live = list(history)

    def propose(self, history: list[int], limit: int) -> tuple[list[int], int]:
        self.live = list(history)
        places = [(self.live, e, len(self.live)) for e in range(len(self.live) - 1, self.n - 1, -1)]
        for text, context in reversed(self.gone):
            places += [(text, e, 0) for e in range(len(text) - 1, max(context, self.n) - 1, -1)]
        found = [(min(MATCH_CAP, slow_suffix(text[:e], self.live)), text, e, end) for text, e, end in places]
        found = [one for one in found if one[0] >= self.n]
        if len(found) < self.hits or not found:
            return [], 0
        length, text, place, live = max(found, key=lambda one: one[0])  # the first of equals
        out = text[place:]
        while live and len(out) < self.m:
            out = out + text[place:]
        return out[: min(self.m, limit)], length


texts = st.lists(st.integers(0, 2), max_size=30)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), texts, texts), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 10),
)
def test_self_equals_trying_every_place(
    turns: list[tuple[int, list[int], list[int]]], n: int, m: int, hits: int, limit: int
) -> None:
    drafter, slow = HistoryDrafter(n, m, hits, edits=False), SlowSelf(n, m, hits)
    history: list[int] = []
    for kept, prompt, said in turns:
        history = start(drafter, [*history[:kept], *prompt])
        slow.begin(history)
        for token in [*said, 0]:
            draft = drafter.propose(history, limit)
            assert (list(draft.tokens), draft.match) == slow.propose(history, limit)
            say(drafter, history, [token])
        slow.live = list(history)
