"""What /stats says."""

from __future__ import annotations

from dataclasses import dataclass

from specli.chat.answer import Answer
from specli.ui.figures import final_figures, line


@dataclass(slots=True)
class Totals:
    """What all answers of a conversation came to here, those taken back too."""

    answers: int = 0
    tokens: int = 0
    cycles: int = 0
    seconds: float = 0.0

    def add(self, answer: Answer) -> None:
        """One more."""
        self.answers += 1
        self.tokens += answer.stats.generated
        self.cycles += answer.stats.cycles
        self.seconds += answer.stats.total_s


def report(last: Answer | None, totals: Totals, cached: int, n_ctx: int) -> list[str]:
    """Lines on the last answer and on the whole conversation. `cached` of `n_ctx` tokens are in use."""
    gone = (
        "the last answer has no figures here: it was taken back, or another model's"
        if totals.answers
        else None
    )
    lines = _last(last) if last is not None else [gone or "no answer yet"]
    if totals.answers:
        rate = f" in {totals.seconds:.1f} s" if totals.seconds else ""
        lines.append(
            f"in all:       {_count(totals.answers, 'answer')}, {_count(totals.tokens, 'token')} in "
            f"{_count(totals.cycles, 'cycle')}{rate}"
        )
    lines.append(f"context:      {cached} of {n_ctx} tokens")
    return lines


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _last(last: Answer) -> list[str]:
    lines = ["last answer:  " + line(final_figures(last, last.methods), 1000, final=True)]
    for name, method in last.stats.by_method.items():
        lines.append(
            f"  {name}: {method.drafted} drafted, {method.tested} tested, {method.accepted} accepted"
        )
    positions = last.stats.per_position[:8]
    if positions:
        shares = " ".join(f"{100 * p:.0f}%" for p in positions)
        lines.append(f"  accepted of the 1st, 2nd, … token of a draft, where it came to that: {shares}")
    lines += _cycles(last)
    if last.timing.prompt_s is not None and last.timing.first_token_s is not None:
        lines.append(
            f"  prompt: {last.prompt_length} tokens, {last.timing.prompt_tokens} of them decoded; "
            f"first token after {last.timing.first_token_s:.2f} s"
        )
    return lines


def _cycles(answer: Answer) -> list[str]:
    """Where an answer's time went, and what its drafts had to bring."""
    stats = answer.stats
    lines: list[str] = []
    if stats.verify_share is not None and stats.draft_share is not None:
        shares = f"{100 * stats.verify_share:.0f}% verify, {100 * stats.draft_share:.0f}% draft"
        lines.append(f"  time: {shares}; draft tokens wasted: {stats.wasted}")
    if stats.widths:
        shown = [f"{width}: {count}" for width, count in sorted(stats.widths.items())]
        lines.append("  decodes by width: " + "  ".join(shown))
    if answer.speedup is not None and stats.drafted and answer.plain_token_s is not None:
        n = stats.plain_decodes
        source = (
            f"as those around the drafts took ({n} in this answer)" if n > 1 else "the one in this answer"
        )
        lines.append(
            f"  × plain, the first cycle left out as in tok/s, goes by {1000 * answer.plain_token_s:.1f} ms for a decode without a draft, "
            + (source if n else "measured before this answer, which has none")
        )
    needed, length = answer.break_even, answer.break_even_length
    if needed is not None and length is not None:
        verdict = f"{100 * needed:.0f}% accepted" if needed <= 1 else "more than all of them accepted"
        lines.append(
            f"  break-even: a cycle with a draft must emit {length:.2f} tokens at what it took here, which needs {verdict}"
        )
    return lines
