"""From a model file to a set of layers, its copy on the disk, and what it brings here."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specli import pairing, profiles, pruned
from specli.assembly import Generator, Request
from specli.chat.conversation import Message
from specli.costs import WidthCosts, measure_widths
from specli.engine import backend
from specli.engine.context import ContextParams
from specli.engine.gguf import Header, read_header
from specli.engine.memory import Load, available_bytes, require_memory
from specli.engine.probe import TrialSettings
from specli.engine.prune import prune_problem, pruned_header
from specli.engine.silence import Silencer
from specli.engine.traffic import token_bytes
from specli.errors import Interrupted, ModelFileError, SpecliError, UsageError
from specli.layers.agreement import ROWS, Jury, Passage
from specli.layers.search import SHARES, TRIES, Search, Step
from specli.pairing import LENGTH, PairFigures, by_row
from specli.pruned import LayerSet
from specli.settings import Settings
from specli.workloads import Workload

CONTEXT = 64
"""Tokens before an answer with which it is judged: reading them again is most of a judgement's cost."""

PASSAGES = 8
"""Most answers that are judged."""

_ANSWER = 96  # tokens of each; at most ROWS
_FEW = 8  # an answer of fewer says too little
_CTX = 1024
_WRITING = 0.2  # share of the budget in which the answers are written


@dataclass(frozen=True, slots=True)
class Plan:
    """What to search. `drop`: layers to leave out, None for as many as promise the greatest speed; `budget`:
    seconds for the search; `text`: whose prompts `workloads` are."""

    model: Path
    settings: Settings
    workloads: Sequence[Workload]
    text: str
    budget: float
    drop: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """`steps`: the best set of each size; `speeds`: what was expected of each of them, over plain decoding.
    `copy`: the model without the layers of `chosen`; `figures`: what that brought, measured."""

    chosen: LayerSet
    steps: Sequence[Step]
    speeds: Sequence[float]
    passages: int
    copy: Path
    figures: PairFigures


@dataclass(frozen=True, slots=True)
class _Sample:
    """What the whole model wrote, and what its decodes cost by width."""

    passages: Sequence[Passage]
    costs: WidthCosts


class Session:
    """One search. `say` gets lines worth knowing, `at(share, what)` how far it is; `stop()` ends it."""

    def __init__(
        self,
        plan: Plan,
        say: Callable[[str], None] = lambda _: None,
        at: Callable[[float, str], None] = lambda share, what: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._plan, self._say, self._at, self._stop = plan, say, at, stop
        self._header: Header = read_header(plan.model)
        self._began = time.perf_counter()
        self._threads = plan.settings.threads or backend.physical_cores()

    def find(self) -> Found:
        """Search, keep the set, write the copy, measure it.

        Raises ModelFileError where no layer of the model can be left out, MemoryShortage and SpecliError where
        there is no room, Interrupted where it was stopped: during the search, nothing is kept.
        """
        self._check()
        sample = self._write()
        with self._silencer() as silencer:
            self._progress("reading the answers")
            jury = self._jury(silencer, sample.passages)
            expected = _Expected(self._header, by_row(sample.costs))
            search = Search(
                silencer.n_blocks, jury, expected, self._used, self._stop, lambda what: self._progress(what)
            )
            steps = search.run(self._plan.drop)
            passages = jury.parts
        self._end_if_stopped()
        if not steps:
            raise SpecliError("the budget was too short to judge a single layer; a larger --budget can")
        best = steps[-1] if self._plan.drop is not None else search.best(steps)
        chosen = self._as_set(best)
        pruned.remember(self._plan.model, chosen)  # what took so long stays known if the disk is full
        no_repack = self._plan.settings.no_repack
        copy = pruned.copy_of(self._plan.model, chosen, self._trial(), no_repack, self._say, self._stop)
        self._progress("measuring")
        figures = pairing.measure(self._plan.model, copy, self._plan.settings, self._say)
        speeds = [expected(frozenset(step.dropped), step.agreement.value) for step in steps]
        return Found(chosen, steps, speeds, passages, copy, figures)

    # -- time -----------------------------------------------------------------------------------

    def _used(self) -> float:
        return (time.perf_counter() - self._began) / self._plan.budget

    def _progress(self, what: str) -> None:
        self._at(min(1.0, self._used()), what)

    def _end_if_stopped(self) -> None:
        if self._stop():
            raise Interrupted("interrupted; no layers were chosen")

    # -- stages ---------------------------------------------------------------------------------

    def _check(self) -> None:
        problem = prune_problem(self._header)
        if problem:
            raise ModelFileError(problem)
        blocks, drop = self._header.block_count or 0, self._plan.drop
        if drop is not None and not 0 < drop < blocks:
            raise UsageError(
                f"--drop {drop}: {self._plan.model.name} has {blocks} layers; leave out 1 to {blocks - 1}"
            )
        require_memory([Load(self._header, _CTX, max_rows=ROWS)], available_bytes())
        pruned.require_room_to_search(self._plan.model)

    def _write(self) -> _Sample:
        """Let the whole model answer some prompts."""
        given = self._plan.settings
        flags: dict[str, object] = {name: getattr(given, name.replace("-", "_")) for name in pairing.MACHINE}
        flags |= {"spec-type": "draft-self", "max-tokens": _ANSWER, "ctx-size": _CTX, "temp": given.temp}
        passages: list[Passage] = []
        settings = profiles.resolve(profiles.load(), flags)
        with Generator(Request(settings, self._plan.model), self._say) as generator:
            self._began = time.perf_counter()  # loading is no part of the budget
            for workload in self._plan.workloads:
                self._end_if_stopped()
                if len(passages) >= PASSAGES or (passages and self._used() > _WRITING):
                    break
                self._progress(f"answering {workload.id}")
                passage = answered(generator, workload, self._stop)
                passages += [passage] if passage is not None else []
            if not passages:
                raise SpecliError(
                    "the model has next to nothing to say to these prompts; give others with --like"
                )
            return _Sample(passages, measure_widths(generator.target, most=LENGTH + 1))

    def _silencer(self) -> Silencer:
        model = self._plan.model
        size = sum(read_header(part).file_size for part in self._header.parts)
        where = pruned.folder()
        self._say(
            f"copying {model.name} for the search, {size / (1 << 20):.0f} MiB, removed again at its end"
        )
        self._progress("copying")
        params = search_params(self._threads, self._plan.settings.threads_batch)
        began = time.perf_counter()
        with pruned.exclusive(where, self._say, self._stop):
            try:
                silencer = Silencer(model, where, params)
                self._began += time.perf_counter() - began
                return silencer
            except OSError as error:
                raise SpecliError(
                    f"cannot copy {model.name} to {where}: {error.strerror or error}"
                ) from error

    def _jury(self, silencer: Silencer, passages: Sequence[Passage]) -> Jury:
        """As many passages as the search can afford, at the pace of the first."""
        first = Jury(silencer, passages[:1])
        began = time.perf_counter()
        first.judge(frozenset(), 0)
        pace = (time.perf_counter() - began) / len(passages[0].tokens)
        left = (1 - self._used()) * self._plan.budget
        blocks, sizes = silencer.n_blocks, len(SHARES) if self._plan.drop is None else 1
        affordable = 1
        for n in range(2, len(passages) + 1):
            mean = sum(len(p.tokens) for p in passages[:n]) / n
            if mean * pace * _judgements(blocks, sizes, n) <= 0.7 * left:
                affordable = n
        return Jury(silencer, passages[:affordable])

    def _trial(self) -> TrialSettings:
        s = self._plan.settings
        layers = -1 if s.spec_draft_ngl is None else s.spec_draft_ngl
        return TrialSettings(self._threads, layers, s.flash_attn, s.cache_type_k, s.cache_type_v)

    def _as_set(self, step: Step) -> LayerSet:
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        found = step.agreement
        blocks = self._header.block_count or 0
        return LayerSet(
            self._header.fingerprint, blocks, step.dropped, round(found.top1, 4), round(found.shared, 4),
            found.positions, self._plan.text, now,
        )  # fmt: skip


def answered(
    generator: Generator, workload: Workload, stop: Callable[[], bool] = lambda: False
) -> Passage | None:
    """What the model says to a prompt, with the end of the prompt; None if it says next to nothing."""
    prompter = generator.prompter
    if prompter.has_template:
        prompt = prompter.tokens([Message("user", workload.prompt)])
    else:
        prompt = prompter.raw(workload.prompt)
    answer = generator.answer(prompt[-(generator.target.n_ctx - ROWS - LENGTH) :], stop)
    for _ in answer:
        pass
    before, said = prompt[-CONTEXT:], answer.tokens[:ROWS]
    return Passage((*before, *said), len(before)) if len(said) >= _FEW else None


def search_params(threads: int, threads_batch: int | None = None) -> ContextParams:
    """A context that takes in a passage with one decode."""
    most = CONTEXT + ROWS
    return ContextParams(
        n_ctx=2 * most, n_batch=most, n_ubatch=most, max_rows=ROWS,
        threads=threads, threads_batch=threads_batch or threads,
    )  # fmt: skip


def _judgements(blocks: int, sizes: int, parts: int) -> int:
    """Decodes of one passage that a search takes: a dozen for each size, then rounds of exchanges."""
    return sizes * (10 + 3 * (parts - 1)) + 2 * (blocks + TRIES * parts // 2)


class _Expected:
    """The speed over plain decoding that a set of layers promises, from its agreement alone: a draft token
    costs as much less as its weights are fewer, and verification what it was timed to cost. `widths`: seconds of
    1, 2, … rows."""

    def __init__(self, header: Header, widths: Sequence[float]) -> None:
        self._header, self._widths = header, tuple(widths)
        self._whole = token_bytes(header)

    def __call__(self, dropped: frozenset[int], agreement: float) -> float:
        share = token_bytes(pruned_header(self._header, dropped)) / self._whole
        draft_s = share * self._widths[0]
        tested = (1000,) * LENGTH
        accepted = (round(1000 * agreement),) * LENGTH
        return PairFigures(tested, accepted, self._widths, draft_s, 0.0, 0, 0.0).speedup
