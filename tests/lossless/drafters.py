"""Drafters for the statistics: honest ones of each kind, hostile ones, and dishonest ones.

Each decodes nothing: the tables are small enough to be looked up, and what is tested is the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from specli.core.noise import Noise
from specli.core.sampling import SamplingParams, distribution
from specli.core.table_model import TableModel
from specli.core.types import Cycle, Distribution, Draft

Laws = Callable[[tuple[int, ...]], Distribution]
"""From a context to a distribution, remembered: the same few contexts come again and again."""


def laws(model: TableModel, params: SamplingParams) -> Laws:
    """The distributions of `model` under `params`."""
    known: dict[tuple[int, ...], Distribution] = {}

    def law(context: tuple[int, ...]) -> Distribution:
        if context not in known:
            known[context] = distribution(model.row(context), params.window(context, ()), params)
        return known[context]

    return law


class Silent:
    """The part of a drafter that the statistics have no use for."""

    method = "test"

    def begin(self, history: Sequence[int]) -> None:
        pass

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        pass

    def close(self) -> None:
        pass


class Greedy(Silent):
    """Deterministic: the mode of `law` each time. One-hot, so without q."""

    def __init__(self, law: Laws, n: int) -> None:
        self.law, self.n = law, n
        self.noise = Noise(0)

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        context = tuple(history)
        for _ in range(min(self.n, limit)):
            context += (self.law(context).mode,)
        return Draft(context[len(history) :], self.method)


class Sampled(Silent):
    """Samples from q = `law` with `noise`, and says so."""

    def __init__(self, law: Laws, n: int) -> None:
        self.law, self.n = law, n
        self.noise = Noise(0)

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        context = tuple(history)
        q: list[Distribution] = []
        for _ in range(min(self.n, limit)):
            q.append(self.law(context))
            context += (self.noise.choose(q[-1], len(context)),)
        return self.draft(context[len(history) :], tuple(q))

    def draft(self, tokens: tuple[int, ...], q: tuple[Distribution, ...]) -> Draft:
        return Draft(tokens, self.method, q)


Proposer = Greedy | Sampled


class Liar(Sampled):
    """Samples from q and claims the square of it: the temperature forgotten in what it says."""

    def draft(self, tokens: tuple[int, ...], q: tuple[Distribution, ...]) -> Draft:
        return Draft(
            tokens, self.method, tuple(Distribution(d.ids, d.probs**2 / (d.probs**2).sum()) for d in q)
        )


class Picky(Sampled):
    """Drops the tokens from the first one that it thinks improbable on: then what is proposed is
    not distributed as q any more, though each token was drawn from it."""

    def draft(self, tokens: tuple[int, ...], q: tuple[Distribution, ...]) -> Draft:
        doubtful = (i for i, (t, d) in enumerate(zip(tokens, q)) if d.prob(t) < 0.25)
        return Draft(tokens, self.method, q).first(next(doubtful, len(tokens)))


def opposite(model: TableModel) -> TableModel:
    """A model that wants what `model` does not."""
    return TableModel(-model.table, model.order)


def near(model: TableModel, seed: int = 0, scale: float = 1.0) -> TableModel:
    """A model that resembles `model`, as a draft does its target."""
    rng = np.random.default_rng(seed)
    return TableModel(model.table + rng.normal(0.0, scale, model.table.shape).astype(np.float32), model.order)
