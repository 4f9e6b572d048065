"""Files put before a question: named and fenced, so that the model sees where each begins and ends."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from specli.errors import SpecliError

MOST = 32 << 20
"""Bytes of a file that are read at most; a device may never end."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A file that was given, by the name it was given as."""

    name: str
    text: str


def read_attached(path: Path, shown: str | None = None) -> Attached:
    """The file at `path` as text, invalid bytes replaced. `shown`: what an error calls it.

    Raises SpecliError where it cannot be read.
    """
    try:
        with Path(os.path.expanduser(path)).open("rb") as file:
            data = file.read(MOST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecliError(f"{shown or path}: {reason}") from error
    if len(data) > MOST:
        raise SpecliError(f"{shown or path}: larger than {MOST >> 20} MiB, which no context holds")
    return Attached(str(path), data.decode("utf-8-sig", "replace"))


def fenced(file: Attached) -> str:
    """A fence longer than any in the file, so that the file cannot close it."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", file.text)), default=0))
    return f"File: {file.name}\n{fence}\n{file.text.rstrip(chr(10))}\n{fence}"
