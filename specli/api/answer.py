"""What came of an answer, as records that stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from specli.chat.answer import Answer as Live

Finish = Literal["stop", "length", "context", "interrupted"]
"""Why an answer ended: the model (or a stop text, or a grammar) ended it, max_tokens, a full context, or
whoever asked for it."""


@dataclass(frozen=True, slots=True)
class MethodFigures:
    """Draft tokens of one method: proposed, tested by the target, accepted."""

    drafted: int
    tested: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one answer. Rates are None, and times are None, where nothing was measured.

    `prompt_tokens`: of the whole prompt; `prompt_decoded`: those that were not in the cache.
    `acceptance_rate`: accepted / tested. `mean_accepted_length`: tokens emitted per cycle.
    `per_position`: acceptance by position in the draft. `tokens_per_second`: of what came after the first
    cycle. `speedup_estimate`: what plain decoding would have taken over what it took, by `plain_token_s` for
    a decode without a draft. Times are in seconds.
    """

    prompt_tokens: int = 0
    prompt_decoded: int = 0
    generated: int = 0
    cycles: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    acceptance_rate: float | None = None
    mean_accepted_length: float | None = None
    per_position: tuple[float, ...] = ()
    by_method: Mapping[str, MethodFigures] = field(default_factory=lambda: MappingProxyType({}))
    tokens_per_second: float | None = None
    prompt_tokens_per_second: float | None = None
    speedup_estimate: float | None = None
    prompt_s: float | None = None
    first_token_s: float | None = None
    decode_s: float | None = None
    draft_s: float | None = None
    verify_s: float | None = None
    plain_token_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `reasoning`: what the model thought aloud before it, None if it did not. `tokens`: the
    ids emitted, reasoning and an end token included. `seed`: repeats it."""

    text: str
    reasoning: str | None
    tokens: tuple[int, ...]
    finish: Finish
    seed: int
    stats: Figures

    def __str__(self) -> str:
        return self.text


def answer_of(live: Live) -> Answer:
    """The record of what an answer has come to so far; one that was left early was interrupted."""
    finish = cast("Finish", live.finish or "interrupted")
    return Answer(live.text, live.reasoning, tuple(live.tokens), finish, live.seed, figures_of(live))


def figures_of(live: Live) -> Figures:
    """Its figures."""
    stats, timing = live.stats, live.timing
    ran = bool(stats.cycles)
    methods = {n: MethodFigures(m.drafted, m.tested, m.accepted) for n, m in stats.by_method.items()}
    return Figures(
        prompt_tokens=live.prompt_length,
        prompt_decoded=timing.prompt_tokens,
        generated=stats.generated,
        cycles=stats.cycles,
        drafted=stats.drafted,
        tested=stats.tested,
        accepted=stats.accepted,
        acceptance_rate=stats.acceptance_rate,
        mean_accepted_length=stats.mean_accepted_length,
        per_position=tuple(stats.per_position),
        by_method=MappingProxyType(methods),
        tokens_per_second=stats.tokens_per_second,
        prompt_tokens_per_second=timing.prompt_rate,
        speedup_estimate=live.speedup,
        prompt_s=timing.prompt_s,
        first_token_s=timing.first_token_s,
        decode_s=stats.total_s if ran else None,
        draft_s=stats.draft_s if ran else None,
        verify_s=stats.verify_s if ran else None,
        plain_token_s=live.plain_token_s,
    )
