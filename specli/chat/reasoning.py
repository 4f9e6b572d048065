"""Reasoning blocks: what a model thinks aloud before it answers, told apart from the answer.

Which tags stand around it, the chat template or the vocabulary says. A block is looked for where the
answer begins, nowhere else, so an answer may speak of the tags. Some templates open the block in the
prompt: the answer then begins inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specli.engine.template import ChatTemplate, TemplateRefusal
from specli.engine.vocab import Vocab


@dataclass(frozen=True, slots=True)
class Tags:
    """What opens and closes a block. `then`: headers of the answer proper, no part of what it says."""

    open: str
    close: str
    then: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """All that is not for reading."""
        return (self.open, self.close, *self.then)


KNOWN = (
    Tags(
        "<|channel|>analysis<|message|>",
        "<|end|>",
        ("<|start|>assistant", "<|channel|>final<|message|>"),
    ),
    Tags("<|channel>thought", "<channel|>"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>",)),
    Tags("<|begin_of_thought|>", "<|end_of_thought|>", ("<|begin_of_solution|>",)),
    Tags("<|inner_prefix|>", "<|inner_suffix|>"),
    Tags("<|thinking|>", "<|/thinking|>"),
    Tags("[THINK]", "[/THINK]"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<mm:think>", "</mm:think>"),
    Tags("◁think▷", "◁/think▷"),
    Tags("<thinking>", "</thinking>"),
    Tags("<thought>", "</thought>"),
    Tags("<think>", "</think>"),
)
"""The pairs in use, the more special ones first."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """How one model reasons. `kept`: its template leaves the reasoning of earlier answers in the prompt.
    `visible`: control tokens that belong to the tags."""

    tags: Tags
    kept: bool
    visible: frozenset[int]

    def opened_by(self, prompt: Sequence[int], vocab: Vocab) -> tuple[int, ...]:
        """The tokens at the prompt's end that open a block; none if the answer begins outside of one."""
        for n in range(1, min(_TAIL, len(prompt)) + 1):
            text = vocab.text(prompt[-n:], special=True).decode("utf-8", "replace").rstrip()
            if text.endswith(self.tags.open):
                return tuple(prompt[-n:])
        return ()


_TAIL = 16  # tokens at the end of a prompt among which an opening tag is looked for


def find_thinking(template: ChatTemplate | None, vocab: Vocab) -> Thinking | None:
    """How the model reasons, by its template, or by tags that are tokens of their own; None if it does not."""
    if template is None:
        return None
    tags = next((t for t in KNOWN if t.open in template.source or t.close in template.source), None)
    tags = tags or next((t for t in KNOWN if all(_is_one(vocab, x) for x in (t.open, t.close))), None)
    if tags is None:
        return None
    ids = {token for text in tags.texts for token in vocab.tokenize(text, special=True)}
    return Thinking(tags, _keeps(template, tags), frozenset(t for t in ids if vocab.is_control(t)))


def _is_one(vocab: Vocab, text: str) -> bool:
    return len(vocab.tokenize(text, special=True)) == 1


def _keeps(template: ChatTemplate, tags: Tags) -> bool:
    """Whether the template leaves the reasoning of an earlier answer where it is."""
    said = f"{tags.open}\nreckoned\n{tags.close}\n\nanswered"
    turns = [("user", "first"), ("assistant", said), ("user", "second")]
    try:
        return "reckoned" in template.render([{"role": role, "content": text} for role, text in turns])
    except TemplateRefusal:
        return False


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of what was said, `reasoning` or answer, without tags."""

    text: str
    reasoning: bool = False


class Splitter:
    """Tells reasoning from answer as the text comes, however it is cut.

    `opened`: the answer begins inside a block. White space around the reasoning belongs to neither.
    """

    def __init__(self, tags: Tags, opened: bool = False) -> None:
        self._tags = tags
        self._held = ""
        self._inside = opened
        self._answering = False
        self._begun = False  # reasoning that is not blank was said
        self._over = False  # a block was closed

    @property
    def inside(self) -> bool:
        """Whether a block is open."""
        return self._inside

    def feed(self, text: str) -> list[Part]:
        """Take the next text, return what is certain now."""
        if self._answering:
            return [Part(text)] if text else []
        self._held += text
        return self._release(final=False)

    def finish(self) -> list[Part]:
        """All was said: return what was held back."""
        return self._release(final=True)

    def _release(self, final: bool) -> list[Part]:
        parts: list[Part] = []
        while self._held and not self._answering:
            before = self._held
            part = self._reason(final) if self._inside else self._look(final)
            if part is not None:
                parts.append(part)
            if self._held == before:
                break
        if self._answering and self._held:
            parts.append(Part(self._held))
            self._held = ""
        return parts

    def _reason(self, final: bool) -> Part | None:
        at = self._held.find(self._tags.close)
        if at >= 0:
            text, self._held = self._held[:at].rstrip(), self._held[at + len(self._tags.close) :]
            self._inside, self._over = False, True
        else:
            text = self._held.rstrip() if final else self._certain().rstrip()
            self._held = "" if final else self._held[len(text) :]
        if not self._begun:
            text = text.lstrip()
        self._begun = self._begun or bool(text)
        return Part(text, reasoning=True) if text else None

    def _certain(self) -> str:
        """What is held, without an end that could become the closing tag."""
        close = self._tags.close
        for n in range(min(len(close) - 1, len(self._held)), 0, -1):
            if self._held.endswith(close[:n]):
                return self._held[:-n]
        return self._held

    def _look(self, final: bool) -> Part | None:
        """At the beginning, and behind a block: a tag, a header, or the answer."""
        text = self._held.lstrip()
        for tag in (self._tags.open, *self._tags.then):
            if text.startswith(tag):
                self._held = text[len(tag) :]
                self._inside = tag == self._tags.open
                self._over = self._over or not self._inside
                return None
        if not final and any(tag.startswith(text) for tag in (self._tags.open, *self._tags.then)):
            return None
        self._answering = True
        if self._over:
            self._held = text
        return None
