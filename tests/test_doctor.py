"""doctor: what works here, found by trying; and row 47, a processor that crashes weight repacking."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specli import profiles
from specli.doctor import Check, examine
from specli.profiles import Profile
from specli.settings import Settings
from specli.tuned import FORMAT, key_of, profile_file


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"SPECLI_{name}_DIR", str(tmp_path / name.lower()))


def specli(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specli", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **env}
    )


def test_everything_is_looked_at(tiny_draft: Path) -> None:
    report = examine(tiny_draft)
    names = [check.name for check in report.checks]
    for name in ("specli", "packages", "config directory", "cache directory", "library", "device", "processor",
                 "memory", "model", "repacking", "flash attention", "--exact", "one token", "timing"):  # fmt: skip
        assert name in names, f"{name} is missing in {names}"
    assert not report.broken
    exact = next(check for check in report.checks if check.name == "--exact")
    assert exact.state == "ok" and "same bits" in exact.said
    profile = next(check for check in report.checks if check.name == "profile")
    assert profile.state == "ok" and profile.said.startswith("auto;")


def test_the_tuned_profile_that_run_would_use_is_named(tmp_path: Path, tiny_draft: Path) -> None:
    name = profile_file(tiny_draft, None).stem
    own = tmp_path / "config" / "profiles"
    own.mkdir(parents=True)

    def said() -> Check:
        return next(check for check in examine(tiny_draft).checks if check.name == "profile")

    key = key_of(tiny_draft, None, Settings())
    measured = {"format": FORMAT, "choice": "draft-self", "speedup": 1.5, "key": key.as_table()}
    profile = Profile(name, "", {"types": ("draft-self",)}, measured)
    (own / f"{name}.toml").write_text(profiles.to_toml(profile))
    assert said().state == "ok" and said().said.startswith(f"{name}: draft-self, measured 1.50")
    profile = Profile(name, "", {"types": ("draft-self",)}, {**measured, "format": 0})
    (own / f"{name}.toml").write_text(profiles.to_toml(profile))
    assert said().state == "note" and "left aside" in said().said


def test_a_model_that_exact_refuses_is_a_note(tiny_hybrid: Path) -> None:
    report = examine(tiny_hybrid)
    exact = next(check for check in report.checks if check.name == "--exact")
    assert not report.broken and ("refused" in exact.said) is (exact.state == "note")


def test_json_and_exit_code(tiny_draft: Path) -> None:
    done = specli("doctor", "-m", tiny_draft, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["ok"] is True and {"check", "state", "said"} == set(said["checks"][0])


def test_what_is_broken_is_said_and_is_exit_code_1(tmp_path: Path, tiny_draft: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text("[models]\nnonsense = 1\n")
    done = specli("doctor")
    assert done.returncode == 1 and "broken  config" in done.stdout and "nonsense" in done.stdout
    (tmp_path / "config" / "config.toml").unlink()
    own = tmp_path / "config" / "profiles"
    own.mkdir()
    (own / "mine.toml").write_text("[spec]\ntypes = 3\n")
    done = specli("doctor", "-m", tiny_draft)
    assert done.returncode == 1 and "broken  profiles" in done.stdout and "mine.toml" in done.stdout


def test_a_default_model_that_cannot_be_used_is_a_broken_config(tmp_path: Path, tiny_draft: Path) -> None:
    (tmp_path / "config").mkdir()
    text = tmp_path / "README.md"
    text.write_text("# no model\n")
    for default in (text, tmp_path / "gone.gguf"):
        (tmp_path / "config" / "config.toml").write_text(f'[models]\ndefault = "{default}"\n')
        said = {check.name: check for check in examine(None).checks}["config"]
        assert said.state == "broken" and str(default) in said.said
    (tmp_path / "config" / "config.toml").write_text(f'[models]\ndefault = "{tiny_draft}"\n')
    assert {check.name: check.state for check in examine(None).checks}["config"] == "ok"


def test_a_model_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(b"GGUF\3\0\0\0")
    report = examine(cut)
    assert report.broken
    assert [c.said for c in report.checks if c.state == "broken"] == [
        f"{cut}: the file is incomplete: 8 bytes, cut off in its header; download it again"
    ]


def test_row_47_a_crash_in_repacking_is_survived_told_once_and_remembered(
    tiny_draft: Path, tmp_path: Path
) -> None:
    fault = {"SPECLI_PROBE_FAULT": "segv-repack"}
    first = specli("run", "-m", tiny_draft, "--no-stdin", "-p", "def f(", "-n", 8, "--temp", 0, **fault)
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("weight repacking") == 1 and "SIGSEGV" in first.stderr
    assert "remembered in" in first.stderr
    second = specli("run", "-m", tiny_draft, "--no-stdin", "-p", "def f(", "-n", 8, "--temp", 0, **fault)
    assert second.returncode == 0 and second.stdout == first.stdout
    assert "repacking" not in second.stderr
    told = specli("doctor", "-m", tiny_draft, **fault)
    assert told.returncode == 0
    assert (
        "crashes llama.cpp's weight repacking" in told.stdout
        and "remembered from an earlier trial" in told.stdout
    )
