"""A conversation with a model: turns that build on each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from specli.api import options as names
from specli.api.answer import Answer
from specli.api.question import Files, question
from specli.api.stream import Stream
from specli.chat.conversation import Message, Prompter
from specli.chat.dialogue import Dialogue
from specli.core.noise import answer_seed
from specli.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from specli.api.model import Halt, Model
    from specli.api.options import AnswerOptions


class Conversation:
    """Made by `Model.chat`. Of a seeded one, every turn has a seed of its own, derived from the given one.

    Once the context is full, the oldest turns are left out of what the model sees; `messages` keeps them, and
    `left_out` counts them. A model may hold several conversations; the cache is that of the one that asked last.
    """

    def __init__(self, model: Model, options: Mapping[str, object]) -> None:
        self._model = model
        self._options = {name: value for name, value in options.items() if name != "seed"}
        self._seed = names.changed(model.settings, options).seed  # what cannot be meant is said at once
        self._dialogue = Dialogue(raw=model.raw)
        self._answer: Stream | None = None  # to the last question, perhaps not to its end

    @property
    def messages(self) -> tuple[Message, ...]:
        """The turns so far, the user's and the model's; the last one may still be under way."""
        said = self._dialogue.messages
        if self._answer is None:
            return tuple(said)
        return (*said, self._answer.live.message) if self._said else tuple(said[:-1])

    @property
    def left_out(self) -> int:
        """How many of the oldest turns the model no longer sees."""
        return sum(message.role == "user" for message in self._dialogue.messages[: self._dialogue.first])

    @property
    def _said(self) -> bool:
        """Whether anything came; if stopped before a word, it is as if nothing had been asked."""
        assert self._answer is not None
        return bool(self._answer.live.said) or self._answer.live.finish not in (None, "interrupted")

    def stream(
        self, text: str, *, files: Files = (), halt: Halt = lambda: False, **options: Unpack[AnswerOptions]
    ) -> Stream:
        """Say something; iterate over the result to get the answer. As `Model.stream`."""
        if not isinstance(text, str):
            raise UsageError(f"a turn is a text, not {text!r:.60}; Model.answer takes several")
        given = question(text, files).given
        if given.empty:
            raise UsageError("nothing to answer: the text is empty")
        self._settle()
        before = self._dialogue.copy()
        self._dialogue.files[:] = given.files
        self._dialogue.ask(text)
        try:
            answer = self._model.start(
                self, {**self._options, **options}, halt=halt, asker=self, turn_seed=self._turn_seed()
            )
        except BaseException:
            self._dialogue.restore(before)
            raise
        self._answer = answer
        return answer

    def ask(
        self, text: str, *, files: Files = (), halt: Halt = lambda: False, **options: Unpack[AnswerOptions]
    ) -> Answer:
        """Say something, and wait for the whole answer. As `Model.answer`."""
        return self.stream(text, files=files, halt=halt, **options).finish()

    def undo(self) -> str | None:
        """Take the last turn back, question and answer; returns what had been asked, None if nothing was."""
        self._settle()
        asked = self._dialogue.take_back_question()
        return None if asked is None else asked.text

    def clear(self) -> None:
        """Forget all turns. The system message stays."""
        self._dialogue, self._answer = Dialogue(raw=self._model.raw), None

    def tokens(self, voice: Prompter, raw: bool, system: str | None) -> list[int]:
        """The prompt for an answer to the last question; see `model.Asked`."""
        self._dialogue.system = system
        return self._dialogue.prompt(voice.tokens, self._model.n_ctx, self._model.room).tokens

    def _turn_seed(self) -> int | None:
        return None if self._seed is None else answer_seed(self._seed, self._dialogue.turns - 1)

    def _settle(self) -> None:
        """The answer so far is what was said."""
        if self._answer is None:
            return
        if self._said:
            self._dialogue.answer(self._answer.live.message)
        else:
            self._dialogue.take_back_question()
        self._answer = None
