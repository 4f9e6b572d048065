"""A pseudo-terminal with `specli chat` in it: keys are pressed, and the screen is read."""

from __future__ import annotations

import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

pty = pytest.importorskip("pty", reason="pseudo-terminals are POSIX")

TINY = Path(__file__).parent / "models" / "tiny-target-mtp.gguf"
CTRL_C, CTRL_D, CTRL_G, ENTER, TAB, UP = b"\x03", b"\x04", b"\x07", b"\r", b"\t", b"\x1b[A"
PROMPT = "a message, or /help"  # stands in an empty input line
ENDLESS = ("--ctx-size", "100096", *(x for token in range(8) for x in ("--logit-bias", f"{token}-1000")))
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[78DM=>]|\([AB0])")


class Terminal:
    """A program with a terminal of its own. `screen` is all that it wrote."""

    def __init__(self, command: list[str], env: dict[str, str], columns: int) -> None:
        import fcntl
        import termios

        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

        def own_terminal() -> None:  # so that Ctrl-C becomes a signal to it
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env,
            start_new_session=True, preexec_fn=own_terminal,
        )  # fmt: skip
        os.close(slave)
        self.screen = ""
        self._bytes = b""

    def press(self, keys: str | bytes) -> None:
        os.write(self._master, keys.encode() if isinstance(keys, str) else keys)

    @property
    def text(self) -> str:
        """What was written, without what steers the terminal."""
        return _ESCAPES.sub("", self.screen)

    def wait(self, done: Callable[[], bool], seconds: float = 240) -> None:
        """Read until `done()`; the test fails if that does not happen."""
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, f"still waiting; the screen says:\n{self.text}"
            if not self._read() and not done():
                pytest.fail(f"it ended early; the screen says:\n{self.text}")

    def sees(self, text: str, times: int = 1) -> None:
        """Wait until `text` was written so often."""
        self.wait(lambda: self.text.count(text) >= times)

    def ends(self) -> int:
        """Wait for its end; returns the exit code."""
        end = time.monotonic() + 240
        while self._read():
            assert time.monotonic() < end, f"it does not end; the screen says:\n{self.text}"
        return self.process.wait(120)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 1.0)
        if not ready:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # how Linux reports that the other side was closed
            return False
        self._bytes += data
        self.screen = self._bytes.decode("utf-8", "replace")
        return bool(data)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        with suppress(OSError):
            os.close(self._master)


def chat_in(
    home: Path,
    *extra: str,
    columns: int = 80,
    tokens: int = 12,
    model: Path | None = TINY,
    under: Sequence[str] = (),
    **variables: str,
) -> Terminal:
    """`specli chat` on the tiny model, with directories of its own under `home`, and far from any clipboard.
    `extra`: further options. `under`: a command that is given this one to run."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SPECLI_") and k != "NO_COLOR"}
    env |= {f"SPECLI_{name}_DIR": str(home / name) for name in ("CACHE", "CONFIG", "DATA")}
    env |= {"TMUX": "", "SSH_CONNECTION": "here", "TERM": "xterm-256color"}
    env |= {"PROMPT_TOOLKIT_NO_CPR": "1", "PYTHONUTF8": "1", **variables}
    options = ["--no-repack", "--threads", "1", "--temp", "0", "--max-tokens", str(tokens)]
    if model is not None:
        options += ["-m", str(model)]
    return Terminal([*under, sys.executable, "-m", "specli", "chat", *options, *extra], env, columns)
