"""`specli check-draft`: may this draft serve this target, and why (not)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specli.cli import complete
from specli.errors import SpecliError, UsageError
from specli.ui.terminal import announcer, echo, json_text

if TYPE_CHECKING:
    from specli.engine.fit import Fit
    from specli.pairing import PairFigures
    from specli.settings import Settings

DOES_NOT_FIT = 3
"""Exit code where the draft does not fit, or `--scan` finds none that does."""


def check_draft(
    target: Annotated[
        str,
        typer.Argument(
            help="The model to be made faster, as -m takes it",
            show_default=False,
            autocompletion=complete.models,
        ),
    ],
    draft: Annotated[
        str | None,
        typer.Argument(
            help="The smaller model that would draft for it",
            show_default=False,
            autocompletion=complete.models,
        ),
    ] = None,
    scan: Annotated[bool, typer.Option("--scan", help="Rank the models on this disk as drafts")] = False,
    scan_dir: Annotated[
        list[Path] | None,
        typer.Option(
            "--scan-dir",
            readable=False,
            metavar="DIR",
            help="Rank those in DIR too (may be repeated)",
            show_default=False,
        ),
    ] = None,
    same_vocab: Annotated[
        bool, typer.Option("--same-vocab", help="Refuse a draft of another vocabulary, whatever they share")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Load both and measure what it brings on this machine")
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME|FILE",
            help="Measure with this profile's machine settings",
            autocompletion=complete.profiles,
        ),
    ] = None,
    temp: Annotated[
        float | None,
        typer.Option("--temp", metavar="X", help="Temperature to measure at (0)", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object")] = False,
) -> int:
    """Say whether DRAFT can draft for TARGET, and why (not).

    The headers are compared, and the vocabularies where they differ; --measure loads both models. A draft
    may be a smaller model, prediction heads, an EAGLE-3 head or a block draft: what it is is seen from its file.
    """
    scanning = scan or bool(scan_dir)
    if scanning and draft is not None:
        raise UsageError("--scan looks for a draft, so DRAFT cannot be given with it; leave one of them out")
    if not scanning and draft is None:
        raise UsageError("give a DRAFT to check, or --scan to rank those on the disk")
    if scanning and measure:
        raise UsageError("--measure is for one draft; take one that --scan ranks first")
    if not measure and (profile is not None or temp is not None):
        raise UsageError("--profile and --temp say how to measure; add --measure, or leave them out")

    from specli.hub import resolve_model

    model = resolve_model(target)
    if scanning:
        return _scan(model, scan_dir or [], same_vocab, as_json)
    assert draft is not None
    from specli.engine.fit import check_fit

    settings = _settings(profile, temp) if measure else None
    fit = check_fit(model, resolve_model(draft), same_vocab)
    figures = None
    if settings is not None and fit.verdict != "does-not-fit":
        from specli.pairing import measure as measure_pair

        figures = measure_pair(fit.target, fit.draft, settings, announcer())
    if as_json:
        _print_json(_as_json(fit, figures))
    else:
        _print(fit, figures)
    return DOES_NOT_FIT if fit.verdict == "does-not-fit" else 0


def _settings(profile: str | None, temp: float | None) -> Settings:
    from specli import profiles

    given = profiles.load(profile) if profile else profiles.load()
    return profiles.resolve(given, {"temp": 0.0 if temp is None else temp})


def _print_json(content: object) -> None:
    typer.echo(json_text(content, indent=2))


# -- one draft -------------------------------------------------------------------------------------


def _as_json(fit: Fit, figures: PairFigures | None) -> dict[str, Any]:
    return {
        "verdict": fit.verdict,
        "reasons": [
            {"check": f.check, "target": f.target, "draft": f.draft, "ok": f.ok, "note": f.note}
            for f in fit.findings
        ],
        "target": str(fit.target),
        "draft": str(fit.draft),
        "shared_tokens": fit.share,
        "parameter_ratio": fit.weight_ratio,
        "byte_ratio": fit.size_ratio,
        "expected": None if figures is None else _expected(figures),
    }


def _expected(f: PairFigures) -> dict[str, Any]:
    from specli.advise import advice

    return {
        "speedup": f.speedup,
        "pays": f.pays,
        "best_length": f.best_length,
        "acceptance": f.acceptance,
        "per_position": list(f.agreement),
        "break_even": f.break_even,
        "cost_ratio": f.cost_ratio,
        "target_token_s": f.widths[0],
        "draft_token_s": f.draft_s,
        "width_costs": [seconds / f.widths[0] for seconds in f.widths],
        "by_length": [f.speedup_at(k) for k in range(1, len(f.widths))],
        "tokens": f.tokens,
        "temperature": f.temp,
        "spread": f.spread,
        "advice": advice(f),
    }


_WORDS = {"fits": "fits", "fits-with-notes": "fits, with notes", "does-not-fit": "does not fit"}


def _print(fit: Fit, figures: PairFigures | None) -> None:
    from specli.engine.memory import gib

    echo(f"{fit.draft.name} as a draft for {fit.target.name}: {_WORDS[fit.verdict]}")
    for finding in fit.findings:
        if finding.note:
            echo(f"  {'note' if finding.ok else 'NO  '}  {finding.check}: {finding.note}")
    echo("")
    rows = [("", "target", "draft")]
    for finding in fit.findings:
        show = gib if finding.check == "bytes" else _shown
        rows.append((finding.check, show(finding.target), show(finding.draft)))  # type: ignore[arg-type]
    rows.append(
        ("ratio", "1", f"{fit.weight_ratio:.2f} of the parameters, {fit.size_ratio:.2f} of the bytes")
    )
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    for row in rows:
        echo(f"  {row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}".rstrip())
    if figures is not None:
        _print_figures(figures)
    elif fit.verdict != "does-not-fit":
        echo("")
        echo("What it brings on this machine: specli check-draft --measure")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value >= 1_000_000:
        return f"{value / 1e9:.2f} billion" if value >= 1e9 else f"{value / 1e6:.0f} million"
    return " ".join(str(value).split())


def _print_figures(f: PairFigures) -> None:
    from specli.advise import advice

    echo("")
    echo("Measured on this machine:")
    agreed = "  ".join(f"{i}: {rate:.0%}" for i, rate in enumerate(f.agreement, 1))
    echo(f"  accepted by position   {agreed}")
    echo(f"  one token              target {1e3 * f.widths[0]:.1f} ms, draft {1e3 * f.draft_s:.1f} ms")
    costs = "  ".join(f"{i}: {s / f.widths[0]:.2f}" for i, s in enumerate(f.widths, 1))
    echo(f"  verify, by width       {costs}")
    speeds = "  ".join(f"{k}: {f.speedup_at(k):.2f}" for k in range(1, len(f.widths)))
    echo(f"  speed, by draft length {speeds}")
    echo("")
    for line in advice(f):
        echo(line)


# -- those on the disk -----------------------------------------------------------------------------


def _scan(target: Path, more: list[Path], same_vocab: bool, as_json: bool) -> int:
    from specli.shelf import folders, rank

    missing = [str(path) for path in more if not os.path.isdir(os.path.expanduser(path))]
    if missing:
        raise SpecliError(f"--scan-dir {missing[0]}: no such directory")
    more = [Path(os.path.expanduser(path)) for path in more]
    ranked = rank(target, more, same_vocab)
    fitting = [fit for fit in ranked if fit.verdict != "does-not-fit"]
    if as_json:
        _print_json({"target": str(target), "drafts": [_as_json(fit, None) for fit in ranked]})
        return 0 if fitting else DOES_NOT_FIT
    if not ranked:
        places = ", ".join(str(folder.path) for folder in folders(more)) or "no folder of models"
        echo(f"No smaller model than {target.name} found (looked in {places}).")
        echo("`specli models pull user/repo` fetches one; --scan-dir DIR looks in another place.")
        return DOES_NOT_FIT
    for fit in ranked:
        notes = [f.note for f in fit.findings if f.note and (f.ok or fit.verdict == "does-not-fit")]
        echo(f"{_WORDS[fit.verdict]:16}  {fit.size_ratio:5.2f} of the size  {fit.draft}")
        for note in notes[:2]:
            echo(f"{'':16}  {note}")
    return 0 if fitting else DOES_NOT_FIT
