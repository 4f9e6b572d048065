"""`specli run` for tests: in this process, where that is enough, or as a program that can be signalled."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specli.cli.main import main

TINY = Path(__file__).parent / "models" / "tiny-target-mtp.gguf"
SETTINGS = ["-m", str(TINY), "--no-repack", "--threads", "1", "--ctx-size", "512"]
ENDS = [part for token in range(8) for part in ("--logit-bias", f"{token}-1000")]
ENDLESS = ["--raw", "--temp", "1.5", "--max-tokens", "200000", *ENDS]
"""Goes on for minutes: whatever the model ends with is not among its words."""


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def line(self) -> str:
        """The one line on stderr."""
        assert self.err.startswith("specli: ") and self.err.count("\n") == 1, self.err
        return self.err


class Runner:
    """Calls `specli run` in this process: the library is loaded once for all tests."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *args: object, stdin: str | bytes | None = None) -> Result:
        """Quiet and greedy unless the arguments say otherwise."""
        data = stdin.encode() if isinstance(stdin, str) else stdin or b""
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        quiet = ["-q", "--temp", "0", "--max-tokens", "16", *([] if stdin is not None else ["--no-stdin"])]
        self._capsys.readouterr()
        code = main(["run", *SETTINGS, *quiet, *map(str, args)])
        return Result(code, *self._capsys.readouterr())


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    return Runner(capsys, monkeypatch)


def start(*args: object, **more: Any) -> subprocess.Popen[bytes]:
    """A process of its own, which signals can reach."""

    def interruptible() -> None:  # a background job of a shell hands down an ignored SIGINT
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    command = [sys.executable, "-m", "specli", "run", *SETTINGS, *map(str, args)]
    usual: dict[str, Any] = {
        "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
        "preexec_fn": interruptible,
    }  # fmt: skip
    return subprocess.Popen(command, env=environment(), **{**usual, **more})


NULL, FULL = 3, 7


def device(folder: Path, minor: int) -> Path:
    """A node of its own for the device that takes everything (`NULL`) or nothing (`FULL`): the machine's own
    would be gone if a program replaced it."""
    node = folder / "device"
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        node.open("wb").close()
    except (AttributeError, OSError):
        pytest.skip("needs root, and a folder that bears devices")
    return node


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUTF8": "1"}
