"""The figures of an answer in words, fitted to a width."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from specli.chat.answer import Answer
from specli.core.types import Cycle
from specli.ui.terminal import cells

_RECENT = 8  # cycles without a draft after which drafting counts as paused


@dataclass(frozen=True, slots=True)
class Figures:
    """What there is to show; None for what was not measured. `method`: who drafts; `seconds`: of all cycles, where
    there was only one, which has no rate."""

    tokens: int
    rate: float | None
    seconds: float | None
    acceptance: float | None
    mean_length: float | None
    method: str
    speedup: float | None


class Recent:
    """Who drafted lately."""

    def __init__(self, methods: Sequence[str]) -> None:
        self._idle = "no draft now" if methods else "no drafting"
        self._last: deque[str] = deque(maxlen=_RECENT)

    def add(self, cycle: Cycle) -> None:
        self._last.append(cycle.draft.method if cycle.draft.tokens else "")

    @property
    def method(self) -> str:
        """The latest that drafted in the last cycles, or words for none."""
        return next((method for method in reversed(self._last) if method), self._idle)


def live_figures(answer: Answer, recent: Recent) -> Figures:
    """The figures so far."""
    return _figures(answer, recent.method)


def final_figures(answer: Answer, methods: Sequence[str]) -> Figures:
    """The figures of a whole answer: the methods that had tokens accepted, in order."""
    used = [m for m, figures in answer.stats.by_method.items() if figures.accepted]
    tried = list(answer.stats.by_method)
    return _figures(answer, "+".join(used or tried) or ("nothing drafted" if methods else "no drafting"))


def _figures(answer: Answer, method: str) -> Figures:
    stats = answer.stats
    return Figures(
        tokens=stats.generated,
        rate=stats.tokens_per_second,
        seconds=stats.total_s if stats.cycles == 1 and stats.generated > 1 else None,
        acceptance=stats.acceptance_rate,
        mean_length=stats.mean_accepted_length,
        method=method.replace("draft-self-layers", "draft-self (layers)"),
        speedup=answer.speedup if stats.drafted else None,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """One figure in three lengths. Of two that do not both fit, the one of lower `worth` goes."""

    long: str
    short: str
    tiny: str
    worth: int


def line(figures: Figures, width: int, *, final: bool = False) -> str:
    """One line of at most `width` cells, as wordy as fits. `final`: with the number of tokens."""
    parts = _parts(figures, final)
    while parts:
        for separator, texts in (
            (" · ", [p.long for p in parts]),
            (" · ", [p.short for p in parts]),
            ("  ", [p.tiny for p in parts]),
            (" ", [p.tiny for p in parts]),
        ):
            text = separator.join(texts)
            if cells(text) <= width:
                return text
        parts.remove(min(parts, key=lambda p: p.worth))
    return ""


def _parts(f: Figures, final: bool) -> list[_Part]:
    parts: list[_Part] = []
    if final:
        word = "token" if f.tokens == 1 else "tokens"
        parts.append(_Part(f"{f.tokens} {word}", f"{f.tokens} tok", f"{f.tokens} tok", 0))
    if f.rate is not None:
        rate = f"{f.rate:.1f}" if f.rate < 100 else f"{f.rate:.0f}"
        parts.append(_Part(f"{rate} tok/s", f"{rate} tok/s", f"{rate} t/s", 9))
    elif f.seconds is not None:
        parts.append(_Part(f"in {f.seconds:.2f} s", f"{f.seconds:.2f} s", f"{f.seconds:.1f}s", 9))
    if f.acceptance is not None:
        share = f"{100 * f.acceptance:.0f}%"
        parts.append(_Part(f"{share} accepted", f"{share} acc", share, 6))
    if f.mean_length is not None and f.acceptance is not None:
        mean = f"{f.mean_length:.2f}"
        parts.append(_Part(f"{mean}/cycle", f"{mean}/cycle", f"{f.mean_length:.1f}/cyc", 3))
    parts.append(_Part(f.method, f.method, f.method, 5))
    if f.speedup is not None:
        parts.append(_Part(f"{f.speedup:.2f}× plain", f"{f.speedup:.2f}×", f"{f.speedup:.1f}×", 7))
    return parts
