"""The memory that models will take, and the refusal with the figures."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from made_models import Made, words

from specli.assembly import Generator, Request
from specli.engine import backend
from specli.engine.context import Context, ContextParams
from specli.engine.gguf import read_header
from specli.engine.memory import (
    RESERVE,
    Load,
    _cgroup_free,
    available_bytes,
    default_ctx_size,
    gib,
    kv_bytes_per_token,
    need,
    plan,
    require_memory,
    weight_bytes,
)
from specli.engine.model import Model, ModelParams
from specli.engine.opening import state_bytes
from specli.errors import MemoryShortage
from specli.profiles import load, resolve

MIB = 1 << 20


@pytest.mark.parametrize("name", ["tiny_draft", "tiny_target", "tiny_hybrid"])
def test_the_cache_is_as_large_as_the_library_makes_it(name: str, request: pytest.FixtureRequest) -> None:
    """llama.cpp's own state tells: that of a full context grows by the bytes of each token."""
    path: Path = request.getfixturevalue(name)
    lib = backend.load_library()
    with Model(path, ModelParams(use_extra_bufts=False)) as model:
        params = ContextParams(n_ctx=512, n_batch=256, n_ubatch=256, max_rows=1)
        with Context(model, params) as context:
            sizes = []
            for _ in range(2):
                context.decode([1] * 128, rows=0)
                sizes.append(lib.llama_state_seq_get_size_ext(context._handle, 0, 0))
            per_token = kv_bytes_per_token(model.header, "f16", "f16")
    # besides keys and values, a cell's position and sequences are saved: some bytes
    assert 0 <= (sizes[1] - sizes[0]) / 128 - per_token < 32


def test_the_weights_are_those_of_the_file(tiny_draft: Path) -> None:
    with Model(tiny_draft, ModelParams(use_extra_bufts=False)) as model:
        assert weight_bytes(model.header) == model.size_bytes


def test_quantised_caches_take_less(tiny_draft: Path) -> None:
    header = read_header(tiny_draft)
    full = kv_bytes_per_token(header, "f16", "f16")
    assert kv_bytes_per_token(header, "q8_0", "q8_0") == pytest.approx(full * 8.5 / 16)


def test_ten_million_tokens_are_refused_with_the_figures(tiny_draft: Path) -> None:
    """Row of the issue: refused before loading, with what it needs, what there is and what would fit."""
    settings = resolve(load(), {"ctx-size": 2_000_000_000})
    with pytest.raises(MemoryShortage) as error:
        Generator(Request(settings, tiny_draft))
    said = str(error.value)
    assert "context of 2000000000 tokens needs" in said and "GiB" in said and "are free" in said
    assert "--ctx-size" in said and "fits at most" in said and "\n" not in said


@pytest.mark.smol
def test_the_command_refuses_ten_million_tokens_of_smol(smol: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specli", "run", "-m", str(smol), "--ctx-size", "10000000", "--no-stdin", "-p", "x"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "10000000 tokens needs" in done.stderr and "cache 214" in done.stderr  # 23,040 bytes each


def test_what_is_said_to_fit_does_and_one_step_more_does_not(tiny_draft: Path) -> None:
    one = Load(read_header(tiny_draft), 1 << 20)
    free = RESERVE + 64 * MIB
    found = plan([one], free)
    assert not found.fits and 0 < found.largest_ctx < 1 << 20
    assert plan([Load(one.header, found.largest_ctx)], free).fits
    assert not plan([Load(one.header, found.largest_ctx + 256)], free).fits


def test_target_and_draft_count_together(tiny_target: Path, tiny_draft: Path) -> None:
    loads = [Load(read_header(path), 4096) for path in (tiny_target, tiny_draft)]
    alone = need(loads[0]).total
    assert plan(loads[:1], alone + RESERVE).fits
    assert not plan(loads, alone + RESERVE).fits
    with pytest.raises(MemoryShortage, match=r"tiny-target-mtp .* tiny-draft .* are free"):
        require_memory(loads, alone + RESERVE)


@pytest.mark.parametrize("types", ["auto", "draft-mtp", "none"])
def test_the_cache_of_heads_inside_counts(tiny_target: Path, types: str) -> None:
    """With heads: what would pass for the model alone, and then fail in the library, is refused before."""
    header = read_header(tiny_target)
    own = kv_bytes_per_token(header, "f16", "f16")
    beside = kv_bytes_per_token(header, "f16", "f16", heads_inside=True)
    assert beside == own / ((header.block_count or 0) - 1)  # one head, a layer like the others
    settings = resolve(load(), {"ctx-size": 2_000_000_000, "spec-type": types})
    with pytest.raises(MemoryShortage) as error:
        Generator(Request(settings, tiny_target))
    assert ("tiny-target-mtp's prediction heads with a context" in str(error.value)) == (types != "none")


def test_a_context_fits_only_with_the_heads_beside_it(tiny_target: Path) -> None:
    model = Load(read_header(tiny_target), 4096)
    heads = Load(model.header, 4096, heads_inside=True)
    assert need(heads).weights == 0 < need(heads).cache
    assert plan([model], need(model).total + RESERVE).fits
    assert not plan([model, heads], need(model).total + RESERVE).fits
    assert plan([model, heads], need(model).total + need(heads).total + RESERVE).fits


def test_the_context_for_those_who_asked_for_none_leaves_room_for_heads(tiny_target: Path) -> None:
    header = read_header(tiny_target)
    endless = replace(header, metadata={**header.metadata, f"{header.architecture}.context_length": 1 << 60})
    alone, beside = (default_ctx_size(endless, "f32", "f32", 1 << 60, heads) for heads in (False, True))
    layers = header.block_count or 0
    assert beside / alone == pytest.approx((layers - 1) / layers, rel=0.1)  # memory comes and goes meanwhile


def test_snapshots_of_a_recurrent_state_count(tiny_hybrid: Path, tiny_target: Path) -> None:
    one = need(Load(read_header(tiny_hybrid), 512)).cache
    assert need(Load(read_header(tiny_hybrid), 512, state=1000)).cache == one + 1000
    assert state_bytes(read_header(tiny_hybrid)) > 0 == state_bytes(read_header(tiny_target))


@pytest.mark.skipif(sys.platform != "linux", reason="address space is bounded as on Linux")
def test_what_the_check_lets_through_can_be_opened_with_heads(tiny_target: Path) -> None:
    """Under a limit on address space the model alone would fit and its heads would not."""
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (3_000_000 * 1024,) * 2); "
        "from specli.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["run", "-m", str(tiny_target), "-t", "1", "-n", "4", "-c", "900000", "--spec-type", "auto",
                 "--no-repack", "--no-stdin", "-q", "hi"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1 and "prediction heads with a context of 900000" in done.stderr, done.stderr


def test_too_little_for_the_weights_names_no_context(tiny_target: Path) -> None:
    with pytest.raises(MemoryShortage, match="take a smaller model") as error:
        require_memory([Load(read_header(tiny_target), 4096)], RESERVE)
    assert "--ctx-size" not in str(error.value)


def test_a_gpu_too_small_names_the_layers_that_fit(tmp_path: Path) -> None:
    header = read_header(Made(words(300), layers=7, width=256, context=4096).write(tmp_path / "m.gguf"))
    everything = need(Load(header, 512, gpu_layers=-1))
    assert everything.on_gpu == everything.weights + everything.cache and everything.in_ram == everything.work
    half = everything.on_gpu // 2 + everything.work
    found = plan([Load(header, 512, gpu_layers=-1)], 1 << 34, half)
    assert not found.fits and found.gpu_layers == 4  # of 8: seven and the output
    with pytest.raises(MemoryShortage, match=r"and .* on the GPU: .*(--gpu-layers 4|--ctx-size)"):
        require_memory(found.loads, 1 << 34, half)
    assert plan([Load(header, 512, gpu_layers=4)], 1 << 34, half).fits


@pytest.mark.parametrize("v2", [True, False])
def test_a_containers_limit_counts(tmp_path: Path, v2: bool) -> None:
    names = ("memory.max", "memory.current", "memory.stat") if v2 else (
        "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat")  # fmt: skip
    kept = "inactive_file" if v2 else "total_inactive_file"
    (tmp_path / "memory").mkdir()
    for name, text in zip(names, ("1000000", "400000", f"anon 5\n{kept} 100000\n")):
        (tmp_path / name).write_text(text)
    assert _cgroup_free(tmp_path) == 700_000
    (tmp_path / names[0]).write_text("max" if v2 else str(2**63))
    assert _cgroup_free(tmp_path) is None


def test_there_is_some_memory_here() -> None:
    assert 0 < available_bytes() < 1 << 50
    assert gib(3 << 30) == "3.0 GiB" and gib(5 * MIB) == "5 MiB"


@pytest.mark.large
def test_the_estimate_of_a_large_model(qwen_target: Path) -> None:
    found = need(Load(read_header(qwen_target), 4096, 128, 64))
    assert found.weights == pytest.approx(1059.9 * MIB, rel=0.01)
    assert found.cache == 112 * MIB
    assert found.work == pytest.approx(38.2 * MIB, rel=0.05)
