"""Editing a line in the terminal, with history."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.output import ColorDepth, create_output

from specli.errors import Terminated
from specli.interrupts import TERMINATED
from specli.ui import commands, lines, terminal

Complete = Callable[[str], commands.Completion]
"""What Tab offers behind a line."""
_PLACEHOLDER = "a message, or /help"


class Keyboard:
    """Iterate for the lines typed; Ctrl-D, the end of input, ends it. `history`: a file, made if missing.

    A line may hold several: pasted ones, and those of a block between two marks, see `ui.lines`.
    """

    def __init__(self, history: Path, complete: Complete) -> None:
        colour = terminal.has_colour(sys.stdout if terminal.is_terminal(sys.stdout) else sys.stderr)
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            completer=_Completer(complete),
            complete_while_typing=False,
            key_bindings=_bindings(),
            # stderr where stdout is piped
            output=None if terminal.is_terminal(sys.stdout) else create_output(always_prefer_tty=True),
            color_depth=None if colour else ColorDepth.MONOCHROME,
            prompt_continuation="  ",
            tempfile_suffix=".md",
        )
        self._mark = terminal.with_fallbacks("› ", sys.stdout)

    def __iter__(self) -> Iterator[str]:
        while True:
            try:
                yield self._read()
            except EOFError:
                return
            except Terminated:
                raise
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
        """End the editing with Terminated. Raised in the midst of the editor's event loop, as a handler
        would elsewhere, it would be reported there and go no further."""
        app, end = self._session.app, Terminated(TERMINATED)
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


class _Completer(Completer):
    """Commands, and what may follow them."""

    def __init__(self, complete: Complete) -> None:
        self._complete = complete
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Of the line up to the cursor."""
        found = self._complete(document.text_before_cursor)
        for word in found.words:
            if word.startswith(found.typed):
                yield Completion(word, start_position=-len(found.typed))
        if found.files:
            yield from self._paths.get_completions(Document(found.typed), complete_event)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("c-c")
    def _(event: Any) -> None:
        event.current_buffer.reset()

    @bindings.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("enter", filter=Condition(_in_block))
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-g")
    def _(event: Any) -> None:
        event.current_buffer.open_in_editor()

    return bindings


def _in_block() -> bool:
    """Whether what stands in the line so far begins a block that it does not end."""
    return lines.is_open(get_app().current_buffer.text)
