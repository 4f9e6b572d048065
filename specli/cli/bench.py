"""`specli bench`: the same prompts with and without speculation."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specli import __version__
from specli.cli.options import Shared, is_raw, open_generator, shared_options
from specli.cli.sink import Sink
from specli.errors import SpecliError, UsageError
from specli.interrupts import Interrupts
from specli.ui.terminal import announcer, columns, echo, is_terminal, prose

if TYPE_CHECKING:
    from specli.assembly import Generator
    from specli.bench.contest import Contest, Run
    from specli.bench.contestants import Contestant
    from specli.bench.figures import Ratio, Summary
    from specli.bench.outputs import Difference

TOKENS = 96


@shared_options
def bench(
    shared: Shared,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="TYPE[+TYPE...][,KEY=VALUE...]|@PROFILE",
            help="Compare these settings too (may be repeated): types as for --spec-type joined by +, then keys "
            "of a profile's [spec], as in draft-self,size-n=3 or draft-model,n-max=3,fixed; or a profile, "
            "as in @code; none is plain once more, as a control",
            show_default=False,
        ),
    ] = None,
    workloads: Annotated[
        Path | None,
        typer.Option(
            "--workloads",
            readable=False,
            metavar="FILE",
            help='Prompts: JSON lines with "prompt" and perhaps "category" and "id", or one prompt a line '
            "(specli's own small set)",
            show_default=False,
        ),
    ] = None,
    category: Annotated[
        list[str] | None,
        typer.Option("--category", metavar="NAME", help="Only this category (may be repeated)"),
    ] = None,
    per_category: Annotated[
        int | None,
        typer.Option("--per-category", metavar="N", min=1, help="At most N prompts of each category"),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens", metavar="N", min=2, help=f"Tokens of each answer [{TOKENS}]", show_default=False
        ),
    ] = None,
    ignore_end: Annotated[
        bool,
        typer.Option("--ignore-end", help="Go on past end tokens, so that all answers have equal length"),
    ] = False,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, help="Runs of each prompt and setting")
    ] = 3,
    keep_prompt: Annotated[
        bool,
        typer.Option(
            "--keep-prompt",
            help="Decode each prompt once, not for every run: faster, without times to first token",
        ),
    ] = False,
    svg: Annotated[
        str | None,
        typer.Option("--svg", metavar="FILE", help="Draw the ratios into FILE", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with every run")] = False,
) -> int:
    """Compare settings with plain decoding, side by side.

    All answer the same prompts in turns. Without --against, the settings of the flags and the profile are compared
    with plain decoding. The column "as plain" counts the answers that have the very tokens of plain decoding.
    """
    from specli import profiles
    from specli.bench.contest import Contest
    from specli.bench.contestants import contestants, together
    from specli.workloads import chosen, load, shipped

    settings = shared.settings()
    prompts = chosen(load(workloads) if workloads else shipped(), category or (), per_category)
    if tokens is not None and settings.origin("max-tokens") == "flag" and settings.max_tokens != tokens:
        raise UsageError("--tokens and --max-tokens differ; leave one of them out")
    length = tokens or settings.max_tokens or TOKENS
    flags = {**shared.flags, "max_tokens": length}
    several = contestants(profiles.load(shared.profile), flags, against or ())
    if len(several) < 2:
        raise UsageError("only plain decoding is named; give --against, or a --spec-type other than none")

    say = announcer(shared.quiet)

    with (
        _picture(svg) as picture,
        open_generator(shared, together(several), say, use_tuned=False, ignore_end=ignore_end) as generator,
        Interrupts() as interrupts,
    ):
        contest = Contest(generator, prompts, is_raw(generator, shared), keep_prompt)
        result = _measure(contest, several, repeats, shared.quiet, interrupts)
        if as_json:
            print(json.dumps(as_json_object(generator, result), indent=2))
        elif result.runs:
            _print(generator, result, with_chart=not shared.quiet)
        if not result.runs and not interrupts.stop():
            raise SpecliError("nothing could be measured")
        if picture is not None:
            _draw(picture, generator, result)
        return interrupts.exit_code or 0


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured. `summaries` over all prompts; `by_category` each category's, in order."""

    contestants: Sequence[Contestant]
    runs: Sequence[Run]
    differences: Sequence[Difference]
    summaries: Sequence[Summary]
    by_category: Sequence[Summary]


def _measure(
    contest: Contest, several: Sequence[Contestant], repeats: int, quiet: bool, interrupts: Interrupts
) -> Result:
    from specli.bench.figures import categories, summarise
    from specli.bench.outputs import differences
    from specli.ui.progress import progress

    runs: list[Run] = []
    total = len(contest.workloads) * repeats * len(several)
    with progress(total, quiet) as shown:
        shown.at(0, "warming up")
        contest.warm_up(several)
        for run in contest.runs(several, repeats, interrupts.stop):
            runs.append(run)
            shown.at(len(runs), f"{run.workload} {run.contestant}")
    found = [] if interrupts.stop() else differences(contest, runs)
    names = [each.name for each in several]
    kinds = categories(runs)
    return Result(
        several,
        runs,
        found,
        [summarise(runs, name, found) for name in names],
        [summarise(runs, name, found, kind) for kind in kinds for name in names] if len(kinds) > 1 else [],
    )


# -- the table ------------------------------------------------------------------------------------


def _print(generator: Generator, result: Result, with_chart: bool) -> None:
    from specli.ui.chart import bars
    from specli.ui.tables import echo_table

    prompts = len({run.workload for run in result.runs})
    echo(f"{_title(generator)}; {prompts} prompt{'s' if prompts > 1 else ''}")
    echo("")
    header = ("", "tok/s", "spread", "× plain", "95% interval", "accepted", "tok/cycle", "draft", "verify",
              "wasted", "first tok", "as plain")  # fmt: skip
    echo_table(header, [_row(each) for each in result.summaries])
    prose("as plain: answers with the very tokens of plain decoding, of those compared")
    if result.by_category:
        echo("")
        _print_categories(result)
    _print_differences(result)
    if with_chart:
        room = columns(sys.stdout) if is_terminal(sys.stdout) else 80
        echo("")
        echo("times plain")
        drawn = bars(_bars(result.summaries), min(room, 100) - 1, ascii_only=not _has_blocks())
        for line in drawn:
            echo(line)


def _title(generator: Generator) -> str:
    s = generator.settings
    draft = f" with {generator.draft_model.name}" if generator.draft_model else ""
    return (
        f"{generator.model.name}{draft}, {generator.placement}, temperature {s.temp:g}, {s.max_tokens} tokens"
    )


def _row(s: Summary) -> tuple[str, ...]:
    from specli.ui.tables import number, percent

    plain = s.contestant == "plain"
    return (
        s.contestant,
        number(s.tokens_per_second),
        percent(s.spread, 1),
        number(s.ratio.value if s.ratio else None, 3),
        "-" if plain else _interval(s.ratio),
        percent(s.acceptance),
        number(s.mean_accepted_length),
        percent(s.draft_share),
        percent(s.verify_share),
        str(s.wasted),
        "-" if s.first_token_s is None else f"{s.first_token_s:.2f} s",
        "-" if plain else f"{s.equal} of {s.compared}",
    )


def _interval(ratio: Ratio | None) -> str:
    if ratio is None or ratio.low is None or ratio.high is None:
        return "-"
    return f"{ratio.low:.3f} to {ratio.high:.3f}"


def _print_categories(result: Result) -> None:
    from specli.ui.tables import echo_table

    names = [each.contestant for each in result.summaries]
    kinds = list(dict.fromkeys(each.category for each in result.by_category))
    of = {(s.category, s.contestant): s for s in result.by_category}
    echo_table(
        ("× plain", *names), [[kind, *(_with_interval(of[kind, name]) for name in names)] for kind in kinds]
    )


def _with_interval(s: Summary) -> str:
    if s.contestant == "plain":
        return "-" if s.tokens_per_second is None else f"{s.tokens_per_second:.2f} tok/s"
    if s.ratio is None:
        return "-"
    shown = _interval(s.ratio)
    return f"{s.ratio.value:.3f}" + ("" if shown == "-" else f" ({shown})")


def _print_differences(result: Result) -> None:
    if not result.differences:
        return
    echo("")
    echo("Outputs that left plain's, and the gap of the two best logits where they did:")
    for d in result.differences:
        where = f"  {d.workload}, {d.contestant}: token {d.index + 1}"
        echo(f"{where}, gap {d.gap:.4f}" if d.gap is not None else f"{where}: one ended there")


def _bars(summaries: Sequence[Summary]) -> list[Any]:
    from specli.ui.chart import Bar

    return [
        Bar(s.contestant, s.ratio.value, s.ratio.low, s.ratio.high, s.category) for s in summaries if s.ratio
    ]


def _picture(path: str | None) -> AbstractContextManager[Sink | None]:
    """Where to draw. Entered before anything is measured, so that what cannot be written is said at once."""
    if path == "-":
        raise UsageError("--svg - would mix the picture with the table; name a file")
    return nullcontext() if path is None else Sink(path, "--svg")


def _draw(sink: Sink, generator: Generator, result: Result) -> None:
    """Into the file; what was there before stays if nothing was measured. The table is out by then: a picture
    that cannot be written costs nothing else."""
    from specli.ui.chart import svg

    if sys.stdout is not None:
        sys.stdout.flush()
    sink.interrupted = not result.runs
    if sink.out is None or not result.runs:
        return
    ours = [s for s in result.by_category or result.summaries if s.contestant != "plain"]
    overall = [s for s in result.summaries if s.contestant != "plain"] if result.by_category else []
    drawn = _bars(ours)
    drawn += [type(bar)(bar.label, bar.value, bar.low, bar.high, "all") for bar in _bars(overall)]
    title = f"{generator.model.name}: speed against plain decoding"
    sink.out.write(svg(title, _title(generator), drawn))


def _has_blocks() -> bool:
    try:
        "█▏│".encode(getattr(sys.stdout, "encoding", None) or "ascii")
        return True
    except (UnicodeEncodeError, LookupError):
        return False


# -- JSON -----------------------------------------------------------------------------------------


def as_json_object(generator: Generator, result: Result) -> dict[str, Any]:
    """What `--json` prints; null for what was not measured."""
    s = generator.settings
    return {
        "specli": __version__,
        "model": generator.model.name,
        "draft": generator.draft_model.name if generator.draft_model else None,
        "placement": generator.placement,
        "temperature": s.temp,
        "tokens": s.max_tokens,
        "seed": generator.seed,
        "exact_width": s.fixed_width,
        "contestants": [_summary_json(each) for each in result.summaries],
        "by_category": [_summary_json(each) for each in result.by_category],
        "differences": [
            {"contestant": d.contestant, "workload": d.workload, "index": d.index, "logit_gap": d.gap}
            for d in result.differences
        ],
        "runs": [_run_json(run) for run in result.runs],
        "notices": generator.notices,
    }


def _summary_json(s: Summary) -> dict[str, Any]:
    return {
        "name": s.contestant,
        "category": s.category or None,
        "runs": s.runs,
        "tokens_per_second": s.tokens_per_second,
        "spread": s.spread,
        "ratio": s.ratio.value if s.ratio else None,
        "interval": None if s.ratio is None or s.ratio.low is None else [s.ratio.low, s.ratio.high],
        "acceptance": s.acceptance,
        "mean_accepted_length": s.mean_accepted_length,
        "draft_share": s.draft_share,
        "verify_share": s.verify_share,
        "wasted": s.wasted,
        "first_token_s": s.first_token_s,
        "equal_outputs": s.equal,
        "compared_outputs": s.compared,
    }


def _run_json(run: Run) -> dict[str, Any]:
    stats = run.stats
    return {
        "contestant": run.contestant,
        "workload": run.workload,
        "category": run.category,
        "repeat": run.repeat,
        "tokens_per_second": run.rate,
        "first_token_s": run.first_token_s,
        "tokens": {"generated": stats.generated, "drafted": stats.drafted, "tested": stats.tested,
                   "accepted": stats.accepted, "cycles": stats.cycles},
        "decode_s": stats.total_s,
        "draft_s": stats.draft_s,
        "verify_s": stats.verify_s,
        "widths": {str(width): count for width, count in sorted(stats.widths.items())},
        "token_ids": list(run.tokens),
    }  # fmt: skip
