"""Who can draft: what the files hold, and which of the methods asked for have what they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specli.engine.gguf import read_header
from specli.engine.nextn import FileHeads, file_heads
from specli.errors import ModelFileError, UsageError
from specli.profiles import Settings
from specli.tuned import Tuned


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


class CastList:
    """The methods that a request can have.

    `heads`: what the target's own file holds of prediction heads; `draft_heads`: the draft's file, where it
    holds heads and no model. Raises ModelFileError where heads alone are given as a target.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self.heads: FileHeads = file_heads(read_header(request.model))
        if self.heads.heads_only:
            raise ModelFileError(
                f"{self.heads.name} holds only the prediction heads of a model: give the whole model as "
                "--model, and this file as --draft-model"
            )
        draft = request.draft
        found = file_heads(read_header(draft)) if draft is not None else None
        self.draft_heads = found if found is not None and found.heads_only else None

    def methods(self, s: Settings, notice: Callable[[str], None]) -> list[str]:
        """The types asked for, `auto` spelled out, without those whose need is not met."""
        methods: list[str] = []
        own = ["draft-mtp"] if self.draft_heads or self.heads.problem is None else []
        second = ["draft-model"] if self._request.draft and not self.draft_heads else []
        for method in s.types:
            methods += ["draft-self", *own, *second] if method == "auto" else [method]
        chosen = s.origin("types") == "flag" or self._request.tuned is not None
        if self._request.draft and s.origin("draft-model") == "flag" and not chosen:
            methods += second or own
        methods = list(dict.fromkeys(m for m in methods if m != "none"))
        for method in list(methods):
            lack = self._lacks(method)
            if lack and s.asked_by_flag(method):
                raise UsageError(f"--spec-type {method}: {lack}")
            if lack:
                methods.remove(method)
                notice(f"{method} is skipped: {lack}")
        return methods

    def _lacks(self, method: str) -> str | None:
        if method == "draft-model" and self._request.draft is None:
            return "it needs a smaller model of the same family, --draft-model MODEL"
        if method == "draft-model" and self.draft_heads is not None:
            return (
                f"{self.draft_heads.name} holds prediction heads, no model; use it with --spec-type draft-mtp"
            )
        if method == "draft-mtp":
            return (self.draft_heads or self.heads).problem
        return None
