"""`specli doctor`: what works on this machine; exit 1 if something is broken."""

from __future__ import annotations

from typing import Annotated

import typer

from specli.cli import complete
from specli.ui.terminal import announcer, echo, json_text


def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            metavar="MODEL",
            help="The model to try things with",
            show_default=False,
            autocompletion=complete.models,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object")] = False,
) -> int:
    """Say what works on this machine.

    Looks at library, devices, memory and paths, and tries with a model what chat and run rely on. Exit
    status 1: something is broken.
    """
    from specli.doctor import examine
    from specli.errors import SpecliError
    from specli.hub import resolve_model

    say = announcer()

    try:
        path = resolve_model(model)
    except SpecliError:
        if model is not None:
            raise
        path = None  # no default, no demo model: the rest can be looked at all the same
    report = examine(path, say)
    if as_json:
        rows = [{"check": c.name, "state": c.state, "said": c.said} for c in report.checks]
        typer.echo(json_text({"ok": not report.broken, "checks": rows}, indent=2))
        return int(report.broken)
    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        line = f"{check.state:6}  {check.name:{width}}  {check.said}"
        echo(line)
    return int(report.broken)
