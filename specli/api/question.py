"""What is asked, before it becomes tokens: one text, or the turns of a conversation so far."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specli.chat.attached import Attached, read_attached
from specli.chat.conversation import Message, Prompter
from specli.chat.given import Given
from specli.errors import UsageError
from specli.keys import did_you_mean

ROLES = ("system", "user", "assistant")
Turns = Sequence[Mapping[str, str]]
"""Messages as many programs keep them: {"role": "user", "content": "…"}, the last one the user's."""
Files = Sequence["str | os.PathLike[str]"]


@dataclass(frozen=True, slots=True)
class Question:
    """`given` is the user's turn that is to be answered, `before` the turns that lead to it."""

    given: Given
    before: tuple[Message, ...] = ()

    def tokens(self, voice: Prompter, raw: bool, system: str | None) -> list[int]:
        """The prompt. `raw`: bare text, which has no turns. Raises UsageError where there is nothing to answer,
        or what bare text cannot say."""
        if self.given.empty:
            raise UsageError("nothing to answer: the prompt is empty")
        if raw:
            if self.before:
                raise UsageError(
                    "raw text has no turns and no system message; put everything into one prompt"
                )
            return voice.raw(self.given.raw())
        has_system = bool(self.before) and self.before[0].role == "system"
        first = (Message("system", system),) if system and not has_system else ()
        return voice.tokens([*first, *self.before, Message("user", self.given.message())])


def question(prompt: str | Turns, files: Files = ()) -> Question:
    """What was asked by a program. Files go before the text. Raises UsageError for turns that are none,
    SpecliError for a file that cannot be read."""
    if isinstance(files, (str, bytes, os.PathLike)) or not isinstance(files, Iterable):
        raise UsageError(f'files must be a list of paths, such as ["a.txt"], not {files!r}')
    attached = tuple(read_attached(Path(path_of("files", file))) for file in files)
    if isinstance(prompt, str):
        return Question(Given("", attached, prompt))
    try:
        turns = parse_turns(prompt)
    except ValueError as error:
        raise UsageError(f"the prompt {error}") from error
    return of_turns(turns, attached)


def path_of(name: str, value: object) -> str:
    """`value` as a path. Raises UsageError, naming the argument, for what is none."""
    if isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        if isinstance(path, str):
            return path
    raise UsageError(f"{name} must be a text or a path, not {value!r}")


def of_turns(turns: Sequence[Message], files: tuple[Attached, ...] = (), stdin: str = "") -> Question:
    """The last of the `turns` with files before its text, behind the others."""
    return Question(Given(stdin, files, turns[-1].text), tuple(turns[:-1]))


def parse_turns(raw: object) -> list[Message]:
    """Turns as data, checked. Raises ValueError that says what they must be instead."""
    if not isinstance(raw, (list, tuple)) or not raw:
        raise ValueError('must be a text, or a list such as [{"role": "user", "content": "Hello"}]')
    turns = [_turn(each, number) for number, each in enumerate(raw, 1)]
    if any(turn.role == "system" for turn in turns[1:]):
        raise ValueError("has a system message that is not the first")
    if turns[-1].role != "user":
        raise ValueError(f"must end with the user's turn, not with {turns[-1].role}")
    return turns


def _turn(raw: object, number: int) -> Message:
    if not isinstance(raw, Mapping):
        raise ValueError(f'message {number} must be {{"role": "…", "content": "…"}}')
    for name in raw:
        if name not in ("role", "content"):
            raise ValueError(
                f"message {number} has an unknown key {name}{did_you_mean(str(name), ('role', 'content'))}"
            )
    role, content = raw.get("role"), raw.get("content")
    if role not in ROLES:
        raise ValueError(f"message {number} must have a role, one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise ValueError(f"message {number} must have a content, a text")
    return Message(str(role), content)
