"""What happened in each cycle of an answer, kept to be looked at afterwards."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from specli.core.pacing import Pacer
from specli.core.types import Cycle, Draft

RECORDED = 2000
"""Cycles that are kept of one answer: the latest."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What one drafter had to say in a cycle, `proposed` tokens, and how many of them were to be drafted
    by the pacer's reckoning. `measuring`: it did not know yet what a plain decode takes."""

    method: str
    proposed: int
    kept: int
    measuring: bool = False


@dataclass(frozen=True, slots=True)
class Recorded:
    """A cycle with the offers before it. `number`: 1 for the first cycle of the answer."""

    number: int
    cycle: Cycle
    offers: tuple[Offer, ...]


class Record:
    """Collects the cycles of one answer. `methods`: the drafters in the order in which they are asked."""

    def __init__(self, pacer: Pacer, methods: Sequence[str]) -> None:
        self.cycles: deque[Recorded] = deque(maxlen=RECORDED)
        self.total = 0
        self._witness = _Witness(pacer, methods)

    @property
    def pacer(self) -> Pacer:
        """The pacer to decode with: the one given, overheard."""
        return self._witness

    def add(self, cycle: Cycle) -> None:
        """A cycle is done."""
        self.total += 1
        self.cycles.append(Recorded(self.total, _light(cycle), tuple(self._witness.offers)))
        self._witness.offers.clear()


class _Witness:
    """Passes everything on to a pacer and notes what it chooses."""

    def __init__(self, pacer: Pacer, methods: Sequence[str]) -> None:
        self._pacer, self._methods = pacer, methods
        self._measuring = False
        self.offers: list[Offer] = []

    def choose(self, draft: Draft, depth: int) -> Draft:
        costs = getattr(self._pacer, "costs", None)
        self._measuring = costs is not None and not costs.known and costs.measured(1) is None
        chosen = self._pacer.choose(draft, depth)
        at = len(self.offers)
        method = draft.method or (self._methods[at] if at < len(self._methods) else "")
        self.offers.append(Offer(method, len(draft), len(chosen), self._measuring))
        return chosen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pacer, name)


def _light(cycle: Cycle) -> Cycle:
    """Without what is large and of no use afterwards."""
    if cycle.draft.q is None and not cycle.logprobs:
        return cycle
    return replace(cycle, draft=replace(cycle.draft, q=None), logprobs=())
