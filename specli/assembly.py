"""The one place where settings become a live generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from specli.chat.answer import Answer
from specli.chat.conversation import Prompter
from specli.core.decoding import Rules
from specli.core.noise import derive, entropy_seed
from specli.core.pacing import CPU_SHAPE, GPU_SHAPE, Costs, FixedPacer, Pacer, ProfitPacer
from specli.core.sampling import SamplingParams
from specli.core.types import Drafter
from specli.drafters.history import HistoryDrafter
from specli.drafters.model import ModelDrafter
from specli.drafters.ngram import NgramMapK, NgramMapK4V, NgramSimple
from specli.engine import backend, context
from specli.engine.compat import require_fit
from specli.engine.context import Context, ContextParams
from specli.engine.exact import remembered_self_test
from specli.engine.memory import default_ctx_size
from specli.engine.model import Model, ModelParams
from specli.engine.template import ChatTemplate
from specli.errors import SpecliError, UsageError
from specli.profiles import Settings

_NGRAM: dict[str, type[NgramSimple] | type[NgramMapK] | type[HistoryDrafter]] = {
    "ngram-simple": NgramSimple,
    "ngram-map-k": NgramMapK,
    "ngram-map-k4v": NgramMapK4V,
    "draft-self": HistoryDrafter,
}
_CPU_CHUNK = 128  # tokens of a prompt between two looks at Ctrl-C: about a second on two cores


@dataclass(frozen=True, slots=True)
class Request:
    """What to load: settings, the target's file, the draft's (or None), a template to use instead of
    the model's own."""

    settings: Settings
    model: Path
    draft: Path | None = None
    template: str | None = None


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
        seed = self.settings.seed
        self.seeded = seed is not None
        self.seed: int = entropy_seed() if seed is None else seed
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _notice(self, text: str) -> None:
        self.notices.append(text)
        self._say(text)

    # -- loading --------------------------------------------------------------------------------

    def _load(self) -> None:
        s = self.settings
        self._threads = s.threads or backend.physical_cores()
        self.model = self._open_model(self.request.model, s.gpu_layers)
        self.on_gpu = backend.supports_gpu_offload() and s.gpu_layers != 0
        self.chunk = s.batch_size if self.on_gpu else min(_CPU_CHUNK, s.batch_size)
        unused = backend.unused_gpu()
        if unused:
            self._notice(unused)
        self.target = self._open_context(self.model, self._ctx_size(self.model), self._rows())
        self.template = self._open_template()
        self.prompter = Prompter(self.model.vocab, self.template)
        self.draft_model: Model | None = None
        self.pacer = self._open_pacer()
        self.drafters = self._open_drafters()
        if s.fixed_width is not None:
            reason, _ = remembered_self_test(self.target, s.fixed_width, self.chunk)
            if reason:
                raise UsageError(f"--exact cannot be kept with {self.model.name} here: {reason}")

    def _open_model(self, path: Path, gpu_layers: int | None) -> Model:
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
        params = ModelParams(-1 if gpu_layers is None else gpu_layers, verdict.use_extra_bufts)
        return self._stack.enter_context(Model(path, params))

    def _rows(self) -> int:
        if self.settings.fixed_width is not None:
            return self.settings.fixed_width
        return 1 if self.settings.types == ("none",) else context.MAX_ROWS

    def _ctx_size(self, model: Model) -> int:
        s = self.settings
        return s.ctx_size or default_ctx_size(model.header, s.cache_type_k, s.cache_type_v)

    def _open_context(self, model: Model, n_ctx: int, rows: int) -> Context:
        s = self.settings
        n_batch = max(rows, self.chunk)
        params = ContextParams(
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=max(rows, min(512, n_batch)),
            max_rows=rows,
            threads=self._threads,
            threads_batch=s.threads_batch or self._threads,
            flash_attn=s.flash_attn,
            type_k=s.cache_type_k,
            type_v=s.cache_type_v,
            swa_full=s.swa_full,
        )
        return self._stack.enter_context(Context(model, params))

    def _open_template(self) -> ChatTemplate | None:
        source = self.request.template or self.model.chat_template
        if source is None:
            return None
        vocab = self.model.vocab
        bos, eos = (vocab.piece(t, special=True).decode("utf-8", "replace") if t >= 0 else "" for t in (vocab.bos, vocab.eos))
        return ChatTemplate(source, bos, eos)

    def _open_pacer(self) -> Pacer:
        if self.settings.fixed:
            return FixedPacer()
        costs = Costs(GPU_SHAPE if self.on_gpu else CPU_SHAPE, frozen=self.seeded)
        return ProfitPacer(costs, self.settings.fixed_width)

    def _open_drafters(self) -> list[Drafter]:
        drafters: list[Drafter] = []
        for method in self._methods():
            if method in _NGRAM:
                sizes = self.settings.ngram(method)
                drafters.append(_NGRAM[method](sizes.size_n, sizes.size_m, sizes.min_hits))
            elif method == "draft-model" and self.settings.draft_n_max > 0:
                drafters.append(self._open_model_drafter())
        return drafters

    def _methods(self) -> list[str]:
        """The types asked for, `auto` spelled out, without those whose need is not met."""
        s = self.settings
        methods: list[str] = []
        for method in s.types:
            methods += ["draft-self", *(["draft-model"] if self.request.draft else [])] if method == "auto" else [method]
        if self.request.draft and s.origin("draft-model") == "flag" and s.origin("types") != "flag":
            methods.append("draft-model")
        methods = list(dict.fromkeys(m for m in methods if m != "none"))
        for method in list(methods):
            lack = self._lacks(method)
            if lack and s.asked_by_flag(method):
                raise UsageError(f"--spec-type {method}: {lack}")
            if lack:
                methods.remove(method)
                self._notice(f"{method} is skipped: {lack}")
        return methods

    def _lacks(self, method: str) -> str | None:
        if method == "draft-model" and self.request.draft is None:
            return "it needs a smaller model of the same family, --draft-model MODEL"
        if method == "draft-mtp":
            return f"{self.model.name} has no prediction heads (no nextn layers in the file)"
        return None

    def _open_model_drafter(self) -> Drafter:
        s = self.settings
        assert self.request.draft is not None
        self.draft_model = self._open_model(self.request.draft, s.spec_draft_ngl)
        check = require_fit(self.model.vocab, self.draft_model.vocab, self.model.name, self.draft_model.name)
        if check.note:
            self._notice(f"{self.draft_model.name}: {check.note}")
        cache = self._open_context(self.draft_model, self.target.n_ctx, 1)
        return ModelDrafter(
            cache, self.pacer, check.shared, s.draft_n_max, s.draft_n_min, s.draft_p_min, self.chunk
        )

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
            sampling=SamplingParams(
                s.temp, s.top_k, s.top_p, s.min_p, s.typical_p, s.repeat_penalty, s.repeat_last_n,
                s.frequency_penalty, s.presence_penalty, self._logit_bias(),
            ),
            seed=seed,
            max_tokens=s.max_tokens,
            ends=self.model.vocab.ends,
            exact_width=s.fixed_width,
            coupled=s.fixed_width is not None,
        )  # fmt: skip

    def _logit_bias(self) -> dict[int, float]:
        out: dict[int, float] = {}
        for name, bias in self.settings.logit_bias.items():
            tokens = [int(name)] if name.isdigit() else self.model.vocab.tokenize(name, special=True)
            if len(tokens) != 1 or not 0 <= tokens[0] < self.model.vocab.n_tokens:
                raise UsageError(f"--logit-bias {name}: not one token of {self.model.name}; give a token's number or text")
            out[tokens[0]] = bias
        return out

    def answer(self, prompt: Sequence[int], stop: Callable[[], bool] = lambda: False) -> Answer:
        """Start an answer to `prompt`; iterate over it to get the text. `stop()` is asked between cycles.

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
        rules = self.rules()
        self._answers += 1
        return Answer(
            self.target, list(prompt), self.drafters, rules, self.pacer, self.model.vocab,
            self.settings.stop, self.chunk, stop,
        )  # fmt: skip

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
