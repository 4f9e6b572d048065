"""A context: batches, limits, failures, cache types, and two contexts of different size."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf_builder import U32
from model_edits import Gguf

from specli.core.decoding import Rules, decode, sync
from specli.core.pacing import FixedPacer
from specli.core.sampling import SamplingParams
from specli.drafters.model import ModelDrafter
from specli.engine import backend
from specli.engine.context import Context, ContextParams
from specli.engine.gguf import read_header
from specli.engine.model import Model, ModelParams
from specli.engine.opening import check_params, snapshot_rows, state_bytes
from specli.errors import EngineError, UsageError


@pytest.fixture
def model(tiny_draft: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    monkeypatch.setenv("SPECLI_DEBUG_CACHES", "1")
    with Model(tiny_draft, ModelParams(0, use_extra_bufts=False)) as model:
        yield model


def words(n: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(5, 1200) for _ in range(n)]


@pytest.mark.parametrize(("n_batch", "n_ubatch"), [(64, 16), (48, 48), (512, 32)])
@pytest.mark.parametrize("rows", [0, 1, 10])
def test_prompts_longer_than_a_batch(model: Model, n_batch: int, n_ubatch: int, rows: int) -> None:
    tokens = words(300)
    with (
        Context(model, ContextParams(512, n_batch, n_ubatch, 10)) as small,
        Context(model, ContextParams(512)) as big,
    ):
        got = small.decode(tokens, rows=rows)
        assert got.shape == (rows, model.vocab.n_tokens)
        assert list(small.tokens) == tokens
        got = np.concatenate([got.copy(), small.decode([7], rows=1)])
        wanted = np.concatenate([big.decode(tokens, rows=rows).copy(), big.decode([7], rows=1)])
        assert np.abs(got - wanted).max() < 0.5


def test_a_context_that_is_refused_after_it_was_opened_is_freed(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    lib = backend.load_library()
    opened, freed = [], []
    init, free = lib.llama_init_from_model, lib.llama_free
    monkeypatch.setattr(lib, "llama_init_from_model", lambda *a: opened.append(init(*a)) or opened[-1])
    monkeypatch.setattr(lib, "llama_free", lambda handle: freed.append(handle) or free(handle))
    with pytest.raises(EngineError, match="does not hand out layers"):
        Context(model, ContextParams(256, layers=(1, 99)))
    assert len(opened) == 1
    assert freed == opened
    with Context(model, ContextParams(256)) as context:
        context.close()  # and once more at the end
    assert freed == opened


def test_a_failed_decode_leaves_a_usable_cache(model: Model) -> None:
    with Context(model, ContextParams(256, 64, 64, 4)) as context:
        tokens = words(250)
        sync(context, tokens, 64)
        with pytest.raises(EngineError, match="do not fit"):
            context.decode(words(10))
        with pytest.raises(EngineError, match="outside the vocabulary"):
            context.decode([5, model.vocab.n_tokens])
        with pytest.raises(EngineError, match="rows"):
            context.decode(words(3), rows=4)
        context._n_ctx = 10_000  # as if the library ran out of room all the same
        with pytest.raises(EngineError, match="no room"):
            context.decode(words(40))
        assert list(context.tokens) == tokens
        context.check()
        context.rewind(240)
        context.decode(words(4), rows=4)


def test_a_failed_decode_on_a_recurrent_cache_forgets_what_it_cannot_trust(
    tiny_hybrid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLI_DEBUG_CACHES", "1")
    with (
        Model(tiny_hybrid, ModelParams(0, use_extra_bufts=False)) as model,
        Context(model, ContextParams(256, 64, 64, 4, snapshots=3)) as context,
    ):
        tokens = words(250)
        sync(context, tokens, 64)
        context._n_ctx = 10_000
        with pytest.raises(EngineError):
            context.decode(words(40), rows=1)
        assert list(context.tokens) == tokens[: len(context.tokens)]
        context.check()
        sync(context, tokens, 64)
        assert list(context.tokens) == tokens


@pytest.mark.parametrize(
    ("type_k", "type_v"), [("q8_0", "q8_0"), ("q4_0", "f16"), ("f32", "bf16"), ("iq4_nl", "q5_1")]
)
def test_quantised_caches_decode_and_rewind(model: Model, type_k: str, type_v: str) -> None:
    params = ContextParams(256, 64, 64, 4, type_k=type_k, type_v=type_v)
    with Context(model, params) as context:
        sync(context, words(100), 64)
        context.decode(words(4), rows=4)
        context.rewind(102)
        assert np.isfinite(context.decode([7], rows=1)).all()


def test_cache_types_the_library_would_refuse_are_named(tmp_path: Path, tiny_draft: Path) -> None:
    odd = Gguf(tiny_draft)
    odd.set("llama.attention.value_length", U32, 48)
    header = read_header(odd.write(tmp_path / "odd.gguf"))
    with pytest.raises(UsageError, match="--cache-type-v q8_0 stores blocks of 32 values"):
        check_params(header, ContextParams(type_v="q8_0"))
    check_params(header, ContextParams(type_k="q8_0"))
    with pytest.raises(UsageError, match="needs flash attention"):
        check_params(read_header(tiny_draft), ContextParams(type_v="q8_0", flash_attn="off"))
    with pytest.raises(UsageError, match="--cache-type-k q3"):
        check_params(read_header(tiny_draft), ContextParams(type_k="q3"))
    with pytest.raises(EngineError, match="snapshots"):
        check_params(
            read_header(tiny_draft), ContextParams(n_batch=16, n_ubatch=16, max_rows=16, snapshots=15)
        )


def test_a_draft_with_a_smaller_context_stops_where_it_ends(model: Model) -> None:
    prompt = words(200)
    with (
        Context(model, ContextParams(512, max_rows=4)) as target,
        Context(model, ContextParams(256, max_rows=1, type_k="q8_0", type_v="q8_0")) as draft,
    ):
        outputs, cycles = [], 0
        for drafters in ([], [ModelDrafter(draft, FixedPacer(), draft.n_vocab, n_max=3)]):
            history = list(prompt)
            sync(target, history[:-1], 128)
            for drafter in drafters:
                drafter.begin(history)
            rules = Rules(SamplingParams(temp=0.0), max_tokens=150, exact_width=4)
            found = list(decode(target, history, drafters, rules, FixedPacer()))
            outputs.append(history)
            cycles = len(found)
            late = [c for c in found if c.depth >= 256]
            assert late and not any(c.draft.tokens for c in late)
        assert outputs[0] == outputs[1]
        assert cycles < 140 and len(draft.tokens) <= 256


def test_rows_shrink_where_every_row_costs_a_state(tiny_hybrid: Path, tiny_draft: Path) -> None:
    header = read_header(tiny_hybrid)
    state = state_bytes(header)
    # 4 of 6 blocks; 128 x 32 values of state and 3 x (128 + 2 x 2 x 32) of convolution, 4 bytes each
    assert state == 4 * 4 * (128 * 32 + 3 * (128 + 2 * 2 * 32))
    assert snapshot_rows(header, 1 << 40) == 16
    assert snapshot_rows(header, 4 * 8 * state) == 8
    assert snapshot_rows(header, 0) == 2
    assert state_bytes(read_header(tiny_draft)) == 0


def test_the_debug_mode_finds_a_cache_that_is_not_what_is_believed(model: Model) -> None:
    with Context(model, ContextParams(256)) as context:
        sync(context, words(20), 64)
        context._tokens.pop()
        with pytest.raises(EngineError, match="20 positions, not 19"):
            context.check()
