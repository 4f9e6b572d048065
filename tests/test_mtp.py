"""draft-mtp on the tiny trained model: figures, exactness, chains, turns, and files of other kinds.

The reference figures are those of tests/models/README.md, measured with another loop.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_edits import heads_only, two_heads, without_heads

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.conversation import Message
from specli.core.decoding import Rules, decode, sync
from specli.core.pacing import FixedPacer
from specli.core.sampling import SamplingParams
from specli.core.types import Drafter
from specli.drafters.mtp import MtpDrafter
from specli.engine.context import Context, ContextParams
from specli.engine.gguf import read_header
from specli.engine.model import Model, ModelParams
from specli.engine.mtp import Heads
from specli.engine.nextn import file_heads
from specli.engine.saved import give, take
from specli.errors import DraftMismatch, ModelFileError, UsageError

PROMPTS = [
    json.loads(line)
    for line in (Path(__file__).parent / "models" / "held-out-prompts.jsonl").read_text("utf-8").splitlines()
]
FIVE = [p["tokens"] for p in PROMPTS if p["set"] == "five"]
WIDE = [p["tokens"] for p in PROMPTS if p["set"] == "wide"]
PARAMS = ContextParams(1024, max_rows=16, flash_attn="off", type_k="f32", type_v="f32", hidden=True)


@pytest.fixture(autouse=True)
def _debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLI_DEBUG_CACHES", "1")


@pytest.fixture
def model(tiny_target: Path) -> Iterator[Model]:
    with Model(tiny_target, ModelParams(0, use_extra_bufts=False, load_mtp=True)) as model:
        yield model


@dataclass
class Figures:
    tokens: int = 0
    cycles: int = 0
    tested: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)

    @property
    def per_decode(self) -> float:
        return self.tokens / self.cycles

    def acceptance(self, n: int) -> list[float]:
        """By position, of those tested there."""
        return [self.accepted[i] / self.tested[i] for i in range(n)]


def run(
    target: Context, prompt: Sequence[int], drafters: Sequence[Drafter], n: int, figures: Figures
) -> list[int]:
    history = list(prompt)
    sync(target, history[:-1], 128)
    for drafter in drafters:
        drafter.begin(history)
    rules = Rules(SamplingParams(temp=0.0), max_tokens=n, ends=target.model.vocab.ends)
    for cycle in decode(target, history, drafters, rules, FixedPacer()):
        figures.cycles += 1
        figures.tokens += len(cycle.tokens)
        figures.tested.update(range(cycle.verdict.tested))
        figures.accepted.update(range(cycle.verdict.accepted))
    return history[len(prompt) :]


def measured(model: Model, n_max: int) -> Figures:
    figures = Figures()
    with Context(model, PARAMS) as target, Heads(target, PARAMS) as heads:
        drafter = MtpDrafter(heads, FixedPacer(), target.n_vocab, n_max)
        for prompt in WIDE:
            drafted = run(target, prompt, [drafter], 64, figures)
            assert drafted == run(target, prompt, [], 64, Figures())  # these settings are exact at any width
    return figures


@pytest.mark.parametrize("debug", ["0", "1"])
def test_acceptance_is_that_of_the_reference_loop(
    model: Model, debug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLI_DEBUG_CACHES", debug)  # in debug mode the heads catch up at other times
    three = measured(model, 3)
    assert three.per_decode == pytest.approx(2.64, abs=0.03)
    assert three.acceptance(3) == pytest.approx([0.73, 0.75, 0.76], abs=0.03)


def test_acceptance_with_one_draft_token(model: Model) -> None:
    one = measured(model, 1)
    assert one.per_decode == pytest.approx(1.73, abs=0.03)
    assert one.acceptance(1) == pytest.approx([0.74], abs=0.03)


# -- the whole program ------------------------------------------------------------------------------


def generator(model: Path, draft: Path | None = None, **flags: object) -> Generator:
    given: dict[str, object] = {"temp": 0.0, "seed": 1, "max-tokens": 80, "ctx-size": 1024, "threads": 1}
    given |= {name.replace("_", "-"): flag for name, flag in flags.items()}
    return Generator(Request(profiles.resolve(profiles.load("auto"), given), model, draft))


def answers(g: Generator, prompts: Sequence[list[int]]) -> tuple[list[list[int]], Counter[str], int]:
    """The tokens of each answer, accepted draft tokens by method, and all cycles."""
    said, accepted, cycles = [], Counter[str](), 0
    for prompt in prompts:
        answer = g.answer(prompt)
        for _ in answer:
            pass
        said.append(answer.tokens)
        cycles += answer.stats.cycles
        for method, stats in answer.stats.by_method.items():
            accepted[method] += stats.accepted
    return said, accepted, cycles


@pytest.mark.parametrize("n_max", [1, 2, 3, 5])
@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_exact_output_is_that_of_plain_decoding(tiny_target: Path, n_max: int, temp: float) -> None:
    flags = {"exact_width": n_max + 1, "temp": temp, "fixed": True, "spec_draft_n_max": n_max}
    with generator(tiny_target, spec_type="none", **flags) as g:
        plain, _, plain_cycles = answers(g, FIVE[:3])
    outputs = []
    for _ in range(2):
        with generator(tiny_target, spec_type="draft-mtp", **flags) as g:
            said, accepted, cycles = answers(g, FIVE[:3])
        outputs.append(said)
        assert accepted["draft-mtp"] > 40 and cycles < plain_cycles
    assert outputs == [plain, plain]


def test_sampling_without_exact_repeats_by_its_seed(tiny_target: Path) -> None:
    runs = []
    for seed in (1, 1, 2):
        with generator(tiny_target, spec_type="draft-mtp", temp=0.8, seed=seed) as g:
            runs.append(answers(g, FIVE[:2])[0])
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    "types",
    [
        "ngram-simple,draft-mtp",
        "draft-mtp,ngram-simple",
        "draft-self,draft-model,draft-mtp",
        "draft-model,draft-mtp",
        "auto",
    ],
)
def test_methods_in_a_chain_keep_in_step(tiny_target: Path, tiny_draft: Path, types: str) -> None:
    flags = {"exact_width": 4, "max_tokens": 120, "fixed": True, "spec_draft_n_max": 3}
    sizes = {"spec_ngram_simple_size_n": 4, "spec_draft_p_min": 0.6 if types.startswith("draft-m") else 0.0}
    with generator(tiny_target, spec_type="none", **flags) as g:
        plain, _, _ = answers(g, FIVE)
    with generator(tiny_target, tiny_draft, spec_type=types, **flags, **sizes) as g:
        said, accepted, _ = answers(g, FIVE)
    assert said == plain
    if types in ("ngram-simple,draft-mtp", "auto"):
        assert len([n for n in accepted.values() if n > 20]) >= 2
    assert sum(accepted.values()) > 200


def test_auto_uses_the_heads_a_model_has(tiny_target: Path, tiny_draft: Path) -> None:
    with generator(tiny_target, tiny_draft) as g:
        assert g.methods == ["draft-self", "draft-mtp", "draft-model"]
    with generator(tiny_draft) as g:
        assert g.methods == ["draft-self"]


def conversation(g: Generator) -> list[list[int]]:
    """Three turns, the last one regenerated, then a new conversation."""
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
    return said + answers(g, [prompt, FIVE[0], FIVE[1]])[0]


def test_turns_regeneration_and_new_conversations(tiny_target: Path) -> None:
    flags = {"exact_width": 4, "max_tokens": 60, "stop": ["self", "):\n"]}
    with generator(tiny_target, spec_type="none", **flags) as g:
        plain = conversation(g)
    with generator(tiny_target, spec_type="draft-mtp", fixed=True, **flags) as g:
        assert conversation(g) == plain
    assert plain[2] == plain[3]


# -- the heads' cache -------------------------------------------------------------------------------


def confidences(drafter: MtpDrafter, history: list[int]) -> tuple[tuple[int, ...], np.ndarray]:
    draft = drafter.propose(history, 5)
    return draft.tokens, np.array(draft.confidence)


@pytest.mark.parametrize("n", [1, 60, 700, 1900])
def test_after_any_cut_the_heads_are_as_a_cold_one(
    model: Model, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1900 tokens are more than the hidden rows that are kept: the target must give one again."""
    monkeypatch.setenv("SPECLI_DEBUG_CACHES", "0")
    text = [t for prompt in WIDE for t in prompt][:2000]
    params = ContextParams(2048, 128, 128, 16, flash_attn="off", type_k="f32", type_v="f32", hidden=True)
    with Context(model, params) as warm, Heads(warm, params) as heads:
        drafter = MtpDrafter(heads, FixedPacer(), warm.n_vocab, 5)
        sync(warm, text[:1990], 128)
        drafter.propose(text[:1991], 5)
        history = [*text[:n], *FIVE[0][:20]]
        sync(warm, history[:-1], 128)
        got = confidences(drafter, history)
        heads.check()
        heads.catch_up()
        heads.check()
    with Context(model, params) as cold, Heads(cold, params) as heads:
        sync(cold, history[:-1], 128)
        wanted = confidences(MtpDrafter(heads, FixedPacer(), cold.n_vocab, 5), history)
    assert got[0] == wanted[0]
    assert got[1] == pytest.approx(wanted[1], abs=1e-3)


@pytest.mark.parametrize("n", [0, 8])
def test_after_another_long_prompt_the_heads_are_as_cold_ones(
    model: Model, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is longer than the hidden rows that are kept, and the first nearly as long: what the heads
    still hold of it is no reason to wait."""
    monkeypatch.setenv("SPECLI_DEBUG_CACHES", "0")
    text = [t for prompt in WIDE for t in prompt]
    params = ContextParams(2304, 128, 128, 16, flash_attn="off", type_k="f32", type_v="f32", hidden=True)
    history = [*text[:n], *(text[::-1] * 2)[:2100]]
    with Context(model, params) as warm, Heads(warm, params) as heads:
        drafter = MtpDrafter(heads, FixedPacer(), warm.n_vocab, 5)
        sync(warm, text[:1990], 128)
        drafter.propose(text[:1991], 5)
        if n == 0:
            warm.clear()
        sync(warm, history[:-1], 128)
        got = confidences(drafter, history)
        heads.check()
    with Context(model, params) as cold, Heads(cold, params) as heads:
        sync(cold, history[:-1], 128)
        wanted = confidences(MtpDrafter(heads, FixedPacer(), cold.n_vocab, 5), history)
    assert got[0] == wanted[0]
    assert got[1] == pytest.approx(wanted[1], abs=1e-3)


def test_a_prompt_given_up_at_once_leaves_the_heads_in_step(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache was cut to where a hidden row is no longer held, nothing came after it, and what comes then
    differs from there on."""
    monkeypatch.setenv("SPECLI_DEBUG_CACHES", "0")
    text = [t for prompt in WIDE for t in prompt]
    params = ContextParams(2304, 128, 128, 16, flash_attn="off", type_k="f32", type_v="f32", hidden=True)
    with Context(model, params) as warm, Heads(warm, params) as heads:
        sync(warm, text[:2200], 128)
        heads.catch_up()
        assert not sync(warm, text[:60], 128, lambda: True)
        history = [*text[: len(warm.tokens)], *FIVE[0][:20]]
        sync(warm, history[:-1], 128)
        got = confidences(MtpDrafter(heads, FixedPacer(), warm.n_vocab, 5), history)
        heads.check()
    with Context(model, params) as cold, Heads(cold, params) as heads:
        sync(cold, history[:-1], 128)
        wanted = confidences(MtpDrafter(heads, FixedPacer(), cold.n_vocab, 5), history)
    assert got[0] == wanted[0]
    assert got[1] == pytest.approx(wanted[1], abs=1e-3)


@pytest.mark.parametrize("n", [60, 1200])
def test_exact_mode_reads_a_prompt_in_the_same_pieces_with_heads_and_without(model: Model, n: int) -> None:
    """1900 tokens are more than the hidden rows that are kept. The target does not decode one again for its row, as
    without heads it would not; the heads make do with zeros for that one."""
    text = [t for prompt in WIDE for t in prompt][:2000]
    kept = []
    for hidden in (True, False):
        params = ContextParams(2304, 128, 128, 4, hidden=hidden, steady=True)
        with Context(model, params) as target, ExitStack() as stack:
            heads = stack.enter_context(Heads(target, params)) if hidden else None
            sync(target, text[:1990], 128)
            if heads is not None:
                heads.catch_up()
            kept.append(target.rewind(n))
            history = [*text[:n], *FIVE[0][:20]]
            sync(target, history[:-1], 128)
            kept.append(target.rewind(len(history) - 1))
            if heads is not None:
                drafter = MtpDrafter(heads, FixedPacer(), target.n_vocab, 5)
                assert len(drafter.propose(history, 5)) == 5 and drafter.problem is None
                sync(target, text[:1990], 128)  # and a second time
                heads.catch_up()
                assert target.rewind(n) == n
                heads.catch_up()
                assert target.rewind(n - 20) == n - 20 and len(drafter.propose(text[: n - 19], 5)) == 5
    assert kept == [n, n + 19] * 2


class Failing:
    """The library, where the decodes of one context fail from some time on."""

    def __init__(self, library: Any, after: int) -> None:
        self._library, self._left = library, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def llama_decode(self, handle: Any, batch: Any) -> int:
        self._left -= 1
        return int(self._library.llama_decode(handle, batch)) if self._left >= 0 else -3


@pytest.mark.parametrize("after", [0, 1, 9])
def test_heads_that_fail_fall_silent_and_the_answers_go_on(tiny_target: Path, after: int) -> None:
    """While a long prompt is read, while the first draft begins, in the midst of an answer."""
    prompts = [[t for prompt in WIDE for t in prompt][:700], FIVE[0]]
    flags: dict[str, object] = {"exact_width": 4, "max_tokens": 12, "ctx_size": 1024}
    with generator(tiny_target, spec_type="none", **flags) as g:
        plain, _, _ = answers(g, prompts)
    with generator(tiny_target, spec_type="draft-mtp", fixed=True, **flags) as g:
        heads = g.target.follower
        assert isinstance(heads, Heads)
        heads._lib = Failing(heads._lib, after)
        assert answers(g, prompts)[0] == plain
        silent = [notice for notice in g.notices if "draft-mtp drafts no more" in notice]
        assert len(silent) == 1 and "failed to run the prediction heads (code -3)" in silent[0]
        assert not give(g.target, take(g.target))  # they hold nothing that could be kept


def test_heads_interrupted_at_work_go_on_in_step(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they had decoded is not counted yet: it goes, and comes again."""
    monkeypatch.setenv("SPECLI_DEBUG_CACHES", "0")
    with Context(model, PARAMS) as target, Heads(target, PARAMS) as heads:
        drafter = MtpDrafter(heads, FixedPacer(), target.n_vocab, 5)
        sync(target, FIVE[0][:-1], 128)
        wanted = drafter.propose(FIVE[0], 5)
        target.clear()
        sync(target, FIVE[0][:-1], 128)
        decode, heads._done = heads._done, interrupt  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            drafter.propose(FIVE[0], 5)
        heads._done = decode  # type: ignore[method-assign]
        target.clear()
        sync(target, FIVE[0][:-1], 128)
        assert drafter.propose(FIVE[0], 5).tokens == wanted.tokens
        heads.check()


def interrupt(_code: int) -> None:
    raise KeyboardInterrupt


def test_limits_on_length_and_confidence_are_kept(model: Model) -> None:
    with Context(model, PARAMS) as target, Heads(target, PARAMS) as heads:
        history = FIVE[0]
        sync(target, history[:-1], 128)

        def draft(limit: int = 8, **limits: float) -> tuple[float, ...]:
            drafter = MtpDrafter(heads, FixedPacer(), target.n_vocab, **limits)  # type: ignore[arg-type]
            return drafter.propose(history, limit).confidence

        whole = draft(n_max=8)
        assert len(whole) == 8 and all(0 < p <= 1 for p in whole)
        assert len(draft(limit=2, n_max=8)) == 2
        assert len(draft(n_max=3)) == 3
        worst = whole.index(min(whole))
        p_min = (min(whole) + sorted(whole)[1]) / 2
        assert draft(n_max=8, p_min=p_min) == pytest.approx(whole[:worst])
        assert draft(n_max=8, p_min=p_min, n_min=worst + 1) == ()
        assert draft(n_max=0) == ()
        drafter = MtpDrafter(heads, FixedPacer(), 5, 3)
        assert all(t < 5 for t in drafter.propose(history, 3).tokens)


def test_heads_need_hidden_rows_from_the_first_token_on(model: Model) -> None:
    plain = ContextParams(256)
    with Context(model, plain) as target, pytest.raises(Exception, match="hidden rows"):
        Heads(target, plain)


# -- files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_max", [1, 2, 5])
def test_a_chain_of_equal_heads_drafts_what_one_head_does(
    tiny_target: Path, tmp_path: Path, n_max: int
) -> None:
    two = two_heads(tiny_target, tmp_path / "two.gguf")
    flags = {"spec_type": "draft-mtp", "exact_width": 4, "fixed": True}
    with generator(two, spec_draft_n_max=n_max, **flags) as g:
        chained = answers(g, FIVE[:2])
    with generator(tiny_target, spec_draft_n_max=min(n_max, 2), **flags) as g:  # as many as there are heads
        assert answers(g, FIVE[:2]) == chained


def test_heads_in_a_file_of_their_own(tiny_target: Path, tmp_path: Path) -> None:
    heads = heads_only(tiny_target, tmp_path / "heads.gguf")
    trunk = without_heads(tiny_target, tmp_path / "trunk.gguf")
    flags = {"exact_width": 4, "fixed": True, "spec_draft_n_max": 3}
    with generator(tiny_target, spec_type="draft-mtp", **flags) as g:
        whole = answers(g, FIVE[:2])
    with generator(trunk, heads, spec_type="draft-mtp", **flags) as g:
        assert answers(g, FIVE[:2]) == whole
    with generator(trunk, heads) as g:
        assert g.methods == ["draft-self", "draft-mtp"]


def test_files_given_for_what_they_are_not(tiny_target: Path, tiny_draft: Path, tmp_path: Path) -> None:
    heads = heads_only(tiny_target, tmp_path / "heads.gguf")
    trunk = without_heads(tiny_target, tmp_path / "trunk.gguf")
    with pytest.raises(ModelFileError, match=r"only the prediction heads .* as --draft-model"):
        generator(heads)
    with pytest.raises(
        UsageError, match="holds prediction heads, no model; use it with --spec-type draft-mtp"
    ):
        generator(tiny_target, heads, spec_type="draft-model")
    with pytest.raises(UsageError, match="lacks their weights"):
        generator(trunk, spec_type="draft-mtp")
    with pytest.raises(DraftMismatch):
        generator(tiny_draft, heads, spec_type="draft-mtp")
    assert file_heads(read_header(tiny_target)).problem is None


def test_case_41_a_model_without_heads(tiny_draft: Path, tmp_path: Path) -> None:
    """One line naming the missing layers, another exit code than 0, no crash; a notice where no flag asked."""
    call = [sys.executable, "-m", "specli", "run", "-m", str(tiny_draft), "--spec-type", "draft-mtp", "hi"]
    done = subprocess.run(call, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and "no prediction heads (no nextn_predict_layers" in lines[0]
    profile = tmp_path / "p.toml"
    profile.write_text('[spec]\ntypes = ["draft-mtp", "draft-self"]\n')
    settings = profiles.resolve(profiles.load(str(profile)), {"ctx-size": 256})
    with Generator(Request(settings, tiny_draft)) as g:
        assert g.methods == ["draft-self"]
        assert any("draft-mtp is skipped" in notice for notice in g.notices)
