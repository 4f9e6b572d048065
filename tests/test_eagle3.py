"""draft-eagle3 on a tiny trained head: figures, exactness, forced rejections, sampled drafts, turns, misfits.

The target is the trunk of the tiny MTP model under a name whose layers llama.cpp hands out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from feature_models import RandomDraft
from lossless.gtest import g_test
from model_edits import as_qwen3

from specli import profiles
from specli.assembly import Generator, Request
from specli.casting import draft_method
from specli.chat.conversation import Message
from specli.core.decoding import Rules, decode, sync
from specli.core.pacing import FixedPacer
from specli.core.sampling import SamplingParams, distribution
from specli.core.types import Cycle, Draft, Drafter
from specli.drafters.eagle3 import EagleDrafter
from specli.drafters.neural import Voice
from specli.engine.context import Context, ContextParams
from specli.engine.eagle3 import Eagle
from specli.engine.features import feature_draft, feature_problem
from specli.engine.fit import check_fit
from specli.engine.gguf import read_header
from specli.engine.layers import layer_functions, target_layers
from specli.engine.model import Model, ModelParams
from specli.errors import DraftMismatch, EngineError, ModelFileError, SpecliError, UsageError
from specli.shelf import drafts_for, models

MODELS = Path(__file__).parent / "models"
HEAD = MODELS / "tiny-eagle3.gguf"
PROMPTS = [json.loads(line) for line in (MODELS / "held-out-prompts.jsonl").read_text("utf-8").splitlines()]
FIVE = [p["tokens"] for p in PROMPTS if p["set"] == "five"]
WIDE = [p["tokens"] for p in PROMPTS if p["set"] == "wide"]
PARAMS = ContextParams(1024, max_rows=16, flash_attn="off", type_k="f32", type_v="f32", layers=(1, 2, 3))


@pytest.fixture(autouse=True)
def _debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLI_DEBUG_CACHES", "1")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_qwen3(MODELS / "tiny-target-mtp.gguf", tmp_path_factory.mktemp("eagle") / "target.gguf")


@pytest.fixture(scope="module")
def weights(target: Path) -> Iterator[tuple[Model, Model]]:
    params = ModelParams(0, use_extra_bufts=False)
    with Model(target, params) as model, Model(HEAD, params) as head:
        yield model, head


@pytest.fixture
def pair(weights: tuple[Model, Model]) -> Iterator[tuple[Context, Eagle]]:
    model, head = weights
    with Context(model, PARAMS) as context, Eagle(context, PARAMS, head) as eagle:
        yield context, eagle


def run(
    target: Context, prompt: Sequence[int], drafters: Sequence[Drafter], n: int, rules: Rules | None = None
) -> tuple[list[int], list[Cycle]]:
    history = list(prompt)
    sync(target, history[:-1], 128)
    for drafter in drafters:
        drafter.begin(history)
    rules = rules or Rules(SamplingParams(temp=0.0), max_tokens=n, ends=target.model.vocab.ends)
    cycles = list(decode(target, history, drafters, rules, FixedPacer()))
    return history[len(prompt) :], cycles


def test_the_head_is_accepted_at_least_every_second_time(pair: tuple[Context, Eagle]) -> None:
    context, eagle = pair
    drafter = EagleDrafter(eagle, FixedPacer(), context.n_vocab, 3)
    tested, accepted, tokens, decodes = Counter[int](), Counter[int](), 0, 0
    for prompt in WIDE[:12]:
        drafted, cycles = run(context, prompt, [drafter], 48)
        assert drafted == run(context, prompt, [], 48)[0]  # these settings are exact at any width
        tokens, decodes = tokens + len(drafted), decodes + len(cycles)
        for verdict in (cycle.verdict for cycle in cycles):
            tested.update(range(verdict.tested))
            accepted.update(range(verdict.accepted))
    rates = [accepted[i] / tested[i] for i in range(3)]
    assert rates[0] >= 0.5 and rates[1] >= 0.3, f"{rates}, {tokens / decodes:.2f} tokens a decode"
    assert tokens / decodes > 1.7


class Forced:
    """The head drafts, but what is proposed is right up to `place`, and wrong there."""

    method = "draft-eagle3"

    def __init__(self, drafter: EagleDrafter, truth: Sequence[int], place: int) -> None:
        self._drafter, self._truth, self._place = drafter, truth, place

    def begin(self, history: Sequence[int]) -> None:
        self._drafter.begin(history)

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        tokens = list(self._drafter.propose(history, limit).tokens)
        right = self._truth[len(history) : len(history) + len(tokens)]
        tokens[: self._place] = right[: self._place]
        if self._place < len(right):
            tokens[self._place] = (right[self._place] + 1) % 1280
        return Draft(tuple(tokens), self.method)

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        self._drafter.commit(history, cycle)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("place", range(5))
def test_a_rejection_at_every_place_leaves_the_caches_right(pair: tuple[Context, Eagle], place: int) -> None:
    """In debug mode the two caches are compared after every cycle. At place 4 of 4 nothing is rejected."""
    context, eagle = pair
    truth = [*WIDE[0], *run(context, WIDE[0], [], 60)[0]]
    drafter = EagleDrafter(eagle, FixedPacer(), context.n_vocab, 4)
    said, cycles = run(context, WIDE[0], [Forced(drafter, truth, place)], 48)
    assert [*WIDE[0], *said] == truth[: len(WIDE[0]) + 48]
    assert {c.verdict.accepted for c in cycles if len(c.draft) == 4} == {place}
    assert drafter.propose(truth[: len(WIDE[0]) + 48], 4).tokens == fresh_draft(context, truth, 48)


def fresh_draft(context: Context, truth: Sequence[int], n: int) -> tuple[int, ...]:
    """What a head proposes there that has seen nothing but the true text."""
    history = list(truth[: len(WIDE[0]) + n])
    with (
        Model(HEAD, ModelParams(0, use_extra_bufts=False)) as head,
        Context(context.model, PARAMS) as cold,
        Eagle(cold, PARAMS, head) as eagle,
    ):
        sync(cold, history[:-1], 128)
        return EagleDrafter(eagle, FixedPacer(), cold.n_vocab, 4).propose(history, 4).tokens


# -- sampled drafts ---------------------------------------------------------------------------------

SAMPLED = SamplingParams(temp=0.8, top_k=0, top_p=1.0, min_p=0.0)


def speaking(eagle: Eagle, n_vocab: int, n_max: int, seed: int) -> EagleDrafter:
    drafter = EagleDrafter(eagle, FixedPacer(), n_vocab, n_max)
    drafter.speak(Voice(SAMPLED, seed))
    return drafter


def test_sampled_drafts_come_from_the_law_they_hand_over(pair: tuple[Context, Eagle]) -> None:
    context, eagle = pair
    history = WIDE[1]
    sync(context, history[:-1], 128)
    n = 400
    counts = np.zeros(context.n_vocab, np.int64)
    for seed in range(n):
        draft = speaking(eagle, context.n_vocab, 1, seed).propose(history, 1)
        assert draft.q is not None
        counts[draft.tokens[0]] += 1
    law = np.zeros(context.n_vocab)
    law[draft.q[0].ids] = draft.q[0].probs
    assert g_test(counts, law) > 1e-4
    known = set(np.fromfile(HEAD, "<i8", 640, offset=d2t_offset()))
    assert set(draft.q[0].ids) <= known and len(known) == 640  # the head's reduced vocabulary


def d2t_offset() -> int:
    header = read_header(HEAD)
    (tensor,) = (t for t in header.tensors if t.name == "d2t")
    return header.data_offset + tensor.offset


def test_each_law_is_that_of_the_head_behind_what_was_drawn(pair: tuple[Context, Eagle]) -> None:
    context, eagle = pair
    history = WIDE[2]
    sync(context, history[:-1], 128)
    draft = speaking(eagle, context.n_vocab, 4, 3).propose(history, 4)
    assert draft.q is not None and len(draft.q) == 4
    row = eagle.start(history[-1])
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q)):
        law = distribution(row, SAMPLED.window(history, draft.tokens[:i]), SAMPLED)
        assert list(law.ids) == list(q.ids)
        assert law.probs == pytest.approx(q.probs, abs=1e-6)
        assert draft.confidence[i] == pytest.approx(float(law.probs.max()), abs=1e-6)
        row = eagle.extend(token)


def test_what_is_emitted_has_the_targets_law(pair: tuple[Context, Eagle]) -> None:
    """The first token of many seeded answers, and the second where the first is the likeliest."""
    context, eagle = pair
    history = WIDE[3]
    sync(context, history[:-1], 128)
    first = target_law(context, history)
    likeliest = int(first.argmax())
    second = target_law(context, [*history, likeliest])
    counts = np.zeros((2, context.n_vocab), np.int64)
    accepted = Counter[int]()
    for seed in range(300):
        rules = Rules(SAMPLED, seed=seed, max_tokens=2)
        said, cycles = run(context, history, [speaking(eagle, context.n_vocab, 2, seed)], 2, rules)
        counts[0, said[0]] += 1
        if said[0] == likeliest and len(said) > 1:
            counts[1, said[1]] += 1
        accepted[cycles[0].verdict.accepted] += 1
    assert g_test(counts[0], first) > 1e-4 and g_test(counts[1], second) > 1e-4
    assert min(accepted[0], accepted[1] + accepted[2]) > 30 and counts[1].sum() > 50


def target_law(context: Context, history: Sequence[int]) -> np.ndarray:
    sync(context, history[:-1], 128)
    law = distribution(context.decode(history[-1:])[0], SAMPLED.window(history, ()), SAMPLED)
    dense = np.zeros(context.n_vocab)
    dense[law.ids] = law.probs
    return dense


# -- the head's cache -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 60, 700, 900])
def test_after_any_cut_the_head_is_as_a_cold_one(weights: tuple[Model, Model], n: int) -> None:
    """900 tokens are more than the rows that are kept: the target must give one again."""
    model, head = weights
    text = [t for prompt in WIDE for t in prompt][:1000]
    params = ContextParams(1024, 128, 128, 16, flash_attn="off", type_k="f32", type_v="f32", layers=(1, 2, 3))
    history = [*text[:n], *FIVE[0][:20]]
    with Context(model, params) as warm, Eagle(warm, params, head) as eagle:
        drafter = EagleDrafter(eagle, FixedPacer(), warm.n_vocab, 5)
        sync(warm, text[:990], 128)
        drafter.propose(text[:991], 5)
        sync(warm, history[:-1], 128)
        got = drafter.propose(history, 5)
        eagle.check()
        eagle.catch_up()
        eagle.check()
    with Context(model, params) as cold, Eagle(cold, params, head) as eagle:
        sync(cold, history[:-1], 128)
        wanted = EagleDrafter(eagle, FixedPacer(), cold.n_vocab, 5).propose(history, 5)
    assert got.tokens == wanted.tokens
    assert got.confidence == pytest.approx(wanted.confidence, abs=1e-3)


@pytest.mark.parametrize("n", [0, 8])
def test_after_another_long_prompt_the_head_is_as_a_cold_one(weights: tuple[Model, Model], n: int) -> None:
    """The second is longer than the rows that are kept, and the first nearly as long: what the head still
    holds of it is no reason to wait."""
    model, head = weights
    text = [t for prompt in WIDE for t in prompt]
    params = ContextParams(1024, 128, 128, 16, flash_attn="off", type_k="f32", type_v="f32", layers=(1, 2, 3))
    history = [*text[:n], *text[: 600 + n : -1][:600]]
    with Context(model, params) as warm, Eagle(warm, params, head) as eagle:
        drafter = EagleDrafter(eagle, FixedPacer(), warm.n_vocab, 5)
        sync(warm, text[:500], 128)
        drafter.propose(text[:501], 5)
        if n == 0:
            warm.clear()
        sync(warm, history[:-1], 128)
        got = drafter.propose(history, 5)
        eagle.check()
    with Context(model, params) as cold, Eagle(cold, params, head) as eagle:
        sync(cold, history[:-1], 128)
        wanted = EagleDrafter(eagle, FixedPacer(), cold.n_vocab, 5).propose(history, 5)
    assert got.tokens == wanted.tokens
    assert got.confidence == pytest.approx(wanted.confidence, abs=1e-3)


def test_limits_are_kept(pair: tuple[Context, Eagle]) -> None:
    context, eagle = pair

    def draft(history: list[int], limit: int = 8, **limits: float) -> Draft:
        drafter = EagleDrafter(eagle, FixedPacer(), context.n_vocab, **limits)  # type: ignore[arg-type]
        return drafter.propose(history, limit)

    assert len(draft([7])) == 0  # nothing is cached that the head could see
    sync(context, FIVE[0][:-1], 128)
    whole = draft(FIVE[0], n_max=6)
    assert len(whole) == 6 and all(0 < p <= 1 for p in whole.confidence)
    assert len(draft(FIVE[0], limit=2, n_max=8)) == 2
    assert len(draft(FIVE[0], n_max=3, p_min=1.0)) == 0
    full = [t for prompt in WIDE for t in prompt][: context.n_ctx - 2]
    sync(context, full[:-1], 128)
    assert len(draft(full, n_max=8)) == 2


def test_the_library_reads_the_same_layers(weights: tuple[Model, Model]) -> None:
    found = feature_draft(weights[1].header)
    assert found is not None and found.layers == target_layers(weights[1]) == (1, 2, 3)


# -- the whole program ------------------------------------------------------------------------------


def generator(model: Path, draft: Path | None = HEAD, **flags: object) -> Generator:
    given: dict[str, object] = {"temp": 0.0, "seed": 1, "max-tokens": 60, "ctx-size": 1024, "threads": 1}
    given |= {name.replace("_", "-"): flag for name, flag in flags.items()}
    return Generator(Request(profiles.resolve(profiles.load("auto"), given), model, draft))


def answers(g: Generator, prompts: Sequence[list[int]]) -> tuple[list[list[int]], Counter[str]]:
    said, accepted = [], Counter[str]()
    for prompt in prompts:
        answer = g.answer(prompt)
        for _ in answer:
            pass
        said.append(answer.tokens)
        for method, stats in answer.stats.by_method.items():
            accepted[method] += stats.accepted
    return said, accepted


def conversation(g: Generator) -> list[list[int]]:
    """An interrupted prompt, three turns, the last one regenerated, then other conversations."""
    long = [t for prompt in WIDE[:4] for t in prompt]
    asked = iter([False, True])
    for _ in g.answer(long, stop=lambda: next(asked, True)):
        pass
    messages: list[Message] = []
    said: list[list[int]] = []
    prompt: list[int] = []
    for question in ("Write a function get(self, key).", "Now a class.", "Thanks."):
        messages.append(Message("user", question))
        prompt = g.prompter.tokens(messages)
        answer = g.answer(prompt)
        for _ in answer:
            pass
        said.append(answer.tokens)
        messages.append(Message("assistant", answer.text, answer.said))
    return said + answers(g, [prompt, FIVE[0], [9], long])[0]


@pytest.mark.parametrize("temp", [0.0, 0.8])
@pytest.mark.parametrize("n_max", [1, 3])
def test_exact_output_is_that_of_plain_decoding(target: Path, n_max: int, temp: float) -> None:
    flags = {"exact_width": n_max + 1, "temp": temp, "fixed": True, "spec_draft_n_max": n_max}
    flags |= {"stop": ["self", "):\n"]}
    with generator(target, spec_type="none", **flags) as g:
        plain, long = conversation(g), answers(g, FIVE[:2])[0]
    with generator(target, spec_type="draft-eagle3", **flags) as g:
        assert conversation(g) == plain
        said, accepted = answers(g, FIVE[:2])
    assert said == long
    assert accepted["draft-eagle3"] > 5
    assert plain[2] == plain[3] or temp > 0


@pytest.mark.parametrize("types", ["ngram-simple,draft-eagle3", "draft-eagle3,draft-self", "auto"])
def test_methods_in_a_chain_keep_in_step(target: Path, types: str) -> None:
    flags = {"exact_width": 4, "spec_ngram_simple_size_n": 4, "max_tokens": 100}
    with generator(target, spec_type="none", **flags) as g:
        plain, _ = answers(g, FIVE[:3])
    p_min = 0.6 if types.startswith("draft-eagle3") else 0.0  # else the next one would never be asked
    with generator(target, spec_type=types, fixed=True, spec_draft_p_min=p_min, **flags) as g:
        said, accepted = answers(g, FIVE[:3])
    assert said == plain
    assert len([n for n in accepted.values() if n > 5]) == 2


def test_auto_takes_the_head_that_is_given(target: Path, tiny_target: Path) -> None:
    with generator(target) as g:
        assert g.methods == ["draft-self", "draft-eagle3"]
        assert g.draft_model is not None and g.draft_file("draft-eagle3") == HEAD


@pytest.mark.parametrize("layers", [(0, 2, 6), (1, 1, 5)])
def test_a_hybrid_target_is_rolled_back_with_its_head(
    tiny_hybrid: Path, tmp_path: Path, layers: tuple[int, ...]
) -> None:
    """A random head: nothing is accepted, everything taken back. Layer 6 of 6 is what leaves the last one."""
    head = RandomDraft(tiny_hybrid, layers=layers, own=True).write(tmp_path / "head.gguf")
    flags = {"exact_width": 4, "max_tokens": 40, "fixed": True, "spec_ngram_simple_size_n": 2}
    with generator(tiny_hybrid, None, spec_type="none", **flags) as g:
        plain, _ = answers(g, FIVE[:2])
    with generator(tiny_hybrid, head, spec_type="ngram-simple,draft-eagle3", **flags) as g:
        said, _ = answers(g, FIVE[:2])
        assert "draft-eagle3" in g.methods
    assert said == plain


# -- what does not fit ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": (1, 2)}, "names 2 layers of its target"),
        ({"layers": (1, 2, 9)}, r"reads layers 1, 2, 9 of its target, and target.gguf has 4"),
        ({"layers": (1, 2, -1)}, "reads layers 1, 2, -1"),
        ({"layers": (1, 2, 4)}, "reads what leaves the last layer"),
        (
            {"keys": {"eagle3.target_hidden_size": 96}},
            "reads rows of 96 values, those of target.gguf have 192",
        ),
        ({"keys": {"eagle3.block_count": 2}}, "has 2 blocks"),
        ({"keys": {"eagle3.attention.value_length": 64}}, "keys of 32 and values of 64"),
        ({"keys": {"tokenizer.ggml.tokens": None}}, "carries no tokenizer"),
        ({"vocabulary": [0, 5, 1280]}, "beyond the vocabulary of 1280"),
        ({"vocabulary": [-1, 5]}, "beyond the vocabulary of 1280"),
        ({"vocabulary": [3, 5], "rows": 3}, r"maps \(2,\) tokens .* output layer of \(192, 3\)"),
    ],
)
def test_a_head_that_the_library_would_abort_on_is_refused(
    target: Path, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    head = RandomDraft(target, **changes).write(tmp_path / "head.gguf")  # type: ignore[arg-type]
    for flags in ({}, {"spec_type": "draft-eagle3"}):
        with pytest.raises(DraftMismatch, match=words) as caught:
            generator(target, head, draft_model=str(head), **flags)
        assert "\n" not in str(caught.value)
    fit = check_fit(target, head)
    assert fit.verdict == "does-not-fit" and any("head" in f.note for f in fit.findings if not f.ok)


def test_targets_that_do_not_hand_out_their_layers_are_refused(tiny_target: Path, tiny_draft: Path) -> None:
    assert "does not hand out the layers of hy_v3" in str(
        feature_problem(read_header(tiny_target), read_header(HEAD))
    )
    with pytest.raises(DraftMismatch, match="hand out the layers of hy_v3"):
        generator(tiny_target, draft_model=str(HEAD))
    with pytest.raises(UsageError, match="hand out the layers of hy_v3"):
        generator(tiny_target, spec_type="draft-eagle3")
    with pytest.raises(UsageError, match=r"reads layers 1, 2, 3 .*has 2: it is for another model"):
        generator(tiny_draft, spec_type="draft-eagle3")


def test_a_targets_own_heads_draft_whatever_file_lies_beside(tiny_target: Path) -> None:
    with generator(tiny_target, spec_type="draft-mtp") as g:
        assert g.methods == ["draft-mtp"]


def test_files_given_for_what_they_are_not(target: Path, tiny_draft: Path) -> None:
    with pytest.raises(ModelFileError, match="an EAGLE-3 head and no model: give the model"):
        generator(HEAD, None)
    for wrong in ("draft-model", "draft-mtp", "draft-dflash"):
        with pytest.raises(UsageError, match="an EAGLE-3 head; use it with --spec-type draft-eagle3"):
            generator(target, spec_type=wrong)
    with pytest.raises(UsageError, match="it needs an EAGLE-3 head trained for this model"):
        generator(target, None, spec_type="draft-eagle3")
    with pytest.raises(UsageError, match=r"tiny-draft.gguf is not an EAGLE-3 head"):
        generator(target, tiny_draft, spec_type="draft-eagle3")


def test_a_library_without_the_functions_is_named() -> None:
    class Half:
        _Z30llama_set_embeddings_layer_inpP13llama_contextjb = object()

    with pytest.raises(
        EngineError, match="it lacks llama_get_embeddings_layer_inp, llama_model_target"
    ) as caught:
        layer_functions(Half())
    assert "\n" not in str(caught.value) and "llama_set_embeddings_layer_inp," not in str(caught.value)


def test_layers_that_are_not_handed_out_are_never_asked_for(weights: tuple[Model, Model]) -> None:
    for layers in ((1, 2, 4), (1, 2, 5)):
        with pytest.raises(EngineError, match="does not hand out"):
            Context(weights[0], ContextParams(256, layers=layers))
    plain = ContextParams(256)
    with Context(weights[0], plain) as context, pytest.raises(SpecliError, match="hidden rows"):
        Eagle(context, plain, weights[1])


def test_the_head_is_recognised(target: Path, tmp_path: Path) -> None:
    fit = check_fit(target, HEAD)
    assert fit.verdict == "fits-with-notes"
    assert "use it with --draft-model and --spec-type draft-eagle3" in fit.findings[0].note
    assert draft_method(HEAD) == "draft-eagle3"
    for path in (target, HEAD):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    found = {each.path.name: each for each in models([tmp_path]) if each.path.parent == tmp_path}
    assert found[HEAD.name].heads == "eagle3"
    assert drafts_for(found["target.gguf"], list(found.values())) == [found[HEAD.name]]
