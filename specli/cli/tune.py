"""`specli tune`: the best way to draft for a model on this machine, as a profile."""

from __future__ import annotations

import datetime
import json
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specli import __version__
from specli.cli.options import Shared, is_raw, open_generator, shared_options
from specli.errors import SpecliError, UsageError
from specli.interrupts import Interrupts
from specli.settings import KEYS, Settings
from specli.tune.candidates import AUTO, OFF
from specli.ui.terminal import announcer, echo, prose

if TYPE_CHECKING:
    from specli.assembly import Generator
    from specli.tune.candidates import Candidate
    from specli.tune.session import Plan, Tuning
    from specli.tune.verdict import Rule

TOKENS = 64
_AS_OFF = "as off"
_MAY_BE_SET = ("types", "draft-n-max", "exact", "exact-width")
"""The keys of [spec] that say what to tune; all others are what it finds out."""


@shared_options
def tune(
    shared: Shared,
    budget: Annotated[
        float,
        typer.Option(
            "--budget", metavar="SECONDS", min=1, max=604_800, help="Time it may take, loading left out"
        ),
    ] = 300,
    like: Annotated[
        Path | None,
        typer.Option(
            "--like",
            readable=False,
            metavar="FILE",
            help='Measure with your own prompts: JSON lines with "prompt", or one prompt a line '
            "(a short mix of specli's)",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens", metavar="N", min=8, help=f"Tokens of each answer [{TOKENS}]", show_default=False
        ),
    ] = None,
    reverse: Annotated[
        bool,
        typer.Option(
            "--reverse", help="Try the candidates in reverse order: the choice should not depend on it"
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object")] = False,
) -> int:
    """Find what drafts best here, and write it as a profile.

    Measures what decodes cost by width, then methods and draft lengths on a few prompts, drafting nothing
    among them. `chat` and `run` use the profile by themselves. --spec-type and --spec-draft-n-max bound
    what is tried.
    """
    from specli import paths, profiles
    from specli.bench.contest import Contest
    from specli.tune.halving import ENOUGH
    from specli.tune.session import Session
    from specli.tune.verdict import rules_of_thumb
    from specli.workloads import load, mixed, shipped

    settings = shared.settings()
    if tokens is not None and settings.origin("max-tokens") == "flag" and settings.max_tokens != tokens:
        raise UsageError("--tokens and --max-tokens differ; leave one of them out")
    given = settings.max_tokens if settings.origin("max-tokens") == "flag" else None
    length = tokens or given or TOKENS
    prompts = mixed(load(like) if like else shipped())
    plan = _plan(shared, settings, length, budget, reverse)
    paths.require_place(profiles.own_profiles_dir())

    say = announcer(shared.quiet)
    noise = _note_load()
    if noise is not None:
        say(noise)

    from specli.ui.progress import progress

    if settings.tree_size is not None:
        say(f"tree {settings.tree} of the profile is left out: tune tries drafts without branches")
    profile = profiles.resolve(plan.profile, plan.flags)
    loaded = replace(profile, types=plan.methods, draft_n_max=plan.longest)
    with (
        open_generator(shared, loaded, say, use_tuned=False, ignore_end=True) as generator,
        Interrupts() as interrupts,
        progress(1.0, shared.quiet) as shown,
    ):
        if noise is not None:
            generator.notices.insert(0, noise)
        contest = Contest(generator, prompts, is_raw(generator, shared), keep_prompt=True)
        plan = replace(plan, methods=tuple(generator.methods))
        began = time.perf_counter()
        result = Session(contest, plan, began, shown.at, interrupts.stop).tune()
        taken = time.perf_counter() - began
    if result.interrupted:
        say("interrupted; no profile was written")
        return interrupts.exit_code or 130
    prompts_of = f"the prompts of {like}" if like else "specli's own prompts"
    before = _kept(generator)
    rules = rules_of_thumb(result.standings, result.scouted, result.costs)
    path: Path | None = None
    unwritten: SpecliError | None = None
    try:
        path = _write(generator, loaded, result, prompts_of, busy=noise is not None)
    except SpecliError as error:  # what took so long to measure is shown all the same
        unwritten = error
    if as_json:
        print(json.dumps(as_json_object(generator, result, rules, path, taken), indent=2))
        if unwritten is not None:
            raise unwritten
        return 0
    answered = sorted({at for standing in result.standings for at in standing.pairs})
    ids = ", ".join(prompts[at].id for at in answered)
    left = (
        f" ({len(prompts) - len(answered)} more did not fit into --budget {plan.budget:g})"
        if len(answered) < len(prompts)
        else ""
    )
    over = f"{prompts_of}: {ids}{left}" if answered else prompts_of
    _print(generator, result, over, rules, taken)
    echo("")
    if unwritten is not None:
        prose(f"Choice: {result.choice.candidate.name} ({result.choice.why})")
        raise unwritten
    if path is None:
        more = 60 * math.ceil(plan.budget / 20)
        untuned = "chat and run draft as untuned, and by what decodes cost here, which is kept"
        prose(
            f"Nothing was written: {result.choice.why}. An interval takes three answers beside plain ones, and {ENOUGH} "
            f"or more tell something: --budget {more} has time for them, or --tokens {max(8, length // 2)}, whose answers "
            f"are shorter. {f'What was tuned before stays: {before}' if before else untuned}."
        )
        return 0
    _print_choice(generator, result, path, noise is not None)
    if before:
        prose(f"It takes the place of what was tuned before: {before}.")
    return 0


def _note_load() -> str | None:
    """What to say before measuring on a machine that has other things to do."""
    from specli.engine.machine import busy, other_load

    load = other_load()
    if load is None or not busy(load):
        return None
    return (
        f"this machine is busy (load {load:.1f}): what is measured now wavers and may not hold later; wait until it is "
        "quiet, if you can"
    )


def _kept(generator: Generator) -> str | None:
    """What an earlier tune found for these models, in a few words."""
    from specli import profiles
    from specli.tuned import profile_file

    path = profile_file(generator.request.model, generator.request.draft)
    if not os.path.isfile(path):
        return None
    try:
        measured = profiles.load(str(path)).measured
        date, choice, speedup = (
            str(measured["date"])[:10],
            measured["choice"],
            float(str(measured["speedup"])),
        )
    except (SpecliError, KeyError, ValueError):
        return f"{path.stem}, which cannot be read any more"
    gain = "" if choice == "off" else f", {speedup:.2f} times plain"
    return f"{choice}{gain}, of {date}, over {measured.get('workload', 'other prompts')}"


def _plan(shared: Shared, settings: Settings, tokens: int, budget: float, reverse: bool) -> Plan:
    from specli import profiles
    from specli.settings import NEURAL
    from specli.tune.candidates import LONGEST
    from specli.tune.session import METHODS, Plan

    for key in KEYS:
        if key.section == "spec" and key.name not in _MAY_BE_SET and settings.origin(key.name) == "flag":
            raise UsageError(f"{key.flag}: that is what tune finds out; leave it out")
    by_flag = settings.origin("types") == "flag"
    if settings.types == ("none",) and by_flag:
        raise UsageError("--spec-type none leaves nothing to tune")
    asked = (
        settings.types
        if by_flag and settings.types != ("auto",)
        else ("auto", *METHODS, *stored_layers(settings))
    )
    longest = settings.draft_n_max if settings.origin("draft-n-max") == "flag" else LONGEST
    if longest < 1 and set(asked) & set(NEURAL):
        raise UsageError("--spec-draft-n-max 0 leaves nothing to tune of what is asked for")
    flags = {**shared.flags, "max_tokens": tokens, "tree": "off"}
    return Plan(profiles.load(shared.profile), flags, asked, max(1, longest), budget, reverse)


def stored_layers(settings: Settings) -> tuple[str, ...]:
    """draft-self-layers, where `specli layers` has found what it needs."""
    from specli import pruned
    from specli.errors import ModelFileError
    from specli.hub import resolve_model

    try:
        pruned.layer_set(resolve_model(settings.model))
    except ModelFileError:
        return ()
    return (pruned.METHOD,)


def _write(
    generator: Generator, settings: Settings, result: Tuning, workload: str, busy: bool
) -> Path | None:
    """Write the profile if the choice is settled. Raises SpecliError where it cannot be written."""
    from specli import profiles
    from specli.paths import write_atomic
    from specli.tune.verdict import Measured, to_profile
    from specli.tuned import along, key_of, profile_file

    if not result.choice.settled:  # an earlier profile may rest on more
        return None
    request = generator.request
    key = key_of(request.model, request.draft, settings)
    path = profile_file(request.model, request.draft)
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    measured = Measured(
        key, result.costs, result.standings, result.scouted, settings.temp, workload, date, busy
    )
    draft = settings.draft_model or (str(request.draft) if request.draft else None)
    write_atomic(
        path,
        profiles.to_toml(to_profile(path.stem, str(path), result.choice, measured, draft, along(settings))),
    )
    return path


# -- what is shown --------------------------------------------------------------------------------


def _print(generator: Generator, result: Tuning, over: str, rules: list[Rule], taken: float) -> None:
    """All that was measured, in the order in which it was."""
    from specli.tune.verdict import on_layers

    echo(f"{_title(generator)}; {taken:.0f} s")
    echo("")
    _print_costs(result)
    echo("")
    prose(f"Answers, each beside a plain one to the same prompt. {over[:1].upper()}{over[1:]}.")
    _print_standings(result)
    for remark in (_on_screened(result), on_layers(result.choice, result.standings)):
        if remark is not None:
            echo("")
            prose(remark)
    echo("")
    echo("What is often said of drafting, beside what was measured here (to know, not to do):")
    for rule in rules:
        verdict = {True: "fits", False: "does not fit", None: "not tested"}[rule.holds]
        prose(f"  {verdict}: {rule.rule} - {rule.said}")


def _print_costs(result: Tuning) -> None:
    costs = result.costs
    echo(
        f"One token takes {1000 * costs.seconds[1]:.1f} ms. Decodes by width, the tokens read at once, in multiples"
    )
    echo("of that, smoothed (a wider one never takes less):")
    shape = list(costs.shape.items())
    for at in range(0, len(shape), 8):
        echo("  " + "  ".join(f"{width}: {cost:.2f}" for width, cost in shape[at : at + 8]))
    if costs.spread > 1.25:
        prose(
            f"  Equal decodes differed by {costs.spread - 1:.0%}: the machine was busy, so measure again later."
        )
    for each in result.scouted:
        rates = " ".join(f"{100 * rate:.0f}%" for rate in each.rates)
        prose(
            f"{each.method}: a token costs {each.step_s / costs.seconds[1]:.2f}; accepted by position {rates}"
        )


def _print_standings(result: Tuning) -> None:
    from specli.ui.tables import echo_table, number, percent

    rows = []
    for s in result.standings:
        found = s.ratio
        if found is None:
            continue
        interval = f"{found.low:.3f} to {found.high:.3f}" if s.drafted and found.low is not None else "-"
        rows.append(
            (s.candidate.name, f"{found.value:.3f}" if s.drafted else _AS_OFF, interval, percent(s.acceptance),
             number(s.mean_accepted_length), number(s.draft_length, 1), str(s.n_pairs))
        )  # fmt: skip
    header = ("", "× plain", "95% interval", "accepted", "tok/cycle", "draft length", "answers")
    echo_table(header, [("off", "1.000", "-", "-", "1.00", "-", "-"), *rows])
    if any(row[1] == _AS_OFF for row in rows):
        prose(f"{_AS_OFF}: it drafted nothing here.")
    if any(row[2] == "-" and row[1] != _AS_OFF for row in rows):
        others = "; the budget went to others" if any(row[2] != "-" for row in rows) else ""
        prose(f"Without an interval: too few answers to trust the figure{others}.")


def _on_screened(result: Tuning) -> str | None:
    """How the n-gram settings did on recorded answers, None where none was tried."""
    if not result.screened:
        return None
    best = result.screened[0]
    measured = any(s.candidate.name == best.candidate.name and s.n_pairs for s in result.standings)
    then = "What to expect is what was measured, above." if measured else "There was no time to measure it."
    if best.candidate.spec == result.as_auto:
        then = "It is what auto does here, so it ran as auto: what to expect is what was measured, above."
    return (
        f"Before that, {len(result.screened)} n-gram settings were tried on paper, on plain answers, to see which to "
        f"measure: the best, {best.candidate.name}, would have had {best.accepted} of {best.drafted} draft tokens accepted "
        f"and run at {best.speedup:.2f} times plain. {then}"
    )


def _print_choice(generator: Generator, result: Tuning, path: Path, busy: bool) -> None:
    choice = result.choice.candidate
    prose(f"Choice: {choice.name} ({result.choice.why})")
    if choice.name == OFF and busy:
        prose("The machine was busy, which can make drafts lose: tune again when it is quiet.")
    standing = result.choice.standing
    by_method = standing.by_method.items() if standing is not None else ()
    shares = [
        f"{name} ({each.accepted} of {each.tested} accepted)" for name, each in by_method if each.tested
    ]
    if choice.name == AUTO and shares:
        prose(f"In it drafted: {', '.join(shares)}")
    prose(f"As flags: {choice.flags}{_on_auto(choice)}")
    draft = " with this draft" if generator.draft_model else ""
    prose(
        f"Profile {path.stem}: chat and run use it, and the costs measured, by themselves for this model{draft}, with "
        "this number of threads. Its file:"
    )
    echo(str(path))


def _on_auto(choice: Candidate) -> str:
    """What a user of the default has from a choice that is the default."""
    if choice.name != AUTO:
        return ""
    bound = (
        "; the length is an upper bound, the longest that was tried" if choice.spec.get("draft-n-max") else ""
    )
    return f" - what specli does untuned, too, but it now knows from the start what decodes cost here{bound}"


def _title(generator: Generator) -> str:
    s = generator.settings
    draft = f" with {generator.draft_model.name}" if generator.draft_model else ""
    return f"{generator.model.name}{draft}, {generator.placement}, temperature {s.temp:g}"


def as_json_object(
    generator: Generator, result: Tuning, rules: list[Rule], path: Path | None, taken: float
) -> dict[str, Any]:
    """What `--json` prints; null for what was not measured."""
    costs = result.costs
    chosen = result.choice.standing
    found = chosen.ratio if chosen is not None else None
    return {
        "specli": __version__,
        "model": generator.model.name,
        "draft": generator.draft_model.name if generator.draft_model else None,
        "placement": generator.placement,
        "temperature": generator.settings.temp,
        "taken_s": taken,
        "choice": result.choice.candidate.name,
        "why": result.choice.why,
        "speedup": result.choice.speedup,
        "interval": None if found is None or found.low is None else [found.low, found.high],
        "profile": None if path is None else str(path),
        "token_s": costs.seconds[1],
        "width_costs": {str(width): cost for width, cost in costs.shape.items()},
        "spread": costs.spread,
        "drafters": [
            {"method": s.method, "step_cost": s.step_s / costs.seconds[1], "per_position": list(s.rates),
             "by_length": [s.speedup(k, costs) for k in range(1, len(s.rates) + 1)]}
            for s in result.scouted
        ],
        "screened": [
            {"name": r.candidate.name, "speedup": r.speedup, "drafted": r.drafted, "tested": r.tested,
             "accepted": r.accepted, "cycles": r.cycles}
            for r in result.screened
        ],
        "candidates": [
            {"name": s.candidate.name, "speedup": s.ratio.value,
             "interval": None if s.ratio.low is None else [s.ratio.low, s.ratio.high],
             "acceptance": s.acceptance, "mean_accepted_length": s.mean_accepted_length,
             "draft_length": s.draft_length, "pairs": s.n_pairs}
            for s in result.standings
            if s.ratio is not None
        ],
        "rules_of_thumb": [{"rule": r.rule, "holds": r.holds, "said": r.said} for r in rules],
        "notices": generator.notices,
    }  # fmt: skip
