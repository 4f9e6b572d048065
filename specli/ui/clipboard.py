"""The clipboard of whoever sits at the terminal: by the system's own tool where there is one, through tmux, or by the
terminal, which works through ssh, too (OSC 52)."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TextIO

from specli.ui.terminal import can_move, is_terminal

_MOST = 74_994
"""Bytes that all terminals take which take any; some take more."""
_PATIENCE = 3.0  # seconds


@dataclass(frozen=True, slots=True)
class _Tool:
    """A command that takes the text from its standard input."""

    command: tuple[str, ...]
    encoding: str = "utf-8"


def copy(text: str, streams: tuple[TextIO, ...]) -> str | None:
    """Hand `text` to the clipboard; says what was done, None where no one of `streams` is a terminal. What a
    terminal does with it, it does not say."""
    tool = _tool()
    if tool is not None and any(is_terminal(each) for each in streams) and _ran(tool, text):
        return f"copied with {tool.command[0]}"
    stream = next((each for each in streams if can_move(each)), None)
    if stream is None:
        return None
    ignored = "some" if len(text.encode("utf-8", "replace")) <= _MOST else "many"
    how = f"OSC 52; {ignored} terminals ignore it{' where it is so long' if ignored == 'many' else ''}"
    if os.environ.get("TMUX") and _ran(_Tool(("tmux", "load-buffer", "-w", "-")), text):
        return f"copied to tmux, which sent it to the terminal ({how})"
    data = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
    stream.write(f"\x1b]52;c;{data}\x07")
    stream.flush()
    return f"sent to the terminal ({how})"


def _tool() -> _Tool | None:
    """The system's own, unless its screen is far away."""
    here = os.environ
    if here.get("SSH_CONNECTION") or here.get("SSH_TTY"):
        return None
    tools = [_Tool(("pbcopy",))] if sys.platform == "darwin" else []
    if here.get("WAYLAND_DISPLAY"):
        tools.append(_Tool(("wl-copy",)))
    if here.get("DISPLAY"):
        tools += [_Tool(("xclip", "-selection", "clipboard")), _Tool(("xsel", "--clipboard", "--input"))]
    tools.append(_Tool(("clip.exe",), "utf-16-le"))  # Windows, and Linux in it
    return next((tool for tool in tools if shutil.which(tool.command[0])), None)


def _ran(tool: _Tool, text: str) -> bool:
    """Whether it took the text. Some stay, to hand it out, so they must not hold on to our streams."""
    try:
        done = subprocess.run(
            tool.command, input=text.encode(tool.encoding, "replace"), timeout=_PATIENCE, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
