"""`specli layers`: which layers a model's own draft can do without, and whether such drafts pay here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specli.cli import complete
from specli.errors import UsageError
from specli.interrupts import Interrupts
from specli.ui.terminal import announcer, echo, json_text

if TYPE_CHECKING:
    from specli.layers.session import Found, Plan
    from specli.settings import Settings

BUDGET = 300.0


def layers(
    model: Annotated[
        str | None,
        typer.Argument(
            help="The model, as -m takes it [the default model]",
            show_default=False,
            autocompletion=complete.models,
        ),
    ] = None,
    drop: Annotated[
        int | None,
        typer.Option(
            "--drop",
            metavar="N",
            min=1,
            help="Leave out N layers (as many as promise most speed)",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            "--budget",
            metavar="SECONDS",
            min=1,
            max=604_800,
            help="Time the search may take, loading left out",
        ),
    ] = BUDGET,
    like: Annotated[
        Path | None,
        typer.Option(
            "--like",
            readable=False,
            metavar="FILE",
            help='Search with your own prompts: JSON lines with "prompt", or one prompt a line '
            "(a short mix of specli's)",
            show_default=False,
        ),
    ] = None,
    temp: Annotated[
        float | None,
        typer.Option("--temp", metavar="X", help="Temperature of the answers (0)", show_default=False),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("-t", "--threads", metavar="N", help="Threads (physical cores)", show_default=False),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME|FILE",
            help="Search with this profile's machine settings",
            autocompletion=complete.profiles,
        ),
    ] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Drop what was found for MODEL, and its copy on the disk")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress and no notices")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object")] = False,
) -> int:
    """Find the layers that a model's own draft can do without.

    Searches for those whose loss costs least agreement with the whole model, on its own answers. What stays
    is written as a copy, once, and drafts with --spec-type draft-self --self-method layers. It says whether
    that pays here.
    """
    from specli.hub import resolve_model

    given = (drop, like, temp, threads, profile)
    if forget and any(each is not None for each in given):
        raise UsageError("--forget drops what was found and searches nothing; give it alone with MODEL")
    path = resolve_model(model)
    if forget:
        return _forget(path)
    settings = _settings(profile, temp, threads)
    from specli.layers.session import Plan
    from specli.workloads import load, mixed, shipped

    prompts = mixed(load(like) if like else shipped())
    return _find(Plan(path, settings, prompts, str(like or "specli's mix"), budget, drop), quiet, as_json)


def _settings(profile: str | None, temp: float | None, threads: int | None) -> Settings:
    from specli import profiles

    given = profiles.load(profile) if profile else profiles.load()
    return profiles.resolve(given, {"temp": 0.0 if temp is None else temp, "threads": threads})


def _forget(path: Path) -> int:
    from specli import pruned
    from specli.engine.memory import gib

    freed = pruned.forget(path)
    echo(f"Nothing is known of {path.name}'s layers any more" + (f"; {gib(freed)} freed." if freed else "."))
    return 0


def _find(plan: Plan, quiet: bool, as_json: bool) -> int:
    from specli.errors import Interrupted
    from specli.layers.session import Session
    from specli.ui.progress import progress

    say = announcer(quiet)

    began = time.perf_counter()
    with Interrupts() as interrupts, progress(1.0, quiet) as shown:
        try:
            found = Session(plan, say, shown.at, interrupts.stop).find()
        except Interrupted as interrupted:
            say(str(interrupted))
            return interrupts.exit_code or interrupted.exit_code
    taken = time.perf_counter() - began
    if as_json:
        typer.echo(json_text(_as_json(plan, found, taken), indent=2))
    else:
        _print(plan, found, taken)
    return 0


# -- what is shown ---------------------------------------------------------------------------------


def _print(plan: Plan, found: Found, taken: float) -> None:
    from specli.engine.memory import gib
    from specli.pruned import as_text
    from specli.ui.tables import echo_table, percent

    chosen, f = found.chosen, found.figures
    echo(
        f"{plan.model.name}: {chosen.blocks} layers, judged at {chosen.positions} positions of {found.passages} "
        f"answers of its own; {taken:.0f} s"
    )
    echo("")
    rows = [
        (str(len(step.dropped)), percent(step.agreement.top1), percent(step.agreement.shared), f"{speed:.2f}",
         as_text(step.dropped))
        for step, speed in zip(found.steps, found.speeds)
    ]  # fmt: skip
    header = ("left out", "same token", "min(p,q)", "× plain expected", "layers")
    echo_table(header, rows)
    echo("")
    echo(
        f"Left out: {as_text(chosen.layers)} ({len(chosen.layers)} of {chosen.blocks}). The copy without them takes "
        f"{gib(found.copy.stat().st_size)}: {found.copy}"
    )
    echo(
        f"Measured: {f.acceptance:.0%} of {sum(f.tested)} draft tokens accepted at temperature {f.temp:g}; one "
        f"costs {f.cost_ratio:.2f} of a target token."
    )
    for line in _advice(found):
        echo(line)


def _advice(found: Found) -> list[str]:
    from specli.advise import advice

    said = advice(found.figures, "--spec-type draft-self --self-method layers")
    if not found.figures.pays:
        said.append("`specli layers --forget MODEL` frees the copy; a GPU may come to another result.")
    return said


def _as_json(plan: Plan, found: Found, taken: float) -> dict[str, Any]:
    chosen, f = found.chosen, found.figures
    return {
        "model": str(plan.model),
        "layers": chosen.blocks,
        "left_out": list(chosen.layers),
        "agreement": chosen.agreement,
        "overlap": chosen.overlap,
        "positions": chosen.positions,
        "steps": [
            {"left_out": list(step.dropped), "agreement": step.agreement.top1, "overlap": step.agreement.shared,
             "positions": step.agreement.positions, "expected_speedup": speed}
            for step, speed in zip(found.steps, found.speeds)
        ],
        "copy": str(found.copy),
        "copy_bytes": found.copy.stat().st_size,
        "measured": {
            "acceptance": f.acceptance,
            "per_position": list(f.agreement),
            "cost_ratio": f.cost_ratio,
            "speedup": f.speedup,
            "best_length": f.best_length,
            "break_even": f.break_even,
            "pays": f.pays,
            "spread": f.spread,
        },
        "advice": _advice(found),
        "taken_s": taken,
    }  # fmt: skip
