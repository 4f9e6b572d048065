"""The one place where settings become a live generator."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from specli.casting import CastList, Request
from specli.chat.answer import Answer
from specli.chat.conversation import Prompter
from specli.core.decoding import Rules, common_prefix
from specli.core.noise import derive, entropy_seed
from specli.core.pacing import CPU_SHAPE, GPU_SHAPE, Costs, FixedPacer, Pacer, ProfitPacer
from specli.core.types import Drafter, LanguageModel
from specli.costs import costs_key, recall_costs
from specli.drafters.grammar import GrammarDrafter
from specli.drafters.history import HistoryDrafter
from specli.drafters.model import ModelDrafter
from specli.drafters.mtp import MtpDrafter
from specli.drafters.neural import NeuralDrafter, Voice
from specli.drafters.ngram import NgramMapK, NgramMapK4V, NgramSimple
from specli.drafters.translate import Translated
from specli.engine import backend, context
from specli.engine.compat import MIN_SHARE, compare_vocabularies, require_fit, shared_tokens
from specli.engine.context import Context, ContextParams
from specli.engine.exact import remembered_self_test
from specli.engine.fit import require_model
from specli.engine.gguf import Header, read_header
from specli.engine.memory import Load, available_bytes, default_ctx_size, require_memory
from specli.engine.model import Model, ModelParams
from specli.engine.mtp import Heads
from specli.engine.opening import snapshot_rows
from specli.engine.template import ChatTemplate
from specli.errors import SpecliError, UsageError
from specli.profiles import Settings
from specli.rules import open_grammar, sampling_params
from specli.tuned import Watch

__all__ = ["Generator", "Request"]

_NGRAM: dict[str, type[NgramSimple] | type[NgramMapK] | type[HistoryDrafter]] = {
    "ngram-simple": NgramSimple,
    "ngram-map-k": NgramMapK,
    "ngram-map-k4v": NgramMapK4V,
    "draft-self": HistoryDrafter,
}
_CPU_CHUNK = 128  # tokens of a prompt between two looks at Ctrl-C: about a second on two cores


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
        self._last_answer: Answer | None = None
        self._watch = Watch(request.tuned) if request.tuned is not None else None
        seed = self.settings.seed
        self.seeded = seed is not None
        self.seed: int = entropy_seed() if seed is None else seed
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)
            self._say(text)

    # -- loading --------------------------------------------------------------------------------

    def _load(self) -> None:
        s = self.settings
        self._threads = s.threads or backend.physical_cores()
        self.on_gpu = backend.supports_gpu_offload() and s.gpu_layers != 0
        self.chunk = s.batch_size if self.on_gpu else min(_CPU_CHUNK, s.batch_size)
        self._cast_list = CastList(self.request)
        self._wanted = self._loaded = self._cast_list.methods(self.settings, self._notice)
        self._check_memory()
        self.model = self._open_model(self.request.model, s.gpu_layers, load_mtp=self._heads_inside)
        unused = backend.unused_gpu()
        if unused:
            self._notice(unused)
        self.target = self._open_context(self.model, self._ctx_size(self.model.header), self._rows())
        self.template = self._open_template()
        self.prompter = Prompter(self.model.vocab, self.template)
        self.ends: Container[int] = () if self.request.ignore_end else self.model.vocab.ends
        self.grammar = open_grammar(s, self.model.vocab, self.ends, self._notice)
        if self.grammar is not None:
            self._stack.enter_context(self.grammar)
        self.draft_model: Model | None = None
        self.draft_cache: Context | None = None
        self._translated: Translated | None = None
        self._heads_at_work: Heads | None = None
        self._rollback_problem = self.target.rollback_problem() if self._wanted else None
        self.stored_costs = recall_costs(costs_key(self.target, self.on_gpu))
        self._cast()
        if s.fixed_width is not None:
            reason, _ = remembered_self_test(self.target, s.fixed_width, self.chunk)
            if reason:
                raise UsageError(f"--exact cannot be kept with {self.model.name} here: {reason}")

    @property
    def _heads_inside(self) -> bool:
        """Whether the heads that draft are in the target's own file."""
        return "draft-mtp" in self._wanted and self._cast_list.draft_heads is None

    def _check_memory(self) -> None:
        """Refuse with the figures now what would die in the middle of an answer."""
        s = self.settings
        target = read_header(self.request.model)
        n_ctx = self._ctx_size(target)
        loads = [self._load_of(target, n_ctx, self._rows(), s.gpu_layers)]
        drafts = {"auto", "draft-model"} & set(s.types) or s.origin("draft-model") == "flag"
        if self.request.draft is not None and drafts:
            loads.append(self._load_of(read_header(self.request.draft), n_ctx, 1, s.spec_draft_ngl))
        gpus = [d for d in backend.devices() if d.kind in ("gpu", "igpu")] if self.on_gpu else []
        require_memory(loads, available_bytes(), sum(d.memory_free for d in gpus))

    def _load_of(self, header: Header, n_ctx: int, rows: int, gpu_layers: int | None) -> Load:
        s = self.settings
        on_gpu = (-1 if gpu_layers is None else gpu_layers) if self.on_gpu else 0
        n_ubatch = max(rows, min(512, self.chunk))
        return Load(header, n_ctx, n_ubatch, rows, s.cache_type_k, s.cache_type_v, on_gpu)

    def _open_model(self, path: Path, gpu_layers: int | None, load_mtp: bool = False) -> Model:
        s = self.settings
        trial = backend.TrialSettings(
            threads=self._threads,
            gpu_layers=-1 if gpu_layers is None else gpu_layers,
            flash_attn=s.flash_attn,
            type_k=s.cache_type_k,
            type_v=s.cache_type_v,
        )
        verdict = backend.repack_verdict(
            path,
            trial,
            force_off=s.no_repack,
            before_trial=lambda: self._say("trying this library on this processor, once…"),
        )
        if verdict.notice:
            self._notice(verdict.notice)
        params = ModelParams(-1 if gpu_layers is None else gpu_layers, verdict.use_extra_bufts, load_mtp)
        return self._stack.enter_context(Model(path, params))

    def _rows(self) -> int:
        if self.settings.fixed_width is not None:
            return self.settings.fixed_width
        return context.MAX_ROWS if self._wanted else 1

    def _ctx_size(self, header: Header) -> int:
        s = self.settings
        return s.ctx_size or default_ctx_size(header, s.cache_type_k, s.cache_type_v)

    def _open_context(self, model: Model, n_ctx: int, rows: int) -> Context:
        s = self.settings
        is_target = model is self.model
        snapshots = 0
        if (
            is_target and model.takes_snapshots and rows > 1
        ):  # each row can be gone back to, at a state's cost
            rows = s.fixed_width or min(rows, snapshot_rows(model.header, available_bytes()))
            snapshots = rows - 1
        n_batch = max(rows + 1, self.chunk)
        params = ContextParams(
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=max(rows + 1, min(512, n_batch)),
            max_rows=rows,
            threads=self._threads,
            threads_batch=s.threads_batch or self._threads,
            flash_attn=s.flash_attn,
            type_k=s.cache_type_k,
            type_v=s.cache_type_v,
            swa_full=s.swa_full or not is_target,  # drafts are cut too often for the small one
            snapshots=snapshots,
            hidden=is_target and "draft-mtp" in self._wanted,
        )
        return self._stack.enter_context(Context(model, params))

    def _open_template(self) -> ChatTemplate | None:
        source = self.request.template or self.model.chat_template
        if source is None:
            return None
        vocab = self.model.vocab
        bos, eos = (
            vocab.piece(t, special=True).decode("utf-8", "replace") if t >= 0 else ""
            for t in (vocab.bos, vocab.eos)
        )
        return ChatTemplate(source, bos, eos)

    def _cast(self) -> None:
        """A pacer and drafters that know nothing yet."""
        self.pacer = self._open_pacer()
        self.drafters = self._open_drafters()

    def _open_pacer(self) -> Pacer:
        if self.settings.fixed:
            return FixedPacer()
        stored = self.stored_costs
        shape = stored.shape if stored else GPU_SHAPE if self.on_gpu else CPU_SHAPE
        costs = Costs(shape, frozen=self.seeded, measured=stored is not None)
        return ProfitPacer(costs, self.settings.fixed_width, self._known_steps())

    def _known_steps(self) -> dict[str, float]:
        """What a draft token costs relative to the target's, by method, as far as it was measured."""
        draft = self.request.draft
        if self.stored_costs is None or draft is None:
            return {}
        step = self.stored_costs.step(read_header(draft).fingerprint)
        return {} if step is None else {"draft-model": step}

    def _open_drafters(self) -> list[Drafter]:
        drafters: list[Drafter] = []
        if self._rollback_problem and self._wanted:
            self._notice(f"speculation is off: {self._rollback_problem}")
            return []
        if self.grammar is not None and self._wanted:
            drafters.append(GrammarDrafter(self.grammar))
        for method in self._wanted:
            if method in _NGRAM:
                sizes = self.settings.ngram(method)
                drafters.append(_NGRAM[method](sizes.size_n, sizes.size_m, sizes.min_hits))
            elif method == "draft-model" and self.settings.draft_n_max > 0:
                drafters.append(self._open_model_drafter())
            elif method == "draft-mtp" and self.settings.draft_n_max > 0:
                drafters.append(self._open_mtp_drafter())
        return drafters

    def _open_model_drafter(self) -> Drafter:
        s = self.settings
        if self.draft_cache is None:
            self.draft_cache = self._open_draft_cache()
        model: LanguageModel = self._translated or self.draft_cache
        fits = self._translated.fits if self._translated else None
        return ModelDrafter(
            model, self.pacer, self._shared, s.draft_n_max, s.draft_n_min, s.draft_p_min, self.chunk, fits
        )

    def _open_draft_cache(self) -> Context:
        draft = self.request.draft
        assert draft is not None
        require_model(self.request.model, draft)
        self.draft_model = self._open_model(draft, self.settings.spec_draft_ngl)
        check = compare_vocabularies(self.model.header, self.draft_model.header)
        if check.problem is None:
            if check.note:
                self._notice(f"{self.draft_model.name}: {check.note}")
            self._shared = check.shared
            return self._open_context(self.draft_model, self.target.n_ctx, 1)
        if self.settings.same_vocab:
            require_fit(self.model, self.draft_model)
        return self._open_translated(self.draft_model)

    def _open_translated(self, draft: Model) -> Context:
        """A draft of another vocabulary: it proposes what both know."""
        vocab, theirs = self.model.vocab, draft.vocab
        common = shared_tokens(vocab, theirs)
        if common.share < MIN_SHARE:
            require_fit(self.model, draft)
        self._notice(
            f"{draft.name} has another vocabulary than {self.model.name}: it proposes the {common.n_shared} "
            f"tokens that both know, {100 * common.share:.0f}% of its own"
        )

        def spell(token: int) -> list[int]:
            return [] if vocab.is_control(token) else theirs.tokenize(vocab.piece(token))

        cache = self._open_context(draft, self.target.n_ctx, 1)
        self._translated = Translated(cache, common.to_draft, spell)
        self._shared = vocab.n_tokens
        return cache

    def _open_mtp_drafter(self) -> Drafter:
        s = self.settings
        if self._heads_at_work is None:
            self._heads_at_work = self._open_heads()
        n_vocab = self._head_vocab
        return MtpDrafter(
            self._heads_at_work, self.pacer, n_vocab, s.draft_n_max, s.draft_n_min, s.draft_p_min
        )

    def _open_heads(self) -> Heads:
        model = None
        self._head_vocab = self.model.vocab.n_tokens
        if self._cast_list.draft_heads is not None:
            assert self.request.draft is not None
            model = self._open_model(self.request.draft, self.settings.spec_draft_ngl, load_mtp=True)
            self._head_vocab = require_fit(self.model, model).shared
            self.draft_model = model
        return self._stack.enter_context(Heads(self.target, self.target.params, model))

    # -- starting over --------------------------------------------------------------------------

    def reset(self, settings: Settings | None = None, keep: Sequence[int] = ()) -> None:
        """As if just loaded: empty caches, drafters and a pacer that know nothing, the first seed again.

        `settings`: others from now on. Only who drafts and how may differ from those loaded with; raises
        UsageError for a method that was not loaded. `keep`: a prompt that the target's cache need not
        forget.
        """
        if settings is not None:
            self.settings = settings
            self._wanted = self._cast_list.methods(self.settings, self._notice)
            missing = [method for method in self._wanted if method not in self._loaded]
            if missing:
                raise UsageError(f"{missing[0]} was not loaded with {self.model.name}")
        kept = common_prefix(self.target.tokens, keep)
        if kept:
            self.target.rewind(kept)
        else:
            self.target.clear()
        if self.draft_cache is not None:
            self.draft_cache.clear()
        self._answers = 0
        self._cast()

    # -- what there is --------------------------------------------------------------------------

    @property
    def methods(self) -> list[str]:
        """Who drafts, in order."""
        return [d.method for d in self.drafters]

    @property
    def placement(self) -> str:
        """What runs where, in a few words."""
        if self.on_gpu:
            gpus = ", ".join(d.description for d in backend.devices() if d.kind in ("gpu", "igpu"))
            layers = self.settings.gpu_layers
            return f"on {gpus}" + ("" if layers is None else f", {layers} layers")
        return f"on the CPU, {self._threads} thread{'s' if self._threads > 1 else ''}"

    # -- answering ------------------------------------------------------------------------------

    def reset_seed(self) -> None:
        """The next answer uses the given seed itself, as the first one did."""
        self._answers = 0

    def rules(self) -> Rules:
        """The rules of the next answer; each has a seed of its own, derived from the one given."""
        s = self.settings
        seed = derive(self.seed, self._answers) if self._answers else self.seed
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

        Raises SpecliError if the prompt does not fit into the context.
        """
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
                drafter.speak(Voice(rules.sampling, rules.seed, rules.coupled))
        self._answers += 1
        self.look_back()
        self._last_answer = Answer(
            self.target, list(prompt), self.drafters, rules, self.pacer, self.model.vocab,
            self.settings.stop, self.chunk, stop,
        )  # fmt: skip
        return self._last_answer

    def look_back(self) -> None:
        """Notice, once, if the last answer's drafts were accepted far less often than the tuned profile
        measured."""
        answer, self._last_answer = self._last_answer, None
        if answer is not None and self._watch is not None:
            line = self._watch.fold(answer.stats.by_method)
            if line:
                self._notice(line)

    # -- closing --------------------------------------------------------------------------------

    def close(self) -> None:
        """Free everything in the right order. Safe to call twice."""
        self._stack.close()

    def __enter__(self) -> Generator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
