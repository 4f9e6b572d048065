"""`specli chat` at a keyboard: a pseudo-terminal, keys pressed, what appears on the screen."""

from __future__ import annotations

import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pty = pytest.importorskip("pty", reason="pseudo-terminals are POSIX")

TINY = Path(__file__).parent / "models" / "tiny-target-mtp.gguf"
CTRL_C, CTRL_D, ENTER, UP = b"\x03", b"\x04", b"\r", b"\x1b[A"
PROMPT = "a message, or /help"  # stands in an empty input line
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

    def wait(self, done: Callable[[], bool], seconds: float = 60) -> None:
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
        end = time.monotonic() + 30
        while self._read():
            assert time.monotonic() < end, f"it does not end; the screen says:\n{self.text}"
        return self.process.wait(30)

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


Open = Callable[..., Terminal]


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Open]:
    """Opens `specli chat` on the tiny model; `extra` are further options."""
    opened: list[Terminal] = []

    def start(*extra: str, columns: int = 80, tokens: int = 12, **variables: str) -> Terminal:
        env = {k: v for k, v in os.environ.items() if not k.startswith("SPECLI_") and k != "NO_COLOR"}
        env |= {f"SPECLI_{name}_DIR": str(tmp_path / name) for name in ("CACHE", "CONFIG", "DATA")}
        env |= {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "PYTHONUTF8": "1", **variables}
        options = [
            "-m",
            str(TINY),
            "--no-repack",
            "--threads",
            "1",
            "--temp",
            "0",
            "--max-tokens",
            str(tokens),
        ]
        command = [sys.executable, "-m", "specli", "chat", *options, *extra]
        opened.append(Terminal(command, env, columns))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


ENDLESS = ("--ctx-size", "100000", *(x for token in range(8) for x in ("--logit-bias", f"{token}-1000")))


def live(columns: int) -> re.Pattern[str]:
    """The live line: drawn one row below the text, within the width, and back."""
    words = rf"([^\x1b]{{1,{columns - 1}}})"
    return re.compile(rf"\x1b\[J\x1bD\x1b\[A\x1b7\x1b\[B\r(?:\x1b\[2m)?{words}(?:\x1b\[0m)?\x1b8")


def test_a_conversation(chat: Open, tmp_path: Path) -> None:
    t = chat()
    t.sees(PROMPT)
    assert "tiny-target-mtp" in t.text and "on the CPU" in t.text and "context 2048" in t.text
    t.press("def add(a, b):" + "\r")
    t.sees(PROMPT, 2)
    assert re.search(r"\d+ tok", t.text)
    before = len(t.text)
    t.press("/stauts\r")
    t.sees("did you mean /stats?")
    t.sees(PROMPT, 3)
    t.press("/stats\r")
    t.sees(PROMPT, 4)
    assert "1 answer," in t.text[before:]
    t.press(CTRL_D)
    assert t.ends() == 0
    assert "def add(a, b):" in (tmp_path / "DATA" / "history").read_text()
    assert (tmp_path / "DATA" / "history").stat().st_mode & 0o077 == 0


def test_the_next_turn_decodes_only_what_is_new(chat: Open) -> None:
    t = chat()
    t.sees(PROMPT)
    t.press("def first(alpha, beta, gamma, delta):\r")
    t.sees(PROMPT, 2)
    t.press("x\r")
    t.sees(PROMPT, 3)
    t.press("/stats\r")
    t.sees(PROMPT, 4)
    prompt, decoded = map(int, re.findall(r"prompt: (\d+) tokens, (\d+) of them decoded", t.text)[-1])
    assert 0 < decoded < prompt / 2
    t.press("/exit\r")
    assert t.ends() == 0


def test_ctrl_c_stops_the_answer_and_keeps_it(chat: Open) -> None:
    t = chat(*ENDLESS, tokens=90000)
    t.sees(PROMPT)
    t.press("a\r")
    t.wait(lambda: "/cyc" in t.text)
    t.press(CTRL_C)
    t.sees("what was said so far is kept")
    t.sees(PROMPT, 2)
    t.press("/stats\r")
    t.sees(PROMPT, 3)
    assert "1 answer," in t.text
    t.press(CTRL_D)
    assert t.ends() == 0
    assert "Traceback" not in t.text


def test_ctrl_c_at_the_prompt_clears_the_line(chat: Open) -> None:
    t = chat()
    t.sees(PROMPT)
    t.press("never sent")
    t.sees("never sent")
    t.press(CTRL_C)
    t.sees(PROMPT, 2)
    t.press("/system\r")
    t.sees("no system message")
    t.sees(PROMPT, 3)
    t.press(CTRL_D)
    assert t.ends() == 0
    assert "tok" not in t.text  # nothing was answered


def test_terminated_while_answering(chat: Open) -> None:
    t = chat(*ENDLESS, tokens=90000)
    t.sees(PROMPT)
    t.press("a\r")
    t.wait(lambda: "/cyc" in t.text)
    t.process.terminate()
    assert t.ends() == 143
    assert "Traceback" not in t.text


def test_terminated_at_the_prompt(chat: Open) -> None:
    t = chat()
    t.sees(PROMPT)
    t.process.terminate()
    assert t.ends() == 143
    assert "Traceback" not in t.text and "specli: terminated" in t.text


@pytest.mark.parametrize("columns", [80, 40])
def test_the_live_line_fits_and_is_erased(chat: Open, columns: int) -> None:
    t = chat(*ENDLESS, columns=columns, tokens=1600)  # long enough for figures on any machine
    t.sees(PROMPT)
    t.press("a\r")
    t.sees(PROMPT, 2)
    pattern = live(columns)
    drawn = pattern.findall(t.screen)
    assert len(drawn) == t.screen.count("\x1b7") > 0  # every one, so none was too long
    assert any("/s" in line for line in drawn)
    after = t.screen[[m.end() for m in pattern.finditer(t.screen)][-1] :]
    assert after.find("\x1b[J") >= 0
    final = re.search(r"\x1b\[2m([^\x1b]*\d[^\x1b]*t(?:ok|/s)[^\x1b]*)\x1b\[0m\r\n", after)
    assert final and len(final[1]) < columns
    t.press(CTRL_D)
    assert t.ends() == 0


def test_without_colours_and_on_a_dumb_terminal(chat: Open) -> None:
    plain = chat(NO_COLOR="1", tokens=40)
    dumb = chat(TERM="dumb", tokens=40)
    for t, prompt in ((plain, PROMPT), (dumb, "› ")):
        t.sees(prompt)
        t.press("def f():\r")
        t.sees(prompt, 2)
        t.wait(lambda t=t: bool(re.search(r"^\d+ tok", t.text, re.MULTILINE)))
    assert not re.search(r"\x1b\[(?:[0-9]+;)*(?:2|3[0-7]|9[0-7])m", plain.screen)
    assert "\x1b7" in plain.screen
    for sequence in ("\x1b7", "\x1b[J", "\x1b[2m"):
        assert sequence not in dumb.screen


def test_accepted_drafts_are_coloured_on_request(chat: Open) -> None:
    options = ("--spec-type", "draft-self", "--fixed", "--spec-self-size-n", "1", *ENDLESS)
    seen = []
    for show in ((), ("--show-drafts",)):
        t = chat(*options, *show, tokens=150)
        t.sees(PROMPT)
        t.press("def f():\r")
        t.sees(PROMPT, 2)
        answer = live(80).sub("", t.screen.rsplit("def f():", 1)[1].split(PROMPT)[0])
        seen.append("\x1b[36m" in answer)
        t.press(CTRL_D)
        assert t.ends() == 0
    assert seen == [False, True]


def test_history_is_there_in_the_next_chat(chat: Open) -> None:
    t = chat()
    t.sees(PROMPT)
    t.press("/system remembered words\r")
    t.sees("system message set")
    t.sees(PROMPT, 2)
    t.press(CTRL_D)
    assert t.ends() == 0
    again = chat()
    again.sees(PROMPT)
    again.press(UP)
    again.sees("/system remembered words")
    again.press(CTRL_C + CTRL_D)
    assert again.ends() == 0
