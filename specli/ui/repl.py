"""The chat loop: lines in, answers out, commands in between."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from specli.chat.answer import Answer
from specli.chat.conversation import Message
from specli.chat.text import safe_for_terminal
from specli.errors import SpecliError
from specli.interrupts import Interrupts
from specli.ui import terminal
from specli.ui.readout import Readout
from specli.ui.report import report

_COMMAND = re.compile(r"/([A-Za-z?]\w*)(?:\s+(.*))?", re.DOTALL)
Ask = Callable[[Sequence[int], Callable[[], bool]], Answer]
"""Starts an answer to prompt tokens; the second argument says when to stop."""


class Voice(Protocol):
    """What turns messages into prompt tokens."""

    def tokens(self, messages: Sequence[Message]) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Model:
    """What the loop needs of a loaded model. `cached` is how many tokens its cache holds."""

    ask: Ask
    voice: Voice
    methods: Sequence[str]
    n_ctx: int
    cached: Callable[[], int]
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Screen:
    """Where things go, and how much of it. `interactive`: someone types, and gets a prompt."""

    out: TextIO
    err: TextIO
    interactive: bool
    figures: bool = True
    show_drafts: bool = False

    def say(self, text: str = "") -> None:
        """One line to stderr, dim where that can be shown."""
        lines = [safe_for_terminal(with_symbols) for with_symbols in self._fitted(text)]
        for each in lines:
            styled = terminal.styled(each, terminal.DIM, on=terminal.has_colour(self.err))
            self.err.write(styled + "\n")
        self.err.flush()

    def complain(self, text: str) -> None:
        """One line on what went wrong."""
        safe = safe_for_terminal(terminal.with_fallbacks(text, self.err))
        self.err.write(f"specli: {safe}\n")
        self.err.flush()

    def _fitted(self, text: str) -> list[str]:
        lines = terminal.with_fallbacks(text, self.err).split("\n")
        if not terminal.is_terminal(self.err):
            return lines
        room = max(20, terminal.columns(self.err) - 1)
        return [part for line in lines for part in textwrap.wrap(line, room, break_on_hyphens=False) or [""]]


@dataclass(frozen=True, slots=True)
class Command:
    """Something to type after a slash. `run` gets what follows its name; False ends the chat."""

    name: str
    argument: str
    help: str
    run: Callable[[str], bool]


@dataclass(slots=True)
class Chat:
    """One conversation in a terminal, or over pipes."""

    model: Model
    screen: Screen
    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    ended_by: int | None = None  # exit code of the signal that ended it

    def run(self, lines: Iterable[str]) -> int:
        """Answer line by line to the end of `lines`; returns the exit code."""
        for line in lines:
            if not line.strip():
                continue
            match = _COMMAND.fullmatch(line.strip())
            if match:
                if not self._command(match[1].lower(), (match[2] or "").strip()):
                    break
            else:
                self._answer(line)
                if self.ended_by is not None:
                    return self.ended_by
        return 0

    # -- turns ----------------------------------------------------------------------------------

    def _answer(self, text: str) -> None:
        if self.model.raw and self.messages:
            text = "\n" + text
        self.messages.append(Message("user", text))
        try:
            answer = self._stream(self._prompt())
        except SpecliError as error:
            self.messages.pop()
            if not self.screen.interactive:
                raise
            room = "; /clear starts over" if self.messages else ""
            self.screen.complain(f"{error}{room}")
            return
        if answer.said or answer.finish != "interrupted":
            self.messages.append(Message("assistant", answer.text, answer.said))
        else:
            self.messages.pop()  # stopped before a word: as if it had not been asked
        self.answers.append(answer)
        self._after(answer)

    def _prompt(self) -> list[int]:
        system = [Message("system", self.system)] if self.system and not self.model.raw else []
        return self.model.voice.tokens([*system, *self.messages])

    def _stream(self, tokens: Sequence[int]) -> Answer:
        screen = self.screen
        readout = Readout(
            screen.out, screen.err, self.model.methods, figures=screen.figures, show_drafts=screen.show_drafts
        )
        with Interrupts() as interrupts, terminal.no_echo():

            def stop() -> bool:
                readout.reading(self.model.cached(), len(tokens))
                return interrupts.stop()

            answer = self.model.ask(tokens, stop)
            readout.begin(answer)
            try:
                for step in answer:
                    readout.step(step)
            finally:
                readout.end()
        if interrupts.terminated or (interrupts.stop() and not screen.interactive):
            self.ended_by = interrupts.exit_code
        return answer

    def _after(self, answer: Answer) -> None:
        say = self.screen.say
        if answer.finish == "context":
            self.screen.complain(
                f"the context is full ({self.model.n_ctx} tokens), so the answer was cut here; "
                "/clear starts over, --ctx-size N makes room"
            )
        elif answer.finish == "interrupted" and self.screen.interactive:
            say("stopped; what was said so far is kept" if answer.said else "stopped before an answer began")
        elif answer.finish == "length" and self.screen.interactive:
            say("cut at --max-tokens")
        if self.screen.interactive:
            say()

    # -- commands -------------------------------------------------------------------------------

    def commands(self) -> list[Command]:
        """All commands, in the order in which help lists them."""
        return [
            Command("help", "", "this list", self._help),
            Command("system", "[TEXT]", "show or set the system message; /system - removes it", self._system),
            Command("clear", "", "forget the conversation", self._clear),
            Command("stats", "", "figures of the last answer and of all", self._stats),
            Command("exit", "", "end (also Ctrl-D)", self._exit),
        ]

    def _command(self, name: str, argument: str) -> bool:
        names = {command.name: command for command in self.commands()}
        names |= {"quit": names["exit"], "bye": names["exit"], "?": names["help"]}
        found = names.get(name)
        if found is None:
            near = (
                difflib.get_close_matches(name, names, 1, 0.4) or [n for n in names if n.startswith(name)][:1]
            )
            hint = f"did you mean /{near[0]}?" if near else "/help lists them all"
            self.screen.complain(f"no command /{name}; {hint}")
            return True
        if argument and not found.argument:
            self.screen.complain(f"/{found.name} takes nothing after it")
            return True
        return found.run(argument)

    def _help(self, _: str) -> bool:
        for command in self.commands():
            self.screen.say(f"/{command.name} {command.argument}".ljust(16) + command.help)
        if self.screen.interactive:
            self.screen.say("Ctrl-C          stop an answer, or clear the line")
            self.screen.say("Alt-Enter       start a new line")
        return True

    def _exit(self, _: str) -> bool:
        return False

    def _clear(self, _: str) -> bool:
        self.messages.clear()
        self.screen.say(
            "the conversation is forgotten" + ("; the system message stays" if self.system else "")
        )
        return True

    def _system(self, text: str) -> bool:
        if self.model.raw:
            self.screen.complain("raw text has no turns, so there is no system message")
        elif not text:
            self.screen.say(
                f"system: {self.system}" if self.system else "no system message; /system TEXT sets one"
            )
        else:
            self.system = None if text == "-" else text
            self.screen.say(
                "system message removed" if text == "-" else "system message set, from the next answer on"
            )
        return True

    def _stats(self, _: str) -> bool:
        for line in report(self.answers, self.model.cached(), self.model.n_ctx):
            self.screen.say(line)
        return True
