"""An answer as it streams, with a live line of figures under it.

The answer goes to `out`, figures and everything that moves the cursor to `err`. The live line stands
on the row below the text and is drawn without leaving the text's place: make room with IND, step back
up, save the place, draw below, return. Text that stays in its row leaves it alone; text about to
leave the row erases it first. IND and erasing cancel a pending wrap, so neither happens while the
text's last row is exactly full.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TextIO

from specli.chat.answer import Answer, Step
from specli.chat.text import safe_for_terminal
from specli.ui import terminal
from specli.ui.figures import Recent, final_figures, line, live_figures

_PERIOD = 0.125  # seconds between two updates of the figures
_NARROWEST = 20  # below that there is no room for figures
_ERASE_BELOW = "\x1b[J"
_COLOURS = {"draft-self": terminal.CYAN, "draft-model": terminal.MAGENTA, "draft-mtp": terminal.MAGENTA}


class Readout:
    """Shows one answer. Call `begin`, `step` for each Step, then `end`, also after an interruption.

    `figures`: show them at all. `show_drafts`: colour what came from accepted drafts. `methods`: who
    may draft, to say why nothing was.
    """

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        methods: Sequence[str],
        *,
        figures: bool = True,
        show_drafts: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._out, self._err, self._methods, self._clock = out, err, methods, clock
        self._figures = figures
        self._terminal = terminal.is_terminal(out)
        self._live = figures and terminal.can_move(out) and terminal.can_move(err)
        self._dim = terminal.has_colour(err)
        self._show_drafts = show_drafts and terminal.can_move(out)
        self._colour = terminal.has_colour(out)
        self._recent = Recent(methods)
        self._answer: Answer | None = None
        self._line = ""  # what the live line says
        self._drawn = False  # whether it is on the screen
        self._due = 0.0
        self._column = 0
        self._ends_line = True  # whether a new line would start where the text ended
        self._width = terminal.columns(out)

    def begin(self, answer: Answer) -> None:
        """An answer starts at the beginning of a line."""
        self._answer = answer

    def reading(self, done: int, total: int) -> None:
        """`done` of `total` prompt tokens are in the cache."""
        waiting = self._live and self._answer is not None and not self._answer.stats.cycles
        if waiting and self._ready():
            self._draw(f"reading the prompt · {done} of {total} tokens")

    def step(self, step: Step) -> None:
        """Write what a step adds."""
        if step.cycle is not None:
            self._recent.add(step.cycle)
        if step.spans:
            self._write(step)
        if not self._live or self._answer is None:
            return
        if self._ready():
            self._draw(line(live_figures(self._answer, self._recent), self._width - 1))
        elif not self._drawn and self._line:
            self._draw(self._line)

    def end(self) -> None:
        """The answer is over: leave the figures as one dim line below it."""
        if self._drawn:
            self._err.write(_ERASE_BELOW)
            self._err.flush()
            self._drawn = False
        if not self._ends_line:
            self._out.write("\n")
            self._out.flush()
        answer = self._answer
        if self._figures and answer is not None and answer.stats.cycles:
            width = terminal.columns(self._err) - 1 if terminal.is_terminal(self._err) else 1000
            text = line(final_figures(answer, self._methods), max(width, _NARROWEST), final=True)
            text = terminal.with_fallbacks(text, self._err)
            self._err.write(terminal.styled(text, terminal.DIM, on=self._dim) + "\n")
            self._err.flush()

    # -- the text -------------------------------------------------------------------------------

    def _write(self, step: Step) -> None:
        text = "".join(span.text for span in step.spans)
        if not text:
            return
        self._ends_line = text.endswith("\n")
        if not self._terminal:
            self._out.write(text)
            self._out.flush()
            return
        plain = safe_for_terminal(text)
        if self._live:
            self._make_way(plain)
        if self._show_drafts:
            plain = "".join(self._coloured(safe_for_terminal(s.text), s.method) for s in step.spans)
        self._out.write(plain)
        self._out.flush()

    def _make_way(self, text: str) -> None:
        """Erase the live line if `text` fills the row or leaves it; keep account of the column."""
        if self._drawn and ("\n" in text or self._column + terminal.cells(text.expandtabs()) >= self._width):
            self._err.write(_ERASE_BELOW)
            self._err.flush()
            self._drawn = False
        self._column = terminal.column_after(text, self._column, self._width)

    def _coloured(self, text: str, method: str) -> str:
        if not method:
            return text
        code = _COLOURS.get(method, terminal.GREEN) if self._colour else terminal.UNDERLINE
        return terminal.styled(text, code)

    # -- the live line --------------------------------------------------------------------------

    def _ready(self) -> bool:
        """Whether the figures are due again; looks at the width, which may have changed."""
        now = self._clock()
        if now < self._due:
            return False
        self._due = now + _PERIOD
        width = terminal.columns(self._out)
        if width != self._width:
            self._column = min(self._column, width - 1)
            self._width = width
        return True

    def _draw(self, text: str) -> None:
        self._line = text
        if self._column >= self._width or self._width < _NARROWEST:
            return
        while terminal.cells(text) >= self._width:
            text = text[:-1]
        shown = terminal.styled(terminal.with_fallbacks(text, self._err), terminal.DIM, on=self._dim)
        self._err.write(f"{_ERASE_BELOW}\x1bD\x1b[A\x1b7\x1b[B\r{shown}\x1b8")
        self._err.flush()
        self._drawn = True
