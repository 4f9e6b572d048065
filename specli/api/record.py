"""The one object that stands for an answer in JSON: what `specli run --json` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specli import __version__

if TYPE_CHECKING:
    from specli.assembly import Generator
    from specli.chat.answer import Answer
    from specli.core.types import Candidate, TokenLogprobs


def json_object(generator: Generator, answer: Answer, load_s: float | None) -> dict[str, object]:
    """All of an answer, ready for `json.dumps`; null for what was not measured."""
    stats, timing = answer.stats, answer.timing
    ran = bool(stats.cycles)
    return {
        "specli": __version__,
        "model": generator.model.name,
        "draft": generator.draft_model.name if generator.draft_model else None,
        "methods": generator.methods,
        "profile": generator.settings.profile,
        "text": answer.text,
        "reasoning": answer.reasoning,
        "token_ids": answer.tokens,
        "logprobs": _logprobs(generator, answer),
        "finish_reason": answer.finish or "interrupted",
        "tokens": {
            "prompt": answer.prompt_length,
            "generated": stats.generated,
            "drafted": stats.drafted,
            "tested": stats.tested,
            "accepted": stats.accepted,
            "cycles": stats.cycles,
        },
        "acceptance": {
            "rate": stats.acceptance_rate,
            "mean_accepted_length": stats.mean_accepted_length,
            "per_position": stats.per_position,
        },
        "by_method": {
            name: {"drafted": m.drafted, "tested": m.tested, "accepted": m.accepted}
            for name, m in stats.by_method.items()
        },
        "timing": {
            "load_s": load_s,
            "prompt_s": timing.prompt_s,
            "first_token_s": timing.first_token_s,
            "decode_s": stats.total_s if ran else None,
            "draft_s": stats.draft_s if ran else None,
            "verify_s": stats.verify_s if ran else None,
        },
        "cycle": {
            "draft_share": stats.draft_share,
            "verify_share": stats.verify_share,
            "plain_token_s": answer.plain_token_s,
            "widths": {str(width): count for width, count in sorted(stats.widths.items())},
            "wasted_tokens": stats.wasted,
            "break_even_length": answer.break_even_length,
            "break_even_acceptance": answer.break_even,
        },
        "tokens_per_second": stats.tokens_per_second,
        "prompt_tokens_per_second": timing.prompt_rate,
        "speedup_estimate": answer.speedup,
        "seed": answer.seed,
        "exact_width": generator.settings.fixed_width,
        "notices": list(generator.notices),
    }


def _logprobs(generator: Generator, answer: Answer) -> list[dict[str, object]] | None:
    """Of each token, and of those likeliest in its place; null if not asked for."""
    if answer.logprobs is None:
        return None
    vocab = generator.model.vocab

    def shown(each: Candidate | TokenLogprobs) -> dict[str, object]:
        text = vocab.piece(each.token, special=True).decode("utf-8", "replace")
        return {"id": each.token, "text": text, "logprob": each.logprob}

    return [{**shown(each), "top": [shown(one) for one in each.top]} for each in answer.logprobs]
