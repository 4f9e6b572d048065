"""Two ways in which an answer reaches whoever reads it: as it is, or set on a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TextIO

from specli.chat.answer import Answer, Span
from specli.chat.text import safe_for_terminal
from specli.ui import terminal
from specli.ui.inline import Palette
from specli.ui.layout import Item, Run
from specli.ui.markdown import Markdown
from specli.ui.methods import method_style
from specli.ui.page import NARROWEST, Page, fitted
from specli.ui.think import Think

_FOLDED_ROWS, _FOLDED_TEXT = 5, 2000  # of reasoning that will be folded: rows, characters looked at
_ERASE_BELOW = "\x1b[J"


class View(Protocol):
    """Where an answer is shown. `live` is the line of figures under it, empty for none."""

    @property
    def width(self) -> int:
        """Cells that the live line may have."""
        ...

    def write(self, spans: Sequence[Span], live: str) -> None:
        """Show what was said next, and the live line."""
        ...

    def end(self) -> None:
        """The answer is over: leave the cursor at the beginning of a row."""
        ...


def thought(answer: Answer) -> str:
    """The line that stands for reasoning; empty where there was none."""
    if answer.reasoning is None:
        return ""
    tokens = f"{answer.reasoning_tokens} token{'' if answer.reasoning_tokens == 1 else 's'}"
    seconds = answer.timing.reasoning_s
    return f"thought for {tokens}" if seconds is None else f"thought for {seconds:.0f} s, {tokens}"


class PageView:
    """Set in words or as Markdown, on a terminal. `drafts`: colour by method instead of rendering."""

    def __init__(self, out: TextIO, answer: Answer, *, markdown: bool, drafts: bool, think: Think) -> None:
        self._page = Page(out)
        self._answer, self._think, self._drafts = answer, think, drafts
        self._colour = terminal.has_colour(out)
        self._palette = Palette(self._colour)
        self._out = out
        self._markdown = None
        if markdown and not drafts:
            self._markdown = Markdown(self._palette, lambda: self._page.width, self._symbol)
        self._thought = ""  # the end of the reasoning, while it is folded
        self._return = ""  # a carriage return, whose line feed may be the next token
        self._reasoned = self._answered = False
        self._dim = terminal.DIM if self._colour else terminal.ITALIC

    @property
    def width(self) -> int:
        return self._page.width

    def write(self, spans: Sequence[Span], live: str) -> None:
        items: list[Item] = []
        for span in spans:
            text = safe_for_terminal(self._with_line_ends(span.text))
            items += self._reason(text) if span.reasoning else self._say(text, span.method)
        guess: list[Item] = []
        most = 0
        if self._thought:
            guess, most = [Run(self._thought, self._dim)], _FOLDED_ROWS
        elif self._markdown is not None:
            guess = self._markdown.pending
        shown = fitted(self._symbol(live), self._page.width)
        self._page.write(items, guess, terminal.styled(shown, terminal.DIM, on=self._colour), most)

    def end(self) -> None:
        items = self._end_reasoning() if not self._answered else []
        self._page.end([*items, *(self._markdown.finish() if self._markdown is not None else [])])

    def _with_line_ends(self, text: str) -> str:
        """Line feeds for the two characters that some models end a line with."""
        text = self._return + text
        self._return = "\r" if text.endswith("\r") else ""
        return text.removesuffix("\r").replace("\r\n", "\n")

    def _symbol(self, text: str) -> str:
        """Our own words and symbols, as this terminal can show them."""
        return terminal.with_fallbacks(text, self._out)

    def _reason(self, text: str) -> list[Item]:
        self._reasoned = True
        if self._think == "show":
            return [Run(text, self._dim)]
        if self._think == "fold":
            self._thought = (self._thought + text)[-_FOLDED_TEXT:]
        return []

    def _end_reasoning(self) -> list[Item]:
        """The first word of the answer follows, or nothing."""
        self._answered, self._thought = True, ""
        if not self._reasoned or self._think == "hide":
            return []
        if self._think == "show":
            return [Run("\n\n")]
        note = self._symbol(f"{thought(self._answer)} · /think shows it")
        return [Run(note, self._dim), Run("\n\n")]

    def _say(self, text: str, method: str) -> list[Item]:
        items = [] if self._answered else self._end_reasoning()
        self._thought = ""
        if self._markdown is not None:
            return items + self._markdown.feed(text)
        style = method_style(method, self._colour) if self._drafts else ""
        return [*items, Run(text, style)]


class PlainView:
    """As it was said: for pipes, for terminals that cannot move the cursor, and for whoever copies text.

    On a terminal nothing that could steer it is let through. Where the cursor can be moved, the live line
    stands on the row below the text and is drawn without leaving the text's place: make room with IND, step
    back up, save the place, draw below, return. Text that stays in its row leaves it alone; text about to
    leave the row erases it first. IND and erasing cancel a pending wrap, so neither happens while the text's
    last row is exactly full.
    """

    def __init__(self, out: TextIO, err: TextIO, answer: Answer, think: Think, notes: bool) -> None:
        """`notes`: a line on `err` stands for reasoning that is folded."""
        self._out, self._err, self._answer = out, err, answer
        self._shows, self._notes = think == "show", notes and think == "fold"
        self._terminal = terminal.is_terminal(out)
        self._dim = terminal.has_colour(err)
        self._drawn = False  # whether the live line is on the screen
        self._column = 0
        self._columns = terminal.columns(out)
        self._ends_line = True  # whether a new line would start where the text ended
        self._live = ""  # what the live line says
        self._inside = False  # the reasoning

    @property
    def width(self) -> int:
        return terminal.columns(self._out) - 1

    def write(self, spans: Sequence[Span], live: str) -> None:
        columns = self.width + 1
        if columns != self._columns:
            self._column, self._columns = min(self._column, columns - 1), columns
        text = "".join(self._text(span) for span in spans)
        if text:
            self._write(text)
        if live and (live != self._live or not self._drawn):
            self._draw(live)

    def end(self) -> None:
        if self._inside and not self._answer.thinking:
            self._write(self._after())
        self._erase()
        if not self._ends_line:
            self._out.write("\n")
            self._out.flush()
        if self._inside:  # cut in the midst of its reasoning
            self._note()

    def _text(self, span: Span) -> str:
        """What is shown of it: reasoning with its tags, if at all."""
        before = ""
        if span.reasoning != self._inside:
            before = self._before() if span.reasoning else self._after()
        return before + (span.text if self._shows or not span.reasoning else "")

    def _before(self) -> str:
        self._inside = True
        return self._answer.reasoning_tags[0] + "\n" if self._shows else ""

    def _after(self) -> str:
        self._inside = False
        if self._shows:
            return f"\n{self._answer.reasoning_tags[1]}\n\n"
        self._note()
        return ""

    def _note(self) -> None:
        if self._notes:
            self._erase()
            self._err.write(thought(self._answer) + "\n")
            self._err.flush()

    def _write(self, text: str) -> None:
        self._ends_line = text.endswith("\n")
        if self._terminal:
            text = safe_for_terminal(text)
            if "\n" in text or self._column + terminal.cells(text.expandtabs()) >= self._columns:
                self._erase()
            self._column = terminal.column_after(text, self._column, self._columns)
        self._out.write(text)
        self._out.flush()

    def _erase(self) -> None:
        if self._drawn:
            self._err.write(_ERASE_BELOW)
            self._err.flush()
            self._drawn = False

    def _draw(self, text: str) -> None:
        if self._column >= self._columns or self._columns < NARROWEST:
            return
        self._live = text
        text = fitted(text, self._columns - 1)
        shown = terminal.styled(terminal.with_fallbacks(text, self._err), terminal.DIM, on=self._dim)
        self._err.write(f"{_ERASE_BELOW}\x1bD\x1b[A\x1b7\x1b[B\r{shown}\x1b8")
        self._err.flush()
        self._drawn = True
