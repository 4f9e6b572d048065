"""Where a chat's output goes, and how its own lines look there."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

from specli.chat.text import safe_for_terminal
from specli.ui import terminal


@dataclass(frozen=True, slots=True)
class Screen:
    """Where things go, and how much of it. `interactive`: someone types, and gets a prompt. `markdown`: render
    answers, where the terminal can show it."""

    out: TextIO
    err: TextIO
    interactive: bool
    figures: bool = True
    show_drafts: bool = False
    markdown: bool = False

    def say(self, text: str = "", indent: int = 0) -> None:
        """One line to stderr, dim where that can be shown; where it is too long, on lines indented by so much."""
        for line in terminal.with_fallbacks(text, self.err).split("\n"):
            for part in terminal.wrapped(line, self.err, indent).split("\n"):
                styled = terminal.styled(
                    safe_for_terminal(part), terminal.DIM, on=terminal.has_colour(self.err)
                )
                self._write(styled)

    def complain(self, text: str) -> None:
        """One line on what went wrong."""
        self._write(terminal.notice(text, self.err))

    def _write(self, line: str) -> None:
        with suppress(OSError):  # nobody can be told; answers go on
            self.err.write(line + "\n")
            self.err.flush()
