"""`specli export`: a profile as another engine's command."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from specli.cli import complete
from specli.errors import UsageError
from specli.ui.terminal import is_terminal, with_fallbacks

if TYPE_CHECKING:
    from specli.profiles import Profile
    from specli.settings import Settings


def export(
    engine: Annotated[
        str,
        typer.Argument(
            metavar="ENGINE",
            help="llama-server, vllm, sglang or tensorrt-llm",
            show_default=False,
            autocompletion=complete.engines,
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            metavar="MODEL",
            help="The target, if not the profile's",
            show_default=False,
            autocompletion=complete.models,
        ),
    ] = None,
    draft_model: Annotated[
        str | None,
        typer.Option(
            "--draft-model",
            "--spec-draft-model",
            "-md",
            metavar="MODEL",
            help="The draft, likewise",
            show_default=False,
            autocompletion=complete.models,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME|FILE",
            help="The profile to export (the tuned one, else auto)",
            autocompletion=complete.profiles,
        ),
    ] = None,
    spec_type: Annotated[
        str | None,
        typer.Option(
            "--spec-type",
            metavar="TYPE[,TYPE]",
            help="Methods instead of the profile's",
            show_default=False,
            autocompletion=complete.spec_types,
        ),
    ] = None,
) -> None:
    """Print another engine's command with a profile's settings.

    It is a shell script that starts ENGINE; what has no counterpart there is said in its comments.
    """
    from specli import profiles
    from specli.export import ENGINES, export, methods
    from specli.keys import did_you_mean

    if engine not in ENGINES:
        raise UsageError(f"no engine {engine} among {', '.join(ENGINES)}{did_you_mean(engine, ENGINES)}")
    flags = {"model": model, "draft-model": draft_model, "spec-type": spec_type}
    given = profiles.load(profile) if profile else profiles.load()
    if profile is None and spec_type is None:
        given = _tuned(profiles.resolve(given, flags)) or given
    settings = profiles.resolve(given, flags)
    target, draft = settings.model or _default(), settings.draft_model
    missing = [m for m in settings.types if m == "draft-model" and settings.asked_by_flag(m) and not draft]
    if missing:
        raise UsageError("--spec-type draft-model needs the draft: give --draft-model MODEL")
    for each in (target, draft):
        _require_there(each)
    unasked = draft and settings.origin("draft-model") == "flag" and settings.types != ("none",)
    if unasked and "draft-model" not in methods(settings, draft, target):
        settings = profiles.resolve(
            given, {"model": model, "draft-model": draft_model, "spec-type": [*settings.types, "draft-model"]}
        )
    text = export(engine, settings, target, draft).text()
    sys.stdout.write(with_fallbacks(text, sys.stdout) if is_terminal(sys.stdout) else text)


def _require_there(reference: str | None) -> None:
    """Refuse what chat and run would refuse; user/repo need not be on this disk, its engine fetches it."""
    from specli.config import load_config
    from specli.hub import resolve_model, split_reference

    if reference is None:
        return
    named = load_config().aliases.get(reference, reference)
    if split_reference(named) is None or os.path.exists(os.path.expanduser(named)):
        resolve_model(named)


def _tuned(settings: Settings) -> Profile | None:
    """What chat and run would use by themselves; None also where the model is not on this disk."""
    from specli import profiles, tuned
    from specli.errors import SpecliError
    from specli.hub import resolve_model

    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched for a command line
    try:
        model = resolve_model(settings.model)
        draft = resolve_model(settings.draft_model) if settings.draft_model else None
        found = tuned.find(model, draft, settings)
    except SpecliError:
        return None
    return found.over(profiles.load()) if isinstance(found, tuned.Tuned) else None


def _default() -> str:
    from specli.config import load_config
    from specli.hub import resolve_model

    return load_config().default or str(resolve_model(None))
