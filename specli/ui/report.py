"""What /stats says."""

from __future__ import annotations

from collections.abc import Sequence

from specli.chat.answer import Answer
from specli.ui.figures import final_figures, line


def report(answers: Sequence[Answer], cached: int, n_ctx: int) -> list[str]:
    """Lines on the last answer and on the whole conversation. `cached` of `n_ctx` tokens are in use."""
    if not answers:
        return [f"no answer yet; context 0 of {n_ctx} tokens"]
    last = answers[-1]
    lines = ["last answer:  " + line(final_figures(last, ["any"]), 1000, final=True)]
    for name, method in last.stats.by_method.items():
        lines.append(
            f"  {name}: {method.drafted} drafted, {method.tested} tested, {method.accepted} accepted"
        )
    positions = last.stats.per_position[:8]
    if positions:
        lines.append("  accepted by position: " + " ".join(f"{100 * p:.0f}%" for p in positions))
    if last.timing.prompt_s is not None and last.timing.first_token_s is not None:
        lines.append(
            f"  prompt: {last.prompt_length} tokens, {last.timing.prompt_tokens} of them decoded; "
            f"first token after {last.timing.first_token_s:.2f} s"
        )
    tokens = sum(a.stats.generated for a in answers)
    cycles = sum(a.stats.cycles for a in answers)
    seconds = sum(a.stats.total_s for a in answers)
    count = f"{len(answers)} answer{'s' if len(answers) > 1 else ''}"
    rate = f" in {seconds:.1f} s" if seconds else ""
    lines.append(f"in all:       {count}, {tokens} tokens in {cycles} cycles{rate}")
    lines.append(f"context:      {cached} of {n_ctx} tokens")
    return lines
