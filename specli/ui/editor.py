"""Text in the user's own editor."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import FrameType

from specli.errors import SpecliError

_USUAL = ("sensible-editor", "nano", "vi", "notepad")


def edited(text: str) -> str:
    """`text` as it is after the user has edited it, without line ends behind it.

    Raises SpecliError if there is no editor, or it ends with an error.
    """
    command = _command()
    handle, name = tempfile.mkstemp(prefix="specli-", suffix=".md")
    path = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text + "\n")
        before = signal.signal(signal.SIGINT, _leave_it_to_the_editor)
        wakes = signal.set_wakeup_fd(-1)  # nor is it one for an event loop that the line may stand in
        try:
            code = subprocess.call([*command, name])
        finally:
            signal.set_wakeup_fd(wakes)
            signal.signal(signal.SIGINT, before)
        if code:
            raise SpecliError(f"the editor {command[0]} ended with code {code}; nothing was changed")
        return path.read_bytes().decode("utf-8-sig", "replace").replace("\r\n", "\n").rstrip("\n")
    except OSError as error:
        raise SpecliError(
            f"the editor {command[0]} cannot be started: {error.strerror or error}; set EDITOR"
        ) from error
    finally:
        with suppress(OSError):
            path.unlink()


def _command() -> list[str]:
    asked = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if asked:
        with suppress(ValueError):  # quotes that do not match
            return shlex.split(asked, posix=os.name != "nt") or [asked]
        return [asked]
    found = next((name for name in _USUAL if shutil.which(name)), None)
    if found is None:
        raise SpecliError("no editor is known; set EDITOR")
    return [found]


def _leave_it_to_the_editor(number: int, frame: FrameType | None) -> None:
    """Ctrl-C there is a key for the editor. (Ignoring the signal would be handed down to it.)"""
