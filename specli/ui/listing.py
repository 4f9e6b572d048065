"""Saved conversations, a row each."""

from __future__ import annotations

import time
from typing import TextIO

from specli.chat.sessions import Listed
from specli.ui import terminal
from specli.ui.recap import shortened

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def row(each: Listed, stream: TextIO | None, more: str = "") -> str:
    """`each` in one row of the terminal that `stream` is: how long ago it was changed, its title as far as there is
    room. Elsewhere with the time, and the title whole. `more`: stands behind its name."""
    if stream is None or not terminal.is_terminal(stream):
        return f"{each.name}{more} · {each.when} · {each.about}"
    about = each.about.rpartition(f"{each.name}.json: ")[2] if each.session is None else each.about
    text = f"{each.name}{more} · {age(each.changed, time.time())} · {about}"
    room = max(20, terminal.columns(stream) - 1)
    return shortened(
        terminal.with_fallbacks(text.rstrip(" ·"), stream), room, terminal.with_fallbacks("…", stream)
    )


def age(then: float, now: float) -> str:
    """How long ago `then` was, both in seconds since the epoch; its date where that is long ago, or to come."""
    seconds = now - then
    if not 0 <= seconds < 30 * _DAY:
        return time.strftime("%Y-%m-%d", time.localtime(then))
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit:
            return f"{int(seconds // unit)} {name} ago"
    return "just now"
