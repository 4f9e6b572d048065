"""One answer: cycles become text, figures, and the history that the next turn builds on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from specli.chat.conversation import Message
from specli.chat.reasoning import Splitter, Thinking
from specli.chat.record import Record
from specli.chat.text import TextStream
from specli.core.decoding import Rules, common_prefix, decode, sync
from specli.core.pacing import Pacer, ProfitPacer
from specli.core.stats import Stats
from specli.core.types import Cycle, Drafter, TokenLogprobs
from specli.engine.context import Context
from specli.engine.vocab import Vocab


@dataclass(frozen=True, slots=True)
class Span:
    """Text that may be shown. `method`: who drafted it, empty for the target's own tokens. `reasoning`:
    thought aloud, no part of the answer."""

    text: str
    method: str = ""
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What one cycle adds: the text, span by span (none while characters or stop strings are held)."""

    cycle: Cycle | None
    spans: tuple[Span, ...] = ()


@dataclass(slots=True)
class Timing:
    """Seconds. None until it was measured."""

    prompt_s: float | None = None
    first_token_s: float | None = None
    prompt_tokens: int = 0  # really decoded, not taken from the cache; the last one in the first cycle
    reasoning_s: float | None = None  # from the first token to the end of the reasoning
    started: float = field(default_factory=time.perf_counter)

    @property
    def prompt_rate(self) -> float | None:
        """Prompt tokens a second, None where all but the last were in the cache."""
        return self.prompt_tokens / self.prompt_s if self.prompt_s and self.prompt_tokens > 1 else None


class Answer:
    """Iterate to get `Step`s; afterwards `text`, `reasoning`, `tokens`, `finish`, `stats` and `timing` are
    final.

    May be abandoned at any step: the cache stays valid for the next answer.
    """

    def __init__(
        self,
        target: Context,
        history: list[int],
        drafters: Sequence[Drafter],
        rules: Rules,
        pacer: Pacer,
        vocab: Vocab,
        stops: Sequence[str],
        chunk: int,
        stop: Callable[[], bool],
        thinking: Thinking | None = None,
    ) -> None:
        """`thinking`: how the model marks its reasoning; None where all it says is the answer."""
        self.prompt_length = len(history)
        self.history = history
        self.stats = Stats()
        self.timing = Timing()
        self.finish: str | None = None
        self.seed = rules.seed
        self.methods = [drafter.method for drafter in drafters]
        self.record = Record(pacer, self.methods)
        self.reasoning_tokens = 0
        self._target, self._drafters, self._rules, self._pacer = target, drafters, rules, pacer
        self._vocab, self._chunk, self._stop = vocab, chunk, stop
        self._thinking = thinking
        self._opening = thinking.opened_by(history, vocab) if thinking is not None else ()
        self._splitter = None if thinking is None else Splitter(thinking.tags, bool(self._opening))
        self._stream = TextStream(self._piece, stops)
        self._parts: list[str] = []
        self._thoughts: list[str] = []
        self._logprobs: list[TokenLogprobs] = []

    def __iter__(self) -> Iterator[Step]:
        began = time.perf_counter()
        kept = self._target.rewind(common_prefix(self._target.tokens, self.history[:-1]))
        if not sync(self._target, self.history[:-1], self._chunk, self._stop):
            self.finish = "interrupted"
            return
        self.timing.prompt_tokens = len(self.history) - kept
        self.timing.prompt_s = time.perf_counter() - began
        for drafter in self._drafters:
            drafter.begin(self.history)
        cycles = decode(self._target, self.history, self._drafters, self._rules, self.record.pacer)
        for cycle in cycles:
            self.stats.fold(cycle, self._rules.exact_width or 1)
            self.record.add(cycle)
            self._logprobs += cycle.logprobs
            if self.timing.first_token_s is None:
                self.timing.first_token_s = time.perf_counter() - self.timing.started
            yield Step(cycle, self._spans(cycle))
            if self._stream.stopped:
                self._cut()
            elif cycle.finish is not None:
                self.finish = cycle.finish
            elif self._stop():
                self.finish = "interrupted"
            if self.finish is not None:
                break
        if self.finish is None:  # before a first cycle: the grammar wants nothing said, or there is no room
            constraint = self._rules.constraint
            self.finish = "stop" if constraint is not None and constraint.over else "context"
        spans = self._split(self._stream.finish(), "", final=True)
        if spans:
            yield Step(None, tuple(spans))

    def _spans(self, cycle: Cycle) -> tuple[Span, ...]:
        spans: list[Span] = []
        for i, token in enumerate(cycle.tokens):
            text = self._stream.feed((token,))
            if text:
                spans += self._split(text, _method(cycle, i))
            if self.thinking:
                self.reasoning_tokens += 1
                since = self.timing.started + (self.timing.first_token_s or 0.0)
                self.timing.reasoning_s = time.perf_counter() - since
        return tuple(spans)

    def _split(self, text: str, method: str, final: bool = False) -> list[Span]:
        """As spans of reasoning and answer, both of which are kept."""
        if self._splitter is None:
            spans = [Span(text, method)] if text else []
        else:
            parts = self._splitter.feed(text)
            parts += self._splitter.finish() if final else []
            spans = [Span(part.text, method, part.reasoning) for part in parts]
        for span in spans:
            (self._thoughts if span.reasoning else self._parts).append(span.text)
        return spans

    def _piece(self, token: int) -> bytes:
        visible = self._thinking is not None and token in self._thinking.visible
        return self._vocab.piece(token, special=visible)

    def _cut(self) -> None:
        """A stop string was found: what belongs to it and follows it was never said."""
        self.finish = "stop"
        keep = self.prompt_length + self._stream.kept_tokens
        self.stats.generated -= len(self.history) - keep
        del self.history[keep:]
        # as after plain decoding, however far a draft was read: the next prompt begins from the same cache
        self._target.rewind(len(self.history) - 1)

    @property
    def text(self) -> str:
        """The answer so far: reasoning, end tokens and stop strings left out."""
        return "".join(self._parts)

    @property
    def reasoning(self) -> str | None:
        """What was thought aloud so far, without its tags; None if nothing was."""
        return "".join(self._thoughts) or None

    @property
    def thinking(self) -> bool:
        """Whether the model is in the midst of its reasoning."""
        return self._splitter is not None and self._splitter.inside

    @property
    def reasoning_tags(self) -> tuple[str, str]:
        """What opens and closes the reasoning; empty where the model does not mark any."""
        return ("", "") if self._thinking is None else (self._thinking.tags.open, self._thinking.tags.close)

    @property
    def whole_text(self) -> str:
        """Reasoning and answer as the model said them, with tags between; `text` where it did not reason."""
        if self.reasoning is None or self._thinking is None:
            return self.text
        tags = self._thinking.tags
        close = "" if self.thinking else f"\n{tags.close}\n\n"
        return f"{tags.open}\n{self.reasoning}{close}{self.text}"

    @property
    def tokens(self) -> list[int]:
        """The tokens emitted so far."""
        return self.history[self.prompt_length :]

    def words(self, tokens: Sequence[int]) -> str:
        """What tokens say, control tokens written out."""
        return self._vocab.text(tokens, special=True).decode("utf-8", "replace")

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        """One for each of `tokens`; None if they were not asked for."""
        return None if self._rules.logprobs is None else self._logprobs[: len(self.tokens)]

    @property
    def said(self) -> tuple[int, ...]:
        """The answer's tokens without the end token, reasoning and all."""
        tokens = self.tokens
        if tokens and tokens[-1] in self._rules.ends:
            tokens.pop()
        return tuple(tokens)

    @property
    def message(self) -> Message:
        """What stands in the next turn's prompt: all that was said, as the tokens it was said in, or the
        answer alone where the template leaves reasoning out."""
        if self._thinking is None or self.reasoning is None:
            return Message("assistant", self.text, self.said)
        if self._thinking.kept:
            return Message("assistant", self.whole_text, (*self._opening, *self.said))
        return Message("assistant", self.text, self._answer_tokens())

    def _answer_tokens(self) -> tuple[int, ...] | None:
        """The last tokens, those that say `text`; None where it does not begin with a token."""
        said, left = self.said, len(self.text.encode())
        for n in range(len(said), -1, -1):
            if left == 0:
                text = self._vocab.text(said[n:]).decode("utf-8", "replace")
                return said[n:] if text == self.text else None
            if n:
                left -= len(self._vocab.piece(said[n - 1]))
            if left < 0:
                break
        return None

    @property
    def speedup(self) -> float | None:
        """Estimated gain over plain decoding in this mode; None where plain was not measured."""
        return self.stats.speedup(self._earlier_plain_s)

    @property
    def break_even(self) -> float | None:
        """Acceptance rate from which on this answer's drafts pay; see `Stats.break_even`."""
        return self.stats.break_even(self._earlier_plain_s)

    @property
    def break_even_length(self) -> float | None:
        """Tokens a drafting cycle must emit to pay; see `Stats.break_even_length`."""
        return self.stats.break_even_length(self._earlier_plain_s)

    @property
    def plain_token_s(self) -> float | None:
        """Seconds of one plain decode, which `speedup` goes by: as measured in this answer, or before it where
        this one has none (`Stats.plain_decodes` is 0 then)."""
        return self.stats.plain_token_s or self._earlier_plain_s

    @property
    def _earlier_plain_s(self) -> float | None:
        if self._rules.exact_width is None and isinstance(self._pacer, ProfitPacer):
            return self._pacer.costs.measured(1)
        return None


def _method(cycle: Cycle, i: int) -> str:
    """Who drafted the cycle's token `i`; empty for the target's own."""
    if i >= cycle.verdict.accepted:
        return ""
    tree = cycle.draft.tree
    return cycle.draft.method if tree is None else tree.methods[cycle.verdict.path[i]]
