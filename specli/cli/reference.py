"""docs/options.md, made from the commands themselves: `python -m specli.cli.reference docs/options.md`.

A test compares the file with what comes out here, so the page cannot fall behind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from specli.cli.help import ORDER, argument_name, by_heading
from specli.cli.manual import ENVIRONMENT, EXITS, FILES, MANUALS, PLACES
from specli.keys import Key
from specli.settings import KEYS

SHARED = ("chat", "run", "bench", "tune")
"""Commands that share options; those of all of them are listed once."""

_HEAD = """# Options

All commands and options, made from the program by `python -m specli.cli.reference docs/options.md`: edit the
options, not this page. What methods are and when they pay: [families](methods/families.md).
"""


@dataclass(frozen=True, slots=True)
class Command:
    """A command, or a group of them. `path`: the words behind `specli`, "" for specli itself. `options`: name
    and help by heading."""

    path: str
    usage: str
    about: str
    options: dict[str, list[tuple[str, str]]]


def commands() -> list[Command]:
    """All commands, groups before their own."""
    from specli.cli.main import app

    root: Any = typer.main.get_command(app)
    return list(_walk(root, root.make_context("specli", [], resilient_parsing=True)))


def reference() -> str:
    """The page, as Markdown."""
    found = commands()
    shared = _shared(found)
    parts = [_HEAD, *_shared_part(found, shared)]
    for command in found:
        parts += _command_part(command, shared if command.path in SHARED else set())
    parts += ["## Environment\n", _table(("variable", "means"), list(ENVIRONMENT.items()))]
    parts += ["## Files\n", _table(("file", "holds"), list(FILES.items())), PLACES + "\n"]
    parts += ["## Exit status\n", _table(("status", "means"), [(str(c), said) for c, said in EXITS.items()])]
    return "\n".join(parts)


def _walk(command: Any, ctx: Any) -> Iterator[Command]:
    path = " ".join(ctx.command_path.split()[1:])
    usage = f"{ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}"
    about = " ".join((command.help or "").split())
    options = {
        name: [_record(p) for p in params] for name, params in by_heading(command.get_params(ctx)).items()
    }
    yield Command(path, usage, about, options)
    for name, inner in getattr(command, "commands", {}).items():
        yield from _walk(inner, inner.make_context(name, [], parent=ctx, resilient_parsing=True))


def _shared(found: Sequence[Command]) -> set[tuple[str, str]]:
    sets = [
        {record for records in each.options.values() for record in records}
        for each in found
        if each.path in SHARED
    ]
    return set.intersection(*sets)


def _shared_part(found: Sequence[Command], shared: set[tuple[str, str]]) -> Iterator[str]:
    first = next(each for each in found if each.path == SHARED[0])
    yield f"## Shared by {', '.join(SHARED[:-1])} and {SHARED[-1]}\n"
    yield (
        "A flag beats the profile, the profile beats the default. The key is the name in a profile's TOML file, in\n"
        "the section of its heading.\n"
    )
    sections = {"Speculation": " `[spec]`", "Sampling": " `[sampling]`", "Machine": " `[engine]`"}
    for heading in ORDER[1:]:
        records = [each for each in first.options.get(heading, ()) if each in shared and each[0] != "--help"]
        if records:
            yield f"### {heading}{sections.get(heading, '')}\n"
            yield _table(("option", "key", "means"), [(n, _key(n), said) for n, said in records])


def _command_part(command: Command, shared: set[tuple[str, str]]) -> Iterator[str]:
    yield f"## {f'specli {command.path}'.strip()}\n"
    yield f"    {command.usage}\n"
    yield f"{command.about}\n"
    records = [record for records in command.options.values() for record in records]
    own = [record for record in records if record not in shared and record[0] != "--help"]
    if own:
        yield _table(("option", "means"), own)
    if shared:
        yield "And the options shared by several commands, above.\n"
    manual = MANUALS.get(command.path)
    if manual is not None:
        width = max(len(row.name) for row in manual.examples)
        lines = [f"{row.name:{width}}  # {row.said}" for row in manual.examples]
        yield "\n".join(["```sh", *lines, "```", ""])


def _record(param: Any) -> tuple[str, str]:
    """Name and meaning of an option or argument, the same with every version of Typer."""
    said = param.help or ""
    if param.param_type_name == "argument":
        return argument_name(param), said
    names = ", ".join(param.opts)
    if param.secondary_opts:
        names += f" / {', '.join(param.secondary_opts)}"
    elif not param.is_flag:
        names += f" {param.metavar or 'VALUE'}"
    if param.show_default and param.default and not param.is_flag:
        said += f" [{param.default}]"
    return names, said


def _key(names: str) -> str:
    """The profile key that an option's flag sets."""
    words = names.replace(",", " ").split()
    found: Key | None = next((key for key in KEYS if key.flag in words), None)
    return found.name if found is not None else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for first, *rest in rows:
        cells = [
            f"`{first}`",
            *(f"`{each}`" if i + 2 < len(head) and each else each for i, each in enumerate(rest)),
        ]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Write the page into the file named, or to standard output."""
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(reference(), "utf-8", newline="\n")
    else:
        sys.stdout.write(reference())


if __name__ == "__main__":
    main()
