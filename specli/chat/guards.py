"""Control tokens written out in what somebody said, kept apart from those that a chat template writes.

For templates that alter contents: marks are put around each such text before the template gets it, and travel
with it through whatever the template does, so that it is known again in the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from specli.engine.template import TemplateRefusal
from specli.engine.vocab import Vocab

UNCLEAR = (
    "chat template: it alters what was said so that control tokens written in it cannot be told from its own; "
    "use another template"
)
_PRIVATE = range(0xE000, 0xF900)  # characters that stand for nothing
_COUNTED = 1 | 8  # attributes "unknown" and "control": recognised in the text of a template only


class ControlTexts:
    """The texts of a vocabulary's control tokens."""

    def __init__(self, vocab: Vocab) -> None:
        counted = (t for t in range(vocab.n_tokens) if vocab.attributes(t) & _COUNTED)
        texts = (vocab.piece(t, special=True).decode("utf-8", "replace") for t in counted)
        self._texts = {text for text in texts if text}
        self._lengths = sorted({len(text) for text in self._texts}, reverse=True)
        first = "".join(re.escape(char) for char in sorted({text[0] for text in self._texts}))
        self._first = re.compile(f"[{first}]" if first else "(?!)")

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where they stand in `text`, those that overlap or touch as one."""
        spans: list[tuple[int, int]] = []
        for match in self._first.finditer(text):
            at = match.start()
            length = len(next((t for n in self._lengths if (t := text[at : at + n]) in self._texts), ""))
            if length and spans and at <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(spans[-1][1], at + length))
            elif length:
                spans.append((at, at + length))
        return spans


class Guards:
    """Marks around control texts, by two characters that are not in `known`: nobody can forge them. Raises
    TemplateRefusal where all such characters are taken."""

    def __init__(self, controls: ControlTexts, known: Iterable[str]) -> None:
        taken = set().union(*known)
        free = list(islice((c for c in map(chr, _PRIVATE) if c not in taken), 2))
        if len(free) < 2:
            raise TemplateRefusal(UNCLEAR)
        self._controls = controls
        self._open, self._close = free
        self._guarded = re.compile(f"{self._open}([^{self._open}{self._close}]*){self._close}")

    def put(self, text: str) -> str:
        """`text` with marks around each control text in it."""
        out, at = "", 0
        for start, end in self._controls.spans(text):
            out += text[at:start] + self._open + text[start:end] + self._close
            at = end
        return out + text[at:]

    def without(self, text: str) -> str:
        """`text` less all marks."""
        return text.replace(self._open, "").replace(self._close, "")

    def split(self, text: str) -> list[tuple[str, bool]]:
        """`text` less all marks, in stretches, each with whether it stood between marks."""
        parts = self._guarded.split(text)  # every second one was between them
        return [(self.without(part), i % 2 == 1) for i, part in enumerate(parts) if part]
