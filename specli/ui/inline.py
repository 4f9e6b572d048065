"""Markdown inside a line: emphasis, code, links. Only what is certain is rendered; a mark that is never
closed is text.

Models write code, paths and formulas without asking anybody to quote them, so marks inside words are
text too: snake_case, 2*3*4, __init__.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from specli.ui import terminal
from specli.ui.layout import Item, Run

HELD = 600
"""Characters that a mark may wait to be closed; then it is text."""
_DEEPEST = 20  # marks within marks; what stands deeper is text
_SPECIAL = re.compile(r"[*_`\[!\\~]")
_OPENING = re.compile(r"\*{1,3}(?=[^\s*])|_{1,2}(?=[^\s_])|`+(?=[^`])|~~(?=[^\s~])")
_ESCAPABLE = set("*_`#|~")  # of what Markdown escapes, all that is no formula's


@dataclass(frozen=True, slots=True)
class Palette:
    """SGR codes. Without colour, what would have one is underlined or keeps its marks."""

    colour: bool = True

    @property
    def dim(self) -> str:
        """For what stands aside."""
        return terminal.DIM if self.colour else ""

    @property
    def code(self) -> str:
        """For code in a line; without colour its backticks stay."""
        return terminal.CYAN if self.colour else ""


def join(*codes: str) -> str:
    """Several SGR codes as one."""
    return ";".join(dict.fromkeys(code for part in codes for code in part.split(";") if code))


@dataclass(frozen=True, slots=True)
class Found:
    """What begins at a place: `runs` up to `end`."""

    end: int
    runs: tuple[Item, ...]


class Inline:
    """Renders the text of a line, in one style to begin with."""

    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self._depth = 0

    def certain(self, text: str, before: str = "", final: bool = False) -> Found:
        """Render the beginning of `text` that nothing to come can change, all of it if `final`.

        `before`: the character in front of it.
        """
        return self._render(text, "", before, final)

    def whole(self, text: str, style: str = "") -> tuple[Item, ...]:
        """Render all of a text."""
        return self._render(text, style, "", True).runs

    def guess(self, text: str) -> tuple[Item, ...]:
        """How `text`, which `certain` held back, will probably look: as if its mark were closed."""
        runs = self.whole(text)
        mark = _OPENING.match(text)
        return self.whole(text.rstrip() + mark[0]) if mark and plain(runs) == text else runs

    def _render(self, text: str, style: str, before: str, final: bool) -> Found:
        runs: list[Item] = []
        at = plain = 0
        while True:
            match = _SPECIAL.search(text, at)
            if match is None:
                at = len(text)
                break
            at = match.start()
            found = self._mark(text, at, style, text[at - 1] if at else before, final)
            if found is None:
                if not final and len(text) - at < HELD:
                    break  # may yet become something
                found = _literal(text, at, style)
            if at > plain:
                runs.append(Run(text[plain:at], style))
            runs += found.runs
            at = plain = found.end
        if at > plain:
            runs.append(Run(text[plain:at], style))
        return Found(at, tuple(runs))

    def _within(self, text: str, style: str, before: str) -> tuple[Item, ...]:
        """What stands between two marks."""
        if self._depth == _DEEPEST:
            return (Run(text, style),) if text else ()
        self._depth += 1
        try:
            return self._render(text, style, before, True).runs
        finally:
            self._depth -= 1

    def _mark(self, text: str, at: int, style: str, before: str, final: bool) -> Found | None:
        """What the mark at `at` makes; None while that is not known."""
        char = text[at]
        if char == "`":
            return self._code(text, at, style, final)
        if char in "*_":
            return self._emphasis(text, at, style, before, final)
        if char in "![":
            return self._link(text, at, style, final)
        if char == "~":
            return self._struck(text, at, style, final)
        if at + 1 == len(text):
            return _literal(text, at, style) if final else None
        if text[at + 1] in _ESCAPABLE:
            return Found(at + 2, (Run(text[at + 1], style),))
        return Found(at + 2, (Run(text[at : at + 2], style),))

    def _code(self, text: str, at: int, style: str, final: bool) -> Found | None:
        fence = _same(text, at)
        if at + fence == len(text) and not final:
            return None
        end = _closing(text, at + fence, "`", fence, final)
        if end is None:
            return _literal(text, at, style) if final else None
        content = text[at + fence : end]
        if not self._palette.code:
            return Found(end + fence, (Run(text[at : end + fence], style),))
        if content.startswith(" ") and content.endswith(" ") and content.strip():
            content = content[1:-1]
        return Found(end + fence, (Run(content, join(style, self._palette.code)),))

    def _emphasis(self, text: str, at: int, style: str, before: str, final: bool) -> Found | None:
        char, length = text[at], _same(text, at)
        start = at + length
        if start == len(text):
            return _literal(text, at, style) if final else None
        inside_word = before.isalnum() and (
            char == "_" or (before.isascii() and length == 1 and text[start].isalnum())
        )
        if length > 3 or text[start].isspace() or inside_word:
            return _literal(text, at, style)
        end = _closing(text, start, char, length, final)
        if end is None:
            return _literal(text, at, style) if final else None
        content = text[start:end]
        if length == 2 and char == "_" and content.isidentifier():
            return Found(end + length, (Run(text[at : end + length], style),))
        code = {1: terminal.ITALIC, 2: terminal.BOLD, 3: f"{terminal.BOLD};{terminal.ITALIC}"}[length]
        return Found(end + length, self._within(content, join(style, code), char))

    def _struck(self, text: str, at: int, style: str, final: bool) -> Found | None:
        length = _same(text, at)
        if at + length == len(text) and not final:
            return None
        if length != 2 or text[at + 2 : at + 3].isspace():
            return _literal(text, at, style)
        end = _closing(text, at + 2, "~", 2, final)
        if end is None:
            return _literal(text, at, style) if final else None
        # the marks stay: not every terminal strikes out, and without that the text would say the contrary
        return Found(end + 2, (Run(text[at : end + 2], join(style, terminal.STRUCK)),))

    def _link(self, text: str, at: int, style: str, final: bool) -> Found | None:
        start = at + 1 if text[at] == "!" else at
        if text[start : start + 1] != "[":
            return _literal(text, at, style) if final or start < len(text) else None
        close = _balanced(text, start, "[", "]")
        if close is None:
            return _literal(text, at, style) if final else None
        if text[close + 1 : close + 2] != "(":
            return _literal(text, at, style) if final or close + 1 < len(text) else None
        end = _balanced(text, close + 1, "(", ")")
        if end is None:
            return _literal(text, at, style) if final else None
        label, target = text[start + 1 : close], text[close + 2 : end]
        runs = list(self._within(label, join(style, terminal.UNDERLINE), "["))
        if target and target != label:
            runs.append(Run(f" ({target})" if label else target, join(style, self._palette.dim)))
        return Found(end + 1, tuple(runs))


def plain(items: Iterable[Item]) -> str:
    """The text of some items."""
    return "".join(item.text for item in items if isinstance(item, Run))


def _literal(text: str, at: int, style: str) -> Found:
    """The mark at `at`, whole, as text."""
    end = at + (_same(text, at) if text[at] in "*_`~" else 1)
    return Found(end, (Run(text[at:end], style),))


def _same(text: str, at: int) -> int:
    """How often the character at `at` stands there in a row."""
    end = at
    while end < len(text) and text[end] == text[at]:
        end += 1
    return end - at


def _closing(text: str, at: int, char: str, length: int, final: bool) -> int | None:
    """Where the mark that closes begins; None where it does not come, or may still grow."""
    while at < len(text):
        if text[at] == "\\" and char != "`":
            at += 2
        elif text[at] == "`" and char != "`":
            fence = _same(text, at)
            end = _closing(text, at + fence, "`", fence, True)
            at = at + fence if end is None else end + fence
        elif text[at] == char:
            n = _same(text, at)
            if at + n == len(text) and not final:
                return None
            if _closes(text, at, n, char, length):
                return at + n - length
            at += n
        else:
            at += 1
    return None


def _closes(text: str, at: int, n: int, char: str, length: int) -> bool:
    """Whether `n` marks at `at` close `length` of them."""
    if char == "`":
        return n == length
    if text[at - 1].isspace() or not (n == length or (n == 3 and length == 2)):
        return False
    following = text[at + n : at + n + 1]
    return not (char == "_" and following.isalnum())


def _balanced(text: str, at: int, opening: str, closing: str) -> int | None:
    """Where the bracket at `at` is closed."""
    depth = 0
    for i in range(at, len(text) if text.find(closing, at) >= 0 else at):
        if text[i] == opening:
            depth += 1
        elif text[i] == closing:
            depth -= 1
            if depth == 0:
                return i
    return None
