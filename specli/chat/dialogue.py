"""A conversation as it stands: what was said, what waits to be said with it, what the model still sees.

Everything stays here; what no longer fits into the context is only left out of the prompt, whole turns
at a time, the oldest first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from specli.chat.attached import Attached
from specli.chat.conversation import Message
from specli.chat.given import Given

Tokens = Callable[[Sequence[Message]], list[int]]
"""The prompt for some messages, as a `Prompter` makes it."""


def room(n_ctx: int, max_tokens: int | None, fixed_width: int | None) -> int:
    """Tokens of the context that a prompt leaves for its answer: a quarter, or as much as it may have."""
    quarter = n_ctx // 4
    return (quarter if max_tokens is None else min(quarter, max_tokens)) + (fixed_width or 1)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model gets. `left_out`: turns that this prompt is the first to do without."""

    tokens: list[int]
    left_out: int = 0


@dataclass(slots=True)
class Dialogue:
    """The turns so far. `first`: the message that the prompt begins with. `answers`: how many were begun.
    `files`: they go before the next question."""

    system: str | None = None
    raw: bool = False
    messages: list[Message] = field(default_factory=list)
    first: int = 0
    answers: int = 0
    files: list[Attached] = field(default_factory=list)

    def copy(self) -> Dialogue:
        """As it stands, for `restore`."""
        return replace(self, messages=list(self.messages), files=list(self.files))

    def restore(self, before: Dialogue) -> None:
        """Back to what `copy` gave, as if what came since had not been wanted."""
        self.messages, self.files = list(before.messages), list(before.files)
        self.first, self.answers = before.first, before.answers

    # -- turns ----------------------------------------------------------------------------------

    @property
    def turns(self) -> int:
        """Questions asked."""
        return sum(message.role == "user" for message in self.messages)

    @property
    def last_question(self) -> Message | None:
        """The latest question, answered or not."""
        return next((m for m in reversed(self.messages) if m.role == "user"), None)

    @property
    def last_answer(self) -> Message | None:
        """The latest answer, None as long as there is none."""
        return next((m for m in reversed(self.messages) if m.role == "assistant"), None)

    @property
    def unanswered(self) -> bool:
        """Whether the last question got no answer: a program that was killed, an answer taken back."""
        return bool(self.messages) and self.messages[-1].role == "user"

    def ask(self, text: str) -> None:
        """A question, with the files that wait. One that was never answered makes room for it."""
        if self.unanswered:
            self.messages.pop()
        if self.raw:  # bare text goes on where the text before ended
            text = ("\n" if self.messages else "") + Given("", tuple(self.files), text).raw()
            self.messages.append(Message("user", text))
        else:
            self.messages.append(Message("user", text, files=tuple(self.files)))
        self.files.clear()

    def answer(self, message: Message) -> None:
        """What was said to the question."""
        self.messages.append(message)

    def take_back_answer(self) -> bool:
        """Leave the last question unanswered. False where there is none."""
        if self.messages and self.messages[-1].role == "assistant":
            self.messages.pop()
        return self.unanswered

    def take_back_question(self) -> Message | None:
        """Remove the last question and what was said to it; None where there is none. What was left out for
        want of room may fit again."""
        while self.messages:
            message = self.messages.pop()
            if message.role == "user":
                self.first = 0
                return message
        return None

    def forget_tokens(self, keep: Callable[[Message], bool] = lambda _: False) -> None:
        """Another vocabulary: what was said is text from now on, but for messages that `keep` says fit."""
        self.messages = [m if m.tokens is None or keep(m) else replace(m, tokens=None) for m in self.messages]

    # -- what fits ------------------------------------------------------------------------------

    def prompt(self, tokens: Tokens, n_ctx: int, room: int) -> Prompt:
        """The prompt for an answer, which leaves `room` tokens of the context's `n_ctx`.

        Once it does not, the oldest turns go, and some more, so that not every turn from then on has to be
        decoded anew behind the system message. A question that does not fit even alone is
        given back as it is, and nothing is left out for its sake.
        """
        whole = self._prompt(tokens, self.first)
        starts = [i for i, m in enumerate(self.messages) if m.role == "user" and i > self.first]
        if len(whole) + room <= n_ctx or not starts:
            return Prompt(whole)

        def shortfall(start: int, spare: int) -> int:
            return -max(0, len(self._prompt(tokens, start)) + room + spare - n_ctx)

        at = bisect_left(starts, 0, key=lambda start: shortfall(start, n_ctx // 8))
        if at == len(starts):
            at = min(len(starts) - 1, bisect_left(starts, 0, key=lambda start: shortfall(start, 0)))
        rest = self._prompt(tokens, starts[at])
        if len(rest) > n_ctx:
            return Prompt(rest)
        self.first = starts[at]
        return Prompt(rest, at + 1)

    def said(self, tokens: Tokens) -> list[int]:
        """What was read and said up to the end of the last answer; empty where the tokens of that are not known."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "assistant" or last.tokens is None:
            return []
        return [*self._prompt(tokens, self.first, len(self.messages) - 1), *last.tokens]

    def _prompt(self, tokens: Tokens, start: int, end: int | None = None) -> list[int]:
        system = [Message("system", self.system)] if self.system and not self.raw else []
        return tokens([*system, *self.messages[start:end]])
