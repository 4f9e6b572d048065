"""Faults that other tools had, on real caches: rows 1, 3, 5, 7, 15 and 43 of the list of cases.

What needs a large model runs only where its file lies on the disk; the same rows run on tiny ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.answer import Answer
from specli.chat.conversation import Message
from specli.core.decoding import Rules, decode, sync
from specli.core.pacing import FixedPacer
from specli.core.sampling import SamplingParams
from specli.core.types import Cycle, Draft
from specli.drafters.model import ModelDrafter
from specli.engine.context import Context, ContextParams, Rollback
from specli.engine.model import Model, ModelParams
from specli.errors import UsageError

CODE = "def read_lines(path):\n    with open(path) as f:\n        return f.read().splitlines()\n\n"


@pytest.fixture(autouse=True)
def _debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLI_DEBUG_CACHES", "1")


def generator(model: Path, draft: Path | None = None, **flags: object) -> Generator:
    threads = 2 if model.stat().st_size > 1 << 27 else 1  # small models gain nothing from a second
    given: dict[str, object] = {
        "temp": 0.0,
        "seed": 1,
        "max-tokens": 80,
        "ctx-size": 1024,
        "threads": threads,
    }
    given |= {name.replace("_", "-"): flag for name, flag in flags.items() if flag is not None}
    return Generator(Request(profiles.resolve(profiles.load("auto"), given), model, draft))


def finished(g: Generator, prompt: Sequence[int]) -> Answer:
    answer = g.answer(prompt)
    for _ in answer:
        pass
    return answer


# -- 1: a second model, many tokens -----------------------------------------------------------------


@pytest.mark.large
def test_case_1_large(qwen_target: Path, qwen_draft: Path) -> None:
    outputs = []
    for types in ("none", "draft-model"):
        with generator(
            qwen_target, qwen_draft, spec_type=types, exact_width=4, max_tokens=500, fixed=True
        ) as g:
            prompt = g.prompter.tokens([Message("user", "Write quicksort in Python and explain every line.")])
            answer = finished(g, prompt)
            outputs.append(answer.tokens)
    assert outputs[0] == outputs[1]
    assert answer.stats.accepted > 200


# -- 3: a draft that errs on purpose ----------------------------------------------------------------


def test_case_3_the_drafts_cache_is_the_committed_text(tiny_draft: Path) -> None:
    _own_draft(tiny_draft, 400)


@pytest.mark.smol
def test_case_3_smol(smol: Path) -> None:
    _own_draft(smol, 400)


def _own_draft(path: Path, n: int) -> None:
    with (
        Model(path, ModelParams(0, use_extra_bufts=False)) as model,
        Context(model, ContextParams(1024, max_rows=8)) as target,
        Context(model, ContextParams(1024, max_rows=1)) as draft,
    ):
        drafter = _Corrupted(draft, every=7)
        history = model.vocab.tokenize(CODE)
        sync(target, history[:-1], 128)
        drafter.begin(history)
        rules = Rules(SamplingParams(temp=0.0), max_tokens=n)
        for _ in decode(target, history, [drafter], rules, FixedPacer()):
            assert list(target.tokens) == history[:-1]
        half = len(drafter.good) // 2
        early, late = (sum(part) / len(part) for part in (drafter.good[:half], drafter.good[half:]))
        assert len(drafter.good) > n // 2
        assert early > 0.9 and late > 0.9 and abs(early - late) < 0.1
        assert drafter.bad and not any(drafter.bad)


class _Corrupted:
    """A model drafter whose every seventh token is wrong. `good`, `bad`: fates of the tokens tested."""

    method = "draft-model"

    def __init__(self, model: Context, every: int) -> None:
        self.inner = ModelDrafter(model, FixedPacer(), model.n_vocab, n_max=4, chunk=128)
        self.model, self.every = model, every
        self.good: list[bool] = []
        self.bad: list[bool] = []
        self._proposed = 0
        self._wrong: set[int] = set()

    def begin(self, history: Sequence[int]) -> None:
        self.inner.begin(history)

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        draft = self.inner.propose(history, limit)
        tokens = list(draft.tokens)
        self._wrong.clear()
        for i in range(len(tokens)):
            self._proposed += 1
            if self._proposed % self.every == 0:
                tokens[i] = (tokens[i] + 1) % self.model.n_vocab
                self._wrong.add(i)
        return Draft(tuple(tokens), draft.method, confidence=draft.confidence)

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        self.inner.commit(history, cycle)
        assert list(self.model.tokens) == list(history[: len(self.model.tokens)])
        assert len(self.model.tokens) >= len(history) - 2 - len(self._wrong) * len(cycle.draft)
        self.model.check()
        for i in range(cycle.verdict.tested):
            (self.bad if i in self._wrong else self.good).append(i < cycle.verdict.accepted)

    def close(self) -> None:
        self.inner.close()


# -- 5: past the sliding window ---------------------------------------------------------------------


@pytest.mark.parametrize("types", ["draft-self", "draft-model"])
def test_case_5_gemma_past_its_window(gemma: Path, types: str) -> None:
    text = (Path(__file__).parent.parent / "specli" / "core" / "decoding.py").read_text("utf-8")
    flags = {"exact_width": 4, "ctx_size": 2048, "max_tokens": 200, "spec_draft_n_max": 3, "fixed": True}
    outputs = []
    for method in ("none", types):
        with generator(gemma, gemma, spec_type=method, **flags) as g:
            assert g.model.n_swa == 512
            answer = finished(g, g.prompter.raw(text)[:700])
            outputs.append(answer.tokens)
    assert outputs[0] == outputs[1]
    assert answer.stats.accepted > 20


# -- 7: no suffix removal ---------------------------------------------------------------------------


@pytest.mark.parametrize("types", ["ngram-simple", "draft-self", "draft-model"])
def test_case_7_a_hybrid_with_any_draft(tiny_hybrid: Path, types: str) -> None:
    """The weights are random and nothing it says repeats; among four tokens it must, so that n-grams
    have work. As its own draft everything is accepted."""
    few = [f"{token}+1000" for token in (300, 301, 302, 303)]
    flags = {"exact_width": 4, "max_tokens": 110, "fixed": True, "spec_draft_n_max": 3}
    flags |= {"logit_bias": few} if types != "draft-model" else {}
    sizes = {
        "spec_ngram_simple_size_n": 2,
        "spec_ngram_simple_size_m": 3,
        "spec_self_size_n": 2,
        "spec_self_size_m": 3,
    }
    outputs: list[list[list[int]]] = []
    for method in ("none", types):
        with generator(tiny_hybrid, tiny_hybrid, spec_type=method, **flags, **sizes) as g:
            assert method == "none" or g.target.rollback is Rollback.SNAPSHOT
            said, accepted = _turns(g)
            outputs.append(said)
    assert outputs[0] == outputs[1]
    assert accepted > 40


def _turns(g: Generator) -> tuple[list[list[int]], int]:
    """Three turns of one conversation, each regenerated once, then another conversation."""
    history = g.model.vocab.tokenize(CODE)
    said: list[list[int]] = []
    accepted = 0
    for _ in range(3):
        answer = finished(g, history)
        again = finished(g, history)
        assert again.tokens == answer.tokens
        said.append(answer.tokens)
        accepted += answer.stats.accepted
        history = [*history, *answer.tokens, *g.model.vocab.tokenize("\n# more\n")]
    said.append(finished(g, g.model.vocab.tokenize("class A:")).tokens)
    return said, accepted


# -- 15: a full context -----------------------------------------------------------------------------


def test_case_15_a_full_context(tiny_draft: Path) -> None:
    _fill(tiny_draft)


@pytest.mark.large
def test_case_15_large(qwen_draft: Path) -> None:
    _fill(qwen_draft)


@pytest.mark.parametrize("types", ["draft-mtp", "draft-self"])
def test_case_15_with_heads(tiny_target: Path, types: str) -> None:
    _fill(tiny_target, types)


def test_case_15_on_a_hybrid(tiny_hybrid: Path) -> None:
    _fill(tiny_hybrid)


def _fill(path: Path, types: str = "draft-model") -> None:
    with generator(
        path, path, spec_type=types, ctx_size=256, max_tokens=-1, spec_draft_n_max=16, fixed=True
    ) as g:
        n_ctx = g.target.n_ctx
        assert n_ctx == 256
        prompt = (g.model.vocab.tokenize(CODE) * 40)[:200]
        bias = [f"{t}-1000" for t in range(g.model.vocab.n_tokens) if t in g.model.vocab.ends]
    with generator(
        path,
        path,
        spec_type=types,
        ctx_size=256,
        max_tokens=-1,
        spec_draft_n_max=16,
        fixed=True,
        logit_bias=bias,
    ) as g:
        answer = finished(g, prompt)
        assert answer.finish == "context"
        assert len(prompt) + len(answer.tokens) == n_ctx + 1  # the last token needs no place of its own
        assert answer.stats.accepted > 0 or types != "draft-model"
        assert len(finished(g, prompt[:100]).tokens) == n_ctx + 1 - 100  # and the next answer goes on


# -- 43: every length of draft ----------------------------------------------------------------------


@pytest.mark.parametrize("n_max", [0, 1, 8, 64])
@pytest.mark.parametrize("types", ["draft-model", "draft-mtp"])
def test_case_43_any_length_works(tiny_target: Path, tiny_draft: Path, types: str, n_max: int) -> None:
    _any_length(tiny_target, tiny_draft, types, n_max)


@pytest.mark.large
@pytest.mark.parametrize("n_max", [0, 1, 8, 64])
def test_case_43_large(qwen_target: Path, qwen_draft: Path, n_max: int) -> None:
    _any_length(qwen_target, qwen_draft, "draft-model", n_max, 60)


def _any_length(target: Path, draft: Path, types: str, n_max: int, n: int = 120) -> None:
    with generator(target, draft, spec_type=types, spec_draft_n_max=n_max, max_tokens=n, fixed=True) as g:
        answer = finished(g, g.model.vocab.tokenize(CODE))
        assert 0 < len(answer.tokens) <= n
        assert answer.stats.drafted <= answer.stats.cycles * min(n_max, g.target.max_rows - 1)
        assert bool(answer.stats.accepted) == bool(n_max)


def test_case_43_too_long_is_wrong_usage(tiny_target: Path, tiny_draft: Path) -> None:
    with pytest.raises(UsageError, match="64"):
        generator(tiny_target, tiny_draft, spec_draft_n_max=5000)
