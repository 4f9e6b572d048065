"""One answer: cycles become text, figures, and the history that the next turn builds on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from specli.chat.text import TextStream
from specli.core.decoding import Rules, decode, sync
from specli.core.pacing import Pacer, ProfitPacer
from specli.core.stats import Stats
from specli.core.types import Cycle, Drafter, TokenLogprobs
from specli.engine.context import Context
from specli.engine.vocab import Vocab


@dataclass(frozen=True, slots=True)
class Span:
    """Text that may be shown. `method`: who drafted it, empty for the target's own tokens."""

    text: str
    method: str = ""


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
    prompt_tokens: int = 0  # really decoded, not taken from the cache
    started: float = field(default_factory=time.perf_counter)


class Answer:
    """Iterate to get `Step`s; afterwards `text`, `tokens`, `finish`, `stats` and `timing` are final.

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
    ) -> None:
        self.prompt_length = len(history)
        self.history = history
        self.stats = Stats()
        self.timing = Timing()
        self.finish: str | None = None
        self.seed = rules.seed
        self._target, self._drafters, self._rules, self._pacer = target, drafters, rules, pacer
        self._vocab, self._chunk, self._stop = vocab, chunk, stop
        self._stream = TextStream(vocab.piece, stops)
        self._parts: list[str] = []
        self._logprobs: list[TokenLogprobs] = []

    def __iter__(self) -> Iterator[Step]:
        began = time.perf_counter()
        kept = len(self._target.tokens)
        if not sync(self._target, self.history[:-1], self._chunk, self._stop):
            self.finish = "interrupted"
            return
        self.timing.prompt_tokens = max(0, len(self.history) - min(kept, len(self.history)))
        self.timing.prompt_s = time.perf_counter() - began
        for drafter in self._drafters:
            drafter.begin(self.history)
        cycles = decode(self._target, self.history, self._drafters, self._rules, self._pacer)
        for cycle in cycles:
            self.stats.fold(cycle, self._rules.exact_width or 1)
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
        rest = self._stream.finish()
        if rest:
            self._parts.append(rest)
            yield Step(None, (Span(rest),))

    def _spans(self, cycle: Cycle) -> tuple[Span, ...]:
        spans: list[Span] = []
        for i, token in enumerate(cycle.tokens):
            text = self._stream.feed((token,))
            if text:
                spans.append(Span(text, cycle.draft.method if i < cycle.verdict.accepted else ""))
        self._parts += [s.text for s in spans]
        return tuple(spans)

    def _cut(self) -> None:
        """A stop string was found: what belongs to it and follows it was never said."""
        self.finish = "stop"
        keep = self.prompt_length + self._stream.kept_tokens
        del self.history[max(keep, self.prompt_length) :]

    @property
    def text(self) -> str:
        """All that was said so far, end tokens and stop strings left out."""
        return "".join(self._parts)

    @property
    def tokens(self) -> list[int]:
        """The tokens emitted so far."""
        return self.history[self.prompt_length :]

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        """One for each of `tokens`; None if they were not asked for."""
        return None if self._rules.logprobs is None else self._logprobs[: len(self.tokens)]

    @property
    def said(self) -> tuple[int, ...]:
        """The answer's tokens without the end token: what stands in the next turn's prompt."""
        tokens = self.tokens
        if tokens and tokens[-1] in self._rules.ends:
            tokens.pop()
        return tuple(tokens)

    @property
    def speedup(self) -> float | None:
        """Estimated gain over plain decoding in this mode; None where plain was not measured."""
        return self.stats.speedup(self._plain_token_s)

    @property
    def break_even(self) -> float | None:
        """Acceptance rate from which on this answer's drafts pay; see `Stats.break_even`."""
        return self.stats.break_even(self._plain_token_s)

    @property
    def break_even_length(self) -> float | None:
        """Tokens a drafting cycle must emit to pay; see `Stats.break_even_length`."""
        return self.stats.break_even_length(self._plain_token_s)

    @property
    def _plain_token_s(self) -> float | None:
        """What one plain decode takes, where earlier answers measured it."""
        if self._rules.exact_width is None and isinstance(self._pacer, ProfitPacer):
            return self._pacer.costs.measured(1)
        return None
