"""The one place where settings become a live generator."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from specli import pruned
from specli.casting import Request
from specli.chat.answer import Answer
from specli.chat.conversation import Prompter
from specli.chat.reasoning import find_thinking
from specli.core.decoding import Rules, common_prefix
from specli.core.noise import answer_seed, entropy_seed
from specli.core.pacing import CPU_SHAPE, GPU_SHAPE, Costs, FixedPacer, Pacer, ProfitPacer
from specli.core.types import Drafter
from specli.costs import WidthCosts, costs_key, learned, recall_costs, remember_costs
from specli.drafters.grammar import GrammarDrafter
from specli.drafters.history import HistoryDrafter
from specli.drafters.neural import NeuralDrafter, Voice
from specli.drafting import DraftingRoom
from specli.engine import backend
from specli.engine.context import Context
from specli.engine.exact import remembered_self_test
from specli.engine.features import KINDS as FEATURES
from specli.engine.gguf import read_header
from specli.engine.model import Model
from specli.engine.template import ChatTemplate
from specli.engine.traffic import step_ratio
from specli.errors import SpecliError, UsageError
from specli.loading import Loader
from specli.profiles import Settings
from specli.rules import open_grammar, sampling_params
from specli.tuned import Watch

__all__ = ["Generator", "Request"]
_OFTEN = 3  # decodes of a width, or drafts, from which their cost is known well enough to be kept


class Generator:
    """A loaded target with its drafters, ready for one conversation."""

    def __init__(self, request: Request, say: Callable[[str], None] = lambda _: None) -> None:
        """Load. `say` gets one line for everything worth knowing; `notices` keeps them."""
        self.request = request
        self.settings = request.settings
        self.notices: list[str] = []
        self._say = say
        self._stack = ExitStack()
        self._answers = 0
        self._ratios: dict[tuple[str, bool], float] = {}  # of a method, seeded or not: files stay as they are
        self._last_answer: Answer | None = None
        self._watch = Watch(request.tuned) if request.tuned is not None else None
        seed = self.settings.seed
        self.seeded = seed is not None
        self.seed: int = entropy_seed() if seed is None else seed
        self._loaded = False
        try:
            self._load()
        except BaseException:
            self.close()
            raise
        self._loaded = True

    def _notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)
            self._say(text)

    # -- loading --------------------------------------------------------------------------------

    def _load(self) -> None:
        s = self.settings
        self._loader = Loader(self.request, self._stack, self._say, self._notice)
        self.on_gpu, self.chunk = self._loader.on_gpu, self._loader.chunk
        self._wanted = self._loader.methods
        self.target = self._loader.open_target()
        self.model = self.target.model
        self.model.vocab.most = self.target.n_ctx
        unused = backend.unused_gpu()
        if unused:
            self._notice(unused)
        self.template = self._open_template()
        self.choose_reasoning(s)
        self.prompter = Prompter(self.model.vocab, self.template)
        self.thinking = find_thinking(self.template, self.model.vocab)
        self.ends: Container[int] = () if self.request.ignore_end else self.model.vocab.ends
        self.grammar = open_grammar(s, self.model.vocab, self.ends, self._notice)
        if self.grammar is not None:
            self._stack.enter_context(self.grammar)
        self._drafting = DraftingRoom(self._loader, self.target, self._stack, self._notice)
        self._rollback_problem = self.target.rollback_problem() if self._wanted else None
        self.stored_costs = recall_costs(costs_key(self.target, self.on_gpu))
        self._cast()
        if s.fixed_width is not None:
            reason, _ = remembered_self_test(
                self.target,
                s.fixed_width,
                self.chunk,
                lambda: self._say(f"testing whether --exact can be kept at width {s.fixed_width}, once…"),
            )
            if reason:
                raise UsageError(f"--exact cannot be kept with {self.model.name} here: {reason}")

    def _open_template(self) -> ChatTemplate | None:
        source = self.request.template or self.model.chat_template
        if source is None:
            return None
        vocab = self.model.vocab
        bos, eos = (
            vocab.piece(t, special=True).decode("utf-8", "replace") if t >= 0 else ""
            for t in (vocab.bos, vocab.eos)
        )
        template = ChatTemplate(source, bos, eos)
        self._stack.callback(template.close)
        return template

    def choose_reasoning(self, settings: Settings) -> None:
        """Tell the template whether the model is to reason. Raises UsageError where a flag asks for what it lacks."""
        wanted, template = settings.reasoning, self.template
        switch = template.reasoning_switch if template is not None else None
        if wanted != "auto" and switch is None:
            lacks = f"{self.model.name} has no chat template that lets one choose whether it reasons"
            if settings.origin("reasoning") == "flag":
                raise UsageError(f"--reasoning {wanted}: {lacks}; leave it out")
            self._notice(f"reasoning = {wanted} is left out: {lacks}")
        if template is not None:
            template.given = {} if wanted == "auto" or switch is None else {switch: wanted == "on"}

    def _cast(self) -> None:
        """A pacer and drafters that know nothing yet."""
        self.pacer = self._open_pacer()
        self.drafters = self._open_drafters()

    def _open_pacer(self) -> Pacer:
        if self.settings.fixed:
            return FixedPacer()
        shape, stored = GPU_SHAPE if self.on_gpu else CPU_SHAPE, self._known_costs()
        if stored is None:
            costs = Costs(shape, frozen=self.seeded)
        elif stored.by_run:
            costs = Costs(shape, learned=stored.shape)
        else:
            costs = Costs(stored.shape, frozen=self.seeded, measured=True)
        return ProfitPacer(costs, self.settings.fixed_width, self._step_ratios())

    def _known_costs(self) -> WidthCosts | None:
        """What decodes cost here, as kept. A seeded run must repeat, so it takes no heed of what others learned."""
        stored = self.stored_costs
        return None if stored is not None and stored.by_run and self.seeded else stored

    def _keep_costs(self) -> None:
        """The next run begins with what this one learned of costs, unless they were measured for their own sake."""
        pacer = self.pacer
        if not isinstance(pacer, ProfitPacer) or pacer.costs.frozen or self.settings.fixed_width is not None:
            return
        steps = {}
        for method, seconds in pacer.learned_steps(_OFTEN).items():
            file = self.draft_file(method)
            if file is not None:
                steps[read_header(file).fingerprint] = seconds
        costs = learned(pacer.costs.seen(_OFTEN), steps, self.stored_costs)
        if costs is not None:
            remember_costs(costs_key(self.target, self.on_gpu), costs)

    def _step_ratios(self) -> dict[str, float]:
        """What a draft token costs relative to the target's, by method: as measured, else as its bytes say."""
        for method in self._wanted:
            ratio = None if (method, self.seeded) in self._ratios else self._step_ratio(method)
            if ratio is not None:
                self._ratios[method, self.seeded] = ratio
        found = {method: self._ratios.get((method, self.seeded)) for method in self._wanted}
        return {method: ratio for method, ratio in found.items() if ratio is not None}

    def _step_ratio(self, method: str) -> float | None:
        file = self.draft_file(method)
        if file is None and method != "draft-mtp":
            return None
        draft = read_header(file) if file else self.model.header
        known = self._known_costs()
        measured = known.step(draft.fingerprint) if file and known else None
        return step_ratio(self.model.header, draft, method == "draft-mtp") if measured is None else measured

    def _open_drafters(self) -> list[Drafter]:
        drafters: list[Drafter] = []
        if self._rollback_problem and self._wanted:
            self._notice(f"speculation is off: {self._rollback_problem}")
            return []
        if self.grammar is not None and self._wanted:
            drafters.append(GrammarDrafter(self.grammar))
        return drafters + self._drafting.cast(self._wanted, self.settings, self.pacer)

    # -- starting over --------------------------------------------------------------------------

    def reset(self, settings: Settings | None = None, keep: Sequence[int] = ()) -> None:
        """As if just loaded: empty caches, drafters and a pacer that know nothing, the first seed again.

        `settings`: others from now on. Only who drafts and how may differ from those loaded with; raises
        UsageError for a method that was not loaded. `keep`: a prompt that the target's cache need not
        forget.
        """
        if settings is not None:
            self.settings = settings
            self._wanted = self._loader.cast_list.methods(self.settings, self._notice)
            missing = [method for method in self._wanted if method not in self._loader.methods]
            if missing:
                raise UsageError(f"{missing[0]} was not loaded with {self.model.name}")
        kept = common_prefix(self.target.tokens, keep)
        if kept:
            self.target.rewind(kept)
        else:
            self.target.clear()
        self._drafting.clear()
        self._answers = 0
        self._cast()

    def forget_texts(self) -> None:
        """What draft-self keeps of texts that were said and are no longer in the conversation."""
        for drafter in self.drafters:
            if isinstance(drafter, HistoryDrafter):
                drafter.close()

    # -- what there is --------------------------------------------------------------------------

    @property
    def methods(self) -> list[str]:
        """Who drafts, in order."""
        return [d.method for d in self.drafters]

    @property
    def draft_model(self) -> Model | None:
        """The weights of the draft's own file, where one drafts."""
        return self._drafting.model

    def draft_file(self, method: str) -> Path | None:
        """The file of the weights that `method` drafts with, where it has one of its own on the disk."""
        heads_apart = method == "draft-mtp" and self._loader.cast_list.draft_heads is not None
        if method == "draft-model" or method in FEATURES or heads_apart:
            return self.request.draft
        if method == pruned.METHOD and method in self._loader.methods:
            copy = pruned.copy_path(self._loader.layer_set)
            return copy if copy.exists() else None
        return None

    @property
    def draft_cache(self) -> Context | None:
        """The draft model's cache, where one drafts."""
        return self._drafting.cache

    @property
    def placement(self) -> str:
        """What runs where, in a few words."""
        if self.on_gpu:
            gpus = ", ".join(d.description for d in backend.devices() if d.kind in ("gpu", "igpu"))
            layers = self.settings.gpu_layers
            return f"on {gpus}" + ("" if layers is None else f", {layers} layers")
        threads = self._loader.threads
        return f"on the CPU, {threads} thread{'s' if threads > 1 else ''}"

    # -- answering ------------------------------------------------------------------------------

    def reset_seed(self, answers: int = 0) -> None:
        """The next answer uses the seed it would have after so many others: behind none, the given one itself."""
        self._answers = answers

    def rules(self) -> Rules:
        """The rules of the next answer; each has a seed of its own, derived from the one given."""
        s = self.settings
        seed = answer_seed(self.seed, self._answers)
        return Rules(
            sampling=sampling_params(s, self.model.vocab),
            seed=seed,
            max_tokens=s.max_tokens,
            ends=self.ends,
            exact_width=s.fixed_width,
            coupled=s.coupled,
            compete=s.types == ("auto",) and not s.fixed,
            constraint=self.grammar,
        )

    def answer(
        self, prompt: Sequence[int], stop: Callable[[], bool] = lambda: False, logprobs: int | None = None
    ) -> Answer:
        """Start an answer to `prompt`; iterate over it to get the text. `stop()` is asked between cycles.
        `logprobs`: how many of the likeliest tokens to report with each emitted one, None for no report.

        Raises SpecliError if the prompt does not fit into the context, or the model's file was changed.
        """
        self.model.check_file()
        width = self.settings.fixed_width or 1
        if not prompt:
            raise SpecliError("the prompt is empty")
        if len(prompt) - 1 + width > self.target.n_ctx:
            raise SpecliError(
                f"the prompt has {len(prompt)} tokens and the context holds {self.target.n_ctx}; "
                "shorten it or raise --ctx-size"
            )
        rules = replace(self.rules(), logprobs=logprobs)
        rules.check(self.target.n_vocab, self.target.max_rows)
        for drafter in self.drafters:
            if isinstance(drafter, NeuralDrafter):
                drafter.speak(Voice(rules.sampling, rules.seed, rules.coupled, rules.ends))
        self._answers += 1
        self.look_back()
        self._last_answer = Answer(
            self.target, list(prompt), self.drafters, rules, self.pacer, self.model.vocab,
            self.settings.stop, self.chunk, stop, None if self.grammar is not None else self.thinking,
        )  # fmt: skip
        return self._last_answer

    def look_back(self) -> None:
        """Notice, once, if the last answer's drafts were accepted far less often than the tuned profile
        measured, and who has given up drafting."""
        answer, self._last_answer = self._last_answer, None
        for drafter in self.drafters:
            if isinstance(drafter, NeuralDrafter) and drafter.problem:
                self._notice(f"{drafter.method} drafts no more: {drafter.problem}")
        if answer is not None and self._watch is not None:
            line = self._watch.fold(answer.stats.by_method)
            if line:
                self._notice(line)

    # -- closing --------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it is loaded."""
        return self._loaded

    def close(self) -> None:
        """Free everything in the right order. Safe to call twice."""
        if self._loaded:
            self._loaded = False
            with suppress(SpecliError, OSError):  # a draft's file may be gone
                self._keep_costs()
        self._stack.close()

    def __enter__(self) -> Generator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
