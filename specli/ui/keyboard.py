"""Editing a line in the terminal, with history."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, WordCompleter
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.output import ColorDepth, create_output

from specli.errors import Interrupted
from specli.interrupts import TERMINATED
from specli.ui import terminal

_PLACEHOLDER = "a message, or /help"


class Keyboard:
    """Iterate for the lines typed; Ctrl-D, the end of input, ends it. `history`: a file, made if missing."""

    def __init__(self, history: Path, commands: Sequence[str]) -> None:
        colour = terminal.has_colour(sys.stdout if terminal.is_terminal(sys.stdout) else sys.stderr)
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            completer=_completer(commands),
            complete_while_typing=False,
            key_bindings=_bindings(),
            # stderr where stdout is piped; else left to the session, which knows dumb terminals
            output=None if terminal.is_terminal(sys.stdout) else create_output(always_prefer_tty=True),
            color_depth=None if colour else ColorDepth.MONOCHROME,
            prompt_continuation="  ",
        )
        self._mark = terminal.with_fallbacks("› ", sys.stdout)

    def __iter__(self) -> Iterator[str]:
        while True:
            try:
                yield self._read()
            except EOFError:
                return
            except KeyboardInterrupt:  # a SIGINT from elsewhere; the key itself is bound
                continue

    def _read(self) -> str:
        before = signal.signal(signal.SIGTERM, self._terminate)
        try:
            return self._session.prompt(
                FormattedText([("bold ansicyan", self._mark)]),
                placeholder=FormattedText([("fg:ansibrightblack", _PLACEHOLDER)]),
            )
        finally:
            signal.signal(signal.SIGTERM, before)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        """End the editing with Interrupted. Raised in the midst of the editor's event loop, as a handler
        would elsewhere, it would be reported there and go no further."""
        app, end = self._session.app, Interrupted("terminated", TERMINATED)
        if app.loop is None or not app.is_running:
            raise end

        def leave() -> None:
            if app.future is not None and not app.future.done():
                app.exit(exception=end)

        app.loop.call_soon_threadsafe(leave)


def _history(path: Path) -> History:
    """Kept in a file that only the user can read; in memory where it cannot be written."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _completer(commands: Sequence[str]) -> Completer:
    return WordCompleter([f"/{name}" for name in commands], sentence=True)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("c-c")
    def _(event: Any) -> None:
        event.current_buffer.reset()

    @bindings.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return bindings
