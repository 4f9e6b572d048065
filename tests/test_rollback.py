"""Whatever a cache can and cannot do: after a cut it is as if the tokens had never been decoded.

Compared with a cold cache that holds the same tokens. Prompts run at other widths there, so logits may
differ in their last bits; a wrong state is off by far more than the tolerance (see the test that shows it).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from model_edits import windowed

from specli.core.decoding import Rules, decode, sync
from specli.core.pacing import FixedPacer
from specli.core.sampling import SamplingParams
from specli.core.types import Cycle, Draft
from specli.drafters.model import ModelDrafter
from specli.engine.context import Context, ContextParams, Rollback
from specli.engine.exact import self_test
from specli.engine.model import Model, ModelParams

KINDS = ("cut", "window", "snapshot", "checkpoint")
WINDOW = 32
TOLERANCE = 0.5  # logits range over tens; a wrong recurrent state is off by 5 and more
ROWS = 8


class Bench:
    """Opens contexts of every kind on the tiny models."""

    def __init__(self, stack: ExitStack, models: dict[str, Path]) -> None:
        self._stack = stack
        self._models = {
            name: stack.enter_context(Model(path, ModelParams(0, use_extra_bufts=False)))
            for name, path in models.items()
        }

    def open(self, kind: str, rows: int = ROWS, n_ctx: int = 1024, **more: object) -> Context:
        model = self._models["hybrid" if kind in ("snapshot", "checkpoint") else kind]
        settings: dict[str, object] = {"n_ctx": n_ctx, "n_batch": 64, "n_ubatch": 64, "max_rows": rows}
        settings |= {"swa_full": kind != "window", "snapshots": rows - 1 if kind == "snapshot" else 0, **more}
        context = self._stack.enter_context(Context(model, ContextParams(**settings)))  # type: ignore[arg-type]
        assert context.rollback is Rollback(kind)
        return context


@pytest.fixture
def bench(
    tmp_path: Path, tiny_draft: Path, tiny_hybrid: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    monkeypatch.setenv("SPECLI_DEBUG_CACHES", "1")
    window = windowed(tiny_draft, tmp_path / "windowed.gguf", WINDOW)
    with ExitStack() as stack:
        yield Bench(stack, {"cut": tiny_draft, "window": window, "hybrid": tiny_hybrid})


def words(n: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(5, 1200) for _ in range(n)]


def after(context: Context, tokens: Sequence[int], probe: int = 77) -> np.ndarray:
    """The logits after `tokens` and a probe token, decoded cold."""
    context.clear()
    sync(context, tokens, 64)
    return context.decode([probe], rows=1)[0].copy()


# -- within a cycle ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_rejection_at_any_position_leaves_no_trace(bench: Bench, kind: str) -> None:
    warm, cold = bench.open(kind), bench.open(kind)
    prompt = words(120)
    sync(warm, prompt, 64)
    history = list(prompt)
    for n in range(2, ROWS + 1):
        for dropped in range(1, n):
            batch = words(n, seed=100 * n + dropped)
            warm.decode(batch, rows=n)
            history += batch[: n - dropped]
            assert warm.rewind(len(history)) == len(history)
            assert list(warm.tokens) == history
    got = warm.decode([77], rows=1)[0].copy()
    assert np.abs(got - after(cold, history)).max() < TOLERANCE


def test_the_snapshot_rule_is_ours_to_keep(bench: Bench) -> None:
    """The library also agrees to drop the whole latest decode, and is wrong afterwards: were it not
    so, the rule and its costs could go."""
    warm, cold = bench.open("snapshot"), bench.open("snapshot")
    prompt, batch = words(40), words(4, seed=1)
    sync(warm, prompt, 64)
    warm.decode(batch, rows=4)
    assert warm._lib.llama_memory_seq_rm(warm.memory._memory, 0, len(prompt), -1)
    del warm._tokens[len(prompt) :]
    wrong = warm.decode([77], rows=1)[0].copy()
    right = after(cold, prompt)
    assert np.abs(wrong - right).max() > 2 * TOLERANCE

    sync(warm, [], 64)
    sync(warm, prompt, 64)
    warm.decode(batch, rows=4)
    sync(warm, prompt, 64)  # cuts the whole batch, through the checkpoint at the prompt's end
    assert np.abs(warm.decode([77], rows=1)[0] - right).max() < TOLERANCE


def test_a_snapshot_serves_once(bench: Bench) -> None:
    warm, cold = bench.open("snapshot"), bench.open("snapshot")
    tokens = words(48)
    sync(warm, tokens[:40], 64)
    warm.decode(tokens[40:], rows=8)
    assert warm.rewind(46) == 46
    assert warm.rewind(44) == 40  # the checkpoint at the end of the prompt, not a second snapshot
    sync(warm, tokens[:44], 64)
    assert np.abs(warm.decode([77], rows=1)[0] - after(cold, tokens[:44])).max() < TOLERANCE


# -- deeper -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_decodes_and_cuts(bench: Bench, kind: str, seed: int) -> None:
    rng = random.Random(seed)
    warm, cold = bench.open(kind), bench.open(kind)
    history: list[int] = []
    for step in range(40):
        what = rng.random()
        if what < 0.25 and len(history) < 700:
            history += words(rng.randrange(1, 150), seed=1000 * seed + step)
        elif what < 0.5:
            history = history[: rng.randrange(len(history) + 1)]
        sync(warm, history, 64)  # as at the start of an answer
        if what >= 0.5 and len(history) < 900:
            n = rng.randrange(1, ROWS + 1)
            batch = words(n, seed=5000 * seed + step)
            kept = rng.randrange(1, n + 1)
            warm.decode(batch, rows=n)
            history += batch[:kept]
            assert warm.rewind(len(history)) == len(history)
        assert list(warm.tokens) == history
    got = warm.decode([77], rows=1)[0].copy()
    assert np.abs(got - after(cold, history)).max() < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_a_prompt_can_be_returned_to(bench: Bench, kind: str) -> None:
    """Regenerating an answer decodes nothing again; a stop string in it decodes the answer at most."""
    context = bench.open(kind)
    prompt = words(150)
    sync(context, prompt, 64)
    for i in range(30):
        context.decode(words(4, seed=i), rows=4)
        context.rewind(len(prompt) + 2 * (i + 1))
    assert len(prompt) <= context.rewind(len(prompt) + 31) <= len(prompt) + 31
    assert context.rewind(len(prompt)) == len(prompt)


def test_ends_of_turns_outlive_the_checkpoints_between_them(bench: Bench) -> None:
    context = bench.open("checkpoint")
    ends = []
    history: list[int] = []
    for turn in range(3):
        history += words(60, seed=turn)
        sync(context, history, 64)
        ends.append(len(history))
        for i in range(30):
            context.decode(words(4, seed=100 * turn + i), rows=4)
            context.rewind(len(context.tokens) - 2)
        history = list(context.tokens)
    assert set(ends) <= set(context.memory.checkpoints)
    assert len(context.memory.checkpoints) <= context.memory.MOST


def test_the_window_is_cut_no_deeper_than_it_is_whole(bench: Bench) -> None:
    context = bench.open("window")
    sync(context, words(600), 64)  # several times round the small cache
    assert context.rewind(590) == 590  # within the latest ubatch
    assert context.rewind(500) < 500  # cells before it may have been written over
    full = bench.open("cut")
    sync(full, words(600), 64)
    assert full.rewind(500) == 500


# -- the whole loop ---------------------------------------------------------------------------------


class Oracle:
    """Knows the answer and errs at one place in `wrong`: accepted and rejected drafts for sure."""

    method = "oracle"

    def __init__(self, answer: Sequence[int], prompt_length: int, n: int, wrong: int) -> None:
        self.answer, self.at, self.n = answer, prompt_length, n
        rng = random.Random(1)
        self.wrong = [rng.randrange(wrong) == 0 for _ in answer]
        self.rejected_at: set[int] = set()
        self.accepted = 0

    def begin(self, history: Sequence[int]) -> None: ...

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        done = len(history) - self.at
        tokens = list(self.answer[done : done + min(limit, self.n)])
        for i in range(len(tokens)):
            if self.wrong[done + i]:
                tokens[i] = (tokens[i] + 1) % 1200
        return Draft(tuple(tokens), self.method)

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        self.accepted += cycle.verdict.accepted
        if cycle.verdict.accepted < cycle.verdict.tested:
            self.rejected_at.add(cycle.verdict.accepted)

    def close(self) -> None: ...


def answer(
    context: Context, prompt: list[int], drafters: Sequence[object], width: int | None, n: int
) -> list[int]:
    history = list(prompt)
    sync(context, history[:-1], 64)
    for drafter in drafters:
        drafter.begin(history)  # type: ignore[attr-defined]
    rules = Rules(SamplingParams(temp=0.0), max_tokens=n, exact_width=width)
    for _ in decode(context, history, drafters, rules, FixedPacer()):  # type: ignore[arg-type]
        pass
    return history[len(prompt) :]


def test_a_hybrid_drafts_exactly_through_snapshots(bench: Bench) -> None:
    prompt = words(100)
    context = bench.open("snapshot", rows=4)
    plain = answer(context, prompt, [], 4, 300)
    oracle = Oracle(plain, len(prompt), 3, 7)
    assert answer(context, prompt, [oracle], 4, 300) == plain
    assert oracle.rejected_at == {0, 1, 2}
    assert oracle.accepted > 100


@pytest.mark.parametrize("kind", ["checkpoint", "window"])
def test_elsewhere_the_first_difference_is_a_near_tie(bench: Bench, kind: str) -> None:
    """A replay runs at another width than the decode it repeats: the last bits of the state differ."""
    prompt = words(100)
    context, cold = bench.open(kind), bench.open(kind)
    plain = answer(context, prompt, [], None, 200)
    oracle = Oracle(plain, len(prompt), 5, 7)
    drafted = answer(context, prompt, [oracle], None, 200)
    assert len(oracle.rejected_at) >= 4
    at = next((i for i, (a, b) in enumerate(zip(plain, drafted)) if a != b), None)
    if at is not None:
        history = [*prompt, *plain[:at]]
        logits = after(cold, history[:-1], history[-1])
        assert abs(logits[plain[at]] - logits[drafted[at]]) < TOLERANCE


def test_fixed_width_is_exact_with_snapshots_and_refused_with_replay(bench: Bench) -> None:
    assert self_test(bench.open("snapshot", rows=4), 4, 64) is None
    assert "replayed" in (self_test(bench.open("checkpoint", rows=4), 4, 64) or "")
    assert "window" in (self_test(bench.open("window", rows=4), 4, 64) or "")
    assert "rows" in (self_test(bench.open("snapshot", rows=2), 4, 64) or "")


def test_a_recurrent_draft_is_rewound_by_checkpoints(bench: Bench) -> None:
    """As its own draft it must be accepted whole, early and late: its cache never goes astray."""
    prompt = words(100)
    target, draft = bench.open("snapshot", rows=4), bench.open("checkpoint", rows=1)
    plain = answer(target, prompt, [], 4, 200)
    drafter = ModelDrafter(draft, FixedPacer(), draft.n_vocab, n_max=3, chunk=64)
    spoilt = 0

    class Spoiling:
        method = "draft-model"
        begin, close = drafter.begin, drafter.close
        early = 0

        def propose(self, history: Sequence[int], limit: int) -> Draft:
            nonlocal spoilt
            found = drafter.propose(history, limit)
            spoilt += 1
            if spoilt % 3 or len(found) < 2:
                return found
            return Draft(
                (found.tokens[0], (found.tokens[1] + 1) % 1200),
                "draft-model",
                confidence=found.confidence[:2],
            )

        def commit(self, history: Sequence[int], cycle: Cycle) -> None:
            drafter.commit(history, cycle)
            assert list(draft.tokens) == list(history[: len(draft.tokens)])
            if spoilt % 3:
                assert cycle.verdict.accepted >= cycle.verdict.tested - 1
            self.early += cycle.verdict.accepted

    spoiling = Spoiling()
    assert answer(target, prompt, [spoiling], 4, 200) == plain
    assert spoiling.early > 100


# -- what is found at load --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_rollback_is_tried_at_load_and_leaves_nothing(bench: Bench, kind: str) -> None:
    context = bench.open(kind)
    assert context.rollback_problem() is None
    assert list(context.tokens) == [] and context.memory.positions == 0


def test_speculation_is_declined_where_the_state_outweighs_the_model(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = bench.open("checkpoint")
    monkeypatch.setattr(Model, "size_bytes", property(lambda _: context.memory.state_bytes() - 1))
    assert "costs more" in (context.rollback_problem() or "")


def test_snapshots_that_were_not_granted_are_not_relied_on(bench: Bench) -> None:
    """An architecture without them says nothing and grants none."""
    assert bench.open("cut", snapshots=5).snapshots == 0
