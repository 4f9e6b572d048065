"""What figures become of cycles."""

from __future__ import annotations

import pytest

from specli.core.stats import Stats
from specli.core.types import NO_DRAFT, Cycle, Draft, Verdict


def cycle(
    drafted: int,
    accepted: int,
    method: str = "a",
    tested: int | None = None,
    emitted: int | None = None,
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0),
    width: int | None = None,
    finish: str | None = None,
) -> Cycle:
    draft = Draft((1,) * drafted, method) if drafted else NO_DRAFT
    tested = min(drafted, accepted + 1) if tested is None else tested
    emitted = accepted + 1 if emitted is None else emitted
    verdict = Verdict((1,) * emitted, accepted, tested)
    return Cycle(draft, verdict, width or drafted + 1, 0, *seconds, finish)


def fold(*cycles: Cycle, plain_width: int = 1) -> Stats:
    stats = Stats()
    for each in cycles:
        stats.fold(each, plain_width)
    return stats


def test_nothing_measured_is_none_not_zero() -> None:
    stats = Stats()
    rates = (
        stats.acceptance_rate,
        stats.mean_accepted_length,
        stats.tokens_per_second,
        stats.plain_token_s,
        stats.speedup(),
        stats.speedup(0.1),
        stats.finish,
    )
    assert rates == (None,) * 7
    assert stats.per_position == []
    plain = fold(cycle(0, 0), cycle(0, 0))
    assert plain.acceptance_rate is None  # no draft: neither good nor bad
    assert plain.mean_accepted_length == 1.0
    assert plain.by_method == {}


def test_counts() -> None:
    stats = fold(
        cycle(4, 2),
        cycle(0, 0),
        cycle(4, 4),
        cycle(2, 0, "b"),
        cycle(3, 2, tested=2, emitted=2, finish="stop"),
    )
    assert (stats.generated, stats.cycles) == (3 + 1 + 5 + 1 + 2, 5)
    assert (stats.drafted, stats.tested, stats.accepted) == (13, 3 + 4 + 1 + 2, 8)
    assert stats.acceptance_rate == 0.8
    assert stats.mean_accepted_length == 12 / 5
    assert stats.finish == "stop"
    a, b = stats.by_method["a"], stats.by_method["b"]
    assert (a.drafted, a.tested, a.accepted) == (11, 9, 8)
    assert (b.drafted, b.tested, b.accepted) == (2, 1, 0)
    assert stats.widths == {5: 2, 1: 1, 3: 1, 4: 1}


def test_per_position() -> None:
    """Of position i, the share accepted of those tested there: what lies behind a rejection is not."""
    stats = fold(cycle(3, 3), cycle(3, 1), cycle(1, 0), cycle(4, 2))
    assert stats.per_position == [3 / 4, 2 / 3, 1 / 2]
    assert fold(cycle(2, 0)).per_position == [0.0]


def test_the_first_cycle_is_outside_the_rate() -> None:
    """It waits for the prompt's last decode, and warms up."""
    slow, quick = (0.0, 5.0, 6.0), (0.1, 0.3, 0.5)
    assert fold(cycle(0, 0, seconds=slow)).tokens_per_second is None
    stats = fold(cycle(0, 0, seconds=slow), cycle(2, 2, seconds=quick), cycle(2, 0, seconds=quick))
    assert stats.tokens_per_second == pytest.approx(4 / 1.0)
    assert (stats.draft_s, stats.verify_s, stats.total_s) == pytest.approx((0.2, 5.6, 7.0))


def test_plain_token_is_the_median_of_what_had_no_draft() -> None:
    times = [9.0, 0.2, 0.3, 0.7]
    stats = fold(*(cycle(0, 0, seconds=(0, t, t)) for t in times), cycle(1, 1, seconds=(0, 5, 5)))
    assert stats.plain_token_s == 0.3
    assert fold(cycle(0, 0), cycle(2, 0), cycle(3, 1)).plain_token_s is None
    padded = fold(*(cycle(0, 0, seconds=(0, t, t), width=4) for t in times), plain_width=4)
    assert padded.plain_token_s == 0.3


def test_speedup() -> None:
    first = cycle(0, 0, seconds=(0.0, 1.0, 1.0))
    plain = fold(first, *[cycle(0, 0, seconds=(0.0, 0.5, 0.5))] * 4)
    assert plain.speedup() == pytest.approx(1.0)
    drafted = fold(first, *[cycle(3, 3, seconds=(0.2, 0.8, 1.0))] * 4)
    assert drafted.speedup() is None  # nothing to compare with
    assert drafted.speedup(0.5) == pytest.approx(2.0)  # 4 tokens a second where plain makes 2
    both = fold(first, cycle(0, 0, seconds=(0.0, 0.5, 0.5)), cycle(3, 3, seconds=(0.2, 0.8, 1.0)))
    assert both.speedup(99.0) == pytest.approx(5 / 1.5 * 0.5)  # its own measure goes first


def test_speedup_goes_by_the_plain_decodes_around_each_draft() -> None:
    """A machine that gets slower by half in the midst of an answer: drafts gain the same in both halves."""

    def half(scale: float, *drafts: int) -> list[Cycle]:
        cycles = []
        for n in drafts:
            cycles += [cycle(0, 0, seconds=(0.0, scale, scale))] * 12
            cycles += [cycle(3, 3, seconds=(0.0, 2 * scale, 2 * scale))] * n
        return cycles

    first = cycle(0, 0, seconds=(0.0, 1.0, 1.0))
    late = fold(first, *half(1.0, 0, 0, 0), *half(2.0, 3, 3))
    gain = late.speedup()
    plain_s, drafted_s = 3 * 12 + 2 * 24, 6 * 4.0
    assert gain == pytest.approx((plain_s + 6 * 4 * 2.0) / (plain_s + drafted_s))
    assert late.plain_token_s == pytest.approx(2.0) and late.plain_decodes == 60
    assert late.break_even_length() == pytest.approx(2.0)
    early = fold(first, cycle(3, 3, seconds=(0.0, 2.0, 2.0)), *half(1.0, 1, 0))
    assert early.plain_token_s == pytest.approx(1.0)


# figures users can act on


def test_what_drafts_must_bring() -> None:
    """By hand: plain decodes of 1 s; drafting cycles of 2.0 s (0.5 draft, 1.5 verify) with drafts of 3."""
    stats = Stats()
    assert stats.break_even() is None and stats.verify_share is None
    plain = Cycle(NO_DRAFT, Verdict((1,), 0, 0), 1, 0, 0.0, 1.0, 1.0)
    drafting = Cycle(Draft((1, 2, 3), "m"), Verdict((1, 2), 1, 2), 4, 0, 0.5, 1.5, 2.0)
    for each in (plain, plain, drafting, drafting):
        stats.fold(each)
    assert stats.break_even_length() == pytest.approx(2.0)
    rate = stats.break_even()
    assert rate is not None and 1 + rate + rate**2 + rate**3 == pytest.approx(2.0, rel=1e-6)
    assert (stats.draft_share, stats.verify_share) == (pytest.approx(1 / 6), pytest.approx(5 / 6))
    assert stats.wasted == 4 and dict(stats.widths) == {1: 2, 4: 2}
    assert stats.tested_at(1) == 2 and stats.accepted_at(1) == 0 and stats.tested_at(9) == 0


def test_break_even_out_of_reach_is_above_one() -> None:
    stats = Stats()
    for each in (
        Cycle(NO_DRAFT, Verdict((1,), 0, 0), 1, 0, 0.0, 1.0, 1.0),
        Cycle(NO_DRAFT, Verdict((1,), 0, 0), 1, 0, 0.0, 1.0, 1.0),
        Cycle(Draft((1,), "m"), Verdict((1, 2), 1, 1), 2, 0, 1.0, 3.0, 4.0),
    ):
        stats.fold(each)
    assert stats.break_even_length() == pytest.approx(4.0) and stats.break_even() == pytest.approx(2.0)
