"""A drafting model beside the target, both tables: in step after every cycle, nothing decoded twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scripted import GREEDY, CorruptingDrafter, CountingModel, ScriptedDrafter, greedy, run, said

from specli.core.decoding import Rules, decode, sync
from specli.core.pacing import FixedPacer
from specli.core.sampling import SamplingParams, distribution
from specli.core.table_model import TableModel
from specli.core.types import Cycle
from specli.drafters.model import ModelDrafter
from specli.drafters.neural import Voice
from specli.errors import EngineError

VOCAB = 12
PROMPT = [3, 1, 4, 1, 5]
WARM = SamplingParams(temp=1.0, top_k=0, top_p=1.0, min_p=0.0)
TABLE = TableModel.random(VOCAB, 3, seed=7).table


def similar(scale: float, seed: int = 1) -> CountingModel:
    """A model that mostly agrees with the target; at 0 the target itself."""
    rng = np.random.default_rng(seed)
    return CountingModel(TABLE + rng.normal(0, scale, TABLE.shape).astype(np.float32), 3)


def target(n_ctx: int = 4096) -> TableModel:
    return TableModel(TABLE, 3, n_ctx)


class InStep(ModelDrafter):
    """Checks after every cycle that the cache holds committed tokens and nothing else."""

    def __init__(self, model: TableModel, n_max: int = 4, **more: object) -> None:
        super().__init__(model, FixedPacer(), model.n_vocab, n_max, **more)  # type: ignore[arg-type]
        self.cache = model

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        super().commit(history, cycle)
        assert list(self.cache.tokens) == list(history[: len(self.cache.tokens)])
        if cycle.draft.method == self.method:  # all but the last said and, all accepted, the last drafted
            assert len(self.cache.tokens) >= len(history) - 2


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("scale", [0.0, 0.7, 5.0])
@pytest.mark.parametrize("n_max", [1, 2, 5])
def test_nothing_is_decoded_twice(n_max: int, scale: float, params: SamplingParams) -> None:
    model = similar(scale)
    cycles = run(target(), PROMPT, [InStep(model, n_max, chunk=2)], Rules(params, 1, 200))
    assert said(cycles) == said(run(target(), PROMPT, [], Rules(params, 1, 200)))
    assert set(model.contexts.values()) == {1}
    assert model.decoded == len(model.contexts)
    rejected = sum(max(0, len(c.draft) - 1 - c.verdict.accepted) for c in cycles)
    # the cells that were drafted on after a wrong token, and the wrong token itself, are all that is lost
    committed = len(PROMPT) + 200
    assert committed - 3 <= model.decoded <= committed + rejected


def test_its_own_draft_is_always_accepted() -> None:
    cycles = run(target(), PROMPT, [InStep(similar(0.0), 4)], Rules(GREEDY, max_tokens=100))
    assert len(cycles) == 20
    assert all(c.verdict.accepted == 4 for c in cycles)


def test_case_3_a_corrupted_draft_does_not_spoil_what_follows() -> None:
    """Every 7th proposed token is spoilt; acceptance late in the answer is what it was early."""
    model = similar(0.0)
    drafter = CorruptingDrafter(InStep(model, 4), 7, VOCAB)
    cycles = run(target(), PROMPT, [drafter], Rules(GREEDY, max_tokens=400))
    assert said(cycles) == greedy(target(), PROMPT, 400)
    half = len(cycles) // 2
    early, late = (
        sum(c.verdict.accepted for c in part) / sum(c.verdict.tested for c in part)
        for part in (cycles[:half], cycles[half:])
    )
    assert early == pytest.approx(late, abs=0.05)
    proposed = 0
    for cycle in cycles:  # what is not spoilt is accepted, and nothing else
        sound = [(proposed + i) % 7 != 0 for i in range(1, len(cycle.draft) + 1)]
        proposed += len(sound)
        assert cycle.verdict.accepted == (sound.index(False) if False in sound else len(sound))


def test_cycles_that_others_draft_are_caught_up_with() -> None:
    """In a chain: another drafter speaks first for a while, then this one goes on."""
    model, knows = similar(0.0), target()
    first = ScriptedDrafter(lambda history: greedy(knows, history, 3) if len(history) < 40 else [])
    cycles = run(target(), PROMPT, [first, InStep(model, 4, chunk=5)], Rules(GREEDY, max_tokens=80))
    methods = [c.draft.method for c in cycles]
    assert methods.index("draft-model") > 5
    assert set(model.contexts.values()) == {1}
    assert all(c.verdict.accepted == len(c.draft) for c in cycles)


def test_a_second_answer_keeps_what_it_shares_with_the_first() -> None:
    model = similar(0.7)
    drafter = InStep(model, 4)
    first = run(target(), PROMPT, [drafter], Rules(GREEDY, max_tokens=30))
    history = [*PROMPT, *said(first)]
    decoded = model.decoded
    run(target(), [*history, 2, 2], [drafter], Rules(GREEDY, max_tokens=1))
    assert model.decoded == decoded  # nothing can be drafted for one token
    run(target(), [*history, 2, 2], [drafter], Rules(GREEDY, max_tokens=2))
    assert 3 <= model.decoded - decoded <= 4
    run(target(), [*PROMPT[:3], 9, 9], [drafter], Rules(GREEDY, max_tokens=2))
    assert 5 <= model.decoded - decoded <= 6


def test_going_on_after_an_accepted_end() -> None:
    """Then all of the history may be cached already; its last row is fetched again, no more."""
    model = similar(0.0)
    drafter = InStep(model, 4)
    text = greedy(target(), PROMPT, 30)
    end = next(t for i, t in enumerate(text) if t not in text[:i] and i % 5 in (0, 1, 2) and i > 4)
    first = run(target(), PROMPT, [drafter], Rules(GREEDY, max_tokens=30, ends={end}))
    history = [*PROMPT, *said(first)]
    assert first[-1].verdict.tokens[-1] == end
    assert list(model.tokens) == history
    more = run(target(), history, [drafter], Rules(GREEDY, max_tokens=20))
    assert said(more) == greedy(target(), history, 20)
    twice = [n for n in range(1, len(history) + 1) if model.contexts[tuple(history[:n])] != 1]
    assert twice == [len(history)]
    assert model.contexts[tuple(history)] == 2


def test_early_close_then_another_turn() -> None:
    model, main = similar(0.7), target()
    drafter = InStep(model, 4)
    history = list(PROMPT)
    sync(main, history[:-1], 16)
    drafter.begin(history)
    generator = decode(main, history, [drafter], Rules(GREEDY))
    for _ in range(3):
        next(generator)
    generator.close()
    more = run(main, [*history[:-1], 7], [drafter], Rules(GREEDY, max_tokens=40))
    assert said(more) == greedy(target(), [*history[:-1], 7], 40)
    assert set(model.contexts.values()) == {1}


def test_a_full_draft_context_declines() -> None:
    """Its context smaller than the target's: it falls silent, the answer goes on."""
    model = CountingModel(TABLE, 3, n_ctx=20)
    cycles = run(target(), PROMPT, [InStep(model, 4)], Rules(GREEDY, max_tokens=60))
    assert said(cycles) == greedy(target(), PROMPT, 60)
    assert len(model.tokens) <= 20
    assert cycles[0].draft.tokens
    assert not cycles[-1].draft.tokens


def test_p_min_ends_a_draft_and_n_min_drops_a_short_one() -> None:
    sure = run(target(), PROMPT, [InStep(similar(0.0), 4, p_min=0.5)], Rules(GREEDY, max_tokens=100))
    drafts = [c.draft for c in sure]
    assert {len(d) for d in drafts} > {0, 4} or len({len(d) for d in drafts}) > 1
    assert all(p >= 0.5 for d in drafts for p in d.confidence)
    long = run(target(), PROMPT, [InStep(similar(0.0), 4, p_min=0.5, n_min=2)], Rules(GREEDY, max_tokens=100))
    assert {len(c.draft) for c in long} <= {0, 2, 3, 4}
    assert said(long) == said(sure)


def test_confidence_is_the_models_own_probability() -> None:
    model = similar(0.5)
    drafter = InStep(model, 3)
    drafter.begin(PROMPT)
    draft = drafter.propose(PROMPT, 10)
    context = list(PROMPT)
    assert len(draft) == 3
    for token, confidence in zip(draft.tokens, draft.confidence):
        row = model.row(context).astype(np.float64)
        p = np.exp(row) / np.exp(row).sum()
        assert token == int(np.argmax(p))
        assert confidence == pytest.approx(p[token], rel=1e-5)
        context.append(token)


def test_vocabularies_of_two_sizes() -> None:
    """Case 17: padding is never proposed, and a token the draft does not know ends its part."""
    wide = np.concatenate([TABLE, np.full((len(TABLE), 4), 50.0, np.float32)], axis=1)[:VOCAB]
    padded = TableModel(np.tile(wide[:1], (VOCAB + 4, 1)), 1)
    drafter = ModelDrafter(padded, FixedPacer(), VOCAB, 4)
    cycles = run(target(), PROMPT, [drafter], Rules(GREEDY, max_tokens=40))
    assert any(c.draft.tokens for c in cycles)
    assert all(t < VOCAB for c in cycles for t in c.draft.tokens)

    small = TableModel.random(6, 1, seed=2)
    drafter = ModelDrafter(small, FixedPacer(), 6, 4)
    cycles = run(target(), PROMPT, [drafter], Rules(GREEDY, max_tokens=40))
    assert said(cycles) == greedy(target(), PROMPT, 40)
    assert max(small.tokens) < 6


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_a_draft_ends_with_an_end_token(sampling: SamplingParams) -> None:
    drafter = ModelDrafter(target(), FixedPacer(), VOCAB, 16)
    for ends in ((), range(0, VOCAB, 2)):
        drafter.speak(Voice(sampling, 5, ends=ends))
        drafter.begin(PROMPT)
        draft = drafter.propose(PROMPT, 16)
        inner = [token in ends for token in draft.tokens[:-1]]
        assert draft.tokens and not any(inner) and (len(draft) < 16) == bool(ends)
        assert not ends or draft.tokens[-1] in ends


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_a_drafter_that_computes_no_numbers_gives_up(sampling: SamplingParams) -> None:
    broken = TableModel(np.full_like(TABLE, np.nan), 3, 4096)
    drafter = ModelDrafter(broken, FixedPacer(), VOCAB, 4)
    drafter.speak(Voice(sampling))
    cycles = run(target(), PROMPT, [drafter], Rules(sampling, 3, 20))
    assert len(cycles) == 20 and not any(cycle.draft.tokens for cycle in cycles)
    assert "no numbers" in str(drafter.problem)
    drafted = len(broken.tokens)
    assert not drafter.propose([*PROMPT, *said(cycles)], 4).tokens and len(broken.tokens) == drafted


@pytest.mark.parametrize("sampling", [GREEDY, WARM, SamplingParams(temp=0.7, min_p=0.1, top_k=0, top_p=1.0)])
def test_a_target_that_computes_no_numbers_is_an_error(sampling: SamplingParams) -> None:
    row = np.zeros(VOCAB, np.float32)
    assert len(distribution(row, (), sampling).probs)
    row[5] = np.nan
    with pytest.raises(EngineError, match="NaN"):
        distribution(row, (), sampling)
