"""The chat loop: lines in, answers out, commands in between."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specli.chat.answer import Answer
from specli.chat.conversation import Message
from specli.chat.dialogue import Dialogue
from specli.chat.keeper import Keeper
from specli.chat.sessions import Session
from specli.errors import SpecliError
from specli.interrupts import Interrupts
from specli.profiles import Key, Settings
from specli.ui import commands, terminal
from specli.ui.lines import Typed, discard, messages
from specli.ui.readout import Readout
from specli.ui.recap import recap, shortened
from specli.ui.report import Totals
from specli.ui.screen import Screen
from specli.ui.think import Think

__all__ = ["Chat", "LoadedModel", "Screen"]

_DOUBLE = 1.0  # seconds in which a second Ctrl-C is the first one, pressed with feeling


class LoadedModel(Protocol):
    """What the loop needs of a loaded model. All that changes it raises SpecliError, and leaves it as it was
    (or, where another one turned out broken while it was loaded, loaded anew), if it cannot be done; what is
    returned are lines to show."""

    @property
    def name(self) -> str: ...

    @property
    def reference(self) -> str:
        """What to load it by another time."""
        ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def loads(self) -> int:
        """How often a model was loaded: answers before the last time have lost their vocabulary."""
        ...

    @property
    def settings(self) -> Settings: ...

    @property
    def methods(self) -> Sequence[str]: ...

    @property
    def n_ctx(self) -> int: ...

    @property
    def room(self) -> int:
        """Tokens that a prompt should leave for its answer."""
        ...

    @property
    def raw(self) -> bool:
        """Whether text is continued instead of questions answered."""
        ...

    def cached(self) -> int:
        """How many tokens its cache holds."""
        ...

    def about(self) -> list[str]:
        """What is loaded, and where it runs."""
        ...

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        """The prompt for an answer to `messages`."""
        ...

    def count(self, text: str) -> int:
        """How many tokens a text is."""
        ...

    def owns(self, message: Message) -> bool:
        """Whether the tokens of a message can be this model's."""
        ...

    def ask(self, tokens: Sequence[int], stop: Callable[[], bool], answers: int) -> Answer:
        """Start the answer to prompt tokens. `stop()`: when to end it. `answers`: how many there were before."""
        ...

    def set(self, key: Key, value: object) -> None:
        """Change a setting; None puts it back to what the profile says."""
        ...

    def draft_with(self, types: str | None) -> None:
        """Change who drafts; None puts it back to what the profile says."""
        ...

    def use_profile(self, name: str) -> list[str]: ...

    def use_model(self, reference: str) -> list[str]:
        """Load another one in its place."""
        ...

    def keep_cache(self, name: str, among: Container[str], *, asked: bool) -> list[str]:
        """Keep what is cached for the session `name`, and nothing for sessions that are not `among` all.
        `asked`: even if it is hardly worth it."""
        ...

    def forget_cache(self, name: str) -> None:
        """Nothing is kept for the session `name` any more."""
        ...

    def recall_cache(self, name: str, said: Sequence[int]) -> list[str]:
        """Take back what was kept for the session `name`, in which all of `said` was read or said, but for the
        last token."""
        ...


@dataclass(slots=True)
class Chat:
    """One conversation in a terminal, or over pipes."""

    model: LoadedModel
    screen: Screen
    keeper: Keeper
    dialogue: Dialogue = field(default_factory=Dialogue)
    totals: Totals = field(default_factory=Totals)
    think: Think = "fold"  # what becomes of reasoning
    _unsaved: str = ""  # why saving failed, once that was said
    _interrupts: Interrupts = field(default_factory=Interrupts)
    _lines: Iterable[str] = ()
    _last: tuple[Answer, int] | None = None  # with the model's `loads` then

    @property
    def last(self) -> Answer | None:
        """What the conversation's last answer comes from, as long as its model is loaded."""
        return self._last[0] if self._last is not None and self._last[1] == self.model.loads else None

    def run(self, lines: Iterable[str]) -> int:
        """Answer line by line to the end of `lines`; returns the exit code."""
        patience = _DOUBLE if self.screen.interactive else 0.0
        self._lines = lines
        for typed in messages(lines):
            with Interrupts(patience) as self._interrupts:
                goes_on = self._do(typed)
            stopped = self._interrupts
            if stopped.terminated or (stopped.stop() and not self.screen.interactive):
                self._keep_cache()
                return stopped.exit_code or 0
            if stopped.stop():
                self._drop_typed_ahead()
            if not goes_on:
                break
        self._leave()
        return 0

    def _do(self, typed: Typed) -> bool:
        """Answer, or run a command; False ends the chat."""
        if not typed.text.strip():
            return True
        command = None if typed.block else commands.parsed(typed.text)
        if command is not None:
            return commands.execute(self, command)
        self.ask(typed.text)
        return True

    def _leave(self) -> None:
        self._keep_cache()
        name = self.keeper.name
        if name is not None and self.dialogue.messages and self.screen.figures:
            self.screen.say(f"saved as {name}; specli chat --continue goes on with it")

    def keep_cache(self, name: str, *, asked: bool) -> None:
        """Keep what was decoded for the session `name`; if not, and that matters, say why."""
        for line in self.model.keep_cache(name, self.keeper.shelf.names(), asked=asked):
            self.screen.say(line)

    def _keep_cache(self) -> None:
        """Keep what was decoded for the saved conversation."""
        if self.keeper.name is not None and self.dialogue.messages:
            self.keep_cache(self.keeper.name, asked=False)

    # -- turns ----------------------------------------------------------------------------------

    def ask(self, text: str) -> None:
        """Put a question, with the files that wait, and show the answer."""
        before = self.dialogue.copy()
        self.dialogue.ask(text)
        self.save()
        self._respond(before)

    def ask_instead(self, text: str) -> None:
        """Put another question in place of the last one, with the same files, and show the answer. Until there
        is one, what was said before stays saved."""
        before = self.dialogue.copy()
        question = self.dialogue.take_back_question()
        self.dialogue.files[:0] = question.files if question is not None else ()
        self.dialogue.first = before.first
        self.dialogue.ask(text)
        self._respond(before)

    def answer_again(self) -> None:
        """Another answer to the last question, with the next seed."""
        before = self.dialogue.copy()
        if not self.dialogue.take_back_answer():
            self.screen.complain("nothing was asked yet")
            return
        self._respond(before)

    def undo(self) -> Message | None:
        """Take back the last question and its answer; the question, None where there is none."""
        question = self.dialogue.take_back_question()
        if question is not None:
            self._last = None
            self.save()
        return question

    def _respond(self, before: Dialogue) -> None:
        """Answer the last question; if there is no answer, the conversation is again as it was `before`."""
        try:
            answer = self._stream(self._prompt())
        except SpecliError as error:
            self._give_up(before)
            if not self.screen.interactive:
                raise
            self.screen.complain(f"{error}{'; /clear starts over' if self.dialogue.messages else ''}")
            self._say_waiting()
            return
        if answer.said or answer.finish != "interrupted":
            self.dialogue.answer(answer.message)
            self._last = (answer, self.model.loads)
            self.totals.add(answer)
            self.save()
        else:
            self._give_up(before)
        self._after(answer)

    def _give_up(self, before: Dialogue) -> None:
        self.dialogue.restore(before)
        self.save()

    def _prompt(self) -> list[int]:
        prompt = self.dialogue.prompt(self.model.tokens, self.model.n_ctx, self.model.room)
        if prompt.left_out:
            turns = (
                "the oldest turn is" if prompt.left_out == 1 else f"the {prompt.left_out} oldest turns are"
            )
            stays = "; the system message stays" if self.dialogue.system and not self.model.raw else ""
            self.screen.say(
                f"the context of {self.model.n_ctx} tokens is full: {turns} left out from here on{stays}"
            )
        return prompt.tokens

    def _stream(self, tokens: Sequence[int]) -> Answer:
        screen = self.screen
        readout = Readout(
            screen.out, screen.err, self.model.methods,
            figures=screen.figures, page=True, markdown=screen.markdown and not self.model.raw,
            show_drafts=screen.show_drafts, think=self.think,
        )  # fmt: skip

        def stop() -> bool:
            readout.reading(self.model.cached(), len(tokens))
            return self._interrupts.stop()

        with terminal.no_echo():
            answer = self.model.ask(tokens, stop, self.dialogue.answers)
            self.dialogue.answers += 1
            with readout.showing(answer):
                for step in answer:
                    readout.step(step)
        return answer

    def _after(self, answer: Answer) -> None:
        say = self.screen.say
        if answer.finish == "context":
            self.screen.complain(
                f"the context is full ({self.model.n_ctx} tokens), so the answer was cut here; "
                "--ctx-size N makes room for longer ones"
            )
        elif answer.finish == "interrupted" and self.screen.interactive:
            say("stopped; what was said so far is kept" if answer.said else "stopped before an answer began")
            self._drop_typed_ahead()
            self._say_waiting()
        elif answer.finish == "length" and self.screen.interactive:
            say(f"cut at max-tokens {self.model.settings.max_tokens}; /set max-tokens changes that")
        if self.screen.interactive:
            say()

    def _drop_typed_ahead(self) -> None:
        """Whoever stops one thing does not want the next to begin by itself."""
        if discard(self._lines):
            self.screen.say("what was typed ahead is dropped")

    def _say_waiting(self) -> None:
        if self.dialogue.files:
            names = ", ".join(file.name for file in self.dialogue.files)
            self.screen.say(f"with the next question: {names}; /read - drops that")

    # -- keeping it -----------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The conversation as it is saved."""
        return Session.of(self.dialogue, self.model.reference, self.model.fingerprint, self.keeper.named)

    def save(self) -> None:
        """Save the conversation, where that was not declined; one of no turns is not kept unless it has been
        given a name. A failure is said, once."""
        empty = not self.dialogue.messages and not self.keeper.named
        if not self.keeper.saving or (self.keeper.name is None and empty):
            return
        try:
            if empty and self.keeper.name is not None:
                self.model.forget_cache(self.keeper.name)
                self.keeper.discard()
            else:
                self.keeper.save(self.session)
            self._unsaved = ""
        except SpecliError as error:
            if str(error) != self._unsaved:
                self._unsaved = str(error)
                self.screen.complain(f"this conversation is not being saved: {error}")

    def begin_anew(self) -> None:
        """Another conversation, with the same system message."""
        self._keep_cache()
        self.keeper.leave()
        self.dialogue = Dialogue(self.dialogue.system, self.dialogue.raw)
        self._last, self.totals = None, Totals()

    def changed_model(self, same: bool) -> None:
        """Another model was loaded. `same`: only the way it runs is another."""
        self.dialogue.raw = self.model.raw
        self.dialogue.forget_tokens(lambda message: same)
        self.save()

    def resume(self, name: str, *, quiet: bool = False) -> None:
        """Go on with the session `name`. Raises SessionError if it cannot be read."""
        self._keep_cache()
        session = self.keeper.resume(name)
        same = session.fingerprint == self.model.fingerprint
        self.dialogue, self._last, self.totals = session.dialogue(), None, Totals()
        self.dialogue.raw = self.model.raw
        self.dialogue.forget_tokens(lambda message: same and self.model.owns(message))
        notices = self._about(name, session)
        notices += (
            self.model.recall_cache(name, self.dialogue.said(self.model.tokens))
            if same
            else ["another model spoke before: all is read again"]
        )
        if self.dialogue.unanswered:
            notices.append("its last question has no answer; /regen answers it")
        for line in notices if not quiet else ():
            self.screen.say(line)
        if not quiet and self.screen.interactive:
            recap(self.dialogue, self.screen, self.screen.markdown and not self.model.raw)

    def _about(self, name: str, session: Session) -> list[str]:
        turns = f"{session.turns} turn{'s' if session.turns != 1 else ''}"
        lines = [f"{name}, {turns}: {shortened(session.title, 60)}" if session.title else f"{name}, {turns}"]
        if self.keeper.saving and self.keeper.name is None:
            lines.append(f"{name} is open in another specli, so what is said here goes on under another name")
        return lines
