"""docs/trace.svg, from a real run: `python tests/measure/trace_picture.py MODEL docs/trace.svg`.

A chat reads a small file, has a name in it changed, and tells what was drafted (/trace).
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

COLUMNS, ROWS = 88, 50
CODE = """class Account:
    def __init__(self):
        self.total = 0

    def pay_in(self, amount):
        self.total += amount

    def pay_out(self, amount):
        if amount > self.total:
            raise ValueError("not enough")
        self.total -= amount
"""
ASK = "Rename total to balance in this file. Answer with the code alone."


def main() -> None:
    model, picture = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "account.py").write_text(CODE, "utf-8")
        said = chat(folder, os.path.abspath(model))
    Path(picture).write_text(svg(trace_in(said)), "utf-8")


def chat(folder: str, model: str) -> str:
    """What comes to standard error, a terminal; the lines to answer come over a pipe."""
    command = [
        sys.executable, "-m", "specli", "chat", "-m", model, "--temp", "0",
        "--threads", "1", "--max-tokens", "120", "--no-save", "--ctx-size",
        "1024",
    ]  # fmt: skip
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    lines = "\n".join(["/read account.py", ASK, "/trace all", "/exit", ""])
    env = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=end, cwd=folder, env=env
    ) as run:
        os.close(end)
        assert run.stdin is not None
        run.stdin.write(lines.encode())
        run.stdin.close()
        said = b""
        while piece := _read(terminal):
            said += piece
    return said.decode("utf-8", "replace")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # nobody has it open any more
        return b""


def trace_in(said: str) -> str:
    """The lines of /trace, with their colours."""
    lines = [line.rpartition("\r")[2] or line for line in said.replace("\r\n", "\n").split("\n")]
    bare = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in lines]
    start = max(i for i, line in enumerate(bare) if "tok/s" in line) + 1
    return "\n".join(lines[start:]).strip("\n")


def svg(told: str) -> str:
    """A picture of it in the look of docs/chat.svg: no fonts or styles from elsewhere."""
    from rich.console import Console
    from rich.text import Text

    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="standard"
    )
    console.print(Text.from_ansi(told))
    text = console.export_svg(title="specli chat: /trace")
    text = re.sub(r"@font-face\s*\{[^}]*\}\s*", "", text)
    return text.replace("Fira Code", "DejaVu Sans Mono")


if __name__ == "__main__":
    main()
