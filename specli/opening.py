"""The one door to a loaded model, for the command line and for Python: from what was asked for to a
live generator."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specli.errors import ModelFileError, UsageError
from specli.settings import Settings

if TYPE_CHECKING:
    from specli.assembly import Generator
    from specli.casting import Request


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for, before any file was looked at.

    `given`: settings by name, None for what was not given. `profile`: a name or a file, None if none was asked for.
    `raw`: use no chat template. `verbose`: print the
    library's log. `offer_draft`: say, once for each model, which draft on the disk would fit. `use_tuned`:
    take the profile that `specli tune` wrote for these models, if it holds here and no other was asked for.
    `ignore_end`: answers go on past end tokens.
    """

    given: Mapping[str, object]
    profile: str | None = None
    template_file: Path | None = None
    raw: bool = False
    verbose: bool = False
    offer_draft: bool = False
    use_tuned: bool = True
    ignore_end: bool = False

    def settings(self) -> Settings:
        """What was given over the profile over the defaults. Raises UsageError for what cannot be meant."""
        from specli import profiles

        settings = profiles.resolve(profiles.load(self.profile), self.given)
        if self.raw and self.template_file:
            raise UsageError(
                "--raw uses no chat template, so --chat-template-file cannot be honoured with it"
            )
        if self.raw and settings.system and settings.origin("system") == "flag":
            raise UsageError(
                "--raw has no turns, so --system cannot be honoured; put its text into the prompt"
            )
        if self.raw and settings.origin("reasoning") == "flag":
            raise UsageError("--raw uses no chat template, so --reasoning cannot be honoured with it")
        return settings


@dataclass(frozen=True, slots=True)
class Found:
    """An order whose files were found: what to load, and what was said on the way."""

    order: Order
    request: Request
    lines: tuple[str, ...]


def open_generator(order: Order, settings: Settings, say: Callable[[str], None]) -> Generator:
    """Find the files and load. `settings`: usually `order.settings()`. `say` gets each notice."""
    return load(find(order, settings, say), say)


def find(order: Order, settings: Settings, say: Callable[[str], None]) -> Found:
    """Find the files, with nothing loaded yet. Raises SpecliError for those that cannot be found."""
    from specli.casting import Request
    from specli.hub import resolve_model

    model = resolve_model(settings.model)
    draft = resolve_model(settings.draft_model) if settings.draft_model else None
    if draft is None and "auto" in settings.types:
        from specli.shelf import unasked_draft

        draft = unasked_draft(model, say, offer=order.offer_draft)
    template = _read_template(order.template_file) if order.template_file else None

    request = Request(settings, model, draft, template, order.ignore_end)
    lines: list[str] = []
    if order.use_tuned:
        request = _tuned(order, request, lines.append)
    for line in lines:
        say(line)
    return Found(order, request, tuple(lines))


def check(found: Found) -> None:
    """What loading would find wrong with the files first, for whoever gives something up for it. Raises
    SpecliError."""
    from specli.casting import CastList
    from specli.engine.admission import sound_header

    request = found.request
    for file in filter(None, (request.model, request.draft)):
        sound_header(file)
    CastList(request).methods(request.settings, lambda _: None)


def load(found: Found, say: Callable[[str], None]) -> Generator:
    """Load what was found."""
    from specli.assembly import Generator
    from specli.engine.backend import set_verbose

    order = found.order
    set_verbose(order.verbose)
    generator = Generator(found.request, say)
    generator.notices[:0] = found.lines
    if order.raw:
        generator.thinking = None  # bare text has no answer to begin with
    try:
        _check_system(generator, order.raw, say)
    except BaseException:
        generator.close()
        raise
    return generator


def is_raw(generator: Generator, raw: bool) -> bool:
    """Whether text is completed instead of messages answered: asked for, or for want of a template."""
    return raw or not generator.prompter.has_template


def _tuned(order: Order, request: Request, say: Callable[[str], None]) -> Request:
    """`request` as tuned, where nothing else was asked for."""
    settings = request.settings
    asked = order.profile is not None or "flag" in (
        settings.origin("types"),
        settings.origin("fixed"),
    )
    if asked:
        return request
    from specli import profiles, tuned

    found = tuned.find(request.model, request.draft, settings)
    if found is not None:
        say(found.line)
    if not isinstance(found, tuned.Tuned):
        return request
    settings = profiles.resolve(found.over(profiles.load(order.profile)), order.given)
    draft = request.draft if found.uses_draft else None
    return replace(request, settings=settings, draft=draft, tuned=found)


def _check_system(generator: Generator, raw: bool, say: Callable[[str], None]) -> None:
    settings = generator.settings

    def notice(text: str) -> None:
        generator.notices.append(text)
        say(text)

    if not generator.prompter.has_template and not raw:
        if settings.system and settings.origin("system") == "flag":
            raise UsageError(
                f"{generator.model.name} has no chat template, so --system cannot be honoured; "
                "give --chat-template-file, or put its text into the prompt"
            )
        notice(
            f"{generator.model.name} has no chat template: it continues your text instead of answering it "
            "(--chat-template-file gives it one)"
        )
    if settings.system and is_raw(generator, raw):
        notice(f"the system message of profile {settings.profile} is left out: raw text has no turns")


def _read_template(path: Path) -> str:
    try:
        return Path(os.path.expanduser(path)).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise ModelFileError(f"--chat-template-file {path}: {reason}") from error
