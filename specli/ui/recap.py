"""Where a conversation stands: its last question, and how the answer ended."""

from __future__ import annotations

from collections.abc import Iterator

from specli.chat.dialogue import Dialogue
from specli.chat.text import safe_for_terminal
from specli.ui import terminal
from specli.ui.inline import Palette
from specli.ui.layout import RAN_OVER, Layout
from specli.ui.markdown import Markdown
from specli.ui.page import fitted
from specli.ui.screen import Screen

_ASKED, _ANSWERED = 3, 10
"""Rows of the question, and about as many of the answer."""


def recap(dialogue: Dialogue, screen: Screen, markdown: bool) -> None:
    """Show it: the beginning of the question, the end of the answer, from the beginning of a line on, rendered as
    answers are where `markdown`."""
    question, answer = dialogue.last_question, dialogue.last_answer
    if question is not None and question.text.strip():
        first, *more = question.text.strip().split("\n")
        for line in (f"› {first}", *more[: _ASKED - 1]):
            screen.say(shortened(line, _width(screen)))
        if len(more) >= _ASKED:
            screen.say("…")
    if answer is None or dialogue.unanswered or not answer.text.strip():
        return
    text = safe_for_terminal(answer.text.strip().replace("\r\n", "\n"))
    if markdown and terminal.can_move(screen.err):
        lines, cut = _last(list(_rendered(text, screen)))
        screen.err.write(("…\n" if cut else "") + "".join(lines))
        screen.err.flush()
        return
    lines, cut = _last([f"{line}\n" for line in text.split("\n")])
    for line in ["…"] * cut + "".join(lines).rstrip("\n").split("\n"):
        screen.say(line)


def shortened(text: str, width: int, mark: str = "…") -> str:
    """`text` in `width` cells, with `mark` where it is cut."""
    cut = fitted(text, width)
    return cut if cut == text else fitted(text, width - len(mark)).rstrip() + mark


def _width(screen: Screen) -> int:
    return max(8, terminal.columns(screen.err) - 1)


def _rendered(text: str, screen: Screen) -> Iterator[str]:
    """Line by line, each in as many rows as it takes; those of a table come with its last."""
    layout = Layout(_width(screen))
    palette = Palette(terminal.has_colour(screen.err))
    rendered = Markdown(palette, lambda: layout.width, lambda s: terminal.with_fallbacks(s, screen.err))
    for line in text.split("\n"):
        yield layout.feed(rendered.feed(line + "\n")).replace(RAN_OVER, "\n")
    yield (layout.feed(rendered.finish()) + layout.flush()).replace(RAN_OVER, "\n")


def _last(lines: list[str]) -> tuple[list[str], bool]:
    """The last of them, that together have few rows, but one at least; whether others were left out."""
    rows, begin = 0, len(lines)
    while begin and (not rows or rows + lines[begin - 1].count("\n") <= _ANSWERED):
        begin -= 1
        rows += lines[begin].count("\n")
    return lines[begin:], begin > 0
