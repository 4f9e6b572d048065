"""Conversations without a terminal, for tests."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from specli.chat.answer import Answer
from specli.chat.keeper import Keeper
from specli.chat.sessions import Shelf
from specli.cli.loaded import Loaded
from specli.opening import Order
from specli.ui.repl import Chat, Screen

QUESTIONS = ("def first(alpha):\n    return", "class Second:", "import third", "def fourth():", "x = [1, 2")


def load(path: Path, **given: object) -> Loaded:
    """A small model as a chat has it, at temperature 0 and on one thread unless `given` otherwise."""
    order = Order({"model": str(path), "no_repack": True, "threads": 1, "temp": 0.0, **given})
    return Loaded(order, order.settings(), lambda _: None)


class Talk(Chat):
    """A chat that keeps all its answers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.all: list[Answer] = []

    def _after(self, answer: Answer) -> None:
        self.all.append(answer)
        super()._after(answer)


def talk_over(model: Loaded, shelf: Shelf) -> Talk:
    """A conversation over pipes, saved on `shelf`; the program's own lines are in `screen.err`."""
    screen = Screen(io.StringIO(), io.StringIO(), interactive=False, figures=False)
    return Talk(model, screen, Keeper(shelf))
