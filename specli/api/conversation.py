"""A conversation with a model: turns that build on each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from specli.api import options as names
from specli.api.answer import Answer
from specli.api.question import Files, question
from specli.api.stream import Stream
from specli.chat.conversation import Message
from specli.core.noise import derive

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from specli.api.model import Halt, Model
    from specli.api.options import AnswerOptions


class Conversation:
    """Made by `Model.chat`. Every turn has a seed of its own, derived from the first one's.

    A model may hold several conversations, in turns; the cache is that of the one that asked last.
    """

    def __init__(self, model: Model, options: Mapping[str, object]) -> None:
        self._model = model
        self._options = dict(options)
        seed = names.changed(model.settings, options).seed  # what cannot be meant is said at once
        self._options.pop("seed", None)
        self._seed = seed
        self._turns: list[Message] = []
        self._asked: Message | None = None  # and answered by `_answer`, perhaps not to its end
        self._answer: Stream | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The turns so far, the user's and the model's; the last one may still be under way."""
        if self._asked is None or self._answer is None:
            return tuple(self._turns)
        live = self._answer.live
        if not live.said and live.finish in (None, "interrupted"):
            return tuple(self._turns)  # stopped before a word: as if it had not been asked
        return (*self._turns, self._asked, live.message)

    def stream(
        self, text: str, *, files: Files = (), halt: Halt = lambda: False, **options: Unpack[AnswerOptions]
    ) -> Stream:
        """Say something; iterate over the result to get the answer. As `Model.stream`."""
        self._settle()
        asked = replace(question(text, files), before=tuple(self._turns))
        self._answer = self._model.start(
            asked,
            {**self._options, **options},
            halt=halt,
            asker=self,
            turn_seed=self._turn_seed(),
        )
        self._asked = asked.turn(self._model.raw)
        return self._answer

    def ask(
        self, text: str, *, files: Files = (), halt: Halt = lambda: False, **options: Unpack[AnswerOptions]
    ) -> Answer:
        """Say something, and wait for the whole answer. As `Model.answer`."""
        return self.stream(text, files=files, halt=halt, **options).finish()

    def undo(self) -> str | None:
        """Take the last turn back, question and answer; returns what had been asked, None if nothing was."""
        self._settle()
        if not self._turns:
            return None
        del self._turns[-1]
        return self._turns.pop().text

    def clear(self) -> None:
        """Forget all turns. The system message stays."""
        self._turns, self._asked, self._answer = [], None, None

    def _turn_seed(self) -> int | None:
        turn = len(self._turns) // 2
        return derive(self._seed, turn) if turn and self._seed is not None else self._seed

    def _settle(self) -> None:
        self._turns = list(self.messages)
        self._asked = self._answer = None
