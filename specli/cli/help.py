"""How `--help` looks: plain text under headings, with examples, environment, files and exit status.

Nothing to unlearn in a pipe, on a narrow terminal, or with a screen reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperCommand, TyperGroup

from specli.cli.manual import ENVIRONMENT, EXITS, FILES, MANUALS, PLACES, Manual

ORDER = ("Arguments", "Options", "Model", "Speculation", "Sampling", "Machine", "Output")
"""Headings of options, in the order in which they come; others stand behind Options."""

_COLUMN = 26


class Sections(TyperCommand):
    """A command with options under headings, and the rest of a manual page behind them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As ever; what is wrong says in which command."""
        with _placed(ctx):
            return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS]`, then the arguments as people know them from other programs."""
        arguments = by_heading(self.get_params(ctx)).get("Arguments", ())
        return [
            "[OPTIONS]",
            *(argument_name(p) if p.required else f"[{argument_name(p)}]" for p in arguments),
        ]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one list for each heading."""
        for name, params in by_heading(self.get_params(ctx)).items():
            with formatter.section(name):
                formatter.write_dl([_record(param, ctx) for param in params], col_max=_COLUMN)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write what the manual says of this command."""
        _write_manual(ctx, formatter)


class Groups(TyperGroup):
    """A command with commands of its own, likewise."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As ever; what is wrong says in which command."""
        with _placed(ctx):
            return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write what the manual says of this group."""
        _write_manual(ctx, formatter)


@contextmanager
def _placed(ctx: Any) -> Iterator[None]:
    """The parser does not know its command; `specli.cli.usage` names it."""
    try:
        yield
    except Exception as error:
        if getattr(error, "ctx", ctx) is None:
            error.ctx = ctx  # type: ignore[attr-defined]
        raise


def by_heading(params: Iterable[Any]) -> dict[str, list[Any]]:
    """Options and arguments by heading, in order; hidden ones are left out."""
    found: dict[str, list[Any]] = {}
    for param in params:
        if param.param_type_name == "argument":
            found.setdefault("Arguments", []).append(param)
        elif not param.hidden:
            found.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(param)
    known = {name: found[name] for name in ORDER[:2] if name in found}
    others = {name: params for name, params in found.items() if name not in ORDER}
    return {**known, **others, **{name: found[name] for name in ORDER[2:] if name in found}}


def argument_name(param: Any) -> str:
    """An argument's name: its metavar without the brackets that say whether it may be left out."""
    return str(param.metavar or param.name.upper()).strip("[]")


def _record(param: Any, ctx: Any) -> tuple[str, str]:
    if param.param_type_name == "argument":
        return argument_name(param), param.help or ""
    record: tuple[str, str] = param.get_help_record(ctx)
    return record


def _write_manual(ctx: Any, formatter: Any) -> None:
    manual = MANUALS.get(" ".join(ctx.command_path.split()[1:]))
    if manual is None:
        return
    _write_rows(formatter, "Examples", [(row.name, row.said) for row in manual.examples], 40)
    _write_rows(formatter, "Environment", [(name, ENVIRONMENT[name]) for name in manual.environment])
    _write_rows(formatter, "Files", [(name, FILES[name]) for name in manual.files])
    if manual.files:
        formatter.write_paragraph()
        formatter.indent()
        formatter.write_text(PLACES)
        formatter.dedent()
    _write_rows(formatter, "Exit status", [(str(code), EXITS[code]) for code in manual.exits])
    _write_more(formatter, manual)


def _write_rows(formatter: Any, name: str, rows: list[tuple[str, str]], most: int = _COLUMN) -> None:
    """Two columns. What stands in the first one never wraps, so that a command can be copied."""
    if rows:
        with formatter.section(name):
            formatter.write_dl(rows, col_max=most)


def _write_more(formatter: Any, manual: Manual) -> None:
    if manual.topics:
        with formatter.section("More"):
            formatter.write_text(f"specli explain TOPIC: {', '.join(manual.topics)}")
