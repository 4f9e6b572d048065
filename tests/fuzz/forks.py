"""Runs work in forks of this process, so that heavy imports are paid once and a crash hits nobody."""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True)
class Ended:
    """How a fork ended. `code`: its exit code, -1 if there is none; `signal`: what ended it, empty if none did.
    `peak`: bytes it had in memory at most, what it shared with its parent included. `said`: the end of what it
    wrote to standard error."""

    code: int
    signal: str
    hung: bool
    peak: int
    said: str


def address_space() -> int:
    """Bytes of address space of this process, which every fork begins with."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def forked(work: Callable[[], int], seconds: float, room: int | None = None, stdin: bytes = b"") -> Ended:
    """Run `work` in a fork, for `seconds` of its own time (or six times that of the clock's, where others
    want the processor too) and with `room` bytes of address space more than there is now.

    Its standard output goes nowhere, its standard input is `stdin`.
    """
    folder = os.environ.get("FUZZ_DIR")
    with tempfile.TemporaryFile(dir=folder) as err, tempfile.TemporaryFile(dir=folder) as given:
        given.write(stdin)
        given.seek(0)
        sys.stdout.flush()
        sys.stderr.flush()
        limit = None if room is None else address_space() + room
        child = os.fork()
        if not child:
            _child(work, given.fileno(), err.fileno(), int(seconds), limit)
        watch = os.pidfd_open(child)
        try:
            hung = not select.select([watch], [], [], 6 * seconds)[0]
            if hung:
                os.kill(child, signal.SIGKILL)
            _, status, used = os.wait4(child, 0)
        finally:
            os.close(watch)
        size = err.seek(0, os.SEEK_END)
        err.seek(max(0, size - 4 * KIB))
        said = err.read().decode("utf-8", "replace")
    died = os.WIFSIGNALED(status)
    name = signal.Signals(os.WTERMSIG(status)).name if died and not hung else ""
    if name == "SIGXCPU":
        name, hung = "", True
    code = -1 if died else os.WEXITSTATUS(status)
    return Ended(code, name, hung, used.ru_maxrss * KIB, said)


def _child(work: Callable[[], int], given: int, err: int, seconds: int, limit: int | None) -> None:
    """Never returns: the parent's test runner must not wake up twice."""
    code = 99
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(given, 0)
        os.dup2(null, 1)
        os.dup2(err, 2)
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        code = work()
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
