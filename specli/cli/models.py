"""`specli models`: what lies on the disk, what could draft for what; fetch one, choose the default."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specli.cli import complete
from specli.cli.help import Groups, Sections
from specli.errors import SpecliError, UsageError
from specli.ui.terminal import announcer, echo, json_text

if TYPE_CHECKING:
    from specli.shelf import Shelved


class _ListOrCommand(Groups):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Its commands; a directory is taken for what it was meant as."""
        if args and args[0] not in self.commands and os.path.isdir(os.path.expanduser(args[0])):
            raise UsageError(f"{args[0]} is no command; to look there too: specli models --dir {args[0]}")
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=_ListOrCommand, rich_markup_mode=None)

_MODEL = Annotated[
    str, typer.Argument(metavar="MODEL", help="user/repo[:quant] on Hugging Face", show_default=False)
]


@app.callback(invoke_without_command=True)
def list_models(
    ctx: typer.Context,
    dirs: Annotated[
        list[Path] | None,
        typer.Option(
            "--dir",
            readable=False,
            metavar="DIR",
            help="Look in DIR too (may be repeated)",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """List the models on this disk, fetch one, choose the default.

    Looks in specli's, Hugging Face's, llama.cpp's and LM Studio's folders and in the config's `models.dirs`, and
    says what is inside, which is the default, and which could draft for which.
    """
    if ctx.invoked_subcommand is not None:
        if dirs or as_json:
            raise UsageError(
                f"--dir and --json belong to the list, not to `specli models {ctx.invoked_subcommand}`"
            )
        return
    more = [Path(os.path.expanduser(path)) for path in dirs or ()]
    missing = [str(path) for path in more if not os.path.isdir(path)]
    if missing:
        raise SpecliError(f"--dir {missing[0]}: no such directory")
    from specli.shelf import drafts_for, models

    found, default = models(more), _default_file()
    drafts = {each.path: drafts_for(each, found) for each in found}
    if as_json:
        rows = [_as_json(each, drafts[each.path], default) for each in found]
        typer.echo(json_text(rows, indent=2))
    elif found:
        _print(found, drafts, default)
    else:
        _print_none(more)


@app.command(cls=Sections)
def pull(reference: _MODEL) -> None:
    """Fetch a model from Hugging Face, and print its file.

    It lies in Hugging Face's cache. A download that broke off goes on where it stopped.
    """
    from specli.download import fetch
    from specli.engine.gguf import read_header
    from specli.hub import split_reference

    asked = split_reference(reference)
    if asked is None:
        raise UsageError(f"{reference}: pull takes user/repo[:quant], as on Hugging Face")
    path = fetch(*asked)
    read_header(path)  # a damaged file is found now, not at the first use
    echo(str(path))


@app.command(cls=Sections)
def default(
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="As -m takes it", show_default=False, autocompletion=complete.models
        ),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Have no default model any more")] = False,
) -> None:
    """Print the model that is used without -m, or choose it."""
    from specli.config import load_config, set_default
    from specli.engine.gguf import read_header
    from specli.hub import resolve_model

    if clear and reference is not None:
        raise UsageError("MODEL and --clear contradict each other; leave one of them out")
    if clear:
        set_default(None)
        announcer()("there is no default model any more")
        return
    if reference is None:
        echo(load_config().default or str(resolve_model(None)))
        return
    path = resolve_model(reference)
    read_header(path)  # what is no model would fail every run from now on
    named = reference if not os.path.exists(os.path.expanduser(reference)) else str(path.absolute())
    place = set_default(named)
    announcer()(f"the default model is {named} now (in {place})")


# -- the list --------------------------------------------------------------------------------------


def _default_file() -> Path | None:
    """The file that is used without -m, None where none is on this disk."""
    from specli.hub import default_model

    try:
        chosen = default_model()
    except SpecliError:
        return None
    return chosen and Path(os.path.realpath(chosen))


def _as_json(each: Shelved, drafts: Sequence[Shelved], default: Path | None) -> dict[str, Any]:
    header = each.header
    return {
        "name": each.name,
        "path": str(each.path),
        "folder": each.folder,
        "default": Path(os.path.realpath(each.path)) == default,
        "problem": each.problem,
        "architecture": header.architecture if header else None,
        "family": each.family or None,
        "size_label": header.size_label if header else None,
        "parameters": each.n_params or None,
        "bytes": each.n_bytes or None,
        "quantisation": header.file_type if header else None,
        "context_length": header.context_length if header else None,
        "heads": each.heads or None,
        "drafts": [str(draft.path) for draft in drafts],
    }


def _print(found: Sequence[Shelved], drafts: dict[Path, list[Shelved]], default: Path | None) -> None:
    folder = ""
    width = min(60, max(len(each.name) for each in found))
    for each in found:
        if each.folder != folder:
            folder = each.folder
            echo(f"{folder}:")
        mark = " (default)" if Path(os.path.realpath(each.path)) == default else ""
        echo(f"  {each.name:{width}}  {_about(each)}{mark}")
        echo(f"  {'':{width}}  {each.path}")
        for draft in drafts[each.path]:
            echo(f"  {'':{width}}  {draft.name} could draft for it")


def _about(each: Shelved) -> str:
    from specli.engine.features import KINDS

    if each.header is None:
        return each.problem or ""
    params = f"{each.n_params / 1e9:.1f}B" if each.n_params >= 1e9 else f"{each.n_params / 1e6:.0f}M"
    parts = [params, f"{each.n_bytes / 1e9:.2f} GB", each.header.file_type or "?", each.family]
    if each.heads == "mtp":
        parts.append("prediction heads inside (--spec-type draft-mtp)")
    elif f"draft-{each.heads}" in KINDS:
        parts.append(f"{KINDS[f'draft-{each.heads}']} (--draft-model, --spec-type draft-{each.heads})")
    elif each.heads:
        parts.append(f"only a draft head ({each.heads}), no model of its own")
    return ", ".join(part for part in parts if part)


def _print_none(more: Sequence[Path]) -> None:
    from specli.shelf import folders

    places = ", ".join(str(folder.path) for folder in folders(more))
    echo(f"No models found{f' in {places}' if places else ''}.")
    echo("`specli models pull user/repo` fetches one; name your own folders as models.dirs in config.toml.")
