"""An answer as it streams, with a live line of figures under it.

The answer goes to `out`, figures to `err`. Where both are one terminal that can move its cursor, figures are
shown while the answer comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from specli.chat.answer import Answer, Step
from specli.ui import terminal
from specli.ui.figures import Recent, final_figures, line, live_figures
from specli.ui.think import Think
from specli.ui.views import PageView, PlainView, View

_PERIOD = 0.125  # seconds between two updates of the figures
_PATIENCE = 3.0  # seconds without a sign of life
_NARROWEST = 20  # below that there is no room for figures


class Readout:
    """Shows one answer: `step` for each Step, inside of `showing`.

    `figures`: show them at all. `page`: set the text in words, on a terminal that can do it, as Markdown if
    `markdown`; else it is written as it is. `show_drafts`: colour what came from accepted drafts, unrendered.
    `think`: what becomes of reasoning. `methods`: who may draft, to say why nothing was.
    """

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        methods: Sequence[str],
        *,
        figures: bool = True,
        page: bool = False,
        markdown: bool = False,
        show_drafts: bool = False,
        think: Think = "hide",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._out, self._err, self._methods, self._clock = out, err, methods, clock
        self._figures, self._think = figures, think
        self._live = figures and terminal.can_move(out) and terminal.can_move(err)
        self._page = (page or show_drafts) and terminal.can_move(out)
        self._markdown, self._drafts = markdown, show_drafts
        self._recent = Recent(methods)
        self._answer: Answer | None = None
        self._view: View | None = None
        self._line = ""  # what the live line says
        self._due = 0.0
        self._began: float | None = None  # when the prompt was first heard of
        self._said_reading = False

    def begin(self, answer: Answer) -> None:
        """An answer starts at the beginning of a line."""
        self._answer = answer
        if self._page:
            self._view = PageView(
                self._out, answer, markdown=self._markdown, drafts=self._drafts, think=self._think
            )
        else:
            self._view = PlainView(self._out, self._err, answer, self._think, self._figures)

    def reading(self, done: int, total: int) -> None:
        """`done` of `total` prompt tokens are in the cache."""
        if self._view is None or self._answer is None or self._answer.stats.cycles:
            return
        if self._live and self._ready():
            self._line = f"reading the prompt · {done} of {total} tokens"
            self._view.write((), self._line)
        elif not self._live and self._figures and terminal.is_terminal(self._err):
            self._say_reading(done, total)

    def _say_reading(self, done: int, total: int) -> None:
        """Where no line can be redrawn: once, if it takes long."""
        if self._began is None:
            self._began = self._clock()
        elif not self._said_reading and self._clock() - self._began >= _PATIENCE:
            self._said_reading = True
            said = terminal.notice(f"reading the prompt, {done} of {total} tokens so far", self._err)
            self._err.write(said + "\n")
            self._err.flush()

    def step(self, step: Step) -> None:
        """Write what a step adds."""
        if self._view is None or self._answer is None:
            return
        if step.cycle is not None:
            self._recent.add(step.cycle)
        if self._live and self._ready():
            thinking = "thinking · " if self._answer.thinking and self._think != "show" else ""
            room = self._view.width - len(thinking)
            self._line = thinking + line(live_figures(self._answer, self._recent), room)
        self._view.write(step.spans, self._line if self._live else "")

    @contextmanager
    def showing(self, answer: Answer) -> Iterator[None]:
        """From the beginning of a line to the figures under the answer, also after an interruption. Where the
        text could not be written any more, nothing else is."""
        self.begin(answer)
        try:
            yield
        except OSError:
            raise
        except BaseException:
            self.end()
            raise
        self.end()

    def end(self) -> None:
        """The answer is over: leave the figures as one dim line below it."""
        answer, view = self._answer, self._view
        if answer is None or view is None:
            return
        view.end()
        if self._figures and answer.stats.cycles:
            width = terminal.columns(self._err) - 1 if terminal.is_terminal(self._err) else 1000
            text = line(final_figures(answer, self._methods), max(width, _NARROWEST), final=True)
            text = terminal.with_fallbacks(text, self._err)
            with suppress(OSError):  # the answer is whole without them
                self._err.write(terminal.styled(text, terminal.DIM, on=terminal.has_colour(self._err)) + "\n")
                self._err.flush()

    def _ready(self) -> bool:
        """Whether the figures are due again."""
        now = self._clock()
        if now < self._due:
            return False
        self._due = now + _PERIOD
        return True
