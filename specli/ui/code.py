"""Code, line by line, coloured as its language has it."""

from __future__ import annotations

from typing import Any

from specli.ui import terminal
from specli.ui.layout import Item, Run

_ENOUGH = 24  # lines that a line is read with: the latest, and as many from where something was opened
_LONGEST = 1000  # characters of a line that is read at all


class Highlighter:
    """Colours the lines of one code block in turn. `language`: as the fence names it.

    Each line is read with those before it, from the last place where nothing was open: a line that begins
    at the left edge and not inside a string or a comment; any line outside of those once there are many.
    """

    def __init__(self, language: str, colour: bool) -> None:
        self._lexer = _lexer(language)
        self._styles = _COLOURED if colour else _PLAIN
        self._context: list[str] = []
        self._closed = True  # the last line ends outside of strings and comments

    def line(self, text: str) -> list[Item]:
        """A whole line, without its newline, in its styles."""
        if self._lexer is None or len(text) > _LONGEST:
            return [Run(text, free=True)]
        if self._closed and (len(self._context) >= _ENOUGH or (text and not text[0].isspace())):
            self._context.clear()
        self._context.append(text)
        del self._context[_ENOUGH : max(_ENOUGH, len(self._context) - _ENOUGH)]  # what is open began before
        return [Run(word, self._style(kind), free=True) for kind, word in self._last_line()]

    def _last_line(self) -> list[tuple[Any, str]]:
        """Kind and text of the words in it."""
        assert self._lexer is not None
        wanted = self._context[-1]
        try:
            tokens = list(self._lexer.get_tokens("\n".join(self._context) + "\n"))
            kind, word = tokens[-1]
        except Exception:  # there are hundreds of lexers, and what they read here is no real code
            self._lexer = None
            return [(None, wanted)]
        self._closed = word.strip("\n") == "" and str(kind).split(".")[1] in ("Text", "Whitespace")
        found: list[tuple[Any, str]] = []
        length = len(wanted) + 1
        for kind, word in reversed(tokens):
            if length <= 0:
                break
            found.append((kind, word[-length:].rstrip("\n")))
            length -= len(word)
        found.reverse()
        if "".join(word for _, word in found) != wanted:  # a lexer that alters what it reads
            return [(None, wanted)]
        return [(kind, word) for kind, word in found if word]

    def _style(self, kind: Any) -> str:
        name = str(kind)
        return next((style for prefix, style in self._styles if name.startswith(prefix)), "")


_COLOURED = (
    ("Token.Comment", f"{terminal.DIM};{terminal.ITALIC}"),
    ("Token.Keyword.Constant", terminal.CYAN),
    ("Token.Keyword", terminal.MAGENTA),
    ("Token.Operator.Word", terminal.MAGENTA),
    ("Token.Literal.String", terminal.GREEN),
    ("Token.Literal", terminal.CYAN),
    ("Token.Name.Function", terminal.BOLD),
    ("Token.Name.Class", terminal.BOLD),
    ("Token.Name.Tag", terminal.MAGENTA),
    ("Token.Name.Builtin", terminal.CYAN),
    ("Token.Name.Attribute", terminal.CYAN),
    ("Token.Generic.Deleted", terminal.RED),
    ("Token.Generic.Inserted", terminal.GREEN),
    ("Token.Generic.Heading", terminal.BOLD),
    ("Token.Generic.Subheading", terminal.CYAN),
)
_PLAIN = (
    ("Token.Comment", terminal.ITALIC),
    ("Token.Keyword", terminal.BOLD),
    ("Token.Name.Function", terminal.BOLD),
    ("Token.Name.Class", terminal.BOLD),
)


def _lexer(language: str) -> Any:
    """The lexer of that name, None where there is none."""
    if not language:
        return None
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
