"""The view of an answer's cycles: every token of them, what was decided and why, in any width, with or without
colours."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from specli.chat.record import RECORDED, Offer, Record, Recorded
from specli.core.costs import CPU_SHAPE, Costs
from specli.core.pacing import FixedPacer, ProfitPacer
from specli.core.types import Cycle, Draft, Tree, Verdict
from specli.ui.trace import trace

WORDS = {1: "def", 2: " add", 3: "(a", 4: ", b", 5: "):\n", 6: "\treturn", 7: " a", 8: "\x1b[2J", 9: "中文"}


def words(tokens: object) -> str:
    return "".join(WORDS[token] for token in tokens)  # type: ignore[attr-defined]


def cycle(
    draft: list[int], said: list[int], accepted: int, tree: Tree | None = None, path: tuple[int, ...] = ()
) -> Cycle:
    tested = min(accepted + 1, len(draft))
    verdict = Verdict(tuple(said), accepted, tested, path)
    return Cycle(
        Draft(tuple(draft), "draft-self" if draft else "", tree=tree),
        verdict,
        len(draft) + 1,
        50,
        0.001,
        0.02,
        0.03,
    )


def told(*cycles: Recorded, width: int = 200, colour: bool = False) -> str:
    return "\n".join(trace(cycles, words, width, colour, lambda s: s))


def recorded(number: int, done: Cycle, *offers: Offer) -> Recorded:
    return Recorded(number, done, offers)


def test_a_draft_with_what_became_of_it() -> None:
    one = recorded(7, cycle([3, 4, 6, 7], [3, 4, 5], 2), Offer("draft-self", 9, 4))
    text = told(one)
    assert "7  draft-self drafted 4 of 9 it had: more would not pay · 2 accepted, width 5, 30.0 ms" in text
    assert text.endswith("    {+(a, b+}[-  return-](- a-)):⏎")
    slow = recorded(7, replace(cycle([3, 4, 6, 7], [3, 4, 5], 2), draft_s=0.0061))
    assert " ms, drafted in 6.1 ms\n" in told(slow)


def test_all_accepted_and_an_end_in_the_midst() -> None:
    assert told(recorded(1, cycle([3, 4], [3, 4, 5], 2))).endswith("{+(a, b+}):⏎")
    assert told(recorded(1, cycle([3, 4, 7], [3, 4], 2))).endswith("{+(a, b+}(- a-)")  # 4 ended the answer


def test_cycles_without_a_draft_stand_together_by_reason() -> None:
    nothing, poor = Offer("draft-self", 0, 0), Offer("draft-self", 3, 0)
    cycles = [recorded(n, cycle([], [n], 0), nothing if n < 4 else poor) for n in range(1, 6)]
    text = told(*cycles)
    assert "1-3  draft-self had nothing to propose · width 1, 30.0 ms each\n    def add(a\n" in text
    assert "4-5  draft-self had 3 to propose, but no draft would pay" in text
    assert "nobody was asked for a draft" in told(recorded(1, cycle([], [1], 0)))


@pytest.mark.parametrize(
    ("offers", "reason"),
    [
        ((Offer("draft-model", 0, 0),), "draft-model drafted nothing: it would not pay"),
        ((Offer("draft-self", 3, 0, measuring=True),), "first it is measured what plain decoding takes"),
        (
            (Offer("draft-self", 0, 0), Offer("draft-model", 0, 0)),
            "nothing to propose; draft-model drafted nothing",
        ),
    ],
)
def test_why_there_was_no_draft(offers: tuple[Offer, ...], reason: str) -> None:
    assert reason in told(recorded(1, cycle([], [1], 0), *offers))


def test_a_tree_shows_the_path_that_was_accepted() -> None:
    tree = Tree((-1, -1, 1), (0.5, 0.4, 0.3), ("draft-model",) * 3)
    text = told(recorded(1, cycle([7, 3, 4], [3, 4, 5], 2, tree, (1, 2))))
    assert "draft-self drafted 3 as a tree" in text or "draft-self drafted 3" in text
    assert text.endswith("{+(a, b+}(- a-)):⏎")


@pytest.mark.parametrize("colour", [True, False])
@pytest.mark.parametrize("width", [40, 80])
def test_it_fits_and_steers_nothing(width: int, colour: bool) -> None:
    cycles = [
        recorded(n, cycle([3, 8, 9] * 9, [3, 8, 9, 5], 3), Offer("draft-self", 40, 27)) for n in range(1, 4)
    ]
    text = told(*cycles, width=width, colour=colour)
    bare = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert "\x1b" not in bare and "␛[2J" in re.sub(r"\n *", "", bare)
    for row in bare.split("\n"):
        assert len(row) + row.count("中") + row.count("文") <= width
    assert ("\x1b[32m" in text) == colour and ("{+" in text) != colour


def test_the_record_is_bounded_and_light() -> None:
    record = Record(FixedPacer(), ["draft-self"])
    for _ in range(RECORDED + 10):
        record.pacer.choose(Draft((1, 2), "draft-self"), 5)
        record.add(cycle([1, 2], [1, 2, 3], 2))
    assert (record.total, len(record.cycles), record.cycles[0].number) == (RECORDED + 10, RECORDED, 11)
    assert record.cycles[-1].offers == (Offer("draft-self", 2, 2),)


def test_the_record_changes_nothing_about_pacing() -> None:
    pacer = ProfitPacer(Costs(CPU_SHAPE))
    record = Record(pacer, ["draft-self"])
    draft = Draft((1, 2, 3), "draft-self", match=20)
    assert record.pacer.choose(draft, 10).tokens == ()  # the first decode measures
    done = cycle([], [1], 0)
    record.add(done)
    assert record.cycles[0].offers == (Offer("draft-self", 3, 0, measuring=True),)
    alone = ProfitPacer(Costs(CPU_SHAPE))
    alone.choose(draft, 10)
    for each in (record.pacer, alone):
        for _ in range(3):
            each.observe([1] * 11, done)
    assert record.pacer.choose(draft, 10).tokens == alone.choose(draft, 10).tokens
    assert not record.pacer.goes_on("draft-model", (), 0)
