"""Drafts by the model itself without some of its layers: the search, the copy, and the way to it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_models import Made, words
from numpy.typing import NDArray

from specli import profiles, pruned
from specli.assembly import Generator, Request
from specli.bench.contest import Run
from specli.bench.figures import Pair
from specli.cli.main import main
from specli.cli.tune import stored_layers
from specli.core.stats import MethodStats, Stats
from specli.engine.context import Context, ContextParams
from specli.engine.gguf import read_header
from specli.engine.model import Model, ModelParams
from specli.engine.probe import TrialSettings
from specli.engine.prune import prune_problem, pruned_header, write_pruned
from specli.engine.silence import Silencer
from specli.engine.traffic import token_bytes
from specli.errors import EngineError, Interrupted, MemoryShortage, ModelFileError, SpecliError, UsageError
from specli.export import ENGINES, export
from specli.layers.agreement import Jury, Passage
from specli.layers.search import Agreement, Search
from specli.pruned import LayerSet
from specli.tune.candidates import Candidate, off
from specli.tune.halving import Standing
from specli.tune.verdict import Choice, on_layers
from specli.ui.figures import final_figures

BLOCKS, IDLE = 6, 3
PARAMS = ContextParams(n_ctx=128, n_batch=64, n_ubatch=64, max_rows=32)
TRIAL = TrialSettings(threads=1)


def idle_block(source: Path, path: Path, block: int) -> Path:
    """A copy of a made model in which one block adds nothing to what passes through it."""
    shutil.copyfile(source, path)
    header = read_header(path)
    with open(path, "r+b") as file:
        for tensor in header.tensors:
            if tensor.name in (f"blk.{block}.attn_output.weight", f"blk.{block}.ffn_down.weight"):
                file.seek(header.data_offset + tensor.offset)
                file.write(bytes(tensor.n_bytes))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers, of which number three is of no use."""
    where = tmp_path_factory.mktemp("layers")
    made = Made(words(300), layers=BLOCKS, seed=5, width=64, context=1024).write(where / "made.gguf")
    return idle_block(made, where / "six.gguf", IDLE)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"SPECLI_{name}_DIR", str(tmp_path / name.lower()))
    return tmp_path


def a_set(model: Path, layers: tuple[int, ...] = (IDLE,)) -> LayerSet:
    header = read_header(model)
    return LayerSet(
        header.fingerprint, header.block_count or 0, layers, 0.9, 0.8, 100, "mine", "2026-01-02T00:00:00"
    )


def rows_of(path: Path, tokens: list[int]) -> NDArray[np.float32]:
    with Model(path, ModelParams(0, use_extra_bufts=False)) as loaded, Context(loaded, PARAMS) as context:
        rows: NDArray[np.float32] = context.decode(tokens, rows=8).copy()
        return rows


# -- the search, without any model -----------------------------------------------------------------


class Costs:
    """A judge that knows what each layer costs; together they cost the sum, and 3 with 4 a lot."""

    def __init__(self, costs: list[float], parts: int = 3) -> None:
        self.costs, self._parts, self.asked = costs, parts, 0

    @property
    def parts(self) -> int:
        return self._parts

    def judge(self, dropped: frozenset[int], part: int) -> Agreement:
        self.asked += 1
        lost = sum(self.costs[layer] for layer in dropped) + 0.5 * ({3, 4} <= dropped)
        share = max(0.0, 1.0 - lost)
        return Agreement(round(1000 * share), 1000 * share, 1000)


COSTS = [0.4, 0.3, 0.2, 0.01, 0.02, 0.03, 0.1, 0.5]


def search(judge: Costs, **more: object) -> Search:
    return Search(len(judge.costs), judge, lambda dropped, value: value + 0.1 * len(dropped), **more)  # type: ignore[arg-type]


def test_search_begins_with_a_run_and_exchanges() -> None:
    (step,) = search(Costs(COSTS)).run(drop=3)
    # of all runs 4 to 6 is best; better still is 3, 5 and 6
    assert set(step.dropped) in ({4, 5, 6}, {3, 5, 6})
    assert step.agreement.top1 >= 0.85 and step.agreement.positions == 3000
    (step,) = search(Costs([0.4, 0.0, 0.2, 0.3, 0.01, 0.02, 0.1, 0.01])).run(drop=4)
    assert set(step.dropped) == {1, 4, 5, 7}


@pytest.mark.parametrize(("size", "best"), [(1, 3), (2, 5), (4, 11), (8, 9)])
def test_the_best_run_is_found_from_coarse_to_fine(size: int, best: int) -> None:
    judge = Costs([abs(layer - best - (size - 1) / 2) / 200 for layer in range(28)])
    judge.costs = [cost + 0.001 * layer for layer, cost in enumerate(judge.costs)]
    block = search(judge).block(size)
    exact = min(range(29 - size), key=lambda start: sum(judge.costs[start : start + size]))
    assert block is not None and block.dropped[0] in (exact - 1, exact, exact + 1)
    assert judge.asked < 28


def test_search_leaves_out_as_many_as_promise_most_speed() -> None:
    costs = [0.5, *[0.01] * 4, *[0.5] * 3]  # four layers are cheap, each one less is worth 0.1
    mine = Search(8, Free(costs), lambda dropped, value: value + 0.1 * len(dropped))
    assert set(mine.best(mine.run()).dropped) == {1, 2, 3, 4}


class Free(Costs):
    """The same without what belongs together."""

    def judge(self, dropped: frozenset[int], part: int) -> Agreement:
        self.asked += 1
        share = max(0.0, 1.0 - sum(self.costs[layer] for layer in dropped))
        return Agreement(round(1000 * share), 1000 * share, 1000)


def test_an_exchange_must_hold_on_text_that_it_was_not_proposed_on() -> None:
    class Overfit(Free):
        """On the first part alone, layer 7 seems to be of no use."""

        def judge(self, dropped: frozenset[int], part: int) -> Agreement:
            found = super().judge(dropped, part)
            gain = 0.45 if part == 0 and 7 in dropped else 0.0
            return Agreement(found.matches, found.overlap + 1000 * gain, found.positions)

    (step,) = Search(
        8, Overfit([0.3, 0.3, 0.02, 0.01, 0.3, 0.3, 0.3, 0.5]), lambda dropped, value: value
    ).run(2)
    assert set(step.dropped) == {2, 3}


def test_random_exchanges_find_what_single_looks_miss() -> None:
    class Pair(Free):
        """Layer 7 seems needed, but not where layer 4 is left out too and nothing else."""

        def judge(self, dropped: frozenset[int], part: int) -> Agreement:
            found = super().judge(dropped, part)
            return Agreement(1000, 1000.0, 1000) if dropped == {4, 7} else found

    judge = Pair([0.2, 0.2, 0.2, 0.2, 0.1, 0.1, 0.2, 0.3])
    (step,) = Search(8, judge, lambda dropped, value: value).run(2)
    assert set(step.dropped) == {4, 7}


def test_a_search_out_of_time_gives_what_it_has() -> None:
    judge = Costs(COSTS)
    (step,) = search(judge, used=lambda: judge.asked / 9).run(drop=3)
    assert len(step.dropped) == 3 and step.agreement.positions
    assert judge.asked == 9
    judge = Costs(COSTS)
    assert search(judge, used=lambda: 1.0).run(drop=3) == [] and judge.asked == 0


def test_a_stopped_search_judges_nothing_more() -> None:
    judge = Costs(COSTS)
    assert search(judge, stop=lambda: True).run(drop=4) == [] and judge.asked == 0


def test_agreements_add_up() -> None:
    total = Agreement(3, 2.0, 4) + Agreement(1, 1.0, 4)
    assert (total.top1, total.shared, total.value) == (0.5, 0.375, 0.4375)
    assert Agreement().value == 0.0


# -- a model whose layers are silenced -------------------------------------------------------------

TOKENS = [5, 9, 200, 31, 7, 8, 90, 100, 11, 250, 3, 4, 17, 222, 60, 12]


@pytest.fixture(scope="module")
def silencer(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Silencer]:
    where = tmp_path_factory.mktemp("work")
    with Silencer(model, where, PARAMS) as found:
        if os.name != "nt":
            assert list(where.iterdir()) == []  # nothing that a kill could leave behind
        yield found


@pytest.mark.parametrize("layers", [(IDLE,), (0,), (5,), (1, 2, 4)])
def test_a_silenced_model_is_its_pruned_copy_bit_for_bit(
    silencer: Silencer, model: Path, tmp_path: Path, layers: tuple[int, ...]
) -> None:
    copy = tmp_path / "copy.gguf"
    write_pruned(model, copy, layers)
    silencer.silence(layers)
    silencer.context.clear()
    silent = silencer.context.decode(TOKENS, rows=8).copy()
    assert np.array_equal(silent, rows_of(copy, TOKENS))
    silencer.silence(())
    silencer.context.clear()
    assert np.array_equal(silencer.context.decode(TOKENS, rows=8), rows_of(model, TOKENS))


def test_the_idle_layer_costs_no_agreement_and_is_found_first(silencer: Silencer) -> None:
    passages = [Passage(tuple(TOKENS), 6), Passage(tuple(reversed(TOKENS)), 4)]
    jury = Jury(silencer, passages)
    assert jury.positions == 22 and jury.parts == 2
    without = jury.judge_all(frozenset({IDLE}))
    assert without.top1 == 1.0 and without.positions == 22
    assert jury.judge_all(frozenset({0})).value < without.value
    (step,) = Search(BLOCKS, jury, lambda dropped, value: value).run(drop=1)
    assert step.dropped == (IDLE,)
    (step,) = Search(BLOCKS, jury, lambda dropped, value: value).run(drop=2)
    assert IDLE in step.dropped


def test_agreement_is_that_of_the_two_distributions(silencer: Silencer, model: Path) -> None:
    """Against softmax over the whole vocabulary, in float64."""
    passage, layers = Passage(tuple(TOKENS), 8), frozenset({1, 4})
    found = Jury(silencer, [passage]).judge(layers, 0)

    def law(dropped: frozenset[int]) -> NDArray[np.float64]:
        silencer.silence(dropped)
        silencer.context.clear()
        rows = silencer.context.decode(TOKENS[:-1], rows=8).astype(np.float64)
        weights: NDArray[np.float64] = np.exp(rows - rows.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return weights

    p, q = law(frozenset()), law(layers)
    assert found.matches == int((p.argmax(1) == q.argmax(1)).sum())
    exact = float(np.minimum(p, q).sum())
    outside = float(sum(1 - np.sort(row)[-128:].sum() for row in p))
    assert exact - outside - 1e-3 <= found.overlap <= exact + 1e-3


# -- which models can do without layers ------------------------------------------------------------


def test_a_uniform_model_can() -> None:
    header = read_header(Path(__file__).parent / "models" / "tiny-draft.gguf")
    assert "names 2 layers" in (prune_problem(header) or "")  # too few to leave any out


def test_models_of_other_make_are_refused_by_name(model: Path, tmp_path: Path, tiny_target: Path) -> None:
    assert prune_problem(read_header(model)) is None
    assert "prediction heads" in (prune_problem(read_header(tiny_target)) or "")
    header = read_header(model)

    def with_keys(**keys: object) -> str:
        metadata = {**header.metadata, **{name.replace("__", "."): value for name, value in keys.items()}}
        return prune_problem(replace(header, metadata=metadata)) or ""  # type: ignore[arg-type]

    assert "window changes" in with_keys(llama__attention__sliding_window=512) or "six" in with_keys(
        **{"llama.attention.sliding_window": 512}
    )
    assert "recurrence" in with_keys(**{"llama.full_attention_interval": 4})
    assert "recurrent" in with_keys(**{"llama.ssm.inner_size": 64})
    assert "another kind" in with_keys(**{"llama.leading_dense_block_count": 1})
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert "by a list, llama.attention.head_count_kv" in with_keys(
        **{"llama.attention.head_count_kv": tokens}
    )
    assert "gemma3" in with_keys(**{"general.architecture": "gemma3"})
    assert "holds 6" in with_keys(**{"llama.block_count": 7})


def test_blocks_of_different_make_are_refused(model: Path) -> None:
    header = read_header(model)
    tensors = tuple(t for t in header.tensors if t.name != "blk.4.ffn_gate.weight")
    assert "layer 4 is made otherwise" in (prune_problem(replace(header, tensors=tensors)) or "")
    silent = tuple(t for t in header.tensors if "attn_output" not in t.name)
    assert "do not only add" in (prune_problem(replace(header, tensors=silent)) or "")
    assert "aligned to 64" in (prune_problem(replace(header, alignment=64)) or "")


@pytest.mark.parametrize("layers", [(), (1, 1), (6,), (-1,), tuple(range(6))])
def test_nothing_reaches_the_library_that_is_not_meant(
    model: Path, tmp_path: Path, layers: tuple[int, ...]
) -> None:
    with pytest.raises(EngineError):
        write_pruned(model, tmp_path / "copy.gguf", layers)
    assert not (tmp_path / "copy.gguf").exists()


def test_the_size_of_a_copy_is_known_before_it_is_written(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    write_pruned(model, copy, (1, 4))
    made, foretold = read_header(copy), pruned_header(read_header(model), (1, 4))
    assert made.block_count == foretold.block_count == 4
    assert made.tensor_bytes == foretold.tensor_bytes
    assert abs(copy.stat().st_size - foretold.file_size) < 4096
    assert token_bytes(made) == token_bytes(foretold) < token_bytes(read_header(model))


# -- the copy on the disk --------------------------------------------------------------------------


def test_a_copy_is_written_once_and_said_before(model: Path, places: Path) -> None:
    said: list[str] = []
    found = a_set(model)
    copy = pruned.copy_of(model, found, TRIAL, False, said.append)
    assert len(said) == 1 and "on the disk" in said[0] and "more memory" in said[0]
    before = copy.stat().st_mtime_ns
    assert pruned.copy_of(model, found, TRIAL, False, said.append) == copy
    assert copy.stat().st_mtime_ns == before and len(said) == 1
    other = pruned.copy_of(model, a_set(model, (2, IDLE)), TRIAL, False, said.append)
    assert other.exists() and not copy.exists()  # one copy for a model
    assert sorted(path.name for path in copy.parent.iterdir()) == sorted([other.name, "lock"])


def test_a_copy_that_was_cut_off_is_written_again(model: Path, places: Path) -> None:
    found = a_set(model)
    copy = pruned.copy_of(model, found, TRIAL, False, lambda _: None)
    copy.write_bytes(copy.read_bytes()[:-100])
    said: list[str] = []
    pruned.copy_of(model, found, TRIAL, False, said.append)
    assert said and read_header(copy).block_count == 5


def left(places: Path) -> list[str]:
    return sorted(path.name for path in (places / "cache" / "layers").iterdir())


def test_a_full_disk_is_refused_with_the_figures(
    model: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(places)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=64 << 20))
    said: list[str] = []
    with pytest.raises(SpecliError, match=r"takes 1 MiB and .* has 64 MiB free"):
        pruned.copy_of(model, a_set(model), TRIAL, False, said.append)
    assert not said and left(places) == ["lock"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of a file")
def test_a_disk_that_fills_up_meanwhile_leaves_nothing(model: Path, places: Path) -> None:
    code = (
        "import resource, signal, sys; from pathlib import Path; from specli.engine.prune import write_pruned;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16));"
        "write_pruned(Path(sys.argv[1]), Path(sys.argv[2]), [2])"
    )
    copy = places / "copy.gguf"
    done = subprocess.run([sys.executable, "-c", code, str(model), str(copy)], capture_output=True, text=True)
    assert "EngineError" in done.stderr and "could not write" in done.stderr, done.stderr
    assert not copy.exists()


def test_an_interrupted_copy_leaves_nothing(model: Path, places: Path) -> None:
    with pytest.raises(Interrupted):
        pruned.copy_of(model, a_set(model), TRIAL, False, lambda _: None, stop=lambda: True)
    assert left(places) == ["lock"]


def test_what_a_killed_process_left_is_removed(model: Path, places: Path) -> None:
    where = pruned.folder()
    (where / "work-half.gguf").write_bytes(b"GGUF")
    (where / "work-folder").mkdir()
    (where / "work-folder" / "part.gguf").write_bytes(b"GGUF")
    copy = pruned.copy_of(model, a_set(model), TRIAL, False, lambda _: None)
    assert left(places) == sorted([copy.name, "lock"])


@pytest.mark.skipif(os.name == "nt", reason="locks otherwise")
def test_one_writer_at_a_time(model: Path, places: Path) -> None:
    where = pruned.folder()
    said: list[str] = []
    with pruned.exclusive(where, said.append), pytest.raises(Interrupted, match="waiting"):
        pruned.copy_of(model, a_set(model), TRIAL, False, said.append, stop=lambda: True)
    assert said == ["waiting for another specli that writes a copy of a model"]


@pytest.mark.skipif(os.name == "nt", reason="locks otherwise")
def test_a_file_system_without_locks_stops_nobody(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("specli.paths.fcntl.flock", no_locks)
    with pruned.exclusive(pruned.folder(), lambda said: None, stop=lambda: True):
        pass


def test_a_copy_that_does_not_run_is_not_kept(
    model: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLI_PROBE_FAULT", "segv-always")
    with pytest.raises(SpecliError):
        pruned.copy_of(model, a_set(model), TRIAL, True, lambda _: None)
    assert left(places) == ["lock"]


# -- the set ---------------------------------------------------------------------------------------


def test_a_set_is_kept_for_its_file(model: Path, places: Path) -> None:
    with pytest.raises(ModelFileError, match=r"not known yet; `specli layers .*six.gguf` finds them"):
        pruned.layer_set(model)
    found = a_set(model)
    assert pruned.remember(model, found).is_file()
    assert pruned.layer_set(model) == found
    pruned.copy_of(model, found, TRIAL, False, lambda _: None)
    assert pruned.forget(model) > 100_000 and left(places) == ["lock"]
    with pytest.raises(ModelFileError, match="not known yet"):
        pruned.layer_set(model)


def test_a_changed_model_is_noticed(model: Path, places: Path, tmp_path: Path) -> None:
    mine = shutil.copyfile(model, tmp_path / "mine.gguf")
    pruned.remember(mine, a_set(mine))
    # a fine-tune: the same layout, other weights
    Made(words(300), layers=BLOCKS, seed=6, width=64, context=1024).write(mine)
    with pytest.raises(ModelFileError, match=r"not the file any more.*anew"):
        pruned.layer_set(mine)


def test_copies_of_an_older_model_go(model: Path, places: Path, tmp_path: Path) -> None:
    mine = shutil.copyfile(model, tmp_path / "mine.gguf")
    old = a_set(mine)
    pruned.remember(mine, old)
    copy = pruned.copy_of(mine, old, TRIAL, False, lambda _: None)
    Made(words(300), layers=BLOCKS, seed=6, width=64, context=1024).write(mine)
    pruned.remember(mine, a_set(mine))
    assert not copy.exists() and pruned.layer_set(mine).target != old.target


def test_files_of_one_name_are_two_models(model: Path, places: Path) -> None:
    for seed in (6, 7):
        (places / str(seed)).mkdir()
    mine, other = (
        Made(words(300), layers=BLOCKS, seed=seed, width=64).write(places / str(seed) / "same.gguf")
        for seed in (6, 7)
    )
    pruned.remember(mine, a_set(mine, (1,)))
    with pytest.raises(ModelFileError, match="not known yet"):
        pruned.layer_set(other)
    pruned.remember(other, a_set(other, (2,)))
    assert pruned.layer_set(mine).layers == (1,) and pruned.layer_set(other).layers == (2,)
    pruned.forget(other)
    assert pruned.layer_set(mine).layers == (1,)


def test_a_cache_that_cannot_be_written_is_one_line(
    model: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (places / "file").write_text("")
    monkeypatch.setenv("SPECLI_CACHE_DIR", str(places / "file"))
    with pytest.raises(SpecliError, match=r"cannot make .*layers"):
        pruned.copy_of(model, a_set(model), TRIAL, False, lambda _: None)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 2}', '{"format": 1}', '{"format": 1, "layers": 3}']
)
def test_a_damaged_set_is_said(model: Path, places: Path, text: str) -> None:
    path = pruned.remember(model, a_set(model))
    path.write_text(text)
    with pytest.raises(ModelFileError, match="cannot be read any more"):
        pruned.layer_set(model)


def test_a_set_of_impossible_layers_is_no_set(model: Path, places: Path) -> None:
    for layers in ((6,), (2, 1), (1, 1), (), tuple(range(6))):
        pruned.remember(model, replace(a_set(model), layers=layers))
        with pytest.raises(ModelFileError, match="cannot be read any more"):
            pruned.layer_set(model)


def test_layers_are_written_as_people_write_them() -> None:
    assert pruned.as_text((1, 3, 4, 5, 9, 10)) == "1, 3-5, 9, 10"


# -- drafting --------------------------------------------------------------------------------------


def settings(**flags: object) -> profiles.Settings:
    given: dict[str, object] = {
        "temp": 0.0, "seed": 1, "ctx-size": 256, "threads": 1, "max-tokens": 24,
    }  # fmt: skip
    return profiles.resolve(profiles.load("auto"), given | {n.replace("_", "-"): v for n, v in flags.items()})


def said_by(model: Path, **flags: object) -> tuple[list[int], Generator]:
    with Generator(Request(settings(**flags), model, ignore_end=True)) as g:
        answer = g.answer(TOKENS)
        for _ in answer:
            pass
        return answer.tokens, g


def test_self_method_names_the_method() -> None:
    assert settings(spec_type="draft-self", self_method="layers").types == ("draft-self-layers",)
    assert settings(spec_type="draft-self", self_method="history").types == ("draft-self",)
    assert settings(spec_type="ngram-simple,draft-self", self_method="layers").types == (
        "ngram-simple",
        "draft-self-layers",
    )
    assert settings(self_method="layers").types == ("auto",)
    with pytest.raises(UsageError, match="add --spec-type draft-self"):
        settings(spec_type="ngram-simple", self_method="layers")


def test_layers_draft_for_the_whole_model(model: Path, places: Path) -> None:
    pruned.remember(model, a_set(model))
    flags = {"spec_type": "draft-self", "self_method": "layers", "exact": True}
    plain, _ = said_by(model, spec_type="none", exact=True)
    drafted, g = said_by(model, **flags)
    assert drafted == plain and g.methods == ["draft-self-layers"] and g.draft_model is None
    assert any("on the disk" in line for line in g.notices)
    with Generator(Request(settings(**flags, fixed=True), model, ignore_end=True)) as g:
        answer = g.answer(TOKENS)
        for _ in answer:
            pass
        (name,) = answer.stats.by_method
        mine = answer.stats.by_method[name]
        # the layer left out is idle, so that every draft token is the target's own
        assert name == "draft-self-layers" and mine.tested == mine.accepted > 8
        assert answer.tokens == plain and not any("on the disk" in line for line in g.notices)


def test_a_useful_layer_left_out_is_rejected_and_changes_nothing(model: Path, places: Path) -> None:
    pruned.remember(model, a_set(model, (0, 2, 5)))
    plain, _ = said_by(model, spec_type="none", exact=True)
    with Generator(
        Request(settings(spec_type="draft-self-layers", exact=True, fixed=True), model, ignore_end=True)
    ) as g:
        answer = g.answer(TOKENS)
        for _ in answer:
            pass
        assert answer.tokens == plain
        assert answer.stats.accepted < answer.stats.tested


def test_history_and_layers_draft_in_turn(model: Path, places: Path) -> None:
    pruned.remember(model, a_set(model))
    _, g = said_by(model, self_method="layers")
    assert g.methods == ["draft-self", "draft-self-layers"]
    _, g = said_by(model)
    assert g.methods == ["draft-self"]


def test_without_a_set_one_line_says_how_to_get_it(
    model: Path, places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=r"--spec-type draft-self-layers: .*`specli layers .*` finds them"):
        said_by(model, spec_type="draft-self", self_method="layers")
    with pytest.raises(UsageError, match="finds them"):
        said_by(model, self_method="layers")
    profile = places / "mine.toml"
    profile.write_text('[spec]\ntypes = ["draft-self"]\nself-method = "layers"\n')
    resolved = profiles.resolve(profiles.load(str(profile)), {"temp": 0.0, "threads": 1, "ctx-size": 256})
    with Generator(Request(resolved, model)) as g:
        assert g.methods == [] and any("is skipped" in line for line in g.notices)


def test_too_little_memory_is_refused_before_anything_is_written(
    model: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned.remember(model, a_set(model))
    whole = read_header(model).tensor_bytes
    monkeypatch.setattr("specli.loading.available_bytes", lambda: (128 << 20) + whole + (1 << 20))
    with pytest.raises(MemoryShortage, match=f"{read_header(model).fingerprint}.* needs"):
        said_by(model, spec_type="draft-self-layers")
    assert not (places / "cache" / "layers").exists()


# -- the command -----------------------------------------------------------------------------------


def test_the_command_finds_the_idle_layer(
    model: Path, places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    like = places / "like.txt"
    like.write_text("tok1 tok2\ntok7 tok9 tok11\n")
    arguments = ["layers", str(model), "--like", str(like), "--drop", "1", "--threads", "1", "--budget", "60"]
    assert main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["left_out"] == [IDLE] and found["agreement"] == 1.0 and found["layers"] == BLOCKS
    assert found["measured"]["acceptance"] == 1.0 and Path(found["copy"]).is_file()
    assert "copying six" in err and "on the disk" in err
    assert pruned.layer_set(model).layers == (IDLE,)
    assert main(["layers", str(model), "--forget"]) == 0 and not Path(found["copy"]).exists()


def test_the_command_says_what_came_out(
    model: Path, places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    like = places / "like.txt"
    like.write_text("tok1 tok2\n")
    assert main(["layers", str(model), "--like", str(like), "--threads", "1", "--budget", "20", "-q"]) == 0
    out, err = capsys.readouterr()
    assert not err
    assert "6 layers, judged at" in out and "Left out:" in out and "of a target token" in out
    assert "pay" in out


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["--drop", "6"], "leave out 1 to 5", 2),
        (["--forget", "--drop", "2"], "--forget", 2),
        (["--like", "nowhere.txt"], "nowhere.txt", 1),
    ],
)
def test_wrong_usage_is_one_line(
    model: Path, places: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str, code: int
) -> None:
    assert main(["layers", str(model), *arguments]) == code
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_a_model_that_cannot_is_refused_at_once(
    tiny_hybrid: Path, places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["layers", str(tiny_hybrid)]) == 1
    err = capsys.readouterr().err
    assert "no layer of tiny-hybrid can be left out" in err and err.count("\n") == 1


# -- beside the other methods ----------------------------------------------------------------------


def test_tune_measures_layers_beside_the_others(
    model: Path, places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    like = places / "like.txt"
    like.write_text("tok1 tok2\ntok7 tok9\n")
    arguments = ["tune", "-m", str(model), "--like", str(like), "--budget", "8", "--tokens", "16"]
    arguments += ["--threads", "1", "--ctx-size", "256", "--temp", "0", "--json", "-q"]
    pruned.remember(model, a_set(model, (1, IDLE)))
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    (scouted,) = [each for each in found["drafters"] if each["method"] == "draft-self-layers"]
    assert scouted["step_cost"] > 0 and scouted["per_position"]
    assert any(
        name.startswith("draft-self-layers,n-max=") for name in (c["name"] for c in found["candidates"])
    )
    pruned.forget(model)
    assert stored_layers(settings(model=str(model))) == ()


def standing(name: str, types: tuple[str, ...], speed: float, drafted: int = 9) -> Standing:
    stats = Stats(by_method={types[0]: MethodStats(drafted, drafted, 0)})
    found = Standing(Candidate(name, {"types": types}, 2), runs=[Run(name, "a", "a", 0, (), stats)])
    found.pairs[0] = [Pair(10.0, 10.0 * speed)]
    return found


def test_tune_says_plainly_when_layers_lose() -> None:
    slow = standing("draft-self-layers,n-max=2", ("draft-self-layers",), 0.8)
    fast = standing("draft-self-layers,n-max=4", ("draft-self-layers",), 1.1)
    other = standing("auto", ("auto",), 1.3)
    lost = on_layers(Choice(off(), None, ""), [slow, other])
    assert lost is not None and "loses here" in lost and "0.80 times plain" in lost
    behind = on_layers(Choice(other.candidate, other, ""), [slow, fast, other])
    assert behind is not None and "not the fastest" in behind and "1.10" in behind
    silent = standing("draft-self-layers,n-max=8", ("draft-self-layers",), 1.01, drafted=0)
    unable = on_layers(Choice(other.candidate, other, ""), [silent, other])
    assert unable is not None and "cannot pay here" in unable and "1.01" not in unable
    assert on_layers(Choice(fast.candidate, fast, ""), [fast, other]) is None
    assert on_layers(Choice(off(), None, ""), [other]) is None


@pytest.mark.parametrize("engine", ENGINES)
def test_other_engines_are_told_nothing_of_layers(engine: str) -> None:
    exported = export(engine, settings(spec_type="draft-self-layers,ngram-simple"), "m.gguf", None)
    assert "draft-self-layers has no counterpart here, left out" in exported.comments
    alone = export(engine, settings(spec_type="draft-self-layers"), "m.gguf", None)
    assert "draft-self-layers" not in " ".join(alone.command) + alone.file_text


def test_figures_name_it_in_words(model: Path, places: Path) -> None:
    pruned.remember(model, a_set(model))
    with Generator(Request(settings(spec_type="draft-self-layers", fixed=True), model, ignore_end=True)) as g:
        answer = g.answer(TOKENS)
        for _ in answer:
            pass
        assert final_figures(answer, g.methods).method == "draft-self (layers)"
