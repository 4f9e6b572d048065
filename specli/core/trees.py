"""Trees of draft tokens: several candidates at one place, judged in one decode.

Miao et al., "SpecInfer: accelerating large language model serving with tree-based speculative inference and
verification" (2024), algorithm 2; Chen et al., "Sequoia: scalable and robust speculative decoding" (2024).
At each node the children are tried in order. One drawn from q is accepted with probability min(1, p/q);
after a rejection the next one faces what is left of p, max(0, p - q), normalised. If none is accepted, a
token is recovered from what is left last. Whatever q a sibling is drawn from, given those before it, what is
emitted is distributed as p; drawing without replacement wastes no sibling on what was just rejected.

Where the children are deterministic, or the verification is coupled, the target's own token is drawn first
and the child that is the same is followed, as in a draft without branches.

How large a tree is worth is the rule of `pacing`: a node joins if the tokens it is expected to add are more
than its row costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specli.core.noise import Noise
from specli.core.types import Distribution, Draft, Tree, Verdict
from specli.core.verification import residual


def verify_tree(
    draft: Draft,
    target: Callable[[int], Distribution],
    noise: Noise,
    position: int,
    ends: Container[int] = (),
    coupled: bool = False,
) -> Verdict:
    """Accept one path of the tree from its root, then recover or add one token.

    As `verify`, but `target(row)` is the target's distribution after node row - 1; it is asked along the
    accepted path only, in order.
    """
    assert draft.tree is not None
    children = draft.tree.children()
    emitted: list[int] = []
    path: list[int] = []
    row = 0
    while True:
        n = len(path)
        p = target(row)
        if p.empty:
            return Verdict(tuple(emitted), n, n, tuple(path))
        if draft.q is None or coupled:
            token = noise.choose(p, position + n)
            node = next((c for c in children[row] if draft.tokens[c] == token), None)
        else:
            node, token = _try(draft, draft.q, children[row], p, noise, position + n)
        emitted.append(token)
        if node is None:
            return Verdict(tuple(emitted), n, n + bool(children[row]), tuple(path))
        path.append(node)
        if token in ends:
            return Verdict(tuple(emitted), n + 1, n + 1, tuple(path))
        row = node + 1


def _try(
    draft: Draft,
    laws: Sequence[Distribution],
    siblings: Sequence[int],
    p: Distribution,
    noise: Noise,
    position: int,
) -> tuple[int | None, int]:
    """The first sibling that is accepted and its token; None and a recovered token if none is."""
    for i, node in enumerate(siblings):
        token, q = draft.tokens[node], laws[node]
        if noise.uniform(position, i) * q.prob(token) < p.prob(token):
            return node, token
        p = residual(p, q)
    return None, noise.choose(p, position)


def without_replacement(
    law: Distribution, perturbed: NDArray[np.float64], n: int, taken: Container[int] = ()
) -> list[tuple[int, Distribution]]:
    """`n` different tokens drawn from `law` one after the other, each with the law it was drawn from: what
    the tokens before it, and those `taken`, leave of `law`. Fewer where that is nothing.

    `perturbed`: per id of the law its log-probability plus Gumbel noise; their order is such a draw (Kool,
    van Hoof, Welling 2019, "Stochastic beams and where to find them").
    """
    if taken:
        free = np.array([int(t) not in taken for t in law.ids], np.bool_)
        law, perturbed = _restricted(law, free), perturbed[free]
    found: list[tuple[int, Distribution]] = []
    order = np.argsort(-perturbed, kind="stable")[:n]
    for token in [int(law.ids[at]) for at in order]:
        found.append((token, law))
        law = _restricted(law, law.ids != token)
    return found


def _restricted(law: Distribution, keep: NDArray[np.bool_]) -> Distribution:
    """`law` given that one of the ids `keep` is drawn."""
    probs = law.probs[keep]
    return Distribution(law.ids[keep], probs / probs.sum()) if len(probs) else Distribution.nothing()


# -- how large a tree -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """The bounds of a tree: so many children of a node, nodes expanded on a level, and levels. It has at
    most `size` nodes, the best ones; `nodes` is 0 for as many as `width` drafts of `depth` tokens have."""

    width: int
    depth: int
    nodes: int = 0

    @property
    def size(self) -> int:
        """Most nodes."""
        return self.nodes or self.width * self.depth


@dataclass(frozen=True, slots=True)
class Prices:
    """What drafting costs, in tokens that the same time would otherwise bring.

    `verify`: a verify decode of so many rows, by index. `level`: drafting one level of the tree. `typical`:
    the probability of a draft token of which nothing is known to be accepted.
    """

    verify: Sequence[float]
    level: float
    typical: float


def best_size(reach: Sequence[float], prices: Prices) -> tuple[int, float]:
    """How many nodes of the largest `reach`, given in descending order, are worth most, and that worth:
    tokens emitted less the price. No more than have a price."""
    price = np.asarray(prices.verify[1 : len(reach) + 2])
    worth = 1.0 + np.concatenate([[0.0], np.cumsum(reach[: len(price) - 1])]) - price
    best = int(np.argmax(worth))
    return best, float(worth[best])


def outlook(reach: Sequence[float], typical: float, levels: int) -> list[list[float]]:
    """For each of the next levels the reach of nodes that may come below those of `reach`, one below each."""
    return [[r * typical**level for r in reach] for level in range(1, levels + 1)]


def pays_deeper(
    reach: Sequence[float], frontier: Sequence[float], prices: Prices, levels: int, limit: int
) -> bool:
    """Whether drafting on, up to `levels` more, is expected to gain more than it costs, when the tree has
    nodes of `reach` and those of `frontier` are to be expanded."""
    pool = sorted(reach, reverse=True)
    bar = best_size(pool[:limit], prices)[1]
    for level, more in enumerate(outlook(frontier, prices.typical, levels), start=1):
        pool = sorted([*pool, *more], reverse=True)
        if best_size(pool[:limit], prices)[1] - level * prices.level > bar:
            return True
    return False


def least_reach(
    fixed: Sequence[float], slots: Sequence[float], prices: Prices, levels: int, limit: int
) -> float:
    """The reach from which on a slot is filled, when the tree has the nodes `fixed` already, which stay, and
    `levels` more may follow below the slots; inf to fill none."""
    later = [r for level in outlook(slots, prices.typical, levels) for r in level]
    pool = sorted([*slots, *later], reverse=True)[: max(0, limit - len(fixed))]
    shifted = Prices(prices.verify[len(fixed) :], prices.level, prices.typical)
    n = best_size(pool, shifted)[0]
    return pool[n - 1] if n else math.inf


class Growth:
    """A tree on its way: nodes are added, later ones below earlier ones, and at last put in order."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.reach: list[float] = []
        self.methods: list[str] = []
        self.confidence: list[float] = []
        self.laws: list[Distribution] = []
        self._at: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def add(
        self,
        token: int,
        parent: int,
        reach: float,
        method: str,
        confidence: float,
        law: Distribution | None = None,
    ) -> int:
        """The node of `token` below `parent`; one that is there already is made more likely, not doubled."""
        at = self._at.get((parent, token))
        reach = min(reach, self.reach[parent]) if parent >= 0 else min(reach, 1.0)
        if at is not None:
            self.reach[at] = max(self.reach[at], reach)
            self.confidence[at] = max(self.confidence[at], confidence)
            return at
        self._at[parent, token] = at = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)
        self.reach.append(reach)
        self.methods.append(method)
        self.confidence.append(confidence)
        self.laws.append(law or Distribution.one_hot(token))
        return at

    def level(self, depth: int) -> list[int]:
        """The nodes of a level, the first being 0."""
        return [i for i, d in enumerate(self.depths) if d == depth]

    def below(self, parent: int) -> set[int]:
        """The tokens that follow a node."""
        return {t for t, p in zip(self.tokens, self.parents) if p == parent}

    def path(self, node: int) -> list[int]:
        """The tokens from the first level down to `node`; none for -1."""
        said: list[int] = []
        while node >= 0:
            said.append(self.tokens[node])
            node = self.parents[node]
        return said[::-1]

    def draft(
        self, method: str, bound: bool, levels: int, limit: int, drawn: bool = False
    ) -> tuple[Draft, list[int]]:
        """The tree as a draft of at most `limit` nodes, and which of the nodes here each of them is.

        The likeliest come first, so that any first part of it is the best tree of that size; where drawn ones
        must stay, `bound`, all keep the order in which they came. `drawn`: as in `Tree`.
        """
        order = list(range(len(self)))
        if not bound:
            order.sort(key=lambda i: (-self.reach[i], self.depths[i]))
        order = order[:limit]
        new = {node: i for i, node in enumerate(order)} | {-1: -1}
        tree = Tree(
            tuple(new[self.parents[i]] for i in order),
            tuple(self.reach[i] for i in order),
            tuple(self.methods[i] for i in order),
            levels,
            drawn,
        )
        return Draft(
            tuple(self.tokens[i] for i in order),
            method,
            tuple(self.laws[i] for i in order) if bound else None,
            confidence=tuple(self.confidence[i] for i in order),
            tree=tree,
        ), order
