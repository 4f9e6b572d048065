"""A bar with the time left, on stderr; plain lines where nobody looks on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from specli.ui.terminal import announcer, can_move, with_fallbacks

_EVERY_S = 15.0  # between two lines in a log


class Progress(Protocol):
    """Told how far a work is."""

    def at(self, done: float, what: str = "") -> None:
        """`done` of the total; `what` is being done."""
        ...


class _Silent:
    def at(self, done: float, what: str = "") -> None:
        return


class _Lines:
    """A line now and then."""

    def __init__(self, total: float) -> None:
        self._total = total
        self._began = self._said = time.monotonic()

    def at(self, done: float, what: str = "") -> None:
        now = time.monotonic()
        if now - self._said < _EVERY_S or not 0 < done < self._total:
            return
        self._said = now
        left = (now - self._began) * (self._total - done) / done
        announcer()(f"{100 * done / self._total:.0f}%, about {_time(left)} left · {what}")


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


@contextmanager
def progress(total: float, quiet: bool = False) -> Iterator[Progress]:
    """Shows how far a work of `total` parts (or seconds) is, and removes itself at the end."""
    if quiet or sys.stderr is None:
        yield _Silent()
    elif not can_move(sys.stderr):
        yield _Lines(total)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
        )
        with RichProgress(*columns, console=Console(stderr=True), transient=True) as shown:
            task = shown.add_task("", total=total)

            class Shown:
                def at(self, done: float, what: str = "") -> None:
                    shown.update(task, completed=done, description=with_fallbacks(what, sys.stderr))

            yield Shown()
