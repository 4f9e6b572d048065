"""What was typed or piped, as messages: a line each, or several lines between two marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

MARK = '"""'


@dataclass(frozen=True, slots=True)
class Typed:
    """A message, or a command. `block`: it stood between marks, so it is a message whatever it looks like."""

    text: str
    block: bool = False


@runtime_checkable
class Keys(Protocol):
    """Lines that someone types."""

    def discard(self) -> bool:
        """Drop what was typed ahead; whether there was anything."""
        ...


def discard(source: Iterable[str]) -> bool:
    """Drop what was typed ahead, where someone types; whether there was anything."""
    return isinstance(source, Keys) and source.discard()


def is_open(text: str) -> bool:
    """Whether `text` begins a block that it does not end."""
    stripped = text.strip()
    return stripped.startswith(MARK) and (len(stripped) < 2 * len(MARK) or not stripped.endswith(MARK))


def messages(lines: Iterable[str]) -> Iterator[Typed]:
    """Join the lines of blocks. One that the input ends in is taken as it is."""
    held: list[str] = []
    for line in lines:
        held.append(line)
        text = "\n".join(held)
        if not is_open(text):
            yield _typed(text)
            held.clear()
    if held:
        yield _typed("\n".join(held))


def _typed(text: str) -> Typed:
    stripped = text.strip()
    if not stripped.startswith(MARK):
        return Typed(text)
    return Typed(stripped.removeprefix(MARK).removesuffix(MARK).strip("\n"), block=True)
