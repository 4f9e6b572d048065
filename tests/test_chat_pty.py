"""`specli chat` at a keyboard: a pseudo-terminal, keys pressed, what appears on the screen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from emulator import Emulator
from keyboarding import CTRL_C, CTRL_D, CTRL_G, ENDLESS, PROMPT, UP, Terminal, chat_in

Open = Callable[..., Terminal]


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Open]:
    """Opens `specli chat` on the tiny model; `extra` are further options."""
    opened: list[Terminal] = []

    def start(*extra: str, **more: Any) -> Terminal:
        opened.append(chat_in(tmp_path, *extra, **more))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


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


def test_long_lines_of_help_go_on_below_their_text(chat: Open) -> None:
    t = chat(columns=60)
    t.sees(PROMPT)
    t.press("/help\r")
    t.sees("start a new line")
    t.sees(PROMPT, 2)
    lines = t.text[t.text.index("/help ") :].splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("/trace"))
    assert lines[at + 1].startswith(" " * 18) and lines[at + 1].strip() and max(map(len, lines)) < 60
    t.press(CTRL_D)
    assert t.ends() == 0


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
    drawn = re.findall(r"\x1b7(.*?)\x1b8", t.screen, re.DOTALL)
    assert drawn and any("/s" in rows for rows in drawn)
    for row in (row for rows in drawn for row in re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", rows).split("\n")):
        assert len(row.rstrip("\r")) < columns
    t.press(CTRL_D)
    assert t.ends() == 0
    emulator = Emulator(columns)
    emulator.feed(t.screen)
    final = re.findall(r".*t(?:ok)?/s.*", emulator.text)
    assert len(final) == 1 and len(final[0]) < columns


def test_without_colours_and_on_a_dumb_terminal(chat: Open) -> None:
    plain = chat(NO_COLOR="1", tokens=40)
    dumb = chat(TERM="dumb", tokens=40)
    for t, prompt in ((plain, PROMPT), (dumb, "› ")):
        t.sees(prompt)
        t.press("def f():\r")
        t.sees(prompt, 2)
        t.wait(lambda t=t: bool(re.search(r"^\d+ tok", t.text, re.MULTILINE)))
    assert not re.search(r"\x1b\[(?:[0-9]+;)*(?:3[0-7]|9[0-7])m", plain.screen)
    assert re.search(rf"\x1b\[(?:0;)?[23]m{PROMPT}", plain.screen)  # it does not look like something typed
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
        answer = t.screen.rsplit("def f():", 1)[1].split(PROMPT)[0]
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


def seen(t: Terminal) -> str:
    """What stands on the screen and above it."""
    emulator = Emulator(80)
    emulator.feed(t.screen)
    assert not emulator.unknown
    return emulator.text


def test_a_message_taller_than_the_window_stays_once(chat: Open) -> None:
    t = chat()
    t.sees(PROMPT)
    t.press(b"\x1b[200~" + b"\n".join(b"row %d of it" % n for n in range(40)) + b"\x1b[201~")
    t.sees("row 39 of it")
    t.press("\r")
    t.sees(PROMPT, 2)
    rows = "".join(f"{'› ' if n == 0 else '  '}row {n} of it\n" for n in range(40))
    assert rows in seen(t) and seen(t).count(" of it\n") == 40
    t.press("\r" + "/system\r")
    t.sees("no system message")
    assert "\n›\n› /system\nno system message" in seen(t)


@pytest.mark.parametrize("key", [CTRL_C, CTRL_G])
def test_a_search_is_left_for_the_line_that_stood_there(chat: Open, key: bytes) -> None:
    t = chat(EDITOR="false")
    t.sees(PROMPT)
    t.press("/system remembered words\r")
    t.sees(PROMPT, 2)
    t.press(b"/sys" + b"\x12" + b"remem")
    t.sees("`remem'")
    t.press(key)
    t.wait(lambda: "i-search" not in seen(t))
    t.press("tem\r")
    t.sees("system: remembered words")
    assert "the editor" not in t.text


@pytest.mark.parametrize(
    ("editor", "says"),
    [("nonexist", "cannot be started"), ("false", "ended with code 1; nothing was changed")],
)
def test_an_editor_that_fails_is_said_and_the_line_stays(chat: Open, editor: str, says: str) -> None:
    t = chat(EDITOR=editor, VISUAL="")
    t.sees(PROMPT)
    t.press(b"/sys" + CTRL_G)
    t.sees(f"the editor {editor} {says}")
    t.press("tem\r")
    t.sees("no system message")


def test_after_a_stop_in_the_midst_of_an_answer_keys_are_not_shown(chat: Open) -> None:
    shell = ("sh", "-c", 'set -m; "$@"; stty -a; echo back in the shell; read line; fg; echo over', "sh")
    t = chat(*ENDLESS, tokens=90000, under=shell)
    t.sees(PROMPT)
    t.press("a\r")
    t.wait(lambda: "/cyc" in t.text)
    t.press(b"\x1a")
    t.sees("back in the shell")
    assert re.search(r"\s-?echo\s", t.text)[0].strip() == "echo"  # type: ignore[index]
    t.press("\n")
    for keys in ("xyzzy", CTRL_C):
        at = len(t.text)
        t.wait(lambda at=at: len(t.text) > at + 2000)  # type: ignore[misc]
        t.press(keys)
    t.sees("what was said so far is kept")
    assert "xyzzy" not in t.text


def test_ctrl_c_drops_what_was_typed_ahead(chat: Open) -> None:
    t = chat(*ENDLESS, tokens=90000)
    t.sees(PROMPT)
    t.press("".join(f"line {n}\r" for n in range(200)))
    t.wait(lambda: "/cyc" in t.text)
    t.press(CTRL_C)
    t.sees("what was typed ahead is dropped")
    t.sees(PROMPT, 2)
    t.press("/stats\r")
    t.sees("1 answer,")
    t.sees(PROMPT, 3)
    t.press(CTRL_D)
    assert t.ends() == 0


def test_line_ends_of_two_tokens_are_line_ends(chat: Open) -> None:
    t = chat("--grammar", r'root ::= "one\r\n" "two\r\n" "three"', tokens=40)
    t.sees(PROMPT)
    t.press("a\r")
    t.sees(PROMPT, 2)
    assert "two" in t.text and "three" in t.text and "␍" not in t.text
    t.press(CTRL_D)
    assert t.ends() == 0
