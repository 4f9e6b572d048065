"""From the methods wanted to live drafters: their models and caches are opened once, when first needed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from specli.casting import TREES
from specli.core.pacing import Pacer
from specli.core.trees import Shape
from specli.core.types import Drafter, LanguageModel
from specli.drafters.block import BlockDrafter
from specli.drafters.eagle3 import EagleDrafter
from specli.drafters.free import FREE
from specli.drafters.model import LayersDrafter, ModelDrafter
from specli.drafters.mtp import MtpDrafter
from specli.drafters.translate import Translated
from specli.drafters.tree import TreeDrafter
from specli.engine.blocks import Blocks
from specli.engine.compat import MIN_SHARE, compare_vocabularies, require_fit, shared_tokens
from specli.engine.context import Context
from specli.engine.eagle3 import Eagle
from specli.engine.features import KINDS as FEATURES
from specli.engine.fit import require_model
from specli.engine.model import Model
from specli.engine.mtp import Heads
from specli.errors import UsageError
from specli.loading import Loader, Say
from specli.settings import Settings


class DraftingRoom:
    """What drafts for `target`. `model`: the weights of a draft's own file, `cache` a draft model's
    context, `layers_cache` that of the target without some layers; None until opened."""

    def __init__(self, loader: Loader, target: Context, stack: ExitStack, notice: Say) -> None:
        self._loader, self._target = loader, target
        self._stack, self._notice = stack, notice
        self.model: Model | None = None
        self.cache: Context | None = None
        self.layers_cache: Context | None = None
        self._translated: Translated | None = None
        self._shared = 0  # ids below this may be drafted
        self._heads: Heads | None = None
        self._head_vocab = 0  # the same for prediction heads
        self._features: Eagle | Blocks | None = None

    def cast(self, methods: Sequence[str], s: Settings, pacer: Pacer) -> list[Drafter]:
        """Drafters that know nothing yet, in the order in which they are asked. The one that grows trees comes
        first: what drafters in the text find joins as branches, and drafts alone where it keeps silent."""
        grows = next((m for m in methods if m in TREES), None) if s.tree_size and s.draft_n_max else None
        opened = (self.open(m, s, pacer) for m in methods if m != grows)
        drafters = [drafter for drafter in opened if drafter is not None]
        if grows is not None:
            free = [drafter for drafter in drafters if drafter.method in FREE]
            drafters.insert(0, self._open_tree(grows, free, s, pacer))
        return drafters

    def open(self, method: str, s: Settings, pacer: Pacer) -> Drafter | None:
        """A drafter that knows nothing yet; None where the settings leave it nothing to draft."""
        if method in FREE:
            sizes = s.ngram(method)
            return FREE[method](sizes.size_n, sizes.size_m, sizes.min_hits)
        if s.draft_n_max == 0:
            return None
        if method == LayersDrafter.method:
            return self._open_layers(s, pacer)
        if method in FEATURES:
            return self._open_features(method, s, pacer)
        return self._open_model(s, pacer) if method == "draft-model" else self._open_mtp(s, pacer)

    def clear(self) -> None:
        """Empty the caches that do not follow the target's by themselves."""
        for cache in (self.cache, self.layers_cache):
            if cache is not None:
                cache.clear()

    # -- a draft model --------------------------------------------------------------------------

    def _open_tree(self, method: str, free: Sequence[Drafter], s: Settings, pacer: Pacer) -> Drafter:
        cache = self._model_cache(s) if method == "draft-model" else self._layers_cache(s)
        n_vocab = self._shared if method == "draft-model" else self._target.model.vocab.n_tokens
        assert s.tree_size is not None
        if self._translated is not None and method == "draft-model":
            raise UsageError(
                f"--spec-tree {s.tree}: {cache.model.name} has another vocabulary than {self._target.model.name}, "
                "and can only draft one token after another"
            )
        if s.tree_size.nodes > min(cache.params.branches, self._target.params.branches):
            raise UsageError(f"--spec-tree {s.tree}: {self._target.model.name} was loaded for less")
        shape = Shape(s.tree_size.width, s.tree_size.depth, min(s.tree_nodes, s.tree_size.nodes))
        return TreeDrafter(
            method, cache, pacer, n_vocab, shape, free, s.draft_n_min, s.draft_p_min, self._loader.chunk
        )

    def _model_cache(self, s: Settings) -> Context:
        if self.cache is None:
            self.cache = self._open_cache(s)
        return self.cache

    def _open_model(self, s: Settings, pacer: Pacer) -> Drafter:
        cache = self._model_cache(s)
        model: LanguageModel = self._translated or cache
        fits = self._translated.fits if self._translated else None
        return ModelDrafter(
            model, pacer, self._shared, s.draft_n_max, s.draft_n_min, s.draft_p_min, self._loader.chunk, fits
        )

    def _open_cache(self, s: Settings) -> Context:
        path = self._loader.request.draft
        assert path is not None
        require_model(self._loader.request.model, path)
        self.model = draft = self._loader.open_model(path, s.spec_draft_ngl)
        check = compare_vocabularies(self._target.model.header, draft.header)
        if check.problem is None:
            if check.note:
                self._notice(f"{draft.name}: {check.note}")
            self._shared = check.shared
            return self._loader.open_draft_context(draft, self._target.n_ctx)
        if s.same_vocab:
            require_fit(self._target.model, draft)
        return self._open_translated(draft)

    def _open_translated(self, draft: Model) -> Context:
        """A draft of another vocabulary: it proposes what both know."""
        target = self._target.model
        vocab, theirs = target.vocab, draft.vocab
        common = shared_tokens(vocab, theirs)
        if common.share < MIN_SHARE:
            require_fit(target, draft)
        self._notice(
            f"{draft.name} has another vocabulary than {target.name}: it proposes the {common.n_shared} "
            f"tokens that both know, {100 * common.share:.0f}% of its own"
        )

        def spell(token: int) -> list[int]:
            return [] if vocab.is_control(token) else theirs.tokenize(vocab.piece(token))

        cache = self._loader.open_draft_context(draft, self._target.n_ctx)
        self._translated = Translated(cache, common.to_draft, spell)
        self._shared = vocab.n_tokens
        return cache

    # -- the target without some layers ---------------------------------------------------------

    def _open_layers(self, s: Settings, pacer: Pacer) -> Drafter:
        n_vocab = self._target.model.vocab.n_tokens
        return LayersDrafter(
            self._layers_cache(s),
            pacer,
            n_vocab,
            s.draft_n_max,
            s.draft_n_min,
            s.draft_p_min,
            self._loader.chunk,
        )

    def _layers_cache(self, s: Settings) -> Context:
        if self.layers_cache is None:
            model = self._loader.open_pruned(s.spec_draft_ngl)
            self.layers_cache = self._loader.open_draft_context(model, self._target.n_ctx)
        return self.layers_cache

    # -- heads ----------------------------------------------------------------------------------

    def _open_mtp(self, s: Settings, pacer: Pacer) -> Drafter:
        if self._heads is None:
            self._heads = self._open_heads(s)
        return MtpDrafter(self._heads, pacer, self._head_vocab, s.draft_n_max, s.draft_n_min, s.draft_p_min)

    def _open_heads(self, s: Settings) -> Heads:
        model = None
        self._head_vocab = self._target.model.vocab.n_tokens
        if self._loader.cast_list.draft_heads is not None:
            self.model = model = self._loader.open_head(s.spec_draft_ngl, load_mtp=True)
            self._head_vocab = require_fit(self._target.model, model).shared
        return self._stack.enter_context(Heads(self._target, self._target.params, model))

    # -- drafts that read the target's layers ---------------------------------------------------

    def _open_features(self, method: str, s: Settings, pacer: Pacer) -> Drafter:
        features = self._features or self._open_feature_cache(method, s)
        self._features = features
        limits = (features.n_vocab, s.draft_n_max, s.draft_n_min, s.draft_p_min)
        if isinstance(features, Eagle):
            return EagleDrafter(features, pacer, *limits)
        return BlockDrafter(method, features, pacer, *limits)

    def _open_feature_cache(self, method: str, s: Settings) -> Eagle | Blocks:
        self.model = model = self._loader.open_head(s.spec_draft_ngl)
        if method == EagleDrafter.method:
            return self._stack.enter_context(Eagle(self._target, self._target.params, model))
        return self._stack.enter_context(Blocks(self._target, self._target.params, model))
