"""Turns of a conversation, and the tokens that the model gets for them.

The template is rendered with a placeholder for every message, so it is known which text is the
template's and which the user's. Control tokens are recognised in the template's text alone: what a
user wrote cannot forge a turn, even where the template alters it. Answers go in as the very tokens they
were emitted as, so the cache of the turns before still fits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specli.chat.attached import Attached
from specli.chat.given import Given
from specli.chat.guards import UNCLEAR, ControlTexts, Guards
from specli.engine.template import ChatTemplate, TemplateRefusal
from specli.engine.vocab import Vocab


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `role`: system, user or assistant. `tokens`: the tokens an answer was emitted as,
    without the end token; None for text that still has to be tokenised. `files`: those put before it."""

    role: str
    text: str
    tokens: tuple[int, ...] | None = None
    files: tuple[Attached, ...] = ()

    @property
    def content(self) -> str:
        """What the model gets: the files, named and fenced, then the text."""
        return Given("", self.files, self.text).message() if self.files else self.text


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of a rendered prompt: the template's own text, or what message `index` says. `plain`: no control
    tokens are recognised in it; what a message says is always so."""

    text: str
    index: int | None = None
    plain: bool = False


class Prompter:
    """Turns messages into prompt tokens for one model."""

    def __init__(self, vocab: Vocab, template: ChatTemplate | None) -> None:
        self._vocab = vocab
        self._template = template
        self._controls: ControlTexts | None = None

    @property
    def has_template(self) -> bool:
        """False for a base model, which completes text instead of answering."""
        return self._template is not None

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        """The prompt for an answer to `messages`, with exactly one BOS where the model wants one.

        Raises TemplateRefusal where the template takes no such messages.
        """
        pieces = self._pieces(messages)
        tokens = self._tokenize(pieces, messages)
        return self.with_bos(tokens)

    def plain(self, messages: Sequence[Message]) -> list[int]:
        """Without a template: what was said so far, as it is, to be continued."""
        return Prompter(self._vocab, None).tokens(messages)

    def with_bos(self, tokens: list[int]) -> list[int]:
        """`tokens` with a BOS in front if the model wants one and they do not start with it."""
        bos = self._vocab.bos
        if self._vocab.add_bos and bos >= 0:
            while tokens[1:2] == [bos] and tokens[0] == bos:  # a template that writes a second one
                del tokens[0]
            if tokens[:1] != [bos]:
                tokens.insert(0, bos)
        return tokens

    def raw(self, text: str) -> list[int]:
        """A prompt of bare text, without a template."""
        return self.with_bos(self._vocab.tokenize(text))

    # -- rendering ------------------------------------------------------------------------------

    def _pieces(self, messages: Sequence[Message]) -> list[_Piece]:
        if self._template is None:
            return [_Piece(m.content, i) for i, m in enumerate(messages)]
        try:
            return self._render(messages)
        except TemplateRefusal:
            folded = fold_system(messages)
            if folded is None:
                raise
            pieces = self._render(folded)  # indices of the folded list: one less
            return [replace(p, index=None if p.index is None else p.index + 1) for p in pieces]

    def _render(self, messages: Sequence[Message]) -> list[_Piece]:
        assert self._template is not None
        contents = [message.content for message in messages]
        marked = self._rendered(messages, [f"\ue000{i}\ue001" for i in range(len(messages))])
        real = self._rendered(messages, contents)
        for edit in (_as_is, str.strip):
            edited = [edit(content) for content in contents]
            if _fill(marked, edited) == real:
                return _split(marked, edited)
        return self._altered(real, marked, messages, contents)

    def _rendered(self, messages: Sequence[Message], contents: Sequence[str]) -> str:
        assert self._template is not None
        return self._template.render(
            [{"role": m.role, "content": content} for m, content in zip(messages, contents)]
        )

    def _altered(
        self, real: str, marked: str, messages: Sequence[Message], contents: Sequence[str]
    ) -> list[_Piece]:
        """For templates that treat contents in ways of their own: each content is looked for in the rendered
        text, and control texts in it are guarded on their way there, whether or not it is found."""
        if self._controls is None:
            self._controls = ControlTexts(self._vocab)
        guards = Guards(self._controls, [real, *contents])
        for everywhere in (True, False):
            # marks can be in a template's way where it takes apart what a model said, by tags that are tokens
            guarded = [
                guards.put(c) if everywhere or m.tokens is None else c for m, c in zip(messages, contents)
            ]
            text = real if guarded == contents else self._rendered(messages, guarded)
            if guards.without(text) == real:
                break
        else:
            raise TemplateRefusal(UNCLEAR)
        pieces: list[_Piece] = []
        for piece in _locate(text, guarded):
            if piece.index is not None:
                pieces.append(replace(piece, text=guards.without(piece.text)))
            else:
                pieces += [_Piece(part, plain=plain) for part, plain in guards.split(piece.text)]
        found = {piece.index for piece in pieces}
        lost = [m for i, m in enumerate(messages) if i not in found and m.content.strip()]
        if lost and self._controls_in(pieces) - self._controls_in(_split(marked, contents)) - Counter(
            token for message in lost for token in message.tokens or ()
        ):
            raise TemplateRefusal(UNCLEAR)  # what was altered reads as control tokens now
        return pieces

    def _controls_in(self, pieces: Sequence[_Piece]) -> Counter[int]:
        """The control tokens that the template's own text is taken to hold."""
        own = (piece.text for piece in pieces if piece.index is None and not piece.plain)
        return Counter(t for text in own for t in self._split_control(text)[1] if self._vocab.is_control(t))

    # -- tokens ---------------------------------------------------------------------------------

    def _tokenize(self, pieces: Sequence[_Piece], messages: Sequence[Message]) -> list[int]:
        """Template text next to a user's is tokenised together with it, as one stretch of plain text:
        words may join across the border, control tokens may not."""
        out: list[int] = []
        plain = ""  # text since the last control token, not yet tokenised
        for piece in pieces:
            said = messages[piece.index].tokens if piece.index is not None else None
            if said is not None:
                out += self._vocab.tokenize(plain)
                out += said
                plain = ""
            elif piece.index is not None or piece.plain:
                plain += piece.text
            else:
                head, control, tail = self._split_control(piece.text)
                plain += head
                if control:
                    out += self._vocab.tokenize(plain)
                    out += control
                    plain = tail
        out += self._vocab.tokenize(plain)
        return out

    def _split_control(self, text: str) -> tuple[str, list[int], str]:
        """`text` as plain text, tokens from the first control token to the last, plain text."""
        tokens = self._vocab.tokenize(text, special=True)
        at = [i for i, t in enumerate(tokens) if self._vocab.is_control(t)]
        if not at:
            return text, [], ""
        head = self._vocab.text(tokens[: at[0]]).decode("utf-8", "replace")
        tail = self._vocab.text(tokens[at[-1] + 1 :]).decode("utf-8", "replace")
        if not text.startswith(head) or not text.endswith(tail):  # a tokenizer that alters text
            return "", tokens, ""
        return head, tokens[at[0] : at[-1] + 1], tail


def fold_system(messages: Sequence[Message]) -> list[Message] | None:
    """For templates that refuse a system role: its text goes in front of the first user turn.

    The result is one message shorter; None where there is nothing to fold.
    """
    if len(messages) < 2 or messages[0].role != "system" or messages[1].role != "user":
        return None
    first = Message("user", f"{messages[0].content}\n\n{messages[1].content}")
    return [first, *messages[2:]]


def _as_is(text: str) -> str:
    return text


_MARK = re.compile("\ue000(\\d+)\ue001")


def _fill(marked: str, contents: Sequence[str]) -> str:
    return _MARK.sub(lambda m: contents[int(m[1])], marked)


def _split(marked: str, contents: Sequence[str]) -> list[_Piece]:
    pieces: list[_Piece] = []
    at = 0
    for mark in _MARK.finditer(marked):
        index = int(mark[1])
        pieces += [_Piece(marked[at : mark.start()]), _Piece(contents[index], index)]
        at = mark.end()
    return [p for p in [*pieces, _Piece(marked[at:])] if p.text or p.index is not None]


def _locate(real: str, contents: Sequence[str]) -> list[_Piece]:
    """Find each content in the rendered text, in turn."""
    pieces: list[_Piece] = []
    at = 0
    for index, content in enumerate(contents):
        for text in (content, content.strip()):
            found = real.find(text, at) if text else -1
            if found >= 0:
                pieces += [_Piece(real[at:found]), _Piece(text, index)]
                at = found + len(text)
                break
    return [p for p in [*pieces, _Piece(real[at:])] if p.text or p.index is not None]
