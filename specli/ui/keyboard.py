"""Editing a line in the terminal, with history."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app, run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, is_searching
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import get_typeahead
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.output import ColorDepth, Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Attrs

from specli.errors import SpecliError, Terminated
from specli.interrupts import TERMINATED
from specli.ui import commands, lines, terminal
from specli.ui.editor import edited

Complete = Callable[[str], commands.Completion]
"""What Tab offers behind a line."""
_PLACEHOLDER = "a message, or /help"
_ASIDE = "dim" if "dim" in Attrs._fields else "italic"  # an attribute, where there are no colours
_MARK, _BELOW = "› ", "  "
_EXPLAINED = 50  # of the words that Tab offers: what they mean may have to be read from files


class Keyboard:
    """Iterate for the lines typed; Ctrl-D, the end of input, ends it. `history`: a file, made if missing.

    A line may hold several: pasted ones, and those of a block between two marks, see `ui.lines`.
    """

    def __init__(self, history: Path, complete: Complete) -> None:
        self._out = sys.stdout if terminal.is_terminal(sys.stdout) else sys.stderr
        colour = terminal.has_colour(self._out)
        output = create_output(self._out)
        if isinstance(output, Vt100_Output):
            setattr(output, "erase_down", partial(_erase_below, output))  # noqa: B010  # mypy minds the plain way
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            completer=_Completer(complete),
            complete_while_typing=False,
            key_bindings=_bindings(),
            output=output,
            color_depth=None if colour else ColorDepth.MONOCHROME,
            prompt_continuation=_BELOW,
            erase_when_done=True,
            enable_suspend=True,
        )
        self._mark = terminal.with_fallbacks(_MARK, self._out)
        self._colour = colour

    def __iter__(self) -> Iterator[str]:
        while True:
            try:
                text = self._read()
                self._leave(text)
                yield text
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
                placeholder=FormattedText([("fg:ansibrightblack" if self._colour else _ASIDE, _PLACEHOLDER)]),
            )
        finally:
            signal.signal(signal.SIGTERM, before)

    def _leave(self, text: str) -> None:
        """Leave what was typed on the screen. The editor would leave as much of it as the window holds, and what
        it drew before in the scrollback."""
        shown = terminal.with_fallbacks(text, self._out).replace("\n", f"\n{_BELOW}")
        mark = terminal.styled(self._mark, terminal.BOLD, *((terminal.CYAN,) if self._colour else ()))
        self._out.write(f"{mark}{shown}\n")
        self._out.flush()

    def discard(self) -> bool:
        """Drop what was typed ahead; whether there was anything."""
        keys = get_typeahead(self._session.app.input)
        return terminal.flush_input() or bool(keys)

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


def _erase_below(output: Output) -> None:
    """Row by row: a window that is erased at once goes to the scrollback in some terminals, tmux for one, and what
    was being typed is not to stand there twice."""
    rows = "\x1b[B\x1b[2K" * (output.get_size().rows - 1)
    output.write_raw(f"\x1b7\x1b[K{rows}\x1b8")


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
        words = [word for word in found.words if word.startswith(found.typed)]
        for n, word in enumerate(words):
            about = found.about(word) if found.about is not None and n < _EXPLAINED else ""
            yield Completion(word, start_position=-len(found.typed), display_meta=about)
        if found.files:
            yield from self._paths.get_completions(Document(found.typed), complete_event)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("c-c", filter=~is_searching)
    def _(event: Any) -> None:
        event.current_buffer.reset()

    @bindings.add("escape", "enter", filter=~is_searching)
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("enter", filter=Condition(_in_block) & ~is_searching)
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-g", filter=~is_searching)
    def _(event: Any) -> None:
        event.app.create_background_task(_edit(event.current_buffer))

    return bindings


def _in_block() -> bool:
    """Whether what stands in the line so far begins a block that it does not end."""
    return lines.is_open(get_app().current_buffer.text)


async def _edit(buffer: Buffer) -> None:
    """The line in the user's editor; why not is said above it."""

    def edit() -> None:
        try:
            text = edited(buffer.text)
        except SpecliError as error:
            terminal.remark(terminal.notice(str(error), sys.stderr))
        else:
            buffer.document = Document(text, len(text))

    await run_in_terminal(edit)
