"""When speculation is worth it, in plain words and from measured figures.

The framework: a cycle costs a verify of width K + 1 and K draft tokens, and emits 1 plus the accepted
ones. So what counts is, in this order: does the verify of a few rows cost little more than one (memory
bound, as on a GPU or a large model), is the draft cheap beside the target, does it agree often enough.
"""

from __future__ import annotations

from collections.abc import Iterator

from specli.pairing import PairFigures


def advice(figures: PairFigures, how: str = "--draft-model") -> list[str]:
    """What the figures of a pair mean and what to do, the verdict first; one sentence or two each.

    `how`: the option that makes the draft serve."""
    return [*_trust(figures), _verdict(figures, how), *_why(figures), *_elsewhere(figures)]


def _trust(f: PairFigures) -> Iterator[str]:
    if f.noisy:
        yield (
            f"Equal decodes differed by {f.spread - 1:.0%}: the machine was busy, so do not rely on these "
            "times; measure again when it is quiet."
        )


def _verdict(f: PairFigures, how: str) -> str:
    if not f.pays:
        return (
            f"It cannot pay here: at its best length, {f.best_length}, this draft makes {f.speedup:.2f} "
            "times plain speed. Leave it out."
        )
    return (
        f"It pays here: about {f.speedup:.2f} times plain speed with drafts of {f.best_length}; use it with "
        f"{how} and --spec-draft-n-max {f.best_length}."
    )


def _why(f: PairFigures) -> Iterator[str]:
    yield f"A draft token costs {f.cost_ratio:.2f} of a target token; {_weigh(f)}"
    width = min(5, len(f.widths))
    verify = f.widths[width - 1] / f.widths[0]
    if verify > 0.75 * width:
        yield (
            f"Verifying {width} tokens costs {verify:.1f} times one: this machine computes at its limit, so "
            "several at once save little. A GPU, or more cores, would change that."
        )
    else:
        yield f"Verifying {width} tokens costs {verify:.1f} times one, so accepted ones come cheaper than plain."
    yield f"{f.acceptance:.0%} of the tested tokens were accepted, at temperature {f.temp:g}; {_needed(f)}"


def _weigh(f: PairFigures) -> str:
    if f.cost_ratio > 0.4:
        return "a draft of a tenth of the target's size would cost less than it can bring."
    return "that is cheap enough."


def _needed(f: PairFigures) -> str:
    if f.break_even is None:
        return "not even full agreement would make up for the cost."
    if f.acceptance < f.break_even:
        return f"from {f.break_even:.0%} on it would pay."
    return f"it pays from {f.break_even:.0%} on."


def _elsewhere(f: PairFigures) -> Iterator[str]:
    if not f.pays:
        yield (
            "What needs no second model may still pay: drafts from the text itself (--spec-type draft-self "
            "or ngram-simple) cost next to nothing, and help where the answer repeats its prompt, as in code "
            "edits, quotes and corrections."
        )
    if f.temp > 0:
        yield "Lower temperatures raise agreement: try --temp 0.2 where the task allows it."
    elif f.pays:
        yield "Higher temperatures lower agreement: measure again with --temp if you raise it."
    if f.tokens < 1000:
        yield f"This rests on {f.tokens} tokens of short prompts; `specli bench` measures your own."
