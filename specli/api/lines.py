"""Prompts as JSON lines: what `specli run --prompts` reads.

A line is a text in quotes, or an object. Its keys: `prompt`, or `messages`, a list of
{"role": "user", "content": "…"} that ends with the user's turn; `files`, paths of what goes before it;
`id`, a text or number that the answer's line repeats; and the options of one answer (`system`,
`seed`, `max_tokens`, `stop`, `temp` and so on).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from specli.api.options import FOR_ANSWER, accepted
from specli.api.question import Question, of_turns, parse_turns
from specli.chat.attached import Attached, read_attached
from specli.chat.conversation import Message
from specli.errors import UsageError
from specli.keys import did_you_mean

KEYS = ("prompt", "messages", "files", "id")


@dataclass(frozen=True, slots=True)
class Line:
    """One prompt. `index`: its place among the prompts, from 0. `options`: for its answer alone."""

    index: int
    asked: Question
    id: str | int | None = None
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


def parse_lines(text: str, place: str, files: tuple[Attached, ...] = ()) -> list[Line]:
    """All prompts of a text; blank lines do not count. `place` names it in errors. `files` go before every
    prompt.

    Raises UsageError: the line, the key, what it must be. SpecliError for a file that cannot be read.
    """
    found: list[Line] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            found.append(parse_line(line, f"{place}:{number}", len(found), files))
    if not found:
        raise UsageError(f"{place}: no prompts in it")
    return found


def parse_line(line: str, where: str, index: int, files: tuple[Attached, ...] = ()) -> Line:
    """One line; `where` names it in errors. Raises as `parse_lines`."""
    row = _row(line, where)
    options: dict[str, object] = {}
    for name, value in row.items():
        if name not in KEYS:
            options[_option(name, value, where)] = value
    return Line(index, _asked(row, where, files), _id(row, where), MappingProxyType(options))


def _option(name: str, value: object, where: str) -> str:
    """The name of an option of one answer, whose value is checked."""
    spelled = name.replace("-", "_")
    key = FOR_ANSWER.get(spelled)
    if key is None:
        raise UsageError(f"{where}: unknown key {name}{did_you_mean(name, [*KEYS, *FOR_ANSWER], '{}')}")
    if value is not None:
        try:
            accepted(key, value)
        except ValueError as error:
            raise UsageError(f"{where}: {name} {error}") from error
    return spelled


def _row(line: str, where: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = str(error).partition(" (char")[0]
        raise UsageError(
            f"{where}: not valid JSON ({reason}); a line is a text in quotes, or an object"
        ) from error
    if isinstance(row, str):
        return {"prompt": row}
    if not isinstance(row, dict):
        raise UsageError(f"{where}: must be a text in quotes, or an object")
    return row


def _asked(row: dict[str, object], where: str, files: tuple[Attached, ...]) -> Question:
    attached = (*files, *_files(row, where))
    prompt, messages = row.get("prompt"), row.get("messages")
    if prompt is not None and messages is not None:
        raise UsageError(f"{where}: prompt and messages are both given; leave one of them out")
    if messages is None:
        if not isinstance(prompt, str | None):
            raise UsageError(f"{where}: prompt must be a text")
        asked = of_turns([Message("user", prompt or "")], attached)
    else:
        try:
            asked = of_turns(parse_turns(messages), attached)
        except ValueError as error:
            raise UsageError(f"{where}: messages {error}") from error
        if asked.before and asked.before[0].role == "system" and row.get("system") is not None:
            raise UsageError(f"{where}: a system message is given twice, as system and in messages")
    if asked.given.empty:
        raise UsageError(f"{where}: nothing to answer; it needs a prompt, messages or files")
    return asked


def _files(row: dict[str, object], where: str) -> list[Attached]:
    paths = row.get("files")
    if paths is None:
        return []
    if not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
        raise UsageError(f'{where}: files must be a list of paths such as ["a.py"]')
    return [read_attached(Path(path), f"{where}: {path}") for path in paths]


def _id(row: dict[str, object], where: str) -> str | int | None:
    given = row.get("id")
    if given is None or isinstance(given, str) or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    raise UsageError(f"{where}: id must be a text or a whole number")
