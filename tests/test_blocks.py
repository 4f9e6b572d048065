"""draft-dflash and draft-dspark with random weights: exact whatever they propose, one pass for all places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from feature_models import RandomDraft
from model_edits import as_qwen3
from test_eagle3 import FIVE, MODELS, WIDE, answers, conversation, generator

from specli.casting import draft_method
from specli.core.decoding import sync
from specli.core.pacing import FixedPacer
from specli.core.sampling import SamplingParams, distribution
from specli.drafters.block import BlockDrafter
from specli.drafters.neural import Voice
from specli.engine.blocks import Blocks
from specli.engine.context import Context, ContextParams
from specli.engine.fit import check_fit
from specli.engine.model import Model, ModelParams
from specli.errors import DraftMismatch, UsageError

KINDS: dict[str, dict[str, object]] = {
    "dflash": {},
    "causal": {"layers": (0, 2), "own": True, "keys": {"dflash.attention.causal": True}},
    "reduced": {"vocabulary": range(0, 1280, 2), "keys": {"dflash.block_size": 7}},
    "dspark": {"markov": True},
    "unanchored": {"markov": True, "keys": {"dflash.sample_from_anchor": False}},
}
MOST = {"dflash": 3, "causal": 3, "reduced": 6, "dspark": 4, "unanchored": 3}


@pytest.fixture(autouse=True)
def _debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLI_DEBUG_CACHES", "1")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_qwen3(MODELS / "tiny-target-mtp.gguf", tmp_path_factory.mktemp("blocks") / "target.gguf")


@pytest.fixture(scope="module")
def drafts(target: Path) -> dict[str, Path]:
    return {
        kind: RandomDraft(target, "dflash", **changes).write(target.with_name(f"{kind}.gguf"))  # type: ignore[arg-type]
        for kind, changes in KINDS.items()
    }


def params(layers: Sequence[int]) -> ContextParams:
    return ContextParams(
        1024, 128, 128, 16, flash_attn="off", type_k="f32", type_v="f32", layers=tuple(layers)
    )


FLAGS = {"exact_width": 4, "max_tokens": 30, "fixed": True, "spec_ngram_simple_size_n": 3, "temp": 0.8}


@pytest.fixture(scope="module")
def plain(target: Path) -> list[list[int]]:
    with generator(target, None, spec_type="none", **FLAGS) as g:
        return conversation(g)


@pytest.mark.parametrize("kind", KINDS)
def test_exact_output_is_that_of_plain_decoding(
    target: Path, drafts: dict[str, Path], plain: list[list[int]], kind: str
) -> None:
    method = draft_method(drafts[kind])
    assert method == ("draft-dspark" if kind in ("dspark", "unanchored") else "draft-dflash")
    with generator(target, drafts[kind], spec_type=f"ngram-simple,{method}", **FLAGS) as g:
        assert conversation(g) == plain  # n-grams are accepted now and then, so the cache grows in all ways
        _, accepted = answers(g, FIVE[:2])
        assert method in accepted and g.methods == ["ngram-simple", method]


@pytest.mark.parametrize("kind", ["dflash", "causal", "dspark"])
@pytest.mark.parametrize("n", [1, 60, 700])
def test_after_any_cut_a_block_is_that_of_a_cold_draft(
    target: Path, drafts: dict[str, Path], kind: str, n: int
) -> None:
    text = [t for prompt in WIDE for t in prompt][:900]
    history = [*text[:n], *FIVE[0][:20]]
    own = params(KINDS[kind].get("layers", (1, 2, 3)))  # type: ignore[arg-type]
    load = ModelParams(0, use_extra_bufts=False)
    with Model(target, load) as model, Model(drafts[kind], load) as draft:
        with Context(model, own) as warm, Blocks(warm, own, draft) as blocks:
            assert blocks.most == MOST[kind]
            sync(warm, text[:890], 128)
            blocks.propose(text[890], 3)
            sync(warm, history[:-1], 128)
            got = np.array(blocks.propose(history[-1], 3))
            blocks.check()
        with Context(model, own) as cold, Blocks(cold, own, draft) as blocks:
            sync(cold, history[:-1], 128)
            wanted = np.array(blocks.propose(history[-1], 3))
    assert got == pytest.approx(wanted, abs=2e-3)
    assert np.abs(wanted[0] - wanted[1]).max() > 0.01  # places differ


def test_every_place_has_a_law_of_its_own(target: Path, drafts: dict[str, Path]) -> None:
    """The reduced vocabulary too: what it lacks is never proposed."""
    sampling = SamplingParams(temp=0.8, top_k=0, top_p=1.0, min_p=0.0)
    load, history = ModelParams(0, use_extra_bufts=False), WIDE[0]
    with (
        Model(target, load) as model,
        Model(drafts["reduced"], load) as draft,
        Context(model, params((1, 2, 3))) as context,
        Blocks(context, context.params, draft) as blocks,
    ):
        sync(context, history[:-1], 128)
        drafter = BlockDrafter("draft-dflash", blocks, FixedPacer(), context.n_vocab, 9)
        drafter.speak(Voice(sampling, seed=2))
        found = drafter.propose(history, 9)
        assert len(found) == 6 and found.q is not None
        rows = np.array(blocks.propose(history[-1], 6))
        for i, q in enumerate(found.q):
            law = distribution(rows[i], sampling.window(history, found.tokens[:i]), sampling)
            assert list(law.ids) == list(q.ids) and law.probs == pytest.approx(q.probs, abs=1e-6)
            assert not (q.ids % 2).any()
        assert len(drafter.propose(history, 2)) == 2
        drafter.speak(Voice())
        assert Counter(drafter.propose(history, 9).tokens) == Counter(int(row.argmax()) for row in rows)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keys": {"tokenizer.ggml.mask_token_id": None}}, "names no mask token"),
        ({"keys": {"tokenizer.ggml.mask_token_id": 1280}}, "names no mask token"),
        ({"keys": {"dflash.target_layers": None}}, "does not say which layers"),
        ({"keys": {"dflash.hyper_connection_count": 4}}, "DeepSeek-V4's own kind"),
        ({"keys": {"dflash.block_size": 1}}, "has blocks of 1 tokens"),
        ({"keys": {"dflash.block_size": 1_000_000_000}}, "has blocks of 1000000000 tokens"),
        ({"layers": (4,)}, "reads what leaves the last layer"),
        ({"vocabulary": [1, 5000]}, "beyond the vocabulary of 1280"),
    ],
)
def test_what_cannot_run_is_refused_with_what_is_missing(
    target: Path, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    draft = RandomDraft(target, "dflash", **changes).write(tmp_path / "block.gguf")  # type: ignore[arg-type]
    with pytest.raises(DraftMismatch, match=words) as caught:
        generator(target, draft, draft_model=str(draft))
    assert "\n" not in str(caught.value)
    assert check_fit(target, draft).verdict == "does-not-fit"


def test_the_kind_is_said(target: Path, drafts: dict[str, Path]) -> None:
    fit = check_fit(target, drafts["dspark"])
    assert fit.verdict == "fits-with-notes" and "--spec-type draft-dspark" in fit.findings[0].note
    with pytest.raises(UsageError, match="a DSpark block draft; use it with --spec-type draft-dspark"):
        generator(target, drafts["dspark"], spec_type="draft-dflash")
