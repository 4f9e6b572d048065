"""Token trees: one decode for several branches, and the accepted one kept as if it had been the only one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from model_edits import windowed
from numpy.typing import NDArray
from scripted import GREEDY, greedy

from specli import drafting, profiles
from specli.assembly import Generator, Request
from specli.bench.contestants import contestants, together
from specli.core.costs import Costs
from specli.core.decoding import Rules, decode, sync
from specli.core.noise import Noise
from specli.core.pacing import FixedPacer, Pacer, ProfitPacer
from specli.core.sampling import SamplingParams
from specli.core.stats import Stats
from specli.core.table_model import TableModel
from specli.core.trees import Growth, Prices, Shape, best_size, least_reach, pays_deeper, verify_tree
from specli.core.types import Cycle, Distribution, Draft, Drafter, Tree, TreeModel
from specli.core.verification import verify
from specli.drafters.neural import Voice
from specli.drafters.ngram import NgramSimple
from specli.drafters.tree import TreeDrafter
from specli.engine.context import Context, ContextParams, Rollback
from specli.engine.model import Model, ModelParams
from specli.errors import EngineError, ProfileError, UsageError
from specli.sizes import TreeSize

VOCAB = 12
PROMPT = [3, 1, 4, 1, 5]
TABLE = TableModel.random(VOCAB, 3, seed=7).table
WARM = SamplingParams(temp=1.0, top_k=0, top_p=1.0, min_p=0.0)
BRANCHES, DEPTH = 3, 3


def target(n_ctx: int = 4096) -> TableModel:
    return TableModel(TABLE, 3, n_ctx)


def similar(scale: float) -> TableModel:
    noise = np.random.default_rng(1).normal(0, scale, TABLE.shape).astype(np.float32)
    return TableModel(TABLE + noise, 3)


class Bundle:
    """Chains of `DEPTH` tokens side by side, of which one is right as far as `wrong` says: every place at
    which a tree can fail, one after the other."""

    method = "bundle"

    def __init__(
        self, answer: Callable[[Sequence[int], int], list[int]], n_vocab: int, branches: int = BRANCHES
    ):
        self.answer, self.n_vocab, self.branches = answer, n_vocab, branches
        self.cycles = 0
        self.met: set[tuple[int, int]] = set()

    def begin(self, history: Sequence[int]) -> None: ...

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        right = self.answer(history, DEPTH)
        self.branch, self.wrong = self.cycles % self.branches, self.cycles // self.branches % (DEPTH + 1)
        self.cycles += 1
        growth = Growth()
        for branch in range(self.branches):
            at = -1
            for i, token in enumerate(right):
                off = branch - self.branch if i == 0 else int(branch == self.branch and i == self.wrong)
                off = self.branches if i == 0 == self.wrong and branch == self.branch else off
                at = growth.add((token + off) % self.n_vocab, at, 0.5, self.method, 0.5)
        return growth.draft(self.method, False, 1, limit)[0]

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        if len(cycle.draft) == self.branches * DEPTH:
            self.met.add((self.branch, cycle.verdict.accepted))

    def close(self) -> None: ...


def run(
    model: TreeModel,
    prompt: Sequence[int],
    drafter: Drafter | None,
    rules: Rules,
    pacer: Pacer | None = None,
    others: Sequence[Drafter] = (),
) -> list[Cycle]:
    """Decode to the end; after every cycle the cache holds the history but for its last token."""
    history = list(prompt)
    sync(model, history[:-1], 16)
    drafters = [*([drafter] if drafter else []), *others]
    for each in drafters:
        each.begin(history)
    cycles = []
    for cycle in decode(model, history, drafters, rules, pacer):
        assert list(model.tokens) == history[:-1]
        verdict = cycle.verdict
        assert verdict.tokens[: verdict.accepted] == cycle.draft.before(
            verdict.path[-1] + 1 if verdict.path else 0 if cycle.draft.tree else verdict.accepted
        )
        assert cycle.width == (rules.exact_width or len(cycle.draft) + 1)
        cycles.append(cycle)
    return cycles


def said(cycles: Sequence[Cycle]) -> list[int]:
    return [t for cycle in cycles for t in cycle.tokens]


def knows(model: TableModel) -> Callable[[Sequence[int], int], list[int]]:
    return lambda history, n: greedy(model, history, n)


# -- the loop ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_no_branch_grows_behind_an_end(sampling: SamplingParams) -> None:
    ends = range(0, VOCAB, 2)
    found = NgramSimple(1, 4)
    drafter = TreeDrafter("draft-model", similar(0.1), FixedPacer(), VOCAB, Shape(4, 3), [found])
    drafter.speak(Voice(sampling, 3, ends=ends))
    for seed in range(4):
        history = [*PROMPT, *greedy(target(), PROMPT, 12), seed]
        drafter.begin(history)
        draft = drafter.propose(history, 40)
        assert draft.tree is not None and len(draft) > 4
        assert all(parent < 0 or draft.tokens[parent] not in ends for parent in draft.tree.parents)
        assert any(token in ends for token in draft.tokens)


@pytest.mark.parametrize("width", [None, 16])
def test_every_place_of_a_tree_can_be_the_last_right_one(width: int | None) -> None:
    drafter = Bundle(knows(target()), VOCAB)
    cycles = run(target(), PROMPT, drafter, Rules(GREEDY, max_tokens=100, exact_width=width))
    assert said(cycles) == greedy(target(), PROMPT, 100)
    assert drafter.met == {(b, w) for b in range(BRANCHES) for w in range(DEPTH + 1)}


@pytest.mark.parametrize("n_ctx", [20, 23])
def test_a_tree_ends_with_the_context_and_at_an_end_token(n_ctx: int) -> None:
    plain = run(target(n_ctx), PROMPT, None, Rules(GREEDY))
    drafted = run(target(n_ctx), PROMPT, Bundle(knows(target()), VOCAB), Rules(GREEDY))
    assert said(drafted) == said(plain) and drafted[-1].finish == "context"
    text = greedy(target(), PROMPT, 30)
    ends = {text[12]}
    cycles = run(target(), PROMPT, Bundle(knows(target()), VOCAB), Rules(GREEDY, ends=ends))
    assert said(cycles) == greedy(target(), PROMPT, 30, list(ends)) and cycles[-1].finish == "stop"


class EvenNext:
    """What was said last says which tokens may follow: a constraint that notices a token told out of turn."""

    def __init__(self) -> None:
        self.told: list[int] = []

    over = False

    def begin(self) -> None:
        self.told = []

    def legal(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (ids + (self.told[-1] if self.told else 0)) % 3 != 0

    def advance(self, token: int) -> None:
        self.told.append(token)


@pytest.mark.parametrize("params", [GREEDY, WARM])
def test_constraints_penalties_and_logprobs_follow_the_accepted_path(params: SamplingParams) -> None:
    """All against the same without drafts, with coupled noise so that sampling says the same."""
    from dataclasses import replace

    params = replace(params, repeat_penalty=1.3, frequency_penalty=0.4, repeat_last_n=8)

    def rules() -> Rules:
        return Rules(params, 3, 80, coupled=True, constraint=EvenNext(), logprobs=2)

    plain = run(target(), PROMPT, None, rules())
    known = said(plain)
    drafter = Bundle(lambda h, n: known[len(h) - len(PROMPT) :][:n], VOCAB)
    ours = rules()
    drafted = run(target(), PROMPT, drafter, ours)
    assert said(drafted) == known and len(drafted) < len(plain)
    assert ours.constraint.told == known  # type: ignore[union-attr]
    assert [t for c in drafted for t in c.logprobs] == [t for c in plain for t in c.logprobs]


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("drawn", [False, True])
def test_a_chain_written_as_a_tree_is_judged_the_same(drawn: bool, coupled: bool) -> None:
    rng = np.random.default_rng(0)

    def law(_: int = 0) -> Distribution:
        return Distribution(np.arange(4), rng.dirichlet(np.ones(4)))

    verdicts = set()
    for seed in range(200):
        p = [law() for _ in range(4)]
        q = tuple(law() for _ in range(3))
        tokens = tuple(int(t) for t in rng.integers(0, 4, 3))
        chain = Draft(tokens, "x", q if drawn else None)
        tree = Draft(tokens, "x", chain.q, tree=Tree((-1, 0, 1), (1.0,) * 3, ("x",) * 3))
        a = verify(chain, p.__getitem__, Noise(seed), 7, {3}, coupled)
        b = verify_tree(tree, p.__getitem__, Noise(seed), 7, {3}, coupled)
        assert (a.tokens, a.accepted, a.tested) == (b.tokens, b.accepted, b.tested)
        assert b.path == tuple(range(a.accepted))
        verdicts.add((a.accepted, a.tested))
    assert len(verdicts) > 4


def test_siblings_have_noise_of_their_own() -> None:
    noise = Noise(1)
    assert len({noise.uniform(5, i) for i in range(8)} | {noise.uniform(6, i) for i in range(8)}) == 16
    assert noise.uniform(5) == noise.uniform(5, 0)


# -- the figures ------------------------------------------------------------------------------------


def test_a_place_counts_once_and_its_method_is_who_was_right() -> None:
    drafter = Bundle(knows(target()), VOCAB)
    cycles = run(target(), PROMPT, drafter, Rules(GREEDY, max_tokens=60))
    stats = Stats()
    for cycle in cycles:
        stats.fold(cycle)
    assert stats.drafted == sum(len(c.draft) for c in cycles)
    assert stats.accepted == sum(c.verdict.accepted for c in cycles)
    trees = [(c.verdict, c.draft.tree) for c in cycles if c.draft.tree is not None]
    ends = [bool(tree.children()[v.path[-1] + 1 if v.path else 0]) for v, tree in trees]
    assert stats.tested == stats.accepted + sum(ends) and 0 < sum(ends) < len(ends)
    assert all(width in (1, *range(2, BRANCHES * DEPTH + 2)) for width in stats.widths)


def test_each_accepted_token_is_of_who_proposed_it() -> None:
    draft = TreeDrafter("draft-model", similar(0.0), FixedPacer(), VOCAB, Shape(2, 3), [NgramSimple(1, 8, 1)])
    cycles = run(target(), PROMPT, draft, Rules(GREEDY, max_tokens=60), FixedPacer())
    stats = Stats()
    for cycle in cycles:
        stats.fold(cycle)
        assert len(cycle.accepted_from) == cycle.verdict.accepted
    assert set(stats.by_method) == {"draft-model", "ngram-simple"}
    assert stats.by_method["draft-model"].accepted > 0
    assert sum(m.drafted for m in stats.by_method.values()) == sum(len(c.draft) for c in cycles)


# -- how large --------------------------------------------------------------------------------------


def test_a_node_joins_if_it_pays() -> None:
    prices = Prices([0.0, 1.0, 1.3, 1.6, 3.0, 3.1, 3.2], 0.1, 0.5)
    assert best_size([0.9, 0.5, 0.4, 0.3, 0.2], prices)[0] == 2
    assert best_size([0.9, 0.8, 0.7, 0.69, 0.68], prices)[0] == 5  # behind the step it pays again
    assert best_size([0.2, 0.1], prices)[0] == 0
    assert best_size([0.9] * 9, prices)[0] <= 5  # no more than have a price
    assert pays_deeper([0.9], [0.9], prices, 2, 5)
    assert not pays_deeper([0.9], [0.9], Prices(prices.verify, 0.5, 0.5), 2, 5)
    assert not pays_deeper([0.9], [0.9], prices, 0, 5)
    assert least_reach([], [0.9, 0.5, 0.1], prices, 0, 5) == 0.5
    assert least_reach([], [0.1], prices, 0, 5) == np.inf
    assert least_reach([0.9, 0.5], [0.4], prices, 0, 2) == np.inf


def paced(step: float, widths: dict[int, float]) -> ProfitPacer:
    return ProfitPacer(Costs(widths, frozen=True), steps={"draft-model": step})


def test_trees_stay_off_where_they_lose() -> None:
    """Where a row costs as much as a decode, or a level more than it brings; and come where they win."""
    rules = Rules(GREEDY, max_tokens=300)
    cheap, dear = {1: 1.0, 64: 1.5}, {1: 1.0, 64: 64.0}
    rows = {}
    for name, step, widths in (("win", 0.02, cheap), ("rows", 0.02, dear), ("steps", 1.5, cheap)):
        pacer = paced(step, widths)
        draft = TreeDrafter("draft-model", similar(1.5), pacer, VOCAB, Shape(3, 4))
        cycles = run(target(), PROMPT, draft, rules, pacer)
        assert said(cycles) == greedy(target(), PROMPT, 300)
        rows[name] = sum(len(c.draft) for c in cycles) / len(cycles)
    assert rows["win"] > 3
    assert rows["rows"] < 0.1 and rows["steps"] < 0.1


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_trees_are_longer_than_chains_of_as_many_rows(params: SamplingParams) -> None:
    lengths = []
    for shape in (Shape(1, 8), Shape(3, 8)):
        size = min(8, shape.size)
        draft = TreeDrafter(
            "draft-model", similar(1.2), FixedPacer(), VOCAB, Shape(shape.width, 8 if shape.width == 1 else 4)
        )
        rules = Rules(params, 1, 600, exact_width=size + 1)
        cycles = run(target(), PROMPT, draft, rules, FixedPacer())
        lengths.append(600 / len(cycles))
    assert lengths[1] > lengths[0] * 1.05


# -- the drafter ------------------------------------------------------------------------------------


class InStep(TreeDrafter):
    """Checks what holds of every tree and, after every cycle, of the cache."""

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        draft = super().propose(history, limit)
        if draft.tree is None:
            assert not draft.tokens
            return draft
        tree, shape = draft.tree, self._shape
        assert len(draft) <= min(limit, shape.size) and tree.levels <= shape.depth
        assert all(parent < node for node, parent in enumerate(tree.parents))
        assert all(len({draft.tokens[i] for i in below}) == len(below) for below in tree.children())
        assert all(r <= (tree.reach[p] if p >= 0 else 1.0) for r, p in zip(tree.reach, tree.parents))
        free = sum(method != self.method for method in tree.methods)
        assert all(len(below) <= shape.width + (free > 0) for below in tree.children())
        if draft.q is not None:
            assert all(q.prob(token) > 0 for q, token in zip(draft.q, draft.tokens))
        return draft

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        path, decoded = cycle.verdict.path, set(self._decoded)
        super().commit(history, cycle)
        cached = list(self._model.tokens)
        assert cached == list(history[: len(cached)])
        if cycle.draft.tree is not None:  # the path is in the cache as far as the drafter went along with it
            along = next((i for i, node in enumerate(path) if node not in decoded), len(path))
            assert len(cached) >= len(history) - len(cycle.tokens) + along


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("pacer", [None, 0.02], ids=["fixed", "paced"])
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_the_drafter_and_its_cache(params: SamplingParams, pacer: float | None, others: bool) -> None:
    held: Pacer = FixedPacer() if pacer is None else paced(pacer, {1: 1.0, 64: 1.5})
    free = [NgramSimple(2, 8, 1)] if others else []
    draft = InStep("draft-model", similar(0.8), held, VOCAB, Shape(3, 4), free)
    cycles = run(target(), PROMPT, draft, Rules(params, 5, 200), held, free)
    assert sum(c.draft.tree is not None for c in cycles) > len(cycles) / 2
    if params is GREEDY:
        assert said(cycles) == greedy(target(), PROMPT, 200)
    if others:
        assert any("ngram-simple" in c.draft.tree.methods for c in cycles if c.draft.tree)
    assert max(len(b) for c in cycles if c.draft.tree for b in c.draft.tree.children()) > 1


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_a_draft_context_that_gets_full(params: SamplingParams) -> None:
    """Smaller than the target's: trees get smaller near its end, then there are none."""
    draft = InStep("draft-model", TableModel(TABLE, 3, n_ctx=20), FixedPacer(), VOCAB, Shape(3, 4))
    cycles = run(target(), PROMPT, draft, Rules(params, 2, 60), FixedPacer())
    assert len(said(cycles)) == 60 and not cycles[-1].draft.tokens
    sizes = [len(c.draft) for c in cycles if c.draft.tokens]
    assert max(sizes) > 5 > min(sizes)


def test_what_others_found_may_be_unknown_to_the_drafting_model() -> None:
    text = [*PROMPT, 11, 10, 11, 9, *PROMPT]
    other = NgramSimple(3, 4, 1)
    other.begin(text)
    draft = TreeDrafter("draft-model", TableModel.random(9, 1), FixedPacer(), 9, Shape(3, 4), [other])
    draft.begin(PROMPT)
    found = draft._grow(PROMPT, 12, draft._found(text, 12), False)
    assert 11 in found.tokens and found.tree is not None and found.tree.levels > 1


def test_a_level_is_one_decode() -> None:
    calls: list[int] = []

    class Counting(TableModel):
        def branch(self, tokens: Sequence[int], parents: Sequence[int]) -> NDArray[np.float32]:
            calls.append(len(tokens))
            return super().branch(tokens, parents)

    draft = TreeDrafter("draft-model", Counting(TABLE, 3), FixedPacer(), VOCAB, Shape(3, 4))
    draft.begin(PROMPT)
    tree = draft.propose(PROMPT, 40).tree
    assert tree is not None and tree.levels == len(calls) + 1 <= 4
    assert 1 < max(calls) <= 3


def test_what_others_found_is_one_node_where_they_agree() -> None:
    text = [*greedy(target(), PROMPT, 40)]
    history = [*PROMPT, *text, *PROMPT]  # the text again: what followed it is known
    other = NgramSimple(3, 6, 1)
    other.begin(history)
    draft = TreeDrafter("draft-model", similar(0.0), FixedPacer(), VOCAB, Shape(3, 6), [other])
    draft.begin(history)
    found, alone = draft.propose(history, 40), other.propose(history, 40)
    assert found.tree is not None and len(alone) == 6
    first = [found.tokens[i] for i in found.tree.children()[0]]
    assert first.count(alone.tokens[0]) == 1 and len(first) >= 2


def test_p_min_and_n_min_bound_a_tree() -> None:
    draft = TreeDrafter("draft-model", similar(0.0), FixedPacer(), VOCAB, Shape(3, 3), p_min=0.2)
    cycles = run(target(), PROMPT, draft, Rules(GREEDY, max_tokens=80), FixedPacer())
    assert all(p >= 0.2 for c in cycles for p in c.draft.confidence)
    sizes = {len(c.draft) for c in cycles}
    assert min(sizes) < 4 < max(sizes)
    draft = TreeDrafter("draft-model", similar(0.0), FixedPacer(), VOCAB, Shape(3, 3), n_min=4, p_min=0.2)
    cycles = run(target(), PROMPT, draft, Rules(GREEDY, max_tokens=80), FixedPacer())
    assert {len(c.draft) for c in cycles} & {1, 2, 3} == set() and len({len(c.draft) for c in cycles}) > 1


# -- the real cache ---------------------------------------------------------------------------------

F32 = {"flash_attn": "off", "type_k": "f32", "type_v": "f32"}  # bits do not depend on widths there
TOLERANCE = {"draft": 0.01, "window": 0.01, "target": 0.1}
"""Of logits: sums run in another order where an accepted branch lies in other cells."""


class Bench:
    """Opens contexts that can hold trees."""

    def __init__(self, stack: ExitStack, models: dict[str, Path]) -> None:
        self._stack = stack
        self.models = {
            name: stack.enter_context(Model(path, ModelParams(0, use_extra_bufts=False)))
            for name, path in models.items()
        }

    def open(self, name: str = "draft", branches: int = 12, **more: object) -> Context:
        settings: dict[str, object] = {"n_ctx": 512, "n_batch": 64, "n_ubatch": 64, "max_rows": 16, **F32}
        params = ContextParams(branches=branches, **{**settings, **more})  # type: ignore[arg-type]
        return self._stack.enter_context(Context(self.models[name], params))


@pytest.fixture(scope="module")
def bench(
    tmp_path_factory: pytest.TempPathFactory, tiny_draft: Path, tiny_target: Path, tiny_hybrid: Path
) -> Iterator[Bench]:
    window = windowed(tiny_draft, tmp_path_factory.mktemp("trees") / "windowed.gguf", 32)
    models = {"draft": tiny_draft, "target": tiny_target, "hybrid": tiny_hybrid, "window": window}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("SPECLI_DEBUG_CACHES", "1")
        yield Bench(stack, models)


def words(n: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(5, 1200) for _ in range(n)]


def chosen(tokens: Sequence[int], parents: Sequence[int], node: int) -> list[int]:
    return [tokens[i] for i in Tree(tuple(parents), (), ()).path(node)]


@pytest.mark.parametrize("name", ["draft", "target", "window"])
def test_any_tree_and_any_path_of_it(bench: Bench, name: str) -> None:
    """Random trees, grown in one call or in several, with cuts between; each row, and the cache afterwards, as
    without branches."""
    rng = random.Random(3)
    warm, cold = bench.open(name), bench.open(name, branches=1)
    history = words(90)
    sync(warm, history, 64)
    for cycle in range(12):
        n = rng.randrange(1, 12)
        tokens = words(n, 100 + cycle)
        parents = [rng.randrange(-1, i) for i in range(n)]
        cuts = sorted({0, n, rng.randrange(n + 1)})
        rows = [warm.branch(tokens[a:b], parents[a:b]).copy() for a, b in pairwise(cuts)]
        for node, row in enumerate(np.concatenate(rows)):
            path = chosen(tokens, parents, node)
            sync(cold, history, 64)
            assert np.abs(cold.decode(path, rows=1)[0] - row).max() < TOLERANCE[name], (cycle, node)
        last = rng.randrange(-1, n)
        path = Tree(tuple(parents), (), ()).path(last)
        warm.keep(path)
        history += [tokens[i] for i in path]
        if cycle % 4 == 1:  # a draft without branches in between
            warm.decode(words(5, cycle), rows=5)
            history += words(5, cycle)[:2]
            warm.rewind(len(history))
        if cycle % 4 == 3:  # another turn, that keeps part of the text
            history = [*history[: rng.randrange(40, len(history))], *words(7, cycle)]
            sync(warm, history, 64)
        assert list(warm.tokens) == history and warm.memory.positions == len(history)
    sync(cold, [], 64)
    sync(cold, history, 64)
    assert np.abs(warm.decode([77], rows=1)[0] - cold.decode([77], rows=1)[0]).max() < TOLERANCE[name]


@pytest.mark.parametrize("name", ["draft", "target"])
def test_a_wrong_branch_would_show(bench: Bench, name: str) -> None:
    """…the tolerance above being far below what another token makes."""
    context = bench.open(name)
    sync(context, words(90), 64)
    rows = context.branch([20, 21, 30], [-1, -1, 0]).copy()
    context.keep([])
    other = context.branch([20, 21, 30], [-1, -1, 1])
    assert np.abs(rows[:2] - other[:2]).max() < TOLERANCE[name]
    assert np.abs(rows[2] - other[2]).max() > 10 * TOLERANCE[name]


def same_text(model: Context, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]) -> None:
    """Equal, or parting where two tokens were as good as equally likely."""
    at = next((i for i, (a, b) in enumerate(zip(plain, other)) if a != b), None)
    if at is None:
        assert len(plain) == len(other)
        return
    sync(model, [], 64)
    sync(model, [*prompt, *plain[:at]][:-1], 64)
    row = model.decode([*prompt, *plain[:at]][-1:], rows=1)[0]
    assert abs(row[plain[at]] - row[other[at]]) < 0.3


@pytest.mark.parametrize("kind", ["f32", "usual"])
@pytest.mark.parametrize("name", ["draft", "target"])
def test_forced_rejections_on_every_branch(bench: Bench, name: str, kind: str) -> None:
    usual = {"flash_attn": "auto", "type_k": "f16", "type_v": "f16"}
    model = bench.open(name, **(usual if kind == "usual" else F32))
    prompt = words(40)
    plain = said(run(model, prompt, None, Rules(GREEDY, max_tokens=90)))
    drafter = Bundle(lambda h, n: plain[len(h) - len(prompt) :][:n], model.n_vocab)
    drafted = said(run(model, prompt, drafter, Rules(GREEDY, max_tokens=90)))
    assert len(drafter.met) > 0.8 * BRANCHES * (DEPTH + 1)
    same_text(model, prompt, plain, drafted)


def test_a_dropped_tree_leaves_no_trace(bench: Bench) -> None:
    """Whether it was left open, cut with the cache, or cleared away."""
    warm, cold = bench.open(), bench.open(branches=1)
    tokens = words(60)
    for after in (
        lambda: warm.rewind(50),
        warm.clear,
        lambda: warm.decode([9], rows=1),
        lambda: warm.keep([0]),
    ):
        sync(warm, tokens, 64)
        warm.branch([20, 21, 22, 23], [-1, -1, 0, 1])
        after()
        history = list(warm.tokens)
        assert warm.memory.positions == len(history)
        sync(cold, [], 64)
        if history:
            sync(cold, history, 64)
        assert np.abs(warm.decode([77], rows=1)[0] - cold.decode([77], rows=1)[0]).max() < TOLERANCE["draft"]


def test_what_a_tree_cannot_be_is_refused(bench: Bench) -> None:
    context = bench.open(branches=3)
    tokens = words(30)
    sync(context, tokens, 64)
    for nodes, parents in (
        ([1] * 17, [-1] * 17),
        ([1, 2], [-1]),
        ([1], [0]),
        ([5000], [-1]),
        ([1] * 4, [-1] * 4),
    ):
        with pytest.raises(EngineError):
            context.branch(nodes, parents)
    context.branch([20, 21], [-1, 0])
    with pytest.raises(EngineError, match="no path"):
        context.keep([1])
    context.keep([0, 1])
    assert list(context.tokens) == [*tokens, 20, 21]
    small = bench.open(n_ctx=256)
    sync(small, words(254), 64)
    with pytest.raises(EngineError, match="do not fit"):
        small.branch([1, 2, 3], [-1, -1, -1])
    hybrid = bench.open("hybrid", branches=1, snapshots=3, max_rows=4)
    narrow = bench.open("window", branches=1, swa_full=False)
    for kind, other in ((Rollback.SNAPSHOT, hybrid), (Rollback.WINDOW, narrow)):
        assert other.rollback is kind
        sync(other, tokens, 64)
        with pytest.raises(EngineError, match="cannot hold a tree"):
            other.branch([1], [-1])


def test_a_real_draft_in_step(bench: Bench) -> None:
    """The drafting model's cache through trees, on the tiny pair, at T 0 and 1."""
    model, drafts = bench.open("target"), bench.open("draft", n_ctx=512)
    prompt = words(40)
    plain = said(run(model, prompt, None, Rules(GREEDY, max_tokens=80)))
    draft = InStep("draft-model", drafts, FixedPacer(), drafts.n_vocab, Shape(3, 4))
    same_text(
        model, prompt, plain, said(run(model, prompt, draft, Rules(GREEDY, max_tokens=80), FixedPacer()))
    )
    cycles = run(model, prompt, draft, Rules(SamplingParams(temp=1.0), 4, 80), FixedPacer())
    assert any(c.verdict.accepted for c in cycles)


# -- as asked for -----------------------------------------------------------------------------------


def generator(model: Path, draft: Path | None, **flags: object) -> Generator:
    given: dict[str, object] = {"temp": 0.0, "seed": 1, "ctx-size": 512, "threads": 1, "max_tokens": 60}
    given |= {"flash-attn": "off", "cache-type-k": "f32", "cache-type-v": "f32"}
    given |= {name.replace("_", "-"): flag for name, flag in flags.items()}
    return Generator(Request(profiles.resolve(profiles.load("auto"), given), model, draft))


@pytest.mark.parametrize("types", ["draft-model", "draft-self,draft-model", "auto"])
def test_a_whole_generator(tiny_target: Path, tiny_draft: Path, types: str) -> None:
    prompt = words(40)
    with generator(tiny_target, tiny_draft, spec_type=types, spec_tree="3x4", fixed=True) as g:
        assert g.drafters[0].method == "draft-model" and "draft-mtp" not in g.methods
        answer = g.answer(prompt)
        cycles = [step.cycle for step in answer if step.cycle is not None]
        assert {c.draft.tree is not None for c in cycles} >= {True}
        assert answer.stats.by_method["draft-model"].accepted > 0 and len(cycles) < 50
        g.reset(profiles.resolve(profiles.load("auto"), {"spec-type": "none", "temp": 0.0, "max-tokens": 60}))
        plain = g.answer(prompt)
        assert list(plain)
        same_text(g.target, prompt, plain.tokens, answer.tokens)


def test_settings_that_trees_do_not_go_with(tiny_target: Path, tiny_draft: Path, tiny_hybrid: Path) -> None:
    for path, draft, flags, why in (
        (tiny_target, None, {}, "need a draft model"),
        (tiny_target, tiny_draft, {"spec_type": "none"}, "need a draft model"),
        (tiny_target, None, {"spec_type": "draft-mtp"}, "cannot draft the token trees"),
        (tiny_hybrid, tiny_draft, {"spec_type": "draft-model"}, "recurrent state"),
        (tiny_target, tiny_hybrid, {"spec_type": "draft-model"}, "recurrent state"),
    ):
        with pytest.raises(UsageError, match=why), generator(path, draft, spec_tree="2x2", **flags):
            pass


def test_trees_are_bounded_by_what_was_loaded(tiny_target: Path, tiny_draft: Path) -> None:
    with generator(tiny_target, tiny_draft, spec_type="draft-model", spec_tree="2x3") as g:
        for tree, fits in (("2x2", True), ("off", True), ("2x4", False)):
            given = {"spec-type": "draft-model", "spec-tree": tree}
            settings = profiles.resolve(profiles.load("auto"), given)
            if fits:
                g.reset(settings)
            else:
                with pytest.raises(UsageError, match="loaded for less"):
                    g.reset(settings)


def test_contestants_with_trees_of_several_sizes_can_all_be_loaded() -> None:
    profile = profiles.load("auto")
    for against, tree in (([], "off"), (["draft-model,tree=2x4"], "2x4"), (["a", "b"], "63x1")):
        texts = [f"draft-model,tree={'2x4' if t == 'a' else '3x5'}" if len(t) == 1 else t for t in against]
        assert together(contestants(profile, {}, texts)).tree == tree
    assert all(
        TreeSize.read(text) is None for text in ("", "3", "x3", "0x3", "3x0", "8x8", "64x1", "3x4x5", " 3x4")
    )
    assert TreeSize.read("63x1") == TreeSize(63, 1) and str(TreeSize(3, 4)) == "3x4"


@pytest.mark.parametrize(
    "flags",
    [{"spec_tree": "2x2", "exact": True}, {"spec_tree": "9x9"}],
)
def test_flags_that_contradict_a_tree(flags: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="tree"):
        profiles.resolve(profiles.load("auto"), flags)
    with pytest.raises(ProfileError, match="tree"):
        profiles.parse('[spec]\ntree = "2x2"\nexact = true', "p", "p.toml")


def test_a_draft_of_another_vocabulary_drafts_no_trees(
    smol: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "MIN_SHARE", 0.0)
    with (
        pytest.raises(UsageError, match="another vocabulary"),
        generator(smol, tiny_draft, spec_type="draft-model", spec_tree="2x2"),
    ):
        pass


def test_a_flag_bounds_the_nodes_of_a_tree() -> None:
    auto = profiles.load("auto")
    assert profiles.resolve(auto, {"spec_tree": "3x8"}).tree_nodes == 0
    assert profiles.resolve(auto, {"spec_tree": "3x8", "spec_draft_n_max": 8}).tree_nodes == 8
    assert (Shape(3, 8).size, Shape(3, 8, 8).size) == (24, 8)
    draft = TreeDrafter("draft-model", similar(1.0), FixedPacer(), VOCAB, Shape(3, 8, 8))
    cycles = run(target(), PROMPT, draft, Rules(GREEDY, max_tokens=100), FixedPacer())
    assert {len(c.draft) for c in cycles[:-8]} == {8}
    assert max(c.verdict.accepted for c in cycles) > 3
