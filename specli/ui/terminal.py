"""What the terminal can show, and how wide things are there."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TextIO

from specli.chat.text import safe_for_terminal

_FALLBACKS = {
    "·": "-", "×": "x", "…": "...", "→": "->", "–": "-", "›": ">", "±": "+-", "•": "*", "│": "|", "─": "-",
    "⏎": "\\n",
}  # fmt: skip
RESET = "\x1b[0m"
DIM, BOLD, ITALIC, RED, UNDERLINE, STRUCK = "2", "1", "3", "31", "4", "9"
CYAN, GREEN, MAGENTA = "36", "32", "35"  # these can be read on dark and on light backgrounds


def tolerant(stream: TextIO | None) -> None:
    """Let the stream print "?" for what its encoding lacks, instead of failing."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def with_fallbacks(text: str, stream: TextIO | None) -> str:
    """`text`, unstyled, as it may be printed there: nothing in it steers a terminal, and our own symbols are in
    ASCII where the stream's encoding lacks them."""
    text = safe_for_terminal(text)
    if text.isascii():
        return text
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
        return text
    except (UnicodeEncodeError, LookupError):
        for symbol, plain in _FALLBACKS.items():
            text = text.replace(symbol, plain)
        return text


def notice(text: str, stream: TextIO | None) -> str:
    """`text` as a line of the program's own, in words that fit a terminal; one line where it is none."""
    return wrapped(with_fallbacks(f"specli: {text}", stream), stream)


def wrapped(line: str, stream: TextIO | None, indent: int = 0) -> str:
    """`line` as lines of whole words that fit a terminal, those after the first indented by so many columns; as it is
    where there is no terminal. A word that is too long, such as a path, stays whole and can be copied."""
    if stream is None or not is_terminal(stream):
        return line
    room = max(20, columns(stream) - 1)
    hanging = " " * (indent if indent <= room // 2 else 0)
    return textwrap.fill(
        line, room, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )


def echo(line: str) -> None:
    """Print a line of the program's own to stdout."""
    print(with_fallbacks(line, sys.stdout))


def prose(text: str) -> None:
    """Print text of the program's own to stdout, in words that fit a terminal; one line where it is none."""
    line = with_fallbacks(text, sys.stdout)
    print(wrapped(line, sys.stdout, len(line) - len(line.lstrip()) + 2 if line.startswith(" ") else 0))


def announcer(quiet: bool = False) -> Callable[[str], None]:
    """What prints notices to stderr, at once; nothing where it is to be quiet or there is no stderr."""

    def say(line: str) -> None:
        if not quiet:
            remark(notice(line, sys.stderr))

    return say


def remark(line: str) -> None:
    """Print a line to stderr, at once. What cannot be written there is left out: it is never worth an answer."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(line, file=sys.stderr, flush=True)


def json_text(value: object, *, ascii_only: bool = False, indent: int | None = None) -> str:
    """`value` as JSON that may be looked at in a terminal: what could steer it is escaped, also the characters
    that JSON itself lets through."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent, default=str)
    return _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_STEERING = re.compile("[\x7f-\x9f\u202d\u202e\ud800-\udfff]")


def is_terminal(stream: TextIO | None) -> bool:
    """Whether someone looks on. False for a stream that is closed or not there."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


_PLAIN = [False]


def be_plain(plain: bool = True) -> None:
    """From now on no terminal is taken to have colours or a cursor that can be moved."""
    _PLAIN[0] = plain


def can_move(stream: TextIO | None) -> bool:
    """Whether the cursor can be moved there."""
    if _PLAIN[0] or not is_terminal(stream):
        return False
    if os.environ.get("TERM", "xterm" if os.name == "nt" else "dumb") == "dumb":
        return False
    return os.name != "nt" or _understands_escapes(stream)


def _understands_escapes(stream: TextIO | None) -> bool:
    """On Windows: whether this console does, once it is asked to. Old ones do not."""
    try:
        import ctypes
        import msvcrt

        kernel = getattr(ctypes, "windll").kernel32  # noqa: B009  # not there elsewhere
        handle = getattr(msvcrt, "get_osfhandle")(stream.fileno() if stream is not None else -1)  # noqa: B009
        mode = ctypes.c_uint32()
        if not kernel.GetConsoleMode(ctypes.c_void_p(handle), ctypes.byref(mode)):
            return "TERM" in os.environ  # no console: a terminal of the POSIX kind, which says what it is
        processing = mode.value | _VIRTUAL_TERMINAL
        return bool(kernel.SetConsoleMode(ctypes.c_void_p(handle), processing))
    except (AttributeError, ImportError, OSError, ValueError):
        return False


_VIRTUAL_TERMINAL = 0x0004


def has_colour(stream: TextIO | None) -> bool:
    """Whether to use colours: a capable terminal, and NO_COLOR is not set."""
    return can_move(stream) and not os.environ.get("NO_COLOR")


def styled(text: str, *codes: str, on: bool = True) -> str:
    """`text` in the given SGR codes; bare where `on` is false."""
    return f"\x1b[{';'.join(codes)}m{text}{RESET}" if on and codes and text else text


def columns(stream: TextIO) -> int:
    """Width of the terminal in cells; 80 where unknown."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def cells(text: str) -> int:
    """How many cells `text`, without control characters, takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def column_after(text: str, column: int, width: int) -> int:
    """Where the cursor stands after writing `text` from `column`: cells from the left edge, `width`
    where the last cell of a row was just filled and the terminal has not yet wrapped."""
    if "\n" in text:
        text, column = text[text.rfind("\n") + 1 :], 0
    if text.isascii() and "\t" not in text:
        total = column + len(text)
        return (total - 1) % width + 1 if total else 0
    for char in text:
        if char == "\t":
            column = min(width - 1, (column // 8 + 1) * 8)
            continue
        wide = cells(char)
        column = wide if column + wide > width else column + wide
    return column


def fold(segments: list[str], width: int, separator: str = " · ") -> list[str]:
    """Segments joined into as few lines of at most `width` cells as they need."""
    lines: list[str] = []
    for segment in segments:
        joined = f"{lines[-1]}{separator}{segment}" if lines else segment
        if lines and cells(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(segment)
    return lines


@contextmanager
def no_echo() -> Iterator[None]:
    """While an answer streams, keys pressed are not shown in the middle of it. Ctrl-C still works, and after Ctrl-Z
    the shell has its echo."""
    stream: TextIO | None = sys.stdin
    if os.name == "nt" or stream is None or not is_terminal(stream):
        yield
        return
    import termios

    handle = stream.fileno()
    before = termios.tcgetattr(handle)
    _set_echo(handle, False, termios.TCSADRAIN)
    try:
        with _stops(lambda on: _set_echo(handle, on, termios.TCSANOW)):
            yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _set_echo(handle: int, on: bool, when: int) -> None:
    """Of a terminal that is ours: for a program in the background, to ask would mean to be stopped."""
    import termios

    with suppress(OSError, termios.error):
        if os.tcgetpgrp(handle) == os.getpgrp():
            mode = termios.tcgetattr(handle)
            mode[3] = mode[3] | termios.ECHO if on else mode[3] & ~termios.ECHO
            termios.tcsetattr(handle, when, mode)


@contextmanager
def _stops(echo: Callable[[bool], None]) -> Iterator[None]:
    """`echo(True)` before Ctrl-Z stops the program, `echo(False)` when it goes on, however it was stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        echo(True)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        signal.signal(number, stop)
        echo(False)

    def go_on(number: int, frame: FrameType | None) -> None:
        echo(False)

    before = {signal.SIGCONT: signal.signal(signal.SIGCONT, go_on)}
    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:  # a shell without job control
        before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def flush_input(stream: TextIO | None = None) -> bool:
    """Drop what was typed into a terminal and not yet read; whether that were whole lines."""
    stream = sys.stdin if stream is None else stream
    if os.name == "nt" or stream is None or not is_terminal(stream):
        return False
    import fcntl
    import termios

    waiting = bytearray(4)
    try:
        fcntl.ioctl(stream, termios.FIONREAD, waiting)
        termios.tcflush(stream, termios.TCIFLUSH)
    except (OSError, termios.error):
        return False
    return any(waiting)
