"""Where an answer ends: an end token inside a draft, the token limit, the context."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scripted import GREEDY, ScriptedDrafter, greedy, run, said

from specli.core.decoding import Rules
from specli.core.noise import Noise
from specli.core.table_model import TableModel
from specli.core.types import Distribution, Draft
from specli.core.verification import verify

VOCAB = 12
PROMPT = [3, 1, 4, 1, 5]


def model(n_ctx: int = 4096) -> TableModel:
    return TableModel.random(VOCAB, 3, seed=7, n_ctx=n_ctx)


def oracle(length: int) -> ScriptedDrafter:
    """Always right, and drafts on past any end."""
    knows = model()
    return ScriptedDrafter(lambda history: greedy(knows, history, length))


def first_seen_at(index: int) -> int:
    """A token that the target says at `index` and not before."""
    text = greedy(model(), PROMPT, 40)
    for at in range(index, len(text)):
        if text[at] not in text[:at]:
            return text[at]
    pytest.fail("the table says too little")


@pytest.mark.parametrize("exact_width", [None, 8])
@pytest.mark.parametrize("length", range(8))
@pytest.mark.parametrize("index", [0, 1, 3, 4])
def test_nothing_follows_an_end(index: int, length: int, exact_width: int | None) -> None:
    """Wherever it stands in the draft, as its bonus, or as a plain token."""
    end = first_seen_at(index)
    rules = Rules(GREEDY, max_tokens=30, ends={end}, exact_width=exact_width)
    cycles = run(model(), PROMPT, [oracle(length)], rules)
    assert said(cycles) == greedy(model(), PROMPT, 30, [end])
    assert cycles[-1].finish == "stop"


def test_a_rejected_end_ends_nothing() -> None:
    text = greedy(model(), PROMPT, 10)
    end = min(set(range(VOCAB)) - set(text))
    cycles = run(
        model(), PROMPT, [ScriptedDrafter(lambda h: [end])], Rules(GREEDY, max_tokens=10, ends={end})
    )
    assert said(cycles) == text
    assert cycles[-1].finish == "length"


def test_an_accepted_end_is_counted_and_no_row_after_it_is_looked_at() -> None:
    asked: list[int] = []

    def target(i: int) -> Distribution:
        asked.append(i)
        return Distribution.one_hot([5, 9, 5][i])

    verdict = verify(Draft((5, 9, 5)), target, Noise(0), 0, {9})
    assert (verdict.tokens, verdict.accepted, verdict.tested) == ((5, 9), 2, 2)
    assert asked == [0, 1]


def test_no_row_after_the_first_rejection_is_looked_at() -> None:
    asked: list[int] = []

    def target(i: int) -> Distribution:
        asked.append(i)
        return Distribution.one_hot(1)

    verdict = verify(Draft((1, 2, 1, 1)), target, Noise(0), 0)
    assert (verdict.tokens, verdict.accepted, verdict.tested) == ((1, 1), 1, 2)
    assert asked == [0, 1]


@pytest.mark.parametrize("exact_width", [None, 8])
@pytest.mark.parametrize("length", range(8))
@pytest.mark.parametrize("max_tokens", range(10))
def test_never_more_than_the_limit(max_tokens: int, length: int, exact_width: int | None) -> None:
    """With full acceptance too, when draft and bonus would just run over."""
    drafter = oracle(length)
    cycles = run(model(), PROMPT, [drafter], Rules(GREEDY, max_tokens=max_tokens, exact_width=exact_width))
    assert said(cycles) == greedy(model(), PROMPT, max_tokens)
    assert [c.finish for c in cycles[-1:]] == ["length"] * bool(max_tokens)
    assert all(len(c.draft) < max_tokens for c in cycles)  # a token beyond the limit is not verified


def test_an_end_at_the_limit_is_an_end() -> None:
    end = first_seen_at(3)
    n = len(greedy(model(), PROMPT, 30, [end]))
    cycles = run(model(), PROMPT, [oracle(2)], Rules(GREEDY, max_tokens=n, ends={end}))
    assert cycles[-1].finish == "stop"


@pytest.mark.parametrize("length", [0, 1, 4, 20])
@pytest.mark.parametrize("n_ctx", range(5, 16))
def test_a_full_context_is_a_clean_finish(n_ctx: int, length: int) -> None:
    """Case 15. The last cell is used, and the token after it said: it needs no cell."""
    target = model(n_ctx)
    cycles = run(target, PROMPT, [oracle(length)], Rules(GREEDY))
    assert said(cycles) == greedy(model(), PROMPT, n_ctx - len(PROMPT) + 1)
    assert cycles[-1].finish == "context"
    assert len(target.tokens) == n_ctx


@pytest.mark.parametrize("n_ctx", range(5, 16))
def test_a_full_context_at_a_fixed_width(n_ctx: int) -> None:
    """It ends where the padding has no room any more, at the same token whatever is drafted."""
    rules = Rules(GREEDY, exact_width=4)
    for length in range(4):
        cycles = run(model(n_ctx), PROMPT, [oracle(length)], rules)
        assert said(cycles) == greedy(model(), PROMPT, max(0, n_ctx - len(PROMPT) - 2))
        assert [c.finish for c in cycles[-1:]] == ["context"] * (n_ctx >= 8)


def test_no_room_at_all() -> None:
    assert (
        run(model(4), PROMPT, [], Rules(GREEDY))
        == run(model(6), PROMPT, [], Rules(GREEDY, exact_width=4))
        == []
    )


def limits_of(target: TableModel, rules: Rules) -> Sequence[int]:
    drafter = ScriptedDrafter(lambda history: [])
    run(target, PROMPT, [drafter], rules)
    return drafter.limits


def test_the_drafter_is_told_its_limit() -> None:
    """The smallest of rows, room and tokens left, less the pending token; not asked at zero."""
    assert limits_of(model(), Rules(GREEDY, max_tokens=4)) == [3, 2, 1]
    assert limits_of(model(9), Rules(GREEDY)) == [4, 3, 2, 1]
    assert limits_of(model(), Rules(GREEDY, max_tokens=5, exact_width=3)) == [2, 2, 2, 1]
    assert limits_of(TableModel(model().table, 3, max_rows=2), Rules(GREEDY, max_tokens=4)) == [1, 1, 1]


def test_a_fixed_width_is_always_filled() -> None:
    widths: list[int] = []

    class Watched(TableModel):
        def decode(self, tokens, rows=1):  # type: ignore[no-untyped-def]
            if rows:
                widths.append(len(tokens))
                assert rows == len(tokens)
            return super().decode(tokens, rows)

    turns = iter([0, 3, 1, 2, 9, 0, 3, 3, 3, 3, 3, 3, 3, 3, 3])
    knows = model()
    drafter = ScriptedDrafter(lambda history: greedy(knows, history, next(turns)))
    run(Watched(model().table, 3), PROMPT, [drafter], Rules(GREEDY, max_tokens=20, exact_width=4))
    assert set(widths) == {4}
