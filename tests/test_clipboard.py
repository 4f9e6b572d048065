"""The clipboard: the system's own tool, tmux, or the terminal, and what is said of it."""

from __future__ import annotations

import base64
import io
import os
import sys
from pathlib import Path

import pytest

from specli.ui import clipboard

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the tools here are shell scripts")


class Window(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, in a terminal of this machine."""
    for name in ("SSH_CONNECTION", "SSH_TTY", "TMUX", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path


def put(folder: Path, name: str, code: int = 0) -> None:
    """A tool that keeps what it is given, in a file beside it."""
    script = folder / name
    script.write_text(f'#!/bin/sh\n/bin/cat > "{folder}/took"\necho "$@" > "{folder}/asked"\nexit {code}\n')
    script.chmod(0o755)


@pytest.mark.parametrize(
    ("name", "variable"), [("wl-copy", "WAYLAND_DISPLAY"), ("xclip", "DISPLAY"), ("xsel", "DISPLAY")]
)
def test_the_systems_own_tool_goes_first(
    tools: Path, monkeypatch: pytest.MonkeyPatch, name: str, variable: str
) -> None:
    put(tools, name)
    put(tools, "tmux")
    window = Window()
    monkeypatch.setenv("TMUX", "socket,1,0")
    assert "tmux" in (clipboard.copy("Tür", (window,)) or "")  # there is no screen that it would know of
    monkeypatch.setenv(variable, ":0")
    assert clipboard.copy("Tür", (window,)) == f"copied with {name}"
    assert (tools / "took").read_text("utf-8") == "Tür" and window.getvalue() == ""
    assert clipboard.copy("x", (io.StringIO(),)) is None  # nobody sits there


def test_in_windows_it_has_its_own_encoding(tools: Path) -> None:
    put(tools, "clip.exe")
    assert clipboard.copy("Tür 🙂", (Window(),)) == "copied with clip.exe"
    assert (tools / "took").read_bytes().decode("utf-16-le") == "Tür 🙂"


def test_far_away_the_terminal_is_asked(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tools, "xclip")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SSH_CONNECTION", "1 2 3 4")
    window = Window()
    assert clipboard.copy("Tür", (io.StringIO(), window)) == (
        "sent to the terminal (OSC 52; some terminals ignore it)"
    )
    sent = window.getvalue().removeprefix("\x1b]52;c;").removesuffix("\x07")
    assert base64.b64decode(sent).decode() == "Tür"
    assert "many terminals ignore it where it is so long" in (clipboard.copy("x" * 80_000, (window,)) or "")


def test_tmux_is_asked_to_pass_it_on(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tools, "tmux")
    monkeypatch.setenv("TMUX", "socket,1,0")
    window = Window()
    assert clipboard.copy("Tür", (window,)) == (
        "copied to tmux, which sent it to the terminal (OSC 52; some terminals ignore it)"
    )
    assert (tools / "asked").read_text() == "load-buffer -w -\n" and window.getvalue() == ""


@pytest.mark.parametrize("broken", ["fails", "hangs", "is not there"])
def test_a_tool_that_does_not_take_it_is_no_end(
    tools: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setenv("TMUX", "socket,1,0")
    monkeypatch.setattr(clipboard, "_PATIENCE", 0.3)
    if broken == "fails":
        put(tools, "clip.exe", 1)
        put(tools, "tmux", 1)
    elif broken == "hangs":
        (tools / "tmux").write_text("#!/bin/sh\nexec /bin/sleep 9\n")
        (tools / "tmux").chmod(0o755)
    window = Window()
    assert (clipboard.copy("x", (window,)) or "").startswith("sent to the terminal")
    assert window.getvalue().startswith("\x1b]52;c;")
