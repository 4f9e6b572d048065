"""Reading an answer in `specli chat` and `specli run`: real programs on pseudo-terminals, an emulator that says
what is on the screen in the end, models whose every byte is known."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emulator import Emulator
from keyboarding import CTRL_C, CTRL_D, PROMPT, Terminal
from parrot import OPENED, SWITCHED, THINKING, parrot, pieces

from specli.core.stats import Stats
from specli.ui.inline import Palette, plain
from specli.ui.markdown import Markdown
from specli.ui.readout import Readout

VERSE = """## Verse

Some **bold** words, `code`, and *more* that are wrapped where they must be, long as this line is.

- a point of a list that does not fit into a narrow window in one row
- 中文字符没有空格所以可以在任何地方换行

```python
print("hello")  # said
```

"""
EVIL = "Hi \x1b]0;title\x07 \x1b[2Jgone\x1b[31m red \x9b5A up\u202e end."


class Watched(Terminal):
    """With an emulator that sees all that is written."""

    def __init__(self, command: list[str], env: dict[str, str], columns: int) -> None:
        super().__init__(command, env, columns)
        self.emulator = Emulator(columns, 24)
        self._fed = 0

    def look(self) -> Emulator:
        self.emulator.feed(self.screen[self._fed :])
        self._fed = len(self.screen)
        return self.emulator

    def resize(self, columns: int) -> None:
        import fcntl
        import struct
        import termios

        self.look().resize(columns)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def asks(self, text: str, prompt: str = PROMPT) -> None:
        """Send a line at the prompt and wait for the next prompt."""
        before = self.text.count(prompt)
        self.press(text + "\r")
        self.sees(prompt, before + 1)

    def leaves(self) -> str:
        """End it; what is on the screen."""
        self.press(CTRL_D)
        assert self.ends() == 0
        assert "Traceback" not in self.text
        text = self.look().text
        assert not self.emulator.unknown
        return text


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def environment(home: Path, **variables: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("SPECLI_") and k != "NO_COLOR"}
    env |= {f"SPECLI_{name}_DIR": str(home / name) for name in ("CACHE", "CONFIG", "DATA")}
    env |= {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "PYTHONUTF8": "1"}
    return env | variables


def command(name: str, model: Path, *extra: str) -> list[str]:
    fixed = ["-m", str(model), "--no-repack", "--threads", "1", "--temp", "0"]
    return [sys.executable, "-m", "specli", name, *fixed, *extra]


@pytest.fixture
def chat(home: Path) -> Iterator[Callable[..., Watched]]:
    opened: list[Watched] = []

    def start(model: Path, *extra: str, columns: int = 80, **variables: str) -> Watched:
        opened.append(
            Watched(command("chat", model, "--no-save", *extra), environment(home, **variables), columns)
        )
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.fixture(scope="module")
def endless(home: Path) -> Path:
    """Says the verse for ever."""
    return parrot(home / "endless.gguf", pieces(VERSE, 3), endless=True, context=100_000)


@pytest.fixture(scope="module")
def thinker(home: Path) -> Path:
    return parrot(
        home / "thinker.gguf", pieces("<think>\nI weigh it up.\n</think>\n\nSo **be** it.", 3), THINKING
    )


@pytest.fixture(scope="module")
def evil(home: Path) -> Path:
    return parrot(home / "evil.gguf", pieces(EVIL, 3))


def bare(text: str) -> str:
    return re.sub(r"\s", "", text)


def is_part(part: str, whole: str) -> bool:
    """Whether `part` is `whole` with characters left out."""
    rest = iter(whole)
    return all(character in rest for character in part)


def rendered(source: str) -> str:
    markdown = Markdown(Palette(), lambda: 79)
    return plain([*markdown.feed(source), *markdown.finish()])


# -- resizing and stopping ----------------------------------------------------------------------


def test_resizing_while_it_streams(chat: Callable[..., Watched], endless: Path) -> None:
    tokens = 2400
    t = chat(endless, "--max-tokens", str(tokens))
    t.sees(PROMPT)
    t.press("go\r")
    for n, columns in enumerate((40, 80, 30, 80)):
        t.sees("Verse", 2 + 3 * n)
        t.resize(columns)
    t.sees(PROMPT, 2)
    seen = t.leaves()
    answer = seen[seen.index("Verse") : seen.rindex(f"{tokens} tok")]
    said = pieces(VERSE, 3)
    whole = bare(rendered("".join(said[i % len(said)] for i in range(tokens))))
    # what was on its way when the window shrank is set by the terminal for another width: of each such
    # moment the character in the last column may be lost, and nothing may be there twice
    assert is_part(bare(answer), whole)
    assert len(whole) - len(bare(answer)) <= 2
    assert len(re.findall(r"tok/s|t/s", seen)) == 1  # of the live line nothing is left


def test_ctrl_c_leaves_nothing_behind(chat: Callable[..., Watched], endless: Path) -> None:
    t = chat(endless, columns=40)
    t.sees(PROMPT)
    t.press("go\r")
    t.sees("Verse", 3)
    t.press(CTRL_C)
    t.sees("is kept")
    t.sees(PROMPT, 2)
    seen = t.leaves()
    assert len(re.findall(r"tok/s|t/s", seen)) == 1
    after = re.split(r"tok/s|t/s", seen)[1]
    assert "Verse" not in after and "stopped" in after


# -- plain terminals, files and pipes -----------------------------------------------------------


@pytest.mark.parametrize("how", ["--plain", "dumb"])
def test_plain_means_no_escape_sequence_at_all(chat: Callable[..., Watched], thinker: Path, how: str) -> None:
    extra, variables = (("--plain",), {}) if how == "--plain" else ((), {"TERM": "dumb"})
    t = chat(thinker, *extra, **variables)
    t.sees("› ")
    t.asks("go", "› ")
    t.press("dropped")
    t.press(CTRL_C)
    t.sees("› ", 3)
    t.asks("/trace", "› ")
    seen = t.leaves()
    assert "\x1b" not in t.screen
    answer = seen[: seen.index("/trace")]
    assert "thought for" in answer and "So **be** it.\n" in answer and "weigh" not in answer
    assert "had nothing to propose" in seen


def test_another_encoding_and_no_colours(chat: Callable[..., Watched], endless: Path) -> None:
    t = chat(endless, "--max-tokens", "150", PYTHONIOENCODING="cp1252", PYTHONUTF8="0", NO_COLOR="1")
    t.sees("a message")
    t.press("go\r")
    t.sees("150 tok")
    t.asks("/trace")
    t.press(CTRL_D)
    assert t.ends() == 0
    assert "Traceback" not in t.text and "150 tokens - " in t.text.replace("·", "-").replace("\ufffd", "-")
    codes = {c for found in re.findall(r"\x1b\[([\d;]*)m", t.screen) for c in found.split(";")}
    assert codes <= {"", "0", "1", "2", "3", "4", "7", "9"}  # attributes; dim is the one of the empty line


def test_what_could_steer_a_terminal_is_shown(chat: Callable[..., Watched], evil: Path, home: Path) -> None:
    t = chat(evil)
    t.sees(PROMPT)
    t.asks("go")
    t.asks("/trace")
    seen = t.leaves()
    assert "Hi ␛]0;title␇ ␛[2Jgone␛[31m red ␛[5A up<RLO> end." in seen
    for bad in ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\x07", "\x1b[5A"):
        assert bad not in t.screen
    shown = Watched(command("run", evil, "--no-stdin", "go"), environment(home), 80)
    assert shown.ends() == 0
    shown.close()
    assert "␛]0;title␇" in shown.screen and "\x1b]" not in shown.screen and "\x07" not in shown.screen
    piped = subprocess.run(
        command("run", evil, "go"),
        env=environment(home),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    assert piped.stdout.decode() == EVIL + "\n"


# -- reasoning ----------------------------------------------------------------------------------


def test_reasoning_is_folded_and_can_be_shown(chat: Callable[..., Watched], thinker: Path) -> None:
    t = chat(thinker)
    t.sees(PROMPT)
    t.asks("go")
    assert "weigh" in t.text  # while it lasted
    folded = t.look().text
    assert "weigh" not in folded
    assert re.search(r"thought for \d+ s, \d+ tokens · /think shows it\n\nSo be it\.\n", folded)
    t.asks("/think")
    t.asks("/think show")
    t.asks("go on")
    t.asks("/think hide")
    t.asks("and on")
    seen = t.leaves()
    assert seen.count("I weigh it up.") == 2 and seen.count("So be it.") == 3
    assert "I weigh it up.\n\nSo be it." in seen
    assert seen.count("thought for") == 1
    assert t.emulator.styled("I weigh it") == "2"


def run(home: Path, model: Path, *extra: str) -> str:
    done = subprocess.run(
        command("run", model, "--no-stdin", "-q", "go", *extra),
        env=environment(home), capture_output=True, stdin=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    return done.stdout.decode()


@pytest.mark.parametrize("template", [THINKING, OPENED])
def test_scripts_get_the_answer_alone_unless_they_ask(home: Path, tmp_path: Path, template: str) -> None:
    said = "<think>\nI weigh it up.\n</think>\n\nSo **be** it."
    spoken = said.removeprefix("<think>\n") if template == OPENED else said
    model = parrot(tmp_path / "t.gguf", pieces(spoken, 3), template)
    assert run(home, model) == "So **be** it.\n"
    assert run(home, model, "--think", "show") == said + "\n"
    told = json.loads(run(home, model, "--json"))
    assert (told["text"], told["reasoning"]) == ("So **be** it.", "I weigh it up.")
    asked = json.loads(run(home, model, "--json", "--think", "show"))
    assert (asked["text"], asked["reasoning"]) == (said, "I weigh it up.")


@pytest.mark.parametrize("variable", ["enable_thinking", "thinking"])
def test_reasoning_can_be_switched_off_where_the_template_knows_how(
    home: Path, tmp_path: Path, variable: str
) -> None:
    template = SWITCHED.replace("enable_thinking", variable)
    model = parrot(tmp_path / "t.gguf", pieces("I weigh it up.\n</think>\n\nSo be it.", 3), template)
    for chosen in ("auto", "on"):
        told = json.loads(run(home, model, "--json", "--reasoning", chosen))
        assert (told["text"], told["reasoning"]) == ("So be it.", "I weigh it up.")
    quick = parrot(tmp_path / "q.gguf", pieces("So be it.", 3), template)
    told = json.loads(run(home, quick, "--json", "--reasoning", "off"))
    assert (told["text"], told["reasoning"]) == ("So be it.", None)


def test_reasoning_can_be_switched_in_a_chat(home: Path, tmp_path: Path) -> None:
    model = parrot(tmp_path / "q.gguf", pieces("So be it.", 3), SWITCHED)
    said = "one\n/set reasoning off\ntwo\n/set reasoning default\nthree\n/exit\n"
    done = subprocess.run(
        command("chat", model, "--think", "hide", "-q"), env=environment(home), input=said.encode(), capture_output=True
    )  # fmt: skip
    assert (
        done.returncode == 0 and b'reasoning = "off"' in done.stderr and b'reasoning = "auto"' in done.stderr
    )
    assert done.stdout.decode().split("\n").count("So be it.") == 1, done.stdout
    other = parrot(tmp_path / "t.gguf", pieces("So be it.", 3), THINKING)
    done = subprocess.run(
        command("chat", other, "-q"), env=environment(home), input=b"/set reasoning off\nHi\n", capture_output=True
    )  # fmt: skip
    assert done.returncode == 0 and b"no chat template that lets one choose" in done.stderr
    assert b"So be it." in done.stdout


def test_reasoning_that_cannot_be_chosen_is_said(home: Path, tmp_path: Path) -> None:
    model = parrot(tmp_path / "t.gguf", pieces("So be it.", 3), THINKING)
    profile = tmp_path / "quick.toml"
    profile.write_text('reasoning = "off"\n')
    for given, code, said in (
        (
            ["--reasoning", "off"],
            2,
            "t has no chat template that lets one choose whether it reasons; leave it out",
        ),
        (["--reasoning", "off", "--raw"], 2, "--raw uses no chat template"),
        (["--profile", str(profile)], 0, "reasoning = off is left out"),
    ):
        done = subprocess.run(
            command("run", model, "--no-stdin", "go", *given),
            env=environment(home), capture_output=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code and said in done.stderr.decode(), done.stderr


def test_where_there_is_no_reasoning_json_says_null(home: Path, evil: Path) -> None:
    printed = run(home, evil, "--json")
    assert json.loads(printed)["reasoning"] is None
    assert json.loads(printed)["text"] == EVIL
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202d\u202e]", printed)


# -- looking back -------------------------------------------------------------------------------


def test_the_cycles_of_an_answer(chat: Callable[..., Watched], home: Path) -> None:
    model = parrot(home / "again.gguf", ["one ", "two ", "three\n"], endless=True)
    options = (
        "--max-tokens",
        "24",
        "--spec-type",
        "ngram-simple",
        "--spec-ngram-simple-size-n",
        "2",
        "--fixed",
    )
    t = chat(model, *options, columns=40)
    t.sees(PROMPT)
    t.asks("/trace")
    t.asks("go")
    t.asks("/trace")
    t.asks("/trace 1")
    t.asks("/trace x")
    seen = t.leaves()
    assert "no answer to look at yet" in seen
    assert re.search(r"1-\d  ngram-simple had nothing to", seen)
    assert re.search(r"ngram-simple drafted \d+", seen)
    assert re.search(r"1 of \d+ cycles; /trace all shows", seen)
    told = seen[seen.index("accepted draft") : seen.index("1 of")]
    assert all(len(row) <= 40 for row in told.split("\n"))
    assert t.emulator.styled("accepted draft") == "32"


def test_accepted_drafts_in_the_colours_of_their_methods(chat: Callable[..., Watched], home: Path) -> None:
    model = parrot(home / "again.gguf", ["one ", "two ", "three\n"], endless=True)
    seen = {}
    for method, size in (
        ("draft-self", "--spec-self-size-n"),
        ("ngram-simple", "--spec-ngram-simple-size-n"),
    ):
        t = chat(model, "--max-tokens", "40", "--spec-type", method, size, "2", "--fixed", "--show-drafts")
        t.sees(PROMPT)
        t.asks("go")
        text = t.leaves()
        assert "from accepted drafts of" in text
        styles = {cell.style for row in t.emulator.rows for cell in row.cells if "three" in row.text()}
        seen[method] = styles & {"36", "32"}
    assert seen == {"draft-self": {"36"}, "ngram-simple": {"32"}}


# -- names --------------------------------------------------------------------------------------


def test_a_dumb_terminal_hears_once_that_a_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dumb(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "dumb")
    out, err, now = io.StringIO(), Dumb(), [0.0]
    readout = Readout(out, err, (), clock=lambda: now[0])
    answer: Any = SimpleNamespace(stats=Stats())
    readout.begin(answer)
    for done in range(0, 900, 100):  # a second each
        readout.reading(done, 1000)
        now[0] += 1.0
    assert err.getvalue() == "specli: reading the prompt, 300 of 1000 tokens so far\n"
    assert out.getvalue() == ""

    quiet = Dumb()
    readout = Readout(out, quiet, (), figures=False, clock=lambda: now[0])
    readout.begin(answer)
    for done in (0, 500):
        readout.reading(done, 1000)
        now[0] += 9.0
    assert quiet.getvalue() == ""


def test_names_of_files_and_models_steer_nothing(home: Path) -> None:
    folder = home / "evil"
    folder.mkdir()
    model = parrot(folder / "m\x1b]0;x\x07\x9b2J.gguf", ["ok", "ay"])
    (folder / "p\x1b[2J.toml").write_text('description = "a\\u001b[2Jb\\u009bc"\n[spec]\ntypes = ["none"]\n')
    (folder / "note\x1b]0;y\x07.txt").write_text("hm")
    commands = [
        command("run", model, "--no-stdin", "-f", str(folder / "note\x1b]0;y\x07.txt")),
        command("run", model, "--no-stdin", "--json", "go"),
        command("run", model.with_suffix(".x\x1b[2J"), "--no-stdin", "go"),
        [sys.executable, "-m", "specli", "check-draft", str(model), str(model)],
        [sys.executable, "-m", "specli", "profiles", "show", str(folder / "p\x1b[2J.toml")],
        [sys.executable, "-m", "specli", "models", "--dir", str(folder)],
    ]
    for each in commands:
        t = Watched(each, environment(home), 80)
        t.ends()
        t.close()
        assert "Traceback" not in t.text
        assert not re.search("\x1b\\]|\x1b\\[2J|\x07|\x9b", t.screen), each
        assert each is commands[0] or "␛" in t.text or "u001b" in t.text or "a [2Jb c" in t.text, each


def test_json_may_be_looked_at() -> None:
    from specli.ui.terminal import json_text

    row = {"text": "a\x1b\x7f\x9b2J\u202ee\n中"}
    assert json.loads(json_text(row)) == json.loads(json_text(row, ascii_only=True)) == row
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202d\u202e]", json_text(row)) and "中" in json_text(row)


# -- consoles -----------------------------------------------------------------------------------


class Kernel:
    """Windows' console functions. `mode`: None where the handle is no console; `old`: it refuses."""

    def __init__(self, mode: int | None, old: bool = False) -> None:
        self.mode, self.old = mode, old

    def GetConsoleMode(self, handle: object, mode: object) -> int:
        if self.mode is None:
            return 0
        mode._obj.value = self.mode  # type: ignore[attr-defined]
        return 1

    def SetConsoleMode(self, handle: object, mode: int) -> int:
        if not self.old:
            self.mode = mode
        return int(not self.old)


@pytest.mark.parametrize(
    ("kernel", "term", "able"),
    [
        (Kernel(3), None, True),
        (Kernel(3, old=True), None, False),
        (Kernel(None), "xterm", True),
        (Kernel(None), None, False),
    ],
)
def test_a_windows_console_is_asked_to_understand_escapes(
    kernel: Kernel, term: str | None, able: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ctypes
    from types import SimpleNamespace

    from specli.ui import terminal

    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(get_osfhandle=lambda number: number))
    monkeypatch.delenv("TERM", raising=False)
    if term is not None:
        monkeypatch.setenv("TERM", term)
    assert terminal._understands_escapes(sys.__stdout__) == able
    if able and kernel.mode is not None:
        assert kernel.mode & 0x0004


def test_without_windows_nothing_is_asked() -> None:
    from specli.ui import terminal

    assert not terminal._understands_escapes(None)
