"""The library, the machine, and the trial run in a real child process on a tiny Q8_0 model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from specli.engine import backend, machine, probe, repack
from specli.engine.probe import FAULT_VARIABLE, Outcome, TrialSettings, run_trial
from specli.engine.repack import Verdict
from specli.engine.repack import verdict as repack_verdict
from specli.errors import EngineError, ModelFileError

HERE = Path(__file__).parent
TINY = HERE / "models" / "tiny-draft.gguf"
SETTINGS = TrialSettings(threads=1)
LONG = 300.0


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECLI_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(FAULT_VARIABLE, raising=False)
    return tmp_path / "cache"


def verdict(fault: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Verdict, int]:
    """The verdict on the tiny model with a fault provoked, and how many times trials were begun."""
    monkeypatch.setenv(FAULT_VARIABLE, fault)
    begun: list[None] = []
    found = repack_verdict(TINY, SETTINGS, before_trial=lambda: begun.append(None))
    return found, len(begun)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE.parent)


# the trial run


def test_a_trial_without_repacking_decodes() -> None:
    assert run_trial(TINY, SETTINGS, False, LONG) == Outcome("ok", lasting=True)


def test_a_trial_uses_the_users_settings() -> None:
    """The tiny model's heads are 32 wide: q8_0 fits, and a quantized V needs flash attention."""
    quantized = TrialSettings(threads=1, flash_attn="on", type_k="q8_0", type_v="q8_0")
    assert run_trial(TINY, quantized, False, LONG).ended == "ok"
    impossible = TrialSettings(threads=1, flash_attn="off", type_v="q8_0")
    assert run_trial(TINY, impossible, False, LONG).ended == "refused"


def test_a_refusal_is_not_a_death(tmp_path: Path) -> None:
    strange = tmp_path / "strange.gguf"
    strange.write_bytes(TINY.read_bytes().replace(b"llama", b"lambi"))
    outcome = run_trial(strange, SETTINGS, False, LONG)
    assert outcome.ended == "refused"
    assert "strange.gguf" in outcome.how


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
def test_how_a_trial_died(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAULT_VARIABLE, "segv-always")
    assert run_trial(TINY, SETTINGS, False, LONG) == Outcome("died", "SIGSEGV", lasting=True)
    monkeypatch.setenv(FAULT_VARIABLE, "kill-always")
    assert run_trial(TINY, SETTINGS, False, LONG) == Outcome("died", "SIGKILL", lasting=False)
    monkeypatch.setenv(FAULT_VARIABLE, "hang-always")
    assert run_trial(TINY, SETTINGS, False, 1.0) == Outcome("died", "no end within 1 s", lasting=True)


def test_a_trial_that_cannot_start(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(cache / "no-python"))
    found = repack_verdict(TINY, SETTINGS)
    assert not found.use_extra_bufts
    assert found.notice is not None and "no trial run could be started" in found.notice
    assert not list(cache.iterdir())


def test_the_child_runs_no_module_of_the_users_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert run_trial(TINY, SETTINGS, False, LONG).ended == "ok"


# the verdict


def test_the_real_verdict_is_remembered(cache: Path) -> None:
    """Whatever this processor does: the first run finds it out, the second knows it."""
    first = repack_verdict(TINY, SETTINGS)
    assert not first.cached
    assert first.use_extra_bufts == (run_trial(TINY, SETTINGS, True, LONG).ended == "ok")
    assert (first.notice is None) == first.use_extra_bufts
    again = repack_verdict(TINY, SETTINGS, before_trial=lambda: pytest.fail("a second trial"))
    assert again == Verdict(first.use_extra_bufts, first.reason, cached=True)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
def test_a_crash_turns_repacking_off_and_is_told_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, trials = verdict("segv-repack", monkeypatch)
    (file,) = cache.iterdir()
    assert trials == 1
    assert found.notice == (
        "this processor crashes llama.cpp's weight repacking (SIGSEGV in the trial run): "
        f"going on without it; remembered in {file}"
    )
    assert not found.use_extra_bufts and not found.cached
    again, trials = verdict("segv-repack", monkeypatch)
    assert trials == 0
    assert again == Verdict(False, found.reason, cached=True)


def test_death_without_repacking_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAULT_VARIABLE, "segv-always")
    with pytest.raises(EngineError, match=r"tiny-draft\.gguf even without weight repacking") as caught:
        repack_verdict(TINY, SETTINGS)
    assert "\n" not in str(caught.value)
    assert not list(cache.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
def test_killed_for_memory_is_not_remembered(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = verdict("kill-repack", monkeypatch)
    assert not found.use_extra_bufts
    assert found.notice is not None and "SIGKILL" in found.notice and "not remembered" in found.notice
    assert verdict("kill-repack", monkeypatch)[1] == 1


def test_a_refusal_is_left_to_the_real_load(cache: Path, tmp_path: Path) -> None:
    strange = tmp_path / "strange.gguf"
    strange.write_bytes(TINY.read_bytes().replace(b"llama", b"lambi"))
    found = repack_verdict(strange, SETTINGS)
    assert found.use_extra_bufts and found.notice is None
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'{"holds_for": "another machine", "use_extra_bufts": true, "reason": "ok"}',
        b'{"use_extra_bufts": true',
    ],
)
def test_a_damaged_memory_is_ignored_and_written_anew(
    damage: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repack, "run_trial", lambda *_: Outcome("ok", lasting=True))
    repack_verdict(TINY, SETTINGS)
    (file,) = cache.iterdir()
    good = file.read_bytes()
    file.write_bytes(damage)
    assert not repack_verdict(TINY, SETTINGS).cached
    assert file.read_bytes() == good
    assert repack_verdict(TINY, SETTINGS).cached


@pytest.mark.parametrize("field", ["holds_for", "use_extra_bufts", "reason"])
def test_a_memory_of_wrong_types_is_ignored(field: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repack, "run_trial", lambda *_: Outcome("ok", lasting=True))
    repack_verdict(TINY, SETTINGS)
    (file,) = cache.iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), field: 1}))
    assert not repack_verdict(TINY, SETTINGS).cached


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPECLI_CACHE_DIR", str(tmp_path / "file" / "cache"))
    found, _ = verdict("segv-repack", monkeypatch)
    assert not found.use_extra_bufts
    assert found.notice is not None and "not remembered: cannot write" in found.notice


def test_a_verdict_holds_for_what_it_was_found_on(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repack, "run_trial", lambda *_: Outcome("ok", lasting=True))
    repack_verdict(TINY, SETTINGS)
    assert repack_verdict(TINY, TrialSettings(threads=7, gpu_layers=0)).cached  # threads decide nothing
    for name in ("build_id", "processor_id"):
        with monkeypatch.context() as patch:
            patch.setattr(backend, name, lambda: "another")
            assert not repack_verdict(TINY, SETTINGS).cached
    assert not repack_verdict(HERE / "models" / "tiny-hybrid.gguf", SETTINGS).cached
    with monkeypatch.context() as patch:
        patch.setattr(backend, "supports_gpu_offload", lambda: True)
        assert not repack_verdict(TINY, SETTINGS).cached
        assert repack_verdict(TINY, TrialSettings(threads=1, gpu_layers=0)).cached


def test_no_trial_where_none_is_needed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repack, "run_trial", lambda *_: pytest.fail("a trial"))
    assert not repack_verdict(TINY, SETTINGS, force_off=True).use_extra_bufts
    monkeypatch.setattr(repack, "_TAKEN_OVER", frozenset({"Q2_K"}))
    assert "nothing to repack" in repack_verdict(TINY, SETTINGS).reason


def test_what_is_no_model_is_refused_before_any_trial(cache: Path, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a model")
    with pytest.raises(ModelFileError, match=r"notes\.txt"):
        repack_verdict(text, SETTINGS)


# the library


def test_nothing_is_printed_and_the_reason_is_kept(tmp_path: Path) -> None:
    strange = tmp_path / "strange.gguf"
    strange.write_bytes(TINY.read_bytes().replace(b"llama", b"lambi"))
    done = run_python(
        "from specli.engine import backend\n"
        "lib = backend.load_library()\n"
        "assert lib is backend.load_library()\n"
        "backend.devices(), backend.build_id()\n"
        "params = lib.llama_model_default_params()\n"
        f"assert not lib.llama_model_load_from_file({os.fsencode(strange)!r}, params)\n"
        "assert backend.library_reason() == \"unknown model architecture: 'lambi'\"\n"
        "assert any('lambi' in line for line in backend.last_library_errors())\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_verbose_prints_the_librarys_log_to_stderr() -> None:
    done = run_python(
        "from specli.engine import backend\n"
        "backend.set_verbose(True)\n"
        "lib = backend.load_library()\n"
        f"lib.llama_model_load_from_file({os.fsencode(TINY)!r}, lib.llama_model_default_params())\n"
    )
    assert done.returncode == 0 and done.stdout == ""
    assert "general.architecture" in done.stderr


def test_importing_backend_does_not_import_the_library() -> None:
    code = "import sys; from specli.engine import backend; print({'llama_cpp', 'numpy'} & {*sys.modules})"
    assert run_python(code).stdout == "set()\n"


def test_the_log_keeps_the_last_warnings_and_errors() -> None:
    log = backend._Log()
    log(2, b"just information\n", None)
    for number in range(60):
        log(3, b"warning %d\n" % number, None)
    log(4, b"f: begun, ", None)
    log(5, b"continued\n", None)
    log(4, None, None)
    log(4, b"no end of line", None)
    log(2, b"\n", None)
    assert len(log.kept) == 50
    assert list(log.kept)[-3:] == ["warning 59", "f: begun, continued", "no end of line"]
    assert log.reason == "no end of line"


def test_a_library_that_lacks_something_is_named() -> None:
    lib = backend.load_library()
    backend.check_api(lib)
    without = {
        name: getattr(lib, name) for name in (*backend.API, *backend.FIELDS) if name != "llama_n_rs_seq"
    }
    with pytest.raises(
        EngineError, match=r"^llama-cpp-python 0\.3\.1 lacks llama_n_rs_seq; install >=0\.3\.36$"
    ):
        backend.check_api(SimpleNamespace(**without, __version__="0.3.1"))
    with pytest.raises(EngineError, match=r"lacks .* and [0-9]+ more; install"):
        backend.check_api(SimpleNamespace())


def test_a_library_that_does_not_load_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "llama_cpp.py").write_text("raise RuntimeError('libcudart.so.12:\\ncannot open')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from specli.engine import backend\n"
        "try: backend.load_library()\n"
        "except backend.EngineError as e: print(e)\n"
    )
    assert run_python(code).stdout == (
        "llama-cpp-python does not load: libcudart.so.12: cannot open; reinstall it for this machine\n"
    )


def test_every_library_function_in_use_is_checked_at_load() -> None:
    sources = [file.read_text("utf-8") for file in Path(backend.__file__).parent.glob("*.py")]
    used = {name for text in sources for name in re.findall(r"\b_?lib\.(llama_\w+)", text)} - {"llama_cpp"}
    assert used - set(backend.API) == set()


def test_build_and_processor_are_named_the_same_each_time() -> None:
    code = "from specli.engine import backend; print(backend.build_id(), '|', backend.processor_id())"
    said = run_python(code).stdout.strip()
    assert said == f"{backend.build_id()} | {backend.processor_id()}"
    assert re.match(r"\d+\.\d+\.\d+\S*-[0-9a-f]{12} \| .+ #[0-9a-f]{8}$", said)


def test_the_cpu_is_among_the_devices() -> None:
    (cpu,) = [device for device in backend.devices() if device.kind == "cpu"]
    assert cpu.name and cpu.memory_total > 0
    assert 0 < cpu.memory_free <= cpu.memory_total


def test_offload_agrees_with_the_devices() -> None:
    assert backend.supports_gpu_offload() == any(d.kind in ("gpu", "igpu") for d in backend.devices())


# the machine


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any GPU tools, and a library without a GPU."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(backend, "supports_gpu_offload", lambda: False)
    return tmp_path / "root"


def nvidia(root: Path) -> None:
    write(root / "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t H200\nIRQ: 5\n")


def drm(root: Path, vendor: str) -> None:
    write(root / "sys/class/drm/card0/device/vendor", vendor + "\n")
    write(root / "sys/class/drm/card0/device/device", "0x744c\n")


def test_an_nvidia_gpu_that_the_build_cannot_use(bare: Path) -> None:
    nvidia(bare)
    drm(bare, "0x8086")
    assert backend.unused_gpu(bare) == (
        "NVIDIA H200 is not used: this build of llama.cpp lacks CUDA; get it with: "
        'CMAKE_ARGS="-DGGML_CUDA=on" pip install --force-reinstall --no-cache-dir llama-cpp-python'
    )


def test_a_gpu_in_use_or_hidden_on_purpose_is_not_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia(bare)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert backend.unused_gpu(bare) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert backend.unused_gpu(bare) is not None
    monkeypatch.setattr(backend, "supports_gpu_offload", lambda: True)
    assert backend.unused_gpu(bare) is None


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands for nvidia-smi")
def test_nvidia_smi_is_asked_where_proc_says_nothing(bare: Path, tmp_path: Path) -> None:
    smi = tmp_path / "bin" / "nvidia-smi"
    write(smi, "#!/bin/sh\necho 'NVIDIA GeForce RTX 4090'\n")
    smi.chmod(0o755)
    assert "NVIDIA GeForce RTX 4090 is not used" in (backend.unused_gpu(bare) or "")
    write(smi, "#!/bin/sh\necho 'no driver'\nexit 9\n")
    assert backend.unused_gpu(bare) is None


def test_amd_needs_rocm_or_takes_vulkan(bare: Path) -> None:
    drm(bare, "0x1002")
    line = backend.unused_gpu(bare) or ""
    assert line.startswith("AMD GPU (PCI 1002:744c) is not used") and "-DGGML_VULKAN=on" in line
    (bare / "opt/rocm").mkdir(parents=True)
    assert "-DGGML_HIP=on" in (backend.unused_gpu(bare) or "")
    write(bare / "sys/class/drm/card0/device/product_name", "Radeon RX 7900 XTX")
    assert (backend.unused_gpu(bare) or "").startswith("Radeon RX 7900 XTX is not used")


def test_intel_apple_and_other_adapters(bare: Path) -> None:
    assert machine.find_gpu(bare, "Linux", "x86_64") is None
    drm(bare, "0x1a03")  # the display chip of a server's management board
    assert machine.find_gpu(bare, "Linux", "x86_64") is None
    drm(bare, "0x8086")
    intel = machine.find_gpu(bare, "Linux", "x86_64")
    assert intel is not None and (intel.backend, intel.flag) == ("Vulkan", "GGML_VULKAN")
    apple = machine.find_gpu(bare, "Darwin", "arm64")
    assert apple is not None and (apple.name, apple.flag) == ("Apple silicon GPU", "GGML_METAL")


@pytest.mark.parametrize(
    ("text", "name", "features"),
    [
        (
            "model name\t: EPYC\nflags\t\t: sse2 avx\n\nmodel name\t: EPYC\nflags: x\n",
            "EPYC",
            ["avx", "sse2"],
        ),
        ("Features\t: asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "ARM 0x41 0xd0c", ["asimd"]),
        ("", "", []),
    ],
)
def test_cpuinfo_of_x86_and_arm(text: str, name: str, features: list[str]) -> None:
    assert machine._cpuinfo(text) == (name, features)


def test_cores_are_bounded_by_the_cgroup(tmp_path: Path) -> None:
    free = machine.physical_cores(tmp_path)
    assert 1 <= free <= (os.cpu_count() or 1)
    write(tmp_path / "proc/self/cgroup", "0::/user/job\n")
    write(tmp_path / "sys/fs/cgroup/user/job/cpu.max", "max 100000\n")
    assert machine.physical_cores(tmp_path) == free
    write(tmp_path / "sys/fs/cgroup/user/cpu.max", "50000 100000\n")  # half a CPU, set on the parent
    assert machine.physical_cores(tmp_path) == 1


def test_quotas_are_rounded_up_and_v1_is_known(tmp_path: Path) -> None:
    write(tmp_path / "sys/fs/cgroup/cpu.max", "150000 100000\n")
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n")
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert sorted(machine._quotas(tmp_path)) == [2, 3]
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    assert machine._quotas(tmp_path) == [2]


def test_settings_travel_to_the_child_whole() -> None:
    settings = TrialSettings(3, 12, "on", "q8_0", "q4_0")
    assert probe.TrialSettings.from_json(settings.to_json()) == settings
