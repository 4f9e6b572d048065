"""The runs: every contestant in turn on every prompt, each from the same starting state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from specli.assembly import Generator
from specli.bench.contestants import Contestant
from specli.chat.conversation import Message
from specli.core.stats import Stats
from specli.errors import SpecliError
from specli.workloads import Workload

WARM_UP = 8
"""Tokens that each contestant answers untimed before anything counts."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One answer. `contestant`, `workload`: by name. `first_token_s`: None where the prompt was cached.
    `step_s`: the median of what a draft token of a neural drafter took, None without any."""

    contestant: str
    workload: str
    category: str
    repeat: int
    tokens: tuple[int, ...]
    stats: Stats
    first_token_s: float | None = None
    step_s: float | None = None

    @property
    def rate(self) -> float | None:
        """Tokens per second, the first cycle left out; None for an answer that had no more."""
        return self.stats.tokens_per_second


class Contest:
    """Contestants on one loaded generator.

    `raw`: prompts are continued as they are, without a template. `keep_prompt`: decode each prompt once, and begin the later runs behind it. Where end tokens end
    answers, lengths may differ; `Request.ignore_end` makes them equal.
    """

    def __init__(
        self,
        generator: Generator,
        workloads: Sequence[Workload],
        raw: bool = False,
        keep_prompt: bool = False,
    ) -> None:
        self.generator = generator
        self.raw = raw
        self.workloads = workloads
        self.keep_prompt = keep_prompt
        self._prompts = {each.id: self._tokens(each) for each in workloads}

    def _tokens(self, workload: Workload) -> list[int]:
        prompter, system = self.generator.prompter, self.generator.settings.system
        messages = [Message("system", system)] if system else []
        messages.append(Message("user", workload.prompt))
        tokens = prompter.raw(workload.prompt) if self.raw else prompter.tokens(messages)
        room = self.generator.target.n_ctx - len(tokens)
        if room < 2 * (self.generator.settings.fixed_width or 1):
            raise SpecliError(
                f"workload {workload.id} has {len(tokens)} tokens and the context holds "
                f"{self.generator.target.n_ctx}; raise --ctx-size or leave it out"
            )
        return tokens

    def prompt(self, workload: Workload) -> list[int]:
        """The prompt's tokens."""
        return self._prompts[workload.id]

    def warm_up(self, contestants: Sequence[Contestant]) -> None:
        """Let each contestant say a few tokens that do not count."""
        for each in contestants:
            self.generator.reset(each.settings)
            answer = self.generator.answer(self._prompts[self.workloads[0].id][-64:])
            for _ in answer:
                if answer.stats.generated >= WARM_UP:
                    break

    def run(
        self,
        contestant: Contestant,
        workload: Workload,
        repeat: int = 0,
        stop: Callable[[], bool] = lambda: False,
    ) -> Run | None:
        """One answer of one contestant; None if `stop()` said so before its end."""
        prompt = self._prompts[workload.id]
        kept = prompt[:-1] if self.keep_prompt else ()
        self.generator.reset(contestant.settings, keep=kept)
        fresh = len(self.generator.target.tokens) == 0
        answer = self.generator.answer(prompt, stop)
        steps: list[float] = []
        for step in answer:
            if step.cycle is not None and step.cycle.draft.confidence:
                steps.append(step.cycle.draft_s / step.cycle.draft.steps)
        if answer.finish == "interrupted":
            return None
        return Run(
            contestant.name,
            workload.id,
            workload.category,
            repeat,
            tuple(answer.tokens),
            answer.stats,
            answer.timing.first_token_s if fresh else None,
            median(steps) if steps else None,
        )

    def runs(
        self, contestants: Sequence[Contestant], repeats: int, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Run]:
        """All runs: prompt by prompt, A B A B, so that drift of the machine meets all alike."""
        for workload in self.workloads:
            for repeat in range(repeats):
                for contestant in contestants:
                    run = self.run(contestant, workload, repeat, stop)
                    if run is None:
                        return
                    yield run
