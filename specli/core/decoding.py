"""The loop: draft, verify, commit, over and over.

Between cycles the target's cache holds `history[:-1]`; the last token is pending. So a verify
decode starts with it: row 0 judges the first draft token.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from specli.core.logprobs import token_logprobs
from specli.core.noise import Noise
from specli.core.pacing import FixedPacer, Pacer
from specli.core.sampling import SamplingParams, distribution
from specli.core.trees import verify_tree
from specli.core.types import (
    NO_DRAFT,
    Constraint,
    Cycle,
    Distribution,
    Draft,
    Drafter,
    LanguageModel,
    Logits,
    TokenLogprobs,
    TreeModel,
    Verdict,
)
from specli.core.verification import verify
from specli.errors import SpecliError, UsageError


@dataclass(frozen=True, slots=True)
class Rules:
    """What one answer is decoded under.

    `max_tokens`: None for no limit. `ends`: tokens after which nothing follows. `exact_width`: rows
    of every decode in exact mode (None: as many as the draft needs). `coupled`: sampled drafts too
    are matched against the target's own draw. `compete`: the drafter of the largest expected profit goes,
    not the first with something to say. `constraint`: what the answer may be, for one answer at a
    time. `logprobs`: how many of the likeliest tokens each cycle reports beside every emitted one (None:
    it reports nothing).
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    max_tokens: int | None = None
    ends: Container[int] = ()
    exact_width: int | None = None
    coupled: bool = False
    compete: bool = False
    constraint: Constraint | None = None
    logprobs: int | None = None

    def check(self, n_vocab: int, max_rows: int) -> None:
        """Raise UsageError for what a target of so many tokens and rows a decode cannot do."""
        width = self.exact_width
        if width is not None and not 1 <= width <= max_rows:
            raise UsageError(f"exact width {width}: one decode has 1 to {max_rows} rows here")
        bias = self.sampling.logit_bias
        for token, amount in bias.items():
            if not 0 <= token < n_vocab:
                raise UsageError(f"logit bias for token {token}: the vocabulary has 0 to {n_vocab - 1}")
            if math.isnan(amount) or amount == math.inf:
                raise UsageError(f"logit bias {amount} for token {token}: it must be a number or -inf")
        if sum(amount == -math.inf for amount in bias.values()) >= n_vocab:
            raise UsageError("logit bias forbids every token, so nothing could be said")


def sync(
    model: LanguageModel, tokens: Sequence[int], chunk: int, stop: Callable[[], bool] = lambda: False
) -> bool:
    """Bring the cache to hold exactly `tokens`, keeping the longest common prefix.

    Decodes the rest in pieces of `chunk`. Returns False if `stop()` said so between two of them; the
    cache then holds a prefix.
    """
    kept = model.rewind(common_prefix(model.tokens, tokens))
    for at in range(kept, len(tokens), chunk):
        if stop():
            return False
        model.decode(tokens[at : at + chunk], rows=0)
    return True


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    if list(a[:n]) == list(b[:n]):
        return n
    return next(i for i in range(n) if a[i] != b[i])


def propose(
    drafters: Sequence[Drafter],
    history: Sequence[int],
    limit: int,
    pacer: Pacer,
    compete: bool = False,
    clock: Callable[[], float] = time.perf_counter,
    ends: Container[int] = (),
) -> Draft:
    """The first draft, in the drafters' order, that has something to say and pays.

    `compete`: later drafters are asked too, and go where they are worth more. `ends`: tokens behind which
    nothing is drafted.
    """
    best = NO_DRAFT
    if limit > 0:
        for drafter in drafters:
            began = clock()
            proposed = drafter.propose(history, limit).first(limit).until(ends)
            pacer.drafted(proposed, clock() - began)
            draft = pacer.choose(proposed, len(history))
            if draft.tokens:
                best = draft
                if not compete:
                    break
    return best


def decode(
    target: LanguageModel,
    history: list[int],
    drafters: Sequence[Drafter],
    rules: Rules,
    pacer: Pacer | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Cycle]:
    """Extend `history` cycle by cycle until an end token, a limit, or the context stops it.

    The target's cache must hold `history[:-1]` (see `sync`), and again does whenever a Cycle is
    yielded, so the caller may close the generator at any time. Raises UsageError for rules that this target
    cannot keep, SpecliError where the constraint asks for what no token can say.
    """
    rules.check(target.n_vocab, target.max_rows)
    constraint = rules.constraint
    if constraint is not None:
        constraint.begin()
        if constraint.over:
            return
    pacer = pacer or FixedPacer()
    pacer.begin()
    noise = Noise(rules.seed)
    left = rules.max_tokens
    reserved = (rules.exact_width or 1) - 1  # what padding needs, so that every method ends at one place
    end = clock()
    while True:
        began, depth = end, len(history) - 1
        room = target.n_ctx - depth - reserved  # tokens that can still be said
        if left == 0 or room < 1:
            return
        asked = clock()  # what the caller did since the last cycle is nobody's drafting
        limit = min(rules.exact_width or target.max_rows, room, room if left is None else left) - 1
        draft = propose(drafters, history, limit, pacer, rules.compete, clock, rules.ends)
        drafted = clock()
        rows = _rows(target, history[-1], draft, rules.exact_width)
        verified = clock()

        verdict = _judge(draft, rows, history, rules, noise)
        logprobs = _logprobs(draft, rows, verdict, rules.logprobs)
        history.extend(verdict.tokens)
        _commit(target, draft, verdict, len(history) - 1)

        finish = _finish(verdict, rules, left, room)
        left = None if left is None else left - len(verdict.tokens)
        end = clock()
        cycle = Cycle(
            draft, verdict, len(rows), depth, drafted - asked, verified - drafted, end - began, finish, logprobs,
        )  # fmt: skip
        pacer.observe(history, cycle)
        for drafter in drafters:
            drafter.commit(history, cycle)
        yield cycle
        if finish is not None:
            return


def _rows(target: LanguageModel, pending: int, draft: Draft, exact_width: int | None) -> Logits:
    """The logits after each token of one decode: the pending one, the draft, and padding up to the exact
    width: same shape, same kernels, same bits."""
    tokens = [pending, *draft.tokens]
    tokens += [pending] * ((exact_width or 0) - len(tokens))
    if draft.tree is None:
        return target.decode(tokens, rows=len(tokens))
    parents = [-1, *(parent + 1 for parent in draft.tree.parents)]
    return cast(TreeModel, target).branch(tokens, parents + [0] * (len(tokens) - len(parents)))


def _judge(draft: Draft, rows: Logits, history: Sequence[int], rules: Rules, noise: Noise) -> Verdict:
    """What the target makes of `draft`, given its `rows` of logits; the constraint has read the verdict."""
    laws = _Laws(draft, rows, history, rules)
    judge = verify if draft.tree is None else verify_tree
    verdict = judge(draft, laws, noise, len(history), rules.ends, rules.coupled)
    if not verdict.tokens:
        raise SpecliError("the grammar asks for something here that no token of this model can say")
    laws.read(verdict.tokens)
    return verdict


class _Laws:
    """The target's distributions behind a draft, by row, under the rules.

    They are asked for in order, and each only once the draft tokens before it were accepted. So the
    constraint, which never goes back, may then read these.
    """

    def __init__(self, draft: Draft, rows: Logits, history: Sequence[int], rules: Rules) -> None:
        self._draft, self._rows, self._history = draft, rows, history
        self._sampling, self._constraint = rules.sampling, rules.constraint
        self._n_read = 0

    def __call__(self, row: int) -> Distribution:
        accepted = self._draft.before(row)
        window = self._sampling.window(self._history, accepted)
        if self._constraint is None:
            return distribution(self._rows[row], window, self._sampling)
        self.read(accepted)
        return distribution(self._rows[row], window, self._sampling, self._constraint.legal)

    def read(self, said: Sequence[int]) -> None:
        """Let the constraint read what this cycle has said so far, but for what it has read already."""
        if self._constraint is not None:
            for token in said[self._n_read :]:
                self._constraint.advance(token)
            self._n_read = len(said)


def _logprobs(draft: Draft, rows: Logits, verdict: Verdict, top: int | None) -> tuple[TokenLogprobs, ...]:
    """Of each emitted token and the `top` likeliest beside it; nothing where None are asked for."""
    if top is None:
        return ()
    along = rows if draft.tree is None else rows[[0, *(node + 1 for node in verdict.path)]]
    return token_logprobs(along, verdict.tokens, top)


def _finish(verdict: Verdict, rules: Rules, left: int | None, room: int) -> str | None:
    """Why the answer ends with `verdict`, as in `Cycle`. `left`, `room`: tokens that it could say, by its
    limit and by the context."""
    over = rules.constraint is not None and rules.constraint.over
    if verdict.tokens[-1] in rules.ends or over:
        return "stop"
    if len(verdict.tokens) == left:
        return "length"
    return "context" if len(verdict.tokens) == room else None


def _commit(target: LanguageModel, draft: Draft, verdict: Verdict, length: int) -> None:
    """Leave the first `length` tokens of the history in the cache, all but the last one of it."""
    if draft.tree is not None:
        path = [0, *(node + 1 for node in verdict.path)]
        cast(TreeModel, target).keep(path[: length - len(target.tokens)])
    target.rewind(length)
