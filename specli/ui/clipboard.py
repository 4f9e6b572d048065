"""The clipboard of whoever sits at the terminal, also through ssh: OSC 52."""

from __future__ import annotations

import base64
from typing import TextIO

from specli.ui.terminal import can_move

MOST = 74_994
"""Bytes that all terminals take which take any; some take more."""


def copy(text: str, streams: tuple[TextIO, ...]) -> bool:
    """Hand `text` to the first of `streams` that is a terminal. False if none is. Whether the terminal puts it on
    the clipboard it does not say."""
    stream = next((each for each in streams if can_move(each)), None)
    if stream is None:
        return False
    data = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
    stream.write(f"\x1b]52;c;{data}\x07")
    stream.flush()
    return True
