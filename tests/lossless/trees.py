"""Trees for the statistics: drafters of every way to fill one, and verifiers that are wrong.

The drafters have fixed shapes, given as children per level: (2, 1) is two tokens with one below each.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lossless.drafters import Laws, Silent
from lossless.harness import PROMPT, target
from specli.core import decoding
from specli.core.decoding import Rules, decode, sync
from specli.core.noise import Noise
from specli.core.pacing import Pacer
from specli.core.sampling import SamplingParams
from specli.core.trees import Growth, verify_tree, without_replacement
from specli.core.types import Distribution, Draft, Drafter, Verdict
from specli.core.verification import residual

Children = list[tuple[int, Distribution | None]]
"""Tokens below one node, each with the law it is said to be drawn from."""
Shape = tuple[int, ...]
SHAPES: tuple[Shape, ...] = ((2,), (1, 3), (3, 1), (2, 2), (4, 2, 1))


class TreeSilent(Silent):
    """A drafter of trees of one shape. `fill(context, n)`: n children of a node."""

    def __init__(self, law: Laws, shape: Shape, seed: int = 0) -> None:
        self.law, self.shape = law, shape
        self.rng = np.random.default_rng(seed)

    def fill(self, context: tuple[int, ...], n: int) -> Children:
        raise NotImplementedError

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        growth, level = Growth(), [-1]
        drawn = True
        for n in self.shape:
            below = []
            for node in level:
                for token, q in self.fill((*history, *growth.path(node)), n):
                    drawn = drawn and q is not None
                    at = len(growth)
                    growth._at.clear()  # one token may stand twice at one place
                    growth.add(token, node, 0.5, self.method, 0.5, q)
                    below.append(at)
            level = below
        return growth.draft(self.method, drawn, 1, limit)[0]


class Likeliest(TreeSilent):
    """The most probable tokens: nothing is drawn."""

    def fill(self, context: tuple[int, ...], n: int) -> Children:
        law = self.law(context)
        return [(int(t), None) for t in law.ids[np.argsort(-law.probs, kind="stable")[:n]]]


class Independent(TreeSilent):
    """Siblings drawn with replacement, as SpecInfer draws them: some may be the same."""

    def fill(self, context: tuple[int, ...], n: int) -> Children:
        law = self.law(context)
        return [(int(t), law) for t in self.rng.choice(law.ids, n, p=law.probs)]


class Distinct(TreeSilent):
    """Siblings drawn without replacement, as Sequoia draws them."""

    def fill(self, context: tuple[int, ...], n: int) -> Children:
        law = self.law(context)
        return list(without_replacement(law, np.log(law.probs) + self.rng.gumbel(size=len(law.ids)), n))


class Mixed(Distinct):
    """A deterministic token of another drafter first, then drawn ones that are not it."""

    def fill(self, context: tuple[int, ...], n: int) -> Children:
        law, known = self.law(context), (context[-1] + 1) % 8
        perturbed = np.log(law.probs) + self.rng.gumbel(size=len(law.ids))
        return [(known, Distribution.one_hot(known)), *without_replacement(law, perturbed, n - 1, {known})]


class Forgetful(Distinct):
    """Draws without replacement and says of each sibling the law of the first: q not renormalised."""

    def fill(self, context: tuple[int, ...], n: int) -> Children:
        law = self.law(context)
        return [(token, law) for token, _ in super().fill(context, n)]


class Choosy(Distinct):
    """Drops drawn siblings that it holds improbable."""

    def fill(self, context: tuple[int, ...], n: int) -> Children:
        law = self.law(context)
        return [(token, q) for token, q in super().fill(context, n) if law.prob(token) > 0.15]


def faulty_tree(
    left: Callable[[Distribution, Distribution, int], Distribution] = lambda p, q, i: residual(p, q),
    recover: Callable[[Distribution, Distribution], Distribution] = lambda first, left: left,
    row: Callable[[int, Sequence[int]], int] = lambda row, siblings: row,
) -> Callable[..., Verdict]:
    """`verify_tree` written once more. `left`: what sibling i, rejected, leaves of p; `recover`: what the token
    is recovered from, of the first p at its place and the last;
    `row`: the row that judges what follows an accepted node, one of `siblings`."""

    def verify(
        draft: Draft,
        law: Callable[[int], Distribution],
        noise: Noise,
        position: int,
        ends: Container[int] = (),
        coupled: bool = False,
    ) -> Verdict:
        assert draft.tree is not None and draft.q is not None
        emitted: list[int] = []
        path: list[int] = []
        at = 0
        while True:
            here = position + len(path)
            siblings = [i for i, parent in enumerate(draft.tree.parents) if parent + 1 == at]
            asked = at
            if path:
                asked = row(
                    at, [i + 1 for i, p in enumerate(draft.tree.parents) if p == draft.tree.parents[at - 1]]
                )
            first = p = law(asked)
            for i, node in enumerate(siblings):
                token, q = draft.tokens[node], draft.q[node]
                if noise.uniform(here, i) * q.prob(token) < p.prob(token):
                    emitted.append(token)
                    path.append(node)
                    at = node + 1
                    break
                p = left(p, q, i)
            else:
                emitted.append(noise.choose(recover(first, p), here))
                n = len(path)
                return Verdict(tuple(emitted), n, n + bool(siblings), tuple(path))

    return verify


@dataclass(frozen=True, slots=True)
class Answers:
    """How answers are drawn. `speak`: tells a drafter the seed of the next one."""

    params: SamplingParams
    coupled: bool = False
    verifier: Callable[..., Verdict] = verify_tree
    pacer: Pacer | None = None
    speak: Callable[[int], None] = lambda seed: None

    def count(self, drafter: Drafter, name: str, draws: int, n_tokens: int = 2) -> NDArray[np.int64]:
        """How often each text of `n_tokens` came up, shape (8,) * n_tokens. Asserts that trees were drafted."""
        model = target(8)
        first = zlib.crc32(name.encode())
        counts = np.zeros((8,) * n_tokens, np.int64)
        trees = 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoding, "verify_tree", self.verifier)
            patch.setattr(decoding, "distribution", _remembering(self.params))
            for seed in range(first, first + draws):
                self.speak(seed)
                history = list(PROMPT)
                sync(model, PROMPT[:-1], 64)
                drafter.begin(history)
                rules = Rules(self.params, seed, coupled=self.coupled)
                for cycle in decode(model, history, [drafter], rules, self.pacer):
                    trees += cycle.draft.tree is not None
                    if len(history) >= len(PROMPT) + n_tokens:
                        break
                counts[tuple(history[len(PROMPT) : len(PROMPT) + n_tokens])] += 1
        assert trees > draws / 2
        return counts


def _remembering(params: SamplingParams) -> Any:
    """`distribution`, which is asked for the same few ever again."""
    known: dict[tuple[bytes, tuple[int, ...]], Distribution] = {}
    compute = decoding.distribution

    def remembered(logits: Any, context: Sequence[int], asked: SamplingParams) -> Distribution:
        assert asked is params
        key = (logits.tobytes(), tuple(context))
        if key not in known:
            known[key] = compute(logits, context, params)
        return known[key]

    return remembered
