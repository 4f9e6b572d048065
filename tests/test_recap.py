"""What is shown again of a conversation that goes on."""

from __future__ import annotations

import io
import re

import pytest

from specli.chat.conversation import Message
from specli.chat.dialogue import Dialogue
from specli.ui import terminal
from specli.ui.recap import recap, shortened
from specli.ui.screen import Screen

CODE = (
    "Here it is:\n\n```python\n"
    + "".join(f"def f{n}(x) -> str:\n    return x\n" for n in range(30))
    + "```\nDone, **all**."
)


def shown(monkeypatch: pytest.MonkeyPatch, question: str, answer: str, moves: bool = True) -> list[str]:
    """The rows, without their styles, in a window of 40 cells."""
    err = io.StringIO()
    monkeypatch.setattr(terminal, "columns", lambda stream: 40)
    monkeypatch.setattr(terminal, "can_move", lambda stream: moves)
    monkeypatch.setattr(terminal, "with_fallbacks", lambda text, stream: text)
    messages = [Message("user", question), Message("assistant", answer)]
    recap(Dialogue(None, False, messages), Screen(io.StringIO(), err, interactive=True), True)
    return re.sub(r"\x1b\[[\d;]*m", "", err.getvalue()).split("\n")


def test_the_end_of_an_answer_begins_at_a_line_and_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = shown(monkeypatch, "Write\nit", CODE)
    assert rows[:5] == ["› Write", "it", "…", "def f26(x) -> str:", "    return x"]
    assert rows[-3:] == ["```", "Done, all.", ""]
    assert shown(monkeypatch, "Write\nit", CODE, moves=False)[-3:] == ["```", "Done, **all**.", ""]


def test_a_short_answer_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, "Hi", "- **a**\n- b\n\nx") == ["› Hi", "• a", "• b", "", "x", ""]
    assert shown(monkeypatch, "Hi", "A | B\n--- | ---\n1 | 2") == ["› Hi", "A  B", "─  ─", "1  2", ""]


def test_long_questions_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = shown(monkeypatch, "word " * 20 + "\n2\n3\n4", "x")
    assert rows == ["› " + "word " * 7 + "w…", "2", "3", "…", "x", ""]


def test_a_line_longer_than_all_the_room_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = shown(monkeypatch, "Hi", "first\n" + "word " * 200)
    assert rows[1] == "…" and rows[2].startswith("word word") and len(rows) > 10


def test_shortened() -> None:
    assert (
        shortened("abc", 3) == "abc" and shortened("abcd", 3) == "ab…" and shortened("日本語", 5) == "日本…"
    )
    assert shortened("ab cdef", 4, "...") == "a..."
