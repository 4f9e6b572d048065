"""grammar: where the answer's grammar leaves no choice, what must follow is drafted, for nothing.

It costs no decode, and all that the model can still differ in is how the text is cut into tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from specli.core.types import NO_DRAFT, Cycle, Draft
from specli.engine.grammar import Grammar

_CERTAIN = 64  # as an n-gram match of this length: the longest that evidence is kept for


class GrammarDrafter:
    """Reads `grammar`, which the loop keeps in step with the history."""

    method = "grammar"

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    def begin(self, history: Sequence[int]) -> None:
        pass

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        tokens = self._grammar.forced(limit)
        return Draft(tuple(tokens), self.method, match=_CERTAIN) if tokens else NO_DRAFT

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        pass

    def close(self) -> None:
        pass
