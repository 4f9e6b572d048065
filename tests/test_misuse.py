"""What is asked for by mistake, or stopped too early, gets one line and nothing worse."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from test_cli import Run as Specli
from test_cli import environment, error_line, specli

from specli import __main__ as entry
from specli.engine.fit import check_fit
from specli.ui import terminal

__all__ = ["environment", "specli"]
MODELS = Path(__file__).parent / "models"
TARGET = MODELS / "tiny-target-mtp.gguf"


class Slow(ModuleType):
    """A module during whose import Ctrl-C is pressed."""

    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt


def test_ctrl_c_before_the_command_line_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "specli.cli.main", Slow("specli.cli.main"))
    assert entry.main() == 130
    assert capsys.readouterr().err == "specli: interrupted\n"


def test_more_threads_than_processors_are_not_started(specli: Specli) -> None:
    done = specli(
        "run", "-m", str(TARGET), "--no-repack", "--threads", "4096", "--max-tokens", "2", "--json", "hi"
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in json.loads(done.stdout)["notices"] if "--threads 4096" in line]
    assert said and f"{os.cpu_count()} threads are used" in said[0]


@pytest.mark.parametrize("command", [("tune", "-m", str(TARGET)), ("layers", str(TARGET))])
def test_a_budget_has_an_end(specli: Specli, command: tuple[str, ...]) -> None:
    done = specli(*command, "--budget", "inf")
    assert done.returncode == 2 and "--budget" in error_line(done)


def test_tune_looks_first_whether_it_can_write(specli: Specli, tmp_path: Path) -> None:
    place = tmp_path / "config"
    (place / "profiles").parent.mkdir()
    (place / "profiles").write_text("no directory")
    done = specli("tune", "-m", str(TARGET), "--budget", "300", env={"SPECLI_CONFIG_DIR": str(place)})
    assert done.returncode == 1 and "cannot write" in error_line(done) and done.stdout == ""


def test_a_head_is_no_target() -> None:
    fit = check_fit(MODELS / "tiny-eagle3.gguf", TARGET)
    assert fit.verdict == "does-not-fit" and any(
        "name the model itself first" in f.note for f in fit.findings if not f.ok
    )


def test_a_notice_breaks_between_words_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "no page about nosuch; there are families, auto, draft-self and ngram-simple"
    assert terminal.notice(text, sys.stderr) == f"specli: {text}"
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: True)
    monkeypatch.setattr(terminal, "columns", lambda stream: 40)
    lines = terminal.notice(text, sys.stderr).splitlines()
    assert len(lines) > 1 and all(len(line) < 40 for line in lines)
    assert " ".join(lines) == f"specli: {text}"
    path = f"/{'long/' * 12}model.gguf"
    assert path in terminal.notice(f"{path}: no such file", sys.stderr).splitlines()[1]
