"""Did the others say what plain decoding said? Where not: where it began, and how close a call it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specli.bench.contest import Contest, Run
from specli.bench.contestants import PLAIN
from specli.core.decoding import sync


@dataclass(frozen=True, slots=True)
class Difference:
    """An output that is not plain's. `index`: the first token that differs, counted from 0. `gap`: between
    the two best logits there, decoded alone; None where one output merely ended earlier.

    Rows of a wide decode differ from a single one in their last bits, so the smallest gaps can flip.
    """

    contestant: str
    workload: str
    index: int
    gap: float | None


def differences(contest: Contest, runs: Sequence[Run]) -> list[Difference]:
    """One for each contestant and prompt whose first output differs from plain's. Decodes with the target."""
    plain = {r.workload: r.tokens for r in reversed(runs) if r.contestant == PLAIN}
    firsts = {(r.contestant, r.workload): r for r in reversed(runs)}
    found: list[Difference] = []
    for run in firsts.values():
        reference = plain.get(run.workload)
        if reference is None:
            continue
        index = first_difference(reference, run.tokens)
        if index is not None:
            gap = None
            if index < min(len(reference), len(run.tokens)):
                gap = _gap(contest, run.workload, reference[:index])
            found.append(Difference(run.contestant, run.workload, index, gap))
    return found


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs, or where the shorter one ends; None where both are equal."""
    for i, (a, b) in enumerate(zip(one, other)):
        if a != b:
            return i
    return None if len(one) == len(other) else min(len(one), len(other))


def _gap(contest: Contest, workload: str, said: Sequence[int]) -> float:
    generator = contest.generator
    prompt = next(contest.prompt(w) for w in contest.workloads if w.id == workload)
    tokens = [*prompt, *said]
    sync(generator.target, tokens[:-1], generator.chunk)
    row = generator.target.decode(tokens[-1:], rows=1)[0]
    second, first = np.partition(row, -2)[-2:]
    return float(first - second)
