"""Who can draft: what the files hold, and which of the methods asked for have what they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specli import pruned
from specli.engine.features import KINDS as FEATURES
from specli.engine.features import FeatureDraft, feature_draft, feature_problem
from specli.engine.gguf import read_header
from specli.engine.nextn import FileHeads, file_heads
from specli.errors import DraftMismatch, ModelFileError, UsageError
from specli.profiles import Settings
from specli.tuned import Tuned

TREES = ("draft-model", pruned.METHOD)
"""Methods that can draft in trees."""
_CHAINS = ("draft-mtp", *FEATURES)  # those that read the target's hidden rows, one after the other


@dataclass(frozen=True, slots=True)
class Request:
    """What to load: settings, the target's file, the draft's (or None), a template to use instead of
    the model's own. `ignore_end`: answers go on past end tokens. `tuned`: the measured profile that the
    settings are from."""

    settings: Settings
    model: Path
    draft: Path | None = None
    template: str | None = None
    ignore_end: bool = False
    tuned: Tuned | None = None


def draft_method(draft: Path) -> str:
    """The type that a draft's file is for."""
    header = read_header(draft)
    features = feature_draft(header)
    if features is not None:
        return features.method
    return "draft-mtp" if file_heads(header).heads_only else "draft-model"


class CastList:
    """The methods that a request can have.

    `heads`: what the target's own file holds of prediction heads; `draft_heads`: the draft's file, where it
    holds heads and no model; `features`: likewise, where it reads the target's layers (EAGLE-3, block drafts).
    Raises ModelFileError where a draft alone is given as a target.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        target = read_header(request.model)
        alone = feature_draft(target)
        if alone is not None:
            raise ModelFileError(
                f"{alone.name} is {alone.what} and no model: give the model it was trained for as --model, and "
                "this file as --draft-model"
            )
        self.heads: FileHeads = file_heads(target)
        if self.heads.heads_only:
            raise ModelFileError(
                f"{self.heads.name} holds only the prediction heads of a model: give the whole model as "
                "--model, and this file as --draft-model"
            )
        draft = request.draft
        header = read_header(draft) if draft is not None else None
        self.features: FeatureDraft | None = feature_draft(header) if header is not None else None
        self._features_problem = (
            feature_problem(target, header) if header is not None and self.features else None
        )
        found = file_heads(header) if header is not None and self.features is None else None
        self.draft_heads = found if found is not None and found.heads_only else None

    def methods(self, s: Settings, notice: Callable[[str], None]) -> list[str]:
        """The types asked for, `auto` spelled out, without those whose need is not met."""
        methods: list[str] = []
        own = ["draft-mtp"] if self.draft_heads or self.heads.problem is None else []
        second = ["draft-model"] if self._request.draft and not self.draft_heads else []
        if self.features is not None:
            own, second = [], [self.features.method]
        layers = [pruned.METHOD] if s.self_method == "layers" else []
        for method in s.types:
            methods += ["draft-self", *own, *second, *layers] if method == "auto" else [method]
        chosen = s.origin("types") == "flag" or self._request.tuned is not None
        if self._request.draft and s.origin("draft-model") == "flag" and not chosen:
            methods += second or own
        methods = list(dict.fromkeys(m for m in methods if m != "none"))
        skipped = []
        for method in list(methods):
            lack = self._lacks(method)
            if lack is None and method == "draft-mtp" and self._feature_method in methods:
                lack = (
                    f"it and {self._feature_method} read different rows of the target; leave one of them out"
                )
            if lack is None and s.tree_size is not None and method in _CHAINS:
                lack = f"it cannot draft the token trees of --spec-tree {s.tree}"
            if lack and method == self._feature_method and s.origin("draft-model") == "flag":
                raise DraftMismatch(f"--draft-model: {lack}")
            by_flag = method == pruned.METHOD and s.origin("self-method") == "flag"
            if lack and (by_flag or s.asked_by_flag(method)):
                raise UsageError(f"--spec-type {method}: {lack}")
            if lack:
                methods.remove(method)
                skipped.append(f"{method} is skipped: {lack}")
        for line in skipped:
            notice(f"{line}; {' and '.join(methods)} can draft without it" if methods else line)
        return methods

    def tree_method(self, s: Settings, methods: Sequence[str], notice: Callable[[str], None]) -> str | None:
        """Which of `methods` drafts in trees, where they are wanted. Raises UsageError if a flag wanted them and
        none can."""
        if s.tree_size is None:
            return None
        able = next((method for method in methods if method in TREES), None)
        if able is None:
            lack = "token trees need a draft model, --draft-model MODEL"
            if s.origin("tree") == "flag":
                raise UsageError(f"--spec-tree {s.tree}: {lack}")
            notice(f"spec-tree is left out: {lack}")
        return able

    def _lacks(self, method: str) -> str | None:
        if method == "draft-model" and self._request.draft is None:
            return "it needs a smaller model of the same family, --draft-model MODEL"
        if method in FEATURES:
            return self._lacks_features(method)
        own_heads = method == "draft-mtp" and self.heads.problem is None
        if self.features is not None and method in ("draft-model", "draft-mtp") and not own_heads:
            return f"{self.features.name} is {self.features.what}; use it with --spec-type {self.features.method}"
        if method == "draft-model" and self.draft_heads is not None:
            return (
                f"{self.draft_heads.name} holds prediction heads, no model; use it with --spec-type draft-mtp"
            )
        if method == "draft-mtp":
            return (self.draft_heads or self.heads).problem
        if method == pruned.METHOD:
            return self._layers_problem
        return None

    @cached_property
    def _layers_problem(self) -> str | None:
        try:
            pruned.layer_set(self._request.model)
        except ModelFileError as error:
            return str(error)
        return None

    @property
    def _feature_method(self) -> str | None:
        return self.features.method if self.features is not None else None

    def _lacks_features(self, method: str) -> str | None:
        """Why a draft that reads the target's layers cannot be used under this name."""
        if self._request.draft is None:
            return f"it needs {FEATURES[method]} trained for this model, --draft-model FILE"
        if self.features is None:
            return f"{self._request.draft.name} is not {FEATURES[method]}"
        if self.features.method != method:
            return f"{self.features.name} is {self.features.what}; use it with --spec-type {self.features.method}"
        return self._features_problem
