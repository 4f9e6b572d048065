"""A command of the chat: what it is called, what may follow, what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specli.ui.repl import Chat


@dataclass(frozen=True, slots=True)
class Command:
    """Something to type after a slash.

    `run` gets the chat and what follows the name; False ends the chat. `choices`: what may follow, given what
    was typed of it; `about` says what one of them means. `files`: files may follow.
    """

    name: str
    argument: str
    help: str
    run: Callable[[Chat, str], bool | None]
    choices: Callable[[Chat, str], Iterable[str]] | None = None
    files: bool = False
    about: Callable[[Chat, str], str] | None = None
