"""What decodes cost by width: measured by a clock of the test's own, kept, and taken as the pacer's start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from specli import profiles
from specli.assembly import Generator, Request
from specli.core.costs import interpolated
from specli.core.pacing import CPU_SHAPE, Costs, ProfitPacer
from specli.core.table_model import TableModel
from specli.core.types import Logits
from specli.costs import (
    WIDTHS,
    WidthCosts,
    costs_key,
    learned,
    measure_widths,
    recall_costs,
    remember_costs,
    rising,
)


class Timed(TableModel):
    """Decodes of n rows take n ** 0.5 seconds of a clock that nothing else moves."""

    now = 0.0

    def decode(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        self.now += len(tokens) ** 0.5
        return super().decode(tokens, rows)

    def clock(self) -> float:
        return self.now


def timed(n_ctx: int = 4096, max_rows: int = 64) -> Timed:
    table = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    model = Timed(table, n_ctx=n_ctx, max_rows=max_rows)
    model.decode([1, 2, 3, 4, 5], rows=0)
    return model


def test_every_width_is_measured() -> None:
    model = timed()
    costs = measure_widths(model, clock=model.clock)
    assert tuple(costs.seconds) == WIDTHS
    assert all(costs.seconds[w] == pytest.approx(w**0.5) for w in WIDTHS)
    assert costs.spread == pytest.approx(1.0)
    assert costs.shape[64] == pytest.approx(8.0)
    assert costs.at(4) == pytest.approx(2.0)
    assert 4.9 < costs.at(28) < 32**0.5  # between 24 and 32
    assert costs.at(100) > 8.0


def test_what_does_not_fit_is_left_out() -> None:
    model = timed(max_rows=8)
    assert max(measure_widths(model, clock=model.clock).seconds) == 8
    model = timed(n_ctx=60)
    costs = measure_widths(model, clock=model.clock)
    assert {1, 2, 33} <= set(costs.seconds) and 64 not in costs.seconds
    assert len(model.tokens) <= 60


def test_no_wider_than_asked_for_and_of_the_text_itself() -> None:
    """One token over and over would be cheaper than text is, for experts and for caches."""
    model, decoded = timed(), []
    decode = model.decode

    def noted(tokens: Sequence[int], rows: int = 1) -> Logits:
        decoded.append(tokens)
        return decode(tokens, rows)

    model.decode = noted  # type: ignore[method-assign]
    costs = measure_widths(model, most=9, clock=model.clock)
    assert tuple(costs.seconds) == tuple(range(1, 10))
    assert all(len(set(tokens)) == min(len(tokens), 5) for tokens in decoded)


def test_a_full_cache_is_cut_to_make_room() -> None:
    model = timed(n_ctx=100)
    model.decode([1, 2, 3] * 31, rows=0)
    assert tuple(measure_widths(model, most=9, clock=model.clock).seconds) == tuple(range(1, 10))


def test_a_width_alone_stands_for_all() -> None:
    assert interpolated([(4, 2.0)], 9) == WidthCosts({4: 2.0}).at(9) == 2.0


def test_it_ends_early_with_the_widths_that_say_most() -> None:
    model = timed()
    costs = measure_widths(model, lambda: True, clock=model.clock)
    assert tuple(costs.seconds) == (1, 2, 4)
    asked = iter([False] * 6 + [True] * 100)
    costs = measure_widths(timed(), lambda: next(asked))
    assert tuple(sorted(costs.seconds)) == (1, 2, 4, 8, 16, 64)


def test_costs_never_fall_with_width() -> None:
    assert rising({1: 1.0, 2: 3.0, 3: 2.0, 4: 4.0}) == {1: 1.0, 2: 2.5, 3: 2.5, 4: 4.0}
    assert rising({4: 1.0, 2: 2.0, 1: 3.0}) == {1: 2.0, 2: 2.0, 4: 2.0}
    assert rising({1: 1.0, 2: 1.0}) == {1: 1.0, 2: 1.0}


def test_kept_under_its_key_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLI_CACHE_DIR", str(tmp_path))
    costs = WidthCosts({1: 0.1, 2: 0.15, 8: 0.4}, {"draft": 0.02}, 1.1)
    assert recall_costs("here") is None
    remember_costs("here", costs)
    assert recall_costs("here") == costs
    assert costs.step("draft") == pytest.approx(0.2) and costs.step("other") is None
    assert recall_costs("there") is None
    (file,) = tmp_path.iterdir()
    for damaged in ("", "[]", '{"key": "here"}', file.read_text().replace("0.15", "-1")):
        file.write_text(damaged)
        assert recall_costs("here") is None


def test_the_pacer_starts_from_what_is_kept(
    tiny_target: Path, tiny_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLI_CACHE_DIR", str(tmp_path))

    def load(threads: int = 1) -> Generator:
        flags = {
            "threads": threads,
            "no-repack": True,
            "ctx-size": 128,
            "spec-type": "draft-self,draft-model",
        }
        settings = profiles.resolve(profiles.load(), flags)
        return Generator(Request(settings, tiny_target, tiny_draft))

    def shape(generator: Generator) -> list[float]:
        assert isinstance(generator.pacer, ProfitPacer)
        table = generator.pacer.costs.table(8)
        return [table[w] / table[1] for w in (2, 8)]

    with load() as generator:
        assert generator.stored_costs is None
        assert shape(generator) == pytest.approx([CPU_SHAPE[2], CPU_SHAPE[8]])
        key = costs_key(generator.target, generator.on_gpu)
        assert generator.draft_model is not None
        draft = generator.draft_model.header.fingerprint
    remember_costs(key, WidthCosts({1: 0.1, 2: 0.11, 8: 0.2}, {draft: 0.03}))
    with load() as generator:
        assert shape(generator) == pytest.approx([1.1, 2.0])
        assert isinstance(generator.pacer, ProfitPacer)
        assert generator.pacer._step("draft-model") == pytest.approx(0.3)
    with load(threads=2) as generator:
        assert generator.stored_costs is None  # other threads, other costs


# -- what runs learn on the way -------------------------------------------------------------------


def test_a_run_adds_what_it_learned_to_what_runs_before_it_did() -> None:
    assert learned({1: 0.1, 2: 0.2}, {}, None) is None  # two widths are no shape
    assert learned({2: 0.2, 3: 0.3, 4: 0.4}, {}, None) is None  # nothing to compare with
    first = learned({1: 0.1, 2: 0.2, 5: 0.4}, {"draft": 0.03}, None)
    assert first == WidthCosts({1: 0.1, 2: 0.2, 5: 0.4}, {"draft": 0.03}, by_run=True)
    busier = learned({1: 0.2, 5: 1.0}, {}, first)
    assert busier is not None and busier.shape == pytest.approx({1: 1.0, 2: 2.0, 5: 5.0})
    assert busier.step("draft") == pytest.approx(0.3)
    measured = WidthCosts({1: 0.1, 2: 0.2, 5: 0.4})
    assert learned({1: 0.1, 2: 0.3, 3: 0.4}, {}, measured) is None  # tune's figures stand


def test_a_general_shape_is_bent_to_what_was_learned() -> None:
    steep = {1: 1.0, 2: 1.9, 4: 3.7}
    costs = Costs(CPU_SHAPE, learned=steep)
    assert costs.known and costs.reach == 8
    costs.learn(1, 0.5)
    table = costs.table(64)
    assert [table[w] / 0.5 for w in steep] == pytest.approx(list(steep.values()))
    assert table[8] / 0.5 > 1.5 * CPU_SHAPE[8] and table[64] > table[8]


def test_the_next_run_begins_with_what_this_one_learned(
    tiny_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLI_CACHE_DIR", str(tmp_path))

    def load(**given: object) -> Generator:
        flags = {"threads": 1, "no-repack": True, "ctx-size": 512, "spec-type": "ngram-simple"}
        return Generator(Request(profiles.resolve(profiles.load("auto"), {**flags, **given}), tiny_draft))

    def costs(generator: Generator) -> Costs:
        assert isinstance(generator.pacer, ProfitPacer)
        return generator.pacer.costs

    with load() as generator:
        assert not costs(generator).known
        for width in (1, 2, 5):
            for _ in range(3):
                costs(generator).learn(width, 0.01 * (0.9 * width + 0.1))
    with load() as generator:
        assert costs(generator).known
        assert costs(generator).table(5)[5] == pytest.approx(4.6)
    with load(seed=1) as generator:  # must repeat, whatever ran before
        assert costs(generator).table(5)[5] == pytest.approx(CPU_SHAPE[5])


@pytest.mark.parametrize("flags", [{"fixed": True}, {"exact": True}, {"seed": 1}])
def test_a_run_that_learns_no_costs_keeps_none(
    flags: dict[str, object], tiny_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLI_CACHE_DIR", str(tmp_path))
    settings = profiles.resolve(
        profiles.load("auto"), {"threads": 1, "no-repack": True, "ctx-size": 512, **flags}
    )
    with Generator(Request(settings, tiny_draft)) as generator:
        for _ in generator.answer(list(range(20, 60))):
            pass
    assert not list(tmp_path.glob("widths-*"))
