"""draft-model in trees: several candidates where the model is in doubt, judged in one decode.

The tree grows level by level, all nodes of a level in one decode of the drafting model, the likeliest first
(Li et al., "EAGLE-2: faster inference of language models with dynamic draft trees", 2024). What other
drafters found in the text joins as further branches; what they agree on is one node.

Where nothing is drawn, a tree is grown and then cut to the nodes that pay. Drawn tokens must stay: to drop
one for what it turned out to be would bend the law that q claims. So before tokens are drawn below a node,
their number is settled, from what was drawn on the levels before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specli.core.acceptance import Evidence
from specli.core.pacing import Pacer
from specli.core.sampling import distribution, top_k_ids
from specli.core.trees import Growth, Prices, Shape, least_reach, pays_deeper, without_replacement
from specli.core.types import NO_DRAFT, Cycle, Distribution, Draft, Drafter, TreeModel
from specli.drafters.model import ModelDrafter
from specli.drafters.neural import Row


class _Opinion:
    """What the drafting model thinks of the tokens below one node.

    `law`: what they are drawn from, None where the likeliest are taken. `likeliest`: their probabilities in
    descending order, as many as a node may have children; `tokens`: which these are.
    """

    __slots__ = ("law", "likeliest", "tokens")

    def __init__(self, row: Row, width: int, law: Distribution | None) -> None:
        self.law = law
        self.tokens: list[int] = []
        if law is not None:
            self.likeliest = np.sort(law.probs)[::-1][:width].tolist()
            return
        ids = top_k_ids(row, width)
        ids = ids[np.argsort(-row[ids], kind="stable")]
        x = row[ids].astype(np.float64)
        self.tokens = ids.tolist()
        self.likeliest = (np.exp(x - x[0]) / float(np.exp(row - row[ids[0]]).sum())).tolist()


class TreeDrafter(ModelDrafter):
    """Drafts trees of `shape` with a model that speaks the target's vocabulary. `method`: what to call that.

    `others`: drafters whose proposals cost nothing and join as branches; they are begun, told and closed by
    the loop, and drafts alone of them are its own affair. `n_min`: trees of fewer nodes are dropped, where
    nothing was drawn; `p_min`: tokens that the model gives less than that are not drafted. See
    `ModelDrafter` for the rest.
    """

    def __init__(
        self,
        method: str,
        model: TreeModel,
        pacer: Pacer,
        n_vocab: int,
        shape: Shape,
        others: Sequence[Drafter] = (),
        n_min: int = 0,
        p_min: float = 0.0,
        chunk: int = 512,
    ) -> None:
        super().__init__(model, pacer, n_vocab, shape.depth, n_min, p_min, chunk)
        self.method = method
        self._tree_model = model
        self._shape = shape
        self._others = others
        self._decoded: dict[int, int] = {}  # node of the draft: its number in the model's tree

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        """Keep the accepted branch as far as it was decoded, drop the rest."""
        if self._decoded and cycle.draft.tree is not None:
            path = []
            for node in cycle.verdict.path:
                if node not in self._decoded:
                    break
                path.append(self._decoded[node])
            self._tree_model.keep(path)
        self._decoded = {}
        super().commit(history, cycle)

    # -- growing --------------------------------------------------------------------------------

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        """A tree of up to `limit` nodes."""
        limit = min(limit, self._model.n_ctx - len(history))
        if self.problem or limit < max(1, self._n_min) or not self._fits(history[self._synced :]):
            return NO_DRAFT
        growth = self._found(history, limit)
        if not self._starts(growth, len(history) - 1 - self._synced, limit):
            return NO_DRAFT
        drawn = self._samples()
        self._drafts += 1
        return self._grow(history, min(limit, self._shape.size), growth, drawn)

    def _found(self, history: Sequence[int], limit: int) -> Growth:
        """The branches of the others."""
        growth = Growth()
        for other in self._others:
            draft, at = other.propose(history, limit).first(limit).until(self._voice.ends), -1
            for token, reach in zip(draft.tokens, self._pacer.reach(draft, len(history))):
                at = growth.add(token, at, reach, draft.method, 0.0)
        return growth

    def _starts(self, growth: Growth, behind: int, limit: int) -> bool:
        """Whether the model drafts at all in this cycle, beside what was found without it."""
        depth = min(limit, self._shape.depth)
        if behind > self.NEAR and not self._pacer.joins(self.method, behind, depth):
            return False
        if not self._pacer.goes_on(self.method, (), depth):
            return False
        if not len(growth):
            return True
        # what it may add: tokens where none of those found is right
        missed = max(0.0, 1.0 - sum(growth.reach[i] for i in growth.level(0)))
        return pays_deeper(growth.reach, [missed], self._pacer.prices(self.method, limit), depth, limit)

    def _grow(self, history: Sequence[int], limit: int, growth: Growth, drawn: bool) -> Draft:
        prices = self._pacer.prices(self.method, limit)
        limit = min(limit, len(prices.verify) - 2)
        bound = drawn and not self._voice.coupled  # what is drawn stays
        if bound:
            growth = _worth_keeping(growth, prices, limit)
        numbers: dict[int, int] = {}
        frontier, rows = [-1], [self._catch_up(history)]
        for level in range(self._shape.depth):
            left = self._shape.depth - level - 1
            if not all(self._sound(row.max()) for row in rows):
                break
            opinions = [self._opinion(history, growth, node, row, drawn) for node, row in zip(frontier, rows)]
            least = 0.0
            if bound:
                slots = [r for node, each in zip(frontier, opinions) for r in self._slots(growth, node, each)]
                least = least_reach(growth.reach, slots, prices, left, limit)
            for node, each in zip(frontier, opinions):
                self._extend_below(growth, node, each, len(history), least, limit if bound else None)
            frontier = self._frontier(growth, level, numbers, self._model.n_ctx - len(history))
            reach = [growth.reach[i] for i in frontier]
            full = bound and len(growth) >= limit
            if full or not frontier or not pays_deeper(growth.reach, reach, prices, left, limit):
                break
            rows = self._decode(growth, frontier, numbers)
        draft, order = growth.draft(self.method, bound, level + 1, limit, drawn)
        self._decoded = {i: numbers[node] for i, node in enumerate(order) if node in numbers}
        if not draft.tokens or (not bound and len(draft) < self._n_min):
            return NO_DRAFT
        return draft

    def _frontier(self, growth: Growth, level: int, numbers: dict[int, int], room: int) -> list[int]:
        """The likeliest nodes of a level, of those that the model knows and whose parents it has decoded, as
        far as its context has `room` for the tree."""
        nodes = [i for i in growth.level(level) if level == 0 or growth.parents[i] in numbers]
        ends = self._voice.ends
        known = [i for i in nodes if growth.tokens[i] not in ends and self._fits([growth.tokens[i]])]
        return sorted(known, key=lambda i: -growth.reach[i])[: min(self._shape.width, room - len(numbers))]

    def _opinion(self, history: Sequence[int], growth: Growth, node: int, row: Row, drawn: bool) -> _Opinion:
        if not drawn:
            return _Opinion(row, self._shape.width, None)
        window = self._voice.sampling.window(history, growth.path(node))
        return _Opinion(row, self._shape.width, distribution(row, window, self._voice.sampling))

    def _slots(self, growth: Growth, node: int, opinion: _Opinion) -> list[float]:
        """The reach of children that may come below a node, whichever tokens they turn out to be."""
        before = growth.reach[node] if node >= 0 else 1.0
        return [
            before * self._pacer.chance(self.method, Evidence(p, rank == 0, opinion.law is not None))
            for rank, p in enumerate(opinion.likeliest)
            if p >= self._p_min
        ]

    def _extend_below(
        self, growth: Growth, node: int, opinion: _Opinion, position: int, least: float, limit: int | None
    ) -> None:
        """Add children of a node: those slots of at least the reach `least`, within `limit` nodes."""
        slots = self._slots(growth, node, opinion)
        slots = slots[: sum(r >= least for r in slots)]
        if limit is not None:
            slots = slots[: limit - len(growth)]
        for (token, law), reach, p in zip(
            self._children(growth, node, opinion, position, len(slots)), slots, opinion.likeliest
        ):
            growth.add(token, node, reach, self.method, p, law)

    def _children(
        self, growth: Growth, node: int, opinion: _Opinion, position: int, n: int
    ) -> list[tuple[int, Distribution | None]]:
        law = opinion.law
        if law is None:
            return [(token, None) for token in opinion.tokens[:n]]
        taken = set() if self._voice.coupled else growth.below(node)  # the target draws with this very noise
        place = self._place(position, growth.depths[node] + 1 if node >= 0 else 0, node + 1)
        perturbed = np.log(law.probs) + self._noise.gumbel(place, law.ids)
        return [(token, q) for token, q in without_replacement(law, perturbed, n, taken)]

    def _decode(self, growth: Growth, frontier: Sequence[int], numbers: dict[int, int]) -> list[Row]:
        """The rows after the nodes of a level, in one decode."""
        parents = [numbers.get(growth.parents[node], -1) for node in frontier]
        rows = self._tree_model.branch([growth.tokens[node] for node in frontier], parents)
        for node in frontier:
            numbers[node] = len(numbers)
        return [row[: self._n_vocab] for row in rows]


def _worth_keeping(growth: Growth, prices: Prices, limit: int) -> Growth:
    """The branches of other drafters as far as they pay by themselves."""
    kept = Growth()
    least = least_reach((), growth.reach, prices, 0, limit)
    new = {-1: -1}
    for node, reach in enumerate(growth.reach):
        if reach >= least and growth.parents[node] in new and len(kept) < limit:
            new[node] = kept.add(
                growth.tokens[node], new[growth.parents[node]], reach, growth.methods[node], 0.0
            )
    return kept
