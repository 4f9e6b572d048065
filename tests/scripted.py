"""Drafters with a will of their own, and a run of the loop that checks its promises at every cycle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from specli.core.decoding import Rules, decode, sync
from specli.core.pacing import Pacer
from specli.core.sampling import SamplingParams
from specli.core.table_model import TableModel
from specli.core.types import Cycle, Draft, Drafter, Logits

GREEDY = SamplingParams(temp=0.0)


@dataclass
class ScriptedDrafter:
    """Proposes what `script(history)` says, cut to the limit, and remembers what it is told."""

    script: Callable[[Sequence[int]], Sequence[int]]
    method: str = "scripted"
    begun: list[list[int]] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    committed: list[Cycle] = field(default_factory=list)
    closed: bool = False

    def begin(self, history: Sequence[int]) -> None:
        self.begun.append(list(history))

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        self.limits.append(limit)
        return Draft(tuple(self.script(history)), self.method)

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        assert tuple(history[-len(cycle.tokens) :]) == cycle.tokens
        self.committed.append(cycle)

    def close(self) -> None:
        self.closed = True


class CorruptingDrafter:
    """Wraps a drafter and spoils every `every`-th token that it proposes."""

    def __init__(self, inner: Drafter, every: int, n_vocab: int) -> None:
        self.inner, self.every, self.n_vocab = inner, every, n_vocab
        self.method = inner.method
        self.proposed = 0

    def begin(self, history: Sequence[int]) -> None:
        self.inner.begin(history)

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        draft = self.inner.propose(history, limit)
        tokens = list(draft.tokens)
        for i in range(len(tokens)):
            self.proposed += 1
            if self.proposed % self.every == 0:
                tokens[i] = (tokens[i] + 1) % self.n_vocab
        return replace(draft, tokens=tuple(tokens))

    def commit(self, history: Sequence[int], cycle: Cycle) -> None:
        self.inner.commit(history, cycle)

    def close(self) -> None:
        self.inner.close()


class CountingModel(TableModel):
    """Counts how often each context was decoded."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.contexts: Counter[tuple[int, ...]] = Counter()

    def decode(self, tokens: Sequence[int], rows: int = 1) -> Logits:
        logits = super().decode(tokens, rows)
        end = len(self.tokens)
        for at in range(end - len(tokens) + 1, end + 1):
            self.contexts[tuple(self.tokens[:at])] += 1
        return logits


def greedy(model: TableModel, history: Sequence[int], n: int, ends: Sequence[int] = ()) -> list[int]:
    """The `n` most probable next tokens, one after the other, straight from the table."""
    text = list(history)
    for _ in range(n):
        text.append(int(model.row(text).argmax()))
        if text[-1] in ends:
            break
    return text[len(history) :]


def spoil(tokens: Sequence[int], at: int, n_vocab: int) -> list[int]:
    """The same tokens but for one, none of them if `at` lies beyond."""
    return [(t + 1) % n_vocab if i == at else t for i, t in enumerate(tokens)]


def run(
    model: TableModel,
    prompt: Sequence[int],
    drafters: Sequence[Drafter] = (),
    rules: Rules | None = None,
    pacer: Pacer | None = None,
    cycles: int | None = None,
) -> list[Cycle]:
    """Decode to the end, or close the generator after so many `cycles`; check each on the way."""
    rules = rules or Rules(GREEDY, max_tokens=50)
    history = list(prompt)
    sync(model, history[:-1], 16)
    for drafter in drafters:
        drafter.begin(history)
    done: list[Cycle] = []
    generator = decode(model, history, drafters, rules, pacer)
    for cycle in generator:
        check(cycle, model, history, [*prompt, *(t for c in done for t in c.tokens)], rules)
        done.append(cycle)
        if len(done) == cycles:
            generator.close()
    said = [t for c in done for t in c.tokens]
    assert history == [*prompt, *said]
    if said:
        assert list(model.tokens) == history[:-1]
    if rules.max_tokens is not None:
        assert len(said) <= rules.max_tokens
    assert all(c.finish is None for c in done[:-1])
    return done


def check(cycle: Cycle, model: TableModel, history: list[int], before: list[int], rules: Rules) -> None:
    """What holds after every cycle, whatever was drafted."""
    draft, verdict = cycle.draft, cycle.verdict
    assert history == [*before, *cycle.tokens]
    assert list(model.tokens) == history[:-1]
    assert cycle.depth == len(before) - 1
    assert cycle.width == (rules.exact_width or len(draft) + 1)
    assert cycle.depth + cycle.width <= model.n_ctx
    assert verdict.tokens[: verdict.accepted] == draft.tokens[: verdict.accepted]
    assert verdict.tested == min(verdict.accepted + 1, len(draft)) or cycle.finish == "stop"
    ended = verdict.accepted > 0 and draft.tokens[verdict.accepted - 1] in rules.ends
    assert len(verdict.tokens) == verdict.accepted + (not ended)
    assert not any(token in rules.ends for token in verdict.tokens[:-1])
    assert (cycle.finish == "stop") == (verdict.tokens[-1] in rules.ends)
    assert min(cycle.draft_s, cycle.verify_s, cycle.total_s) >= 0
    assert cycle.draft_s + cycle.verify_s <= cycle.total_s + 1e-9


def said(cycles: Sequence[Cycle]) -> list[int]:
    """All tokens emitted."""
    return [t for cycle in cycles for t in cycle.tokens]
