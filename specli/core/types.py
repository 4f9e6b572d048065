"""The records that travel through one cycle, and the two protocols at the seams.

Words as in the papers: a *drafter* proposes a `Draft`, the *target* judges it in one decode of
*width* rows, `Verdict` says what became of it, and a `Cycle` records both.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
"""Rows of logits, shape (rows, n_vocab). Often a view that dies with the model's next decode."""


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """A probability distribution over tokens, holding only those of non-zero probability.

    `ids` (n,) ascending token ids; `probs` (n,) float64, positive, summing to 1.
    """

    ids: NDArray[np.int64]
    probs: NDArray[np.float64]

    @staticmethod
    @lru_cache(maxsize=4096)
    def one_hot(token: int) -> Distribution:
        """All probability on one token: what greedy decoding samples from."""
        return Distribution(np.array([token], np.int64), np.ones(1))

    @classmethod
    def nothing(cls) -> Distribution:
        """No token at all: nothing may follow here."""
        return cls(np.empty(0, np.int64), np.empty(0))

    @property
    def empty(self) -> bool:
        """Whether nothing may follow."""
        return len(self.ids) == 0

    def prob(self, token: int) -> float:
        """Probability of `token`, 0.0 for one outside the support."""
        at = int(np.searchsorted(self.ids, token))
        return float(self.probs[at]) if at < len(self.ids) and self.ids[at] == token else 0.0

    @property
    def mode(self) -> int:
        """The most probable token (the lowest id of equals)."""
        return int(self.ids[int(np.argmax(self.probs))])


@dataclass(frozen=True, slots=True)
class Tree:
    """How the tokens of a draft hang together where several may stand at one place.

    `parents`: per token the index of the one before it, an earlier one, or -1 for those that follow the
    history. `reach`: per token the estimated probability that it and all before it are accepted, never more
    than its parent's. `methods`: who proposed it. `levels`: decodes that drafting took. `drawn`: whether
    siblings were drawn, and not the likeliest taken.
    """

    parents: tuple[int, ...]
    reach: tuple[float, ...]
    methods: tuple[str, ...]
    levels: int = 0
    drawn: bool = False

    def first(self, n: int) -> Tree:
        """The same tree, cut to its first `n` nodes."""
        return Tree(self.parents[:n], self.reach[:n], self.methods[:n], self.levels, self.drawn)

    def path(self, node: int) -> list[int]:
        """The nodes from the first level down to `node`, which is the last; none for -1."""
        found: list[int] = []
        while node >= 0:
            found.append(node)
            node = self.parents[node]
        return found[::-1]

    def children(self) -> list[list[int]]:
        """The children of every node in order, those of node i at i + 1, the first level at 0."""
        found: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]
        for node, parent in enumerate(self.parents):
            found[parent + 1].append(node)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """What a drafter proposes in one cycle.

    `q`: per token the distribution it was sampled from; None means a deterministic proposal,
    which is one-hot. `match`: how many tokens of context the proposal rests on (n-grams).
    `confidence`: per token the drafter's own probability for it (neural drafters). `tree`: None where the
    tokens follow one another; in a tree a token's `q` is the law it was drawn from given its earlier
    siblings, and one-hot for a deterministic one among drawn ones.
    """

    tokens: tuple[int, ...] = ()
    method: str = ""
    q: tuple[Distribution, ...] | None = None
    match: int = 0
    confidence: tuple[float, ...] = ()
    tree: Tree | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, n: int) -> Draft:
        """The same draft, cut to its first `n` tokens."""
        if n >= len(self.tokens):
            return self
        return Draft(
            self.tokens[:n],
            self.method,
            None if self.q is None else self.q[:n],
            self.match,
            self.confidence[:n],
            None if self.tree is None else self.tree.first(n),
        )

    def until(self, ends: Container[int]) -> Draft:
        """The same draft, without what lies behind a token of `ends`, where nothing can follow. A tree as it is:
        who grows one leaves that out."""
        if self.tree is not None:
            return self
        return self.first(
            next((i + 1 for i, token in enumerate(self.tokens) if token in ends), len(self.tokens))
        )

    @property
    def steps(self) -> int:
        """Decodes of a neural drafter that it took, one after the other."""
        return len(self.tokens) if self.tree is None else self.tree.levels

    def before(self, row: int) -> tuple[int, ...]:
        """The draft tokens that row `row` of a verify decode follows; row 0 follows the history alone."""
        if self.tree is None:
            return self.tokens[:row]
        return tuple(self.tokens[i] for i in self.tree.path(row - 1))


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target made of a draft.

    `tokens`: what is emitted, the accepted ones first, then one recovered or bonus token unless an
    end token cut it short. `accepted` of `tested` draft tokens were accepted; tested counts up to
    and with the first rejected one. In a tree siblings count as one: what is tested is a place, what is
    accepted one of them; `path` are the accepted nodes.
    """

    tokens: tuple[int, ...]
    accepted: int
    tested: int
    path: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token and the logarithm of its probability."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the model itself, before any sampler, gave an emitted token, and which it held likeliest
    there (`top`, most probable first)."""

    token: int
    logprob: float
    top: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Cycle:
    """One draft and one verify: what was proposed, what came of it, what it took.

    `width`: rows of the verify decode (draft + 1, or the fixed width). `depth`: tokens in the
    target's cache before it. Times in seconds. `finish`: None while the answer goes on, else
    "stop" (end token, or all said that a constraint allows), "length" or "context". `logprobs`: one for
    each emitted token where the rules ask for them, else empty.
    """

    draft: Draft
    verdict: Verdict
    width: int
    depth: int
    draft_s: float
    verify_s: float
    total_s: float
    finish: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens this cycle emitted."""
        return self.verdict.tokens

    @property
    def accepted_from(self) -> tuple[str, ...]:
        """Who proposed each of the accepted tokens."""
        if self.draft.tree is None:
            return (self.draft.method,) * self.verdict.accepted
        return tuple(self.draft.tree.methods[node] for node in self.verdict.path)


@runtime_checkable
class LanguageModel(Protocol):
    """What the loop needs of a model with a cache: decode, and take back.

    `tokens` are those in its cache, in order; whoever reads them must not change them.
    """

    @property
    def tokens(self) -> Sequence[int]:
        """The cached tokens."""
        ...

    @property
    def n_vocab(self) -> int:
        """Number of token ids; every row of logits has this length."""
        ...

    @property
    def n_ctx(self) -> int:
        """Most tokens the cache can hold."""
        ...

    @property
    def max_rows(self) -> int:
        """Most rows of logits that one decode may ask for."""
        ...

    def decode(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        """Append `tokens` and return the logits that follow the last `rows` of them.

        The result, shape (rows, n_vocab), may be a view that the next decode overwrites.
        """
        ...

    def rewind(self, length: int) -> int:
        """Keep at most the first `length` cached tokens; return how many really remain.

        Dropping rows of the latest decode, all but its first, always succeeds exactly. A deeper
        cut may keep less on a cache that cannot be cut anywhere; the caller decodes the rest.
        """
        ...


@runtime_checkable
class TreeModel(LanguageModel, Protocol):
    """A LanguageModel that can also decode a tree of tokens behind its cache, and keep one path of it."""

    def branch(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """Decode nodes of a tree; the logits after each of them, shape (len(tokens), n_vocab).

        `parents`: per token the node that it follows, -1 for the cached tokens. Nodes are numbered in the
        order in which they come, on from those of the calls before, until `keep`. `tokens` of the model
        stays as it is.
        """
        ...

    def keep(self, path: Sequence[int]) -> None:
        """Append the nodes of `path`, each the parent of the next, to the cache and drop all others.

        A tree of which nothing was kept is dropped by the next `decode` or `rewind`.
        """
        ...


class Constraint(Protocol):
    """What may be said: a machine that reads the answer, token by token.

    It never has to go back: it is only told tokens that stand.
    """

    @property
    def over(self) -> bool:
        """Whether the answer must end here without an end token: nothing at all may follow."""
        ...

    def begin(self) -> None:
        """A new answer starts: nothing was said yet."""
        ...

    def legal(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the tokens `ids` may come next, shape (n,). End tokens may where the answer may end."""
        ...

    def advance(self, token: int) -> None:
        """`token`, a legal one, was said. An end token changes nothing."""
        ...


class Drafter(Protocol):
    """Who proposes. Told about every committed token, it may keep whatever state it likes."""

    @property
    def method(self) -> str:
        """Name as in `--spec-type`."""
        ...

    def begin(self, history: Sequence[int]) -> None:
        """A new answer starts: `history` is all so far, possibly shorter or other than before."""
        ...

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        """Propose up to `limit` tokens to follow `history`; an empty draft is an answer."""
        ...

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        """`cycle` is done and `history` extended by its tokens, whoever drafted them."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...
