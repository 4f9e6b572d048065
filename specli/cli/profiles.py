"""`specli profiles`: what profiles there are, what one of them results in, and where it lies."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from specli.cli import complete
from specli.cli.help import Groups, Sections
from specli.ui.terminal import json_text, with_fallbacks

if TYPE_CHECKING:
    from specli.profiles import Key, Profile, Settings, Value

app = typer.Typer(
    cls=Groups,
    rich_markup_mode=None,
)

_NAME = typer.Argument(
    None,
    metavar="[NAME|FILE]",
    help="A profile's name, or a path to a .toml file.",
    autocompletion=complete.profiles,
)
_JSON = typer.Option(False, "--json", help="Print JSON.")
_PLAIN = typer.Option(False, "--plain", help="Print plain text, as when piped.")
_PADDED = 60  # characters to which a column is aligned at most; what is longer stands for itself


@app.callback(invoke_without_command=True)
def profiles(ctx: typer.Context) -> None:
    """List profiles, show what one results in, tell where they lie.

    A profile is a TOML file with settings. A flag beats the profile, the profile beats the default.
    """
    if ctx.invoked_subcommand is None:
        list_(as_json=False, plain=False)


@app.command("list", cls=Sections)
def list_(as_json: bool = _JSON, plain: bool = _PLAIN) -> None:
    """List the profiles that --profile knows by name."""
    from specli.profiles import BUILT_IN, available

    entries = available()
    if as_json:
        rows = [
            {
                "name": e.name,
                "source": e.source,
                "path": str(e.path),
                "description": e.description,
                "problem": e.problem,
            }
            for e in entries
        ]
        _print_json(rows)
        return
    lines = [
        [e.name, e.source if e.source == BUILT_IN else "own", _about(e.description, e.problem)]
        for e in entries
    ]
    _print_table(["profile", "from", "description"], lines, plain)


@app.command(cls=Sections)
def show(name: str | None = _NAME, as_json: bool = _JSON, plain: bool = _PLAIN) -> None:
    """Print every setting of a profile, and whence it came.

    Without a name, of the profile auto.
    """
    from specli.profiles import DEFAULT_PROFILE, KEYS, MEASURED, SECTIONS, as_text, load, resolve

    profile = load(name or DEFAULT_PROFILE)
    settings = resolve(profile)
    if as_json:
        _print_json(_as_json(profile, settings))
        return
    about = _printable(profile.description) or "no description"
    typer.echo(with_fallbacks(f"{profile.name} ({profile.source}): {about}", sys.stdout))
    lines: list[list[str]] = []
    for section in SECTIONS:
        keys = [key for key in KEYS if key.section == section and key.name != "description"]
        lines += [[key.written, key.show(_value(settings, key)), settings.origin(key.name)] for key in keys]
    lines += [[f"[{MEASURED}] {name}", as_text(value), "tune"] for name, value in profile.measured.items()]
    _print_table(["setting", "value", "from"], lines, plain)


@app.command(cls=Sections)
def path(name: str | None = _NAME) -> None:
    """Print where a profile lies.

    Without a name, the directory for your own.
    """
    from specli.profiles import own_profiles_dir, path_of

    found = path_of(name) if name else own_profiles_dir()
    if name and not os.path.exists(found):
        from specli.errors import ProfileError

        raise ProfileError(f"no file {found}; `specli profiles list` names the profiles there are")
    typer.echo(with_fallbacks(str(found), sys.stdout))


def _about(description: str, problem: str | None) -> str:
    return f"cannot be used: {problem}" if problem else description


def _value(settings: Settings, key: Key) -> Value:
    value: Value = getattr(settings, key.attribute)
    return value


def _as_json(profile: Profile, settings: Settings) -> dict[str, object]:
    from specli.profiles import KEYS, SECTIONS

    sections: dict[str, dict[str, object]] = {section or "top": {} for section in SECTIONS}
    for key in KEYS:
        record = {"value": _value(settings, key), "origin": settings.origin(key.name)}
        sections[key.section or "top"][key.name] = record
    return {"name": profile.name, "source": profile.source, **sections, "measured": profile.measured}


def _printable(text: str) -> str:
    """On one line, and without control characters: a profile may come from anyone."""
    return "".join(char if char.isprintable() else " " for char in text)


def _print_json(content: object) -> None:
    from specli.profiles import thawed

    typer.echo(json_text(thawed(content), indent=2))


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]], plain: bool) -> None:
    """Rich where someone looks on; else one row a line with aligned columns, for pipes and screen readers."""
    rows = [[_printable(cell) for cell in row] for row in rows]
    if plain or not sys.stdout.isatty():
        columns = list(zip(*rows, strict=True))[:-1]
        widths = [
            max((len(cell) for cell in column if len(cell) <= _PADDED), default=0) for column in columns
        ]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            typer.echo("  ".join([*cells, row[-1]]).rstrip())
        return
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    folded = (Column(name, overflow="fold") for name in head)
    table = Table(*folded, box=None, header_style="dim", pad_edge=False)
    for row in rows:
        table.add_row(
            *(Text(cell, style=style) for cell, style in zip(row, ("bold", "", "dim"), strict=True))
        )
    Console(width=shutil.get_terminal_size().columns).print(table)
