"""Where a chat's output goes, and how its own lines look there."""

from __future__ import annotations

import textwrap
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

    def say(self, text: str = "") -> None:
        """One line to stderr, dim where that can be shown."""
        lines = [safe_for_terminal(with_symbols) for with_symbols in self._fitted(text)]
        for each in lines:
            styled = terminal.styled(each, terminal.DIM, on=terminal.has_colour(self.err))
            self.err.write(styled + "\n")
        self.err.flush()

    def complain(self, text: str) -> None:
        """One line on what went wrong."""
        self.err.write(terminal.notice(text, self.err) + "\n")
        self.err.flush()

    def _fitted(self, text: str) -> list[str]:
        lines = terminal.with_fallbacks(text, self.err).split("\n")
        if not terminal.is_terminal(self.err):
            return lines
        room = max(20, terminal.columns(self.err) - 1)
        return [part for line in lines for part in textwrap.wrap(line, room, break_on_hyphens=False) or [""]]
