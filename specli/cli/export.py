"""`specli export`: a profile as another engine's command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specli.cli import complete
from specli.errors import UsageError
from specli.ui.terminal import is_terminal, with_fallbacks


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
            help="The profile to export (auto)",
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
    from specli.settings import did_you_mean

    if engine not in ENGINES:
        raise UsageError(f"no engine {engine} among {', '.join(ENGINES)}{did_you_mean(engine, ENGINES)}")
    given = profiles.load(profile) if profile else profiles.load()
    settings = profiles.resolve(given, {"model": model, "draft-model": draft_model, "spec-type": spec_type})
    target, draft = settings.model or _default(), settings.draft_model
    missing = [m for m in settings.types if m == "draft-model" and settings.asked_by_flag(m) and not draft]
    if missing:
        raise UsageError("--spec-type draft-model needs the draft: give --draft-model MODEL")
    if draft and "draft-model" not in methods(settings, draft) and settings.origin("draft-model") == "flag":
        settings = profiles.resolve(
            given, {"model": model, "draft-model": draft_model, "spec-type": [*settings.types, "draft-model"]}
        )
    text = export(engine, settings, target, draft).text()
    sys.stdout.write(with_fallbacks(text, sys.stdout) if is_terminal(sys.stdout) else text)


def _default() -> str:
    from specli.config import load_config
    from specli.hub import resolve_model

    return load_config().default or str(resolve_model(None))
