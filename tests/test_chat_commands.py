"""What can be typed after a slash, what can be pasted, and what Ctrl-C and worse leave behind."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from keyboarding import CTRL_C, CTRL_D, CTRL_G, ENDLESS, PROMPT, TAB, Terminal, chat_in

from specli.chat.answer import Answer
from specli.chat.conversation import Message
from specli.chat.keeper import Keeper
from specli.chat.sessions import Session, Shelf
from specli.cli.loaded import Loaded
from specli.cli.main import main
from specli.errors import UsageError
from specli.opening import Order
from specli.settings import key
from specli.ui.commands import COMMANDS, completion
from specli.ui.lines import Typed, messages
from specli.ui.repl import Chat, Screen
from specli.ui.setting import value_of

Open = Callable[..., Terminal]
PLAIN = ("--spec-type", "draft-self")


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Open]:
    """Opens `specli chat` on the tiny model; `extra` are further options."""
    opened: list[Terminal] = []

    def start(*extra: str, **more: object) -> Terminal:
        opened.append(chat_in(tmp_path, *extra, **more))  # type: ignore[arg-type]
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


_READING = re.compile(r"reading the prompt · \d+ of \d{5} tokens")


def saved(home: Path) -> list[dict[str, object]]:
    """All session files, which must all be whole."""
    return [
        json.loads(path.read_text("utf-8")) for path in sorted((home / "DATA" / "sessions").glob("*.json"))
    ]


def texts(session: dict[str, object]) -> list[str]:
    return [message["text"] for message in session["messages"]]  # type: ignore[attr-defined]


class Typist:
    """Types line after line, each at a prompt of its own."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self._prompts = 1
        terminal.sees(PROMPT)

    def types(self, keys: str | bytes, end: str | bytes = "\r") -> str:
        """Press `keys` and Enter; what appeared until the next prompt."""
        before = len(self.terminal.text)
        self.terminal.press(keys)
        self.terminal.press(end)
        self.waits()
        return " ".join(self.terminal.text[before:].split())

    def waits(self) -> None:
        """Wait for the next prompt."""
        self._prompts += 1
        self.terminal.sees(PROMPT, self._prompts)


# -- at a keyboard ----------------------------------------------------------------------------------


def test_every_command_at_a_keyboard(chat: Open, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("alpha beta\n```\n")
    editor = tmp_path / "editor.sh"
    editor.write_text("#!/bin/sh\ngrep -q 'class Words' \"$1\" && echo 'class Edited:' > \"$1\"\n")
    editor.chmod(0o755)
    t = Typist(chat(*PLAIN, columns=200, EDITOR=str(editor)))
    said = t.types("/help")
    assert all(f"/{command.name}" in said for command in COMMANDS)
    assert "nothing was asked yet" in t.types("/regen") and "nothing to take back" in t.types("/undo")
    assert "no answer to copy" in t.types("/copy") and "nothing was said yet" in t.types("/save")
    assert "system message set" in t.types("/system Be brief.")
    assert "system: Be brief." in t.types("/system") and "removed" in t.types("/system -")
    assert re.search(
        r"note\.txt \(\d+ tokens\) goes with the next question", t.types(f"/read {tmp_path}/note.txt")
    )
    assert "No such file" in t.types("/read /none/at/all")
    assert "tok/s" in t.types("class Words:")
    assert "1 answer," in t.types("/stats")
    assert "at temperature 0 the answer is the same" in t.types("/regen")
    assert "sent to the terminal (OSC 52; some terminals ignore it): " in t.types("/copy")
    (copied,) = re.findall(r"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07", t.terminal.screen)
    assert base64.b64decode(copied).decode() == texts(saved(tmp_path)[0])[1] != ""
    t.types("/edit")
    assert texts(saved(tmp_path)[0])[0] == "class Edited:"
    assert saved(tmp_path)[0]["messages"][0]["files"][0]["text"] == "alpha beta\n```\n"  # type: ignore[index]
    assert "temp = 0.0" in t.types("/set temp") and "temp = 0.7" in t.types("/set temp 0.7")
    assert "did you mean temp?" in t.types("/set tmep 1") and "temp must be 0 to 1000" in t.types(
        "/set temp -1"
    )
    assert "draft-n-max = 4" in t.types("/set") and "chat --continue --ctx-size 9" in t.types(
        "/set ctx-size 9"
    )
    assert "plain decoding" in t.types("/spec none") and "draft-self drafts" in t.types("/spec draft-self")
    assert "did you mean" in t.types("/spec draft-slef") and "draft-self drafts" in t.types("/spec")
    assert "profile: code" in t.types("/profile code") and "no profile" in t.types("/profile kode")
    shown = t.types("/show")
    assert "profile: code" in shown and "temp = 0.7 (from flag or /set)" in shown and "1 turn" in shown
    assert "saved as first, no longer as 20" in t.types("/save first") and "first (this one)" in t.types(
        "/sessions"
    )
    assert "cannot name a session" in t.types("/save ../up")
    assert "the old one is kept: /load first" in t.types("/clear") and "0 turns" in t.types("/show")
    assert "did you mean first?" in t.types("/load frist")
    assert "first, 1 turn: class Edited:" in t.types("/load first") and "1 turn" in t.types("/show")
    assert "taken back: class Edited:" in t.types("/undo") and texts(saved(tmp_path)[0]) == []
    assert "tiny-target-mtp.gguf" in t.types("/model")
    t.terminal.press("/exit\r")
    assert t.terminal.ends() == 0
    assert "Traceback" not in t.terminal.text


def test_another_model_in_the_midst_of_it(chat: Open, tmp_path: Path) -> None:
    draft = Path(__file__).parent / "models" / "tiny-draft.gguf"
    t = Typist(chat(*PLAIN, columns=200))
    t.types("def one():")
    assert "tiny-draft.gguf" in t.types(f"/model {draft}")
    t.types("def two():")
    assert "no such file" in t.types("/model nowhere.gguf")
    assert "tiny-draft.gguf" in t.types("/model")
    t.terminal.press(CTRL_D)
    assert t.terminal.ends() == 0
    (session,) = saved(tmp_path)
    assert len(texts(session)) == 4 and str(session["model"]).endswith("tiny-draft.gguf")
    assert "saved as" in t.terminal.text
    again = Typist(chat("--continue", columns=200, model=None))
    assert "tiny-draft" in again.terminal.text and "2 turns: def one():" in again.terminal.text


def test_a_paste_of_many_lines_is_one_message(chat: Open, tmp_path: Path) -> None:
    lines = [f"line {i}" for i in range(200)]
    t = Typist(chat(*PLAIN))
    t.types(b"\x1b[200~" + "\n".join(lines).encode() + b"\x1b[201~")
    (session,) = saved(tmp_path)
    assert texts(session)[0] == "\n".join(lines) and len(texts(session)) == 2
    t.types('"""', end='\r/first\r/exit\rlast"""\r')
    assert texts(saved(tmp_path)[0])[2] == "/first\n/exit\nlast"


def test_tab_completes_and_ctrl_g_edits(chat: Open, tmp_path: Path) -> None:
    (tmp_path / "a-rather-long-name.txt").write_text("words")
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nprintf "%s" "/system from the editor" > "$1"\n')
    editor.chmod(0o755)
    t = Typist(chat(*PLAIN, columns=200, EDITOR=str(editor)))
    for typed, whole, answer in (
        ("/sta", "/stats", "no answer yet"),
        (f"/read {tmp_path}/a-rath", "er-long-name.txt", "a-rather-long-name.txt ("),
        ("/set top-k de", "fault", "top-k = 40"),
    ):
        before = len(t.terminal.text)
        t.terminal.press(typed.encode() + TAB)
        t.terminal.wait(lambda before=before, whole=whole: whole in t.terminal.text[before:])  # type: ignore[misc]
        assert answer in t.types("")
    t.terminal.press(b"typed" + CTRL_G)
    t.terminal.sees("/system from the editor")
    assert "system message set" in t.types("")


@pytest.mark.parametrize("presses", [1, 3])
def test_ctrl_c_during_a_long_prompt(chat: Open, tmp_path: Path, presses: int) -> None:
    (tmp_path / "long.txt").write_text("import os, sys\n" * 8000)
    t = Typist(chat(*PLAIN, "--ctx-size", "100096", columns=200))
    t.types(f"/read {tmp_path}/long.txt")
    t.terminal.press("what is it?\r")
    t.terminal.wait(lambda: bool(_READING.search(t.terminal.text)))
    t.terminal.press(CTRL_C * presses)  # an impatient one is no other wish
    t.terminal.sees("stopped before an answer began")
    t.waits()
    assert saved(tmp_path) == []  # as if it had not been asked
    assert "with the next question: " in t.types("/show") and "no longer" in t.types("/read -")
    assert "tok/s" in t.types("def after():")
    t.terminal.press(CTRL_D)
    assert t.terminal.ends() == 0 and "Traceback" not in t.terminal.text


def test_killed_in_the_midst_of_an_answer(chat: Open, tmp_path: Path) -> None:
    t = Typist(chat(*PLAIN, columns=200))
    first = t.types("def first():")
    assert "tok/s" in first
    t.terminal.press(CTRL_D)
    t.terminal.ends()
    again = Typist(chat(*PLAIN, "--continue", *ENDLESS, tokens=90000, columns=200))
    again.terminal.press("class Second:\r")
    again.terminal.wait(lambda: "/cyc" in again.terminal.text)
    again.terminal.process.kill()
    again.terminal.process.wait()
    (session,) = saved(tmp_path)
    assert texts(session)[0] == "def first():" and texts(session)[2:] == ["class Second:"]
    third = Typist(chat(*PLAIN, "--continue", columns=200))
    assert "its last question has no answer" in third.terminal.text
    third.types("/regen")
    assert [m["role"] for m in saved(tmp_path)[0]["messages"]] == ["user", "assistant"] * 2  # type: ignore[attr-defined]


def test_two_on_the_same_conversation(chat: Open, tmp_path: Path) -> None:
    one = Typist(chat(*PLAIN, columns=200))
    one.types("def shared():")
    one.types("/save shared")
    two = Typist(chat(*PLAIN, "--resume", "shared", columns=200))
    assert (
        "shared is open in another specli, so what is said here goes on under another name"
        in two.terminal.text
    )
    two.types("class Two:")
    one.types("class One:")
    by_last = sorted(texts(session)[2] for session in saved(tmp_path))
    assert by_last == ["class One:", "class Two:"]
    unsaved = Typist(chat(*PLAIN, "--resume", "shared", "--no-save", columns=200))
    assert "shared, 2 turns: def shared():" in unsaved.terminal.text  # as One left it
    assert "is open in another" not in unsaved.terminal.text
    unsaved.types("x = 1")
    assert len(saved(tmp_path)) == 2


# -- over pipes, and in detail ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Iterator[Loaded]:
    tiny = Path(__file__).parent / "models" / "tiny-draft.gguf"
    given = {
        "model": str(tiny),
        "no_repack": True,
        "threads": 1,
        "temp": 0.0,
        "max_tokens": 8,
        "ctx_size": 256,
    }
    order = Order({**given, "types": ("draft-self",)})
    with closing(Loaded(order, order.settings(), lambda _: None)) as loaded:
        yield loaded


@pytest.fixture
def piped(model: Loaded, tmp_path: Path) -> Chat:
    screen = Screen(io.StringIO(), io.StringIO(), interactive=False, figures=False)
    return Chat(model, screen, Keeper(Shelf(tmp_path / "sessions")))


def said(talk: Chat) -> str:
    assert isinstance(talk.screen.err, io.StringIO)
    return talk.screen.err.getvalue()


def test_blocks() -> None:
    lines = ['"""one', "", '/exit"""', "plain", '"""in one"""', '""""""', '"""', "open to the end"]
    assert list(messages(lines)) == [
        Typed("one\n\n/exit", True),
        Typed("plain"),
        Typed("in one", True),
        Typed("", True),
        Typed("open to the end", True),
    ]


def test_the_context_overflows_and_the_conversation_goes_on(piped: Chat) -> None:
    piped.dialogue.system = "Be brief."
    assert piped.run([f"question number {i} about alpha, beta and gamma" for i in range(16)]) == 0
    notices = [line for line in said(piped).splitlines() if "left out from here on" in line]
    assert 1 <= len(notices) < 6 and all("; the system message stays" in line for line in notices)
    assert piped.dialogue.turns == 16 and piped.dialogue.first > 0
    assert len(piped.keeper.shelf.read(piped.keeper.name or "").messages) == 32
    system = piped.model.tokens([*_system(piped)])[:8]
    assert list(_last(piped).history[:8]) == system


def _last(talk: Chat) -> Answer:
    assert talk.last is not None
    return talk.last


def _system(talk: Chat) -> list[Message]:
    return [Message("system", talk.dialogue.system or ""), Message("user", "x")]


def test_commands_that_need_a_terminal_say_so(piped: Chat) -> None:
    assert piped.run(["hello", "/edit", "/copy", "/nothing", "/read", "/load", "/stats much"]) == 0
    for part in ("/edit needs a terminal", "there is no terminal here", "no command /nothing", "which file?",
                 "which one?", "/stats takes nothing after it"):  # fmt: skip
        assert part in said(piped)


def test_not_saving_unless_asked(model: Loaded, tmp_path: Path) -> None:
    screen = Screen(io.StringIO(), io.StringIO(), interactive=False, figures=False)
    talk = Chat(model, screen, Keeper(Shelf(tmp_path / "sessions"), saving=False))
    talk.run(["hello"])
    assert not (tmp_path / "sessions").exists()
    talk.run(["/save now", "again"])
    assert len(talk.keeper.shelf.read("now").messages) == 4


def test_a_disk_that_refuses_is_said_once_and_the_chat_goes_on(model: Loaded, tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("a file, no folder")
    screen = Screen(io.StringIO(), io.StringIO(), interactive=False, figures=False)
    talk = Chat(model, screen, Keeper(Shelf(tmp_path / "sessions")))
    assert talk.run(["hello", "again"]) == 0
    assert said(talk).count("this conversation is not being saved") == 1 and len(talk.dialogue.messages) == 4


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("temp", "0.5", 0.5), ("temp", "1", 1), ("top-k", "7", 7), ("fixed", "on", True), ("fixed", "no", False),
     ("stop", "END", ["END"]), ("stop", '["a", "b"]', ["a", "b"]), ("stop", r'"\n\n"', ["\n\n"]),
     ("stop", "a b", ["a b"]), ("logit-bias", "5+1 6-2", ["5+1", "6-2"]), ("logit-bias", "5=1 =-2", ["5+1", "=-2"]),
     ("logit-bias", "5=-1.5", ["5-1.5"]),
     ("seed", "default", None), ("verify", "coupled", "coupled"), ("temp", "hot", "hot")],
)  # fmt: skip
def test_typed_values(name: str, text: str, value: object) -> None:
    assert value_of(key(name), text) == value


def test_settings_change_answers_at_once(piped: Chat, model: Loaded) -> None:
    piped.run(["/set max-tokens 3", "hello"])
    assert _last(piped).stats.generated == 3
    piped.run(["/set max-tokens 8", "/set seed 5", "/set draft-n-max 2", "/set logit-bias 300-5", "hello"])
    assert model.settings.draft_n_max == 2 and model.generator.seed == 5 and len(_last(piped).said) > 3
    cached = model.cached()
    with pytest.raises(UsageError, match="not one of the 1280 tokens"):
        model.set(key("logit-bias"), ["no such token+1"])
    with pytest.raises(UsageError, match="draft-n-min 60 is more than"):
        model.set(key("draft-n-min"), 60)
    assert model.settings.draft_n_min == 0 and model.cached() == cached  # nothing changed, nothing forgotten
    piped.run([f"/set {name} default" for name in ("logit-bias", "draft-n-max", "seed")])
    assert model.settings.draft_n_max == 4 and model.settings.seed is None and model.cached() == cached


def test_a_drafter_that_was_not_loaded_is_loaded(piped: Chat, model: Loaded) -> None:
    piped.run(["def one():\n    return", "/spec none"])
    cached = model.cached()
    assert not model.methods and cached
    piped.run(["/spec ngram-simple,draft-self"])
    assert model.methods == ["ngram-simple", "draft-self"] and model.cached() == cached  # taken over
    piped.run(["/spec draft-model", "/spec draft-mtp"])
    assert "needs a smaller model" in said(piped) and model.methods == ["ngram-simple", "draft-self"]
    piped.run(["/show"])
    assert '["ngram-simple", "draft-self"] (from flag or /spec)' in said(piped)
    piped.run(["/spec default"])
    assert model.settings.types == ("auto",) and model.settings.origin("types") == "profile"
    piped.run(["/spec draft-self"])


def test_a_piped_conversation_says_where_it_is_kept(model: Loaded, tmp_path: Path) -> None:
    screen = Screen(io.StringIO(), io.StringIO(), interactive=False)
    talk = Chat(model, screen, Keeper(Shelf(tmp_path / "sessions")))
    talk.run(["/set fixed on", "/set logit-bias 300+100", "one token again and again", "/stats"])
    talk.run(["/set fixed default", "/set logit-bias default"])
    assert f"saved as {talk.keeper.name};" in said(talk).splitlines()[-1]
    assert "accepted of the 1st, 2nd, ... token of a draft, where it came to that: 100%" in said(talk)
    assert re.search(
        r"x plain, the first cycle left out as in tok/s, goes by \d+\.\d ms for a decode without a draft, .* in this answer",
        said(talk),
    )


def test_completion(piped: Chat, tmp_path: Path) -> None:
    piped.run(["hello", "/save mine"])

    def offered(line: str) -> list[str]:
        found = completion(piped, line)
        return [word for word in found.words if word.startswith(found.typed)]

    assert offered("/s") == ["/system", "/save", "/sessions", "/spec", "/set", "/show", "/stats"]
    assert offered("hello") == [] and offered("/nothing ") == []
    assert offered("/load m") == ["mine"] and offered("/profile co") == ["code"]
    assert offered("/spec draft-self,ngram-s") == ["draft-self,ngram-simple"]
    assert offered("/set verify c") == ["verify coupled"] and "temp" in offered("/set te")
    about = completion(piped, "/load m").about
    assert about is not None and about("mine") == "1 turn · hello"
    assert completion(piped, "/read a").files and completion(piped, "/model a").files


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--continue"], 1, "no conversation is saved yet"),
        (["--resume", "nothing"], 1, "no session nothing"),
        (["--resume", "../../etc/passwd"], 1, "cannot name a session"),
        (["--resume", "broken"], 1, "no session in it"),
        (
            ["--resume", "moved"],
            1,
            "the model of that conversation is gone: /nowhere/m.gguf; give one with -m",
        ),
        (["--continue", "--resume", "x"], 2, "both given"),
    ],
)
def test_what_cannot_be_taken_up_is_one_line(
    options: list[str], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.setenv("SPECLI_DATA_DIR", str(tmp_path))
    shelf = Shelf(tmp_path / "sessions")
    if "--continue" not in options:
        shelf.write("moved", Session((Message("user", "hi"),), "/nowhere/m.gguf", "f"))
        (shelf.folder / "broken.json").write_text("{")
    assert main(["chat", *options]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and says in err
