"""Tuning, on recorded costs and recorded answers: what is chosen never depends on this machine's clock."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from simulation import Clock, ScriptedModel, Trace
from test_cli import Run as Specli
from test_cli import environment, error_line, specli

from specli import profiles
from specli.bench.contest import Run
from specli.core.decoding import Rules, decode
from specli.core.pacing import Costs, FixedPacer, ProfitPacer
from specli.core.sampling import SamplingParams
from specli.core.stats import MethodStats, Stats
from specli.core.types import Cycle, Draft, Verdict
from specli.costs import WidthCosts
from specli.drafters.ngram import NgramSimple
from specli.engine.backend import physical_cores
from specli.tune.candidates import AUTO, Candidate, auto, free, neural, off, sized
from specli.tune.halving import MOST_PASSES, affordable, halve
from specli.tune.replay import Recording, replay, screen
from specli.tune.session import Plan, Session
from specli.tune.verdict import Choice, Measured, Rule, Scouted, choose, rules_of_thumb, to_profile
from specli.tuned import Key, Stale, Tuned, Watch, judge

__all__ = ["environment", "specli"]  # fixtures of test_cli

DATA = json.loads((Path(__file__).parent / "data" / "spelling.json").read_text())
SPELLING = Recording("spelling", tuple(DATA["prompt"]), tuple(DATA["output"]), 0.002)
ANSWERS = [
    replace(SPELLING, workload=f"spelling-{i}", output=SPELLING.output[: 80 + 10 * i]) for i in range(4)
]
MEASURED = WidthCosts({int(w): s for w, s in DATA["seconds"].items()})
FLAT = WidthCosts({1: 0.08, 2: 0.08, 64: 0.09})
EACH_ROW = WidthCosts({1: 0.08, 2: 0.17, 64: 64 * 0.085})
"""A machine that computes at its limit: two rows cost more than twice one."""
FREE = ("draft-self", "ngram-simple", "ngram-map-k", "ngram-map-k4v")


# -- recorded answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("size_n", range(1, 11))
@pytest.mark.parametrize("fixed", [True, False])
def test_counts_are_those_of_the_real_loop(size_n: int, fixed: bool) -> None:
    """Spelling correction by the 0.5B model, n-gram sizes 1 to 10: replayed, and decoded by the core."""
    replayed = replay(sized("ngram-simple", size_n, 12, fixed), SPELLING, replace(MEASURED), 64)
    clock, history = Clock(), list(SPELLING.prompt)
    trace = Trace("t", SPELLING.prompt, SPELLING.output)
    drafter = NgramSimple(size_n, 12)
    drafter.begin(history)
    pacer = FixedPacer() if fixed else ProfitPacer(Costs(MEASURED.shape))
    rules = Rules(SamplingParams(temp=0.0), max_tokens=len(SPELLING.output))
    real = Stats()
    for cycle in decode(ScriptedModel(trace, MEASURED.at, clock), history, [drafter], rules, pacer, clock):
        real.fold(cycle)
    assert history == [*SPELLING.prompt, *SPELLING.output]
    assert replayed.by_method == real.by_method and replayed.widths == real.widths
    assert replayed.generated == real.generated == len(SPELLING.output)
    assert replayed.verify_s == pytest.approx(real.verify_s)
    if fixed and size_n <= 4:
        assert real.accepted > 40  # it copies most of what it was given


def test_screening_ranks_by_reckoned_speed() -> None:
    found = screen(free(FREE), ANSWERS, MEASURED)
    assert len(found) == len(free(FREE)) > 40
    assert [r.speedup for r in found] == sorted((r.speedup for r in found), reverse=True)
    assert found[0].speedup > 1.5 and found[0].accepted > 0.5 * found[0].tested
    assert screen([off()], ANSWERS, MEASURED)[0].speedup == pytest.approx(1.0)
    assert found == screen(free(FREE)[::-1], ANSWERS[::1], MEASURED)
    # where every row costs as much as a decode of its own, nothing can win
    assert screen(free(FREE), ANSWERS, EACH_ROW)[0].speedup <= 1.0 + 1e-9


# -- successive halving ---------------------------------------------------------------------------


class Replays:
    """A `Trial` in which answers take the seconds that were reckoned, and that clock is all there is."""

    def __init__(
        self, costs: WidthCosts, answers: Sequence[Recording] = ANSWERS, budget: float = 1e9
    ) -> None:
        self.costs, self.answers = costs, answers
        self.now, self.budget = 0.0, budget
        self.calls: list[str] = []
        self.noise: random.Random | None = None

    def __call__(self, candidate: Candidate, workload: int, repeat: int) -> Run | None:
        self.calls.append(candidate.name)
        factor = self.noise.uniform(0.97, 1.03) if self.noise else 1.0
        costs = WidthCosts({w: s * factor for w, s in self.costs.seconds.items()})
        stats = replay(candidate, self.answers[workload], costs)
        self.now += stats.total_s
        if self.now > self.budget:
            return None
        name = self.answers[workload].workload
        return Run(candidate.name, name, "x", repeat, self.answers[workload].output, stats)

    def left(self) -> float:
        return self.budget - self.now


TRIED = [sized("ngram-simple", n, m, fixed) for n in (1, 2, 4, 8) for m in (8, 48) for fixed in (False, True)]


@pytest.mark.parametrize("reverse", [False, True])
def test_off_where_off_is_fastest(reverse: bool) -> None:
    trial = Replays(EACH_ROW, budget=3000.0)
    candidates = TRIED[:: -1 if reverse else 1]
    choice = choose(halve(off(), candidates, len(ANSWERS), trial, trial.left))
    assert choice.candidate.name == "off" and choice.speedup == 1.0
    assert "does not lie above plain" in choice.why


@pytest.mark.parametrize(("costs", "budget"), [(MEASURED, 1500.0), (FLAT, 700.0)], ids=["measured", "flat"])
def test_the_fastest_where_drafting_pays(costs: WidthCosts, budget: float) -> None:
    choices = []
    for step in (1, -1):
        trial = Replays(costs, budget=budget)
        trial.noise = random.Random(step)
        standings = halve(off(), TRIED[::step], len(ANSWERS), trial, trial.left)
        choices.append(choose(standings))
        found = choices[-1].standing
        assert found is not None and found.ratio is not None and found.ratio.clears_plain
    best = screen(TRIED, ANSWERS, costs)[0]
    assert [c.candidate.name for c in choices] == [best.candidate.name] * 2
    assert choices[0].speedup == pytest.approx(best.speedup, rel=0.05)


def test_halves_run_on_and_all_meet_the_same_prompts() -> None:
    trial = Replays(MEASURED, budget=600.0)
    standings = halve(off(), TRIED, len(ANSWERS), trial, trial.left)
    assert trial.now <= 600.0
    counts = [s.n_pairs for s in standings]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1] >= 1
    rounds = [s.round for s in standings]
    assert rounds.count(max(rounds)) == 2 and rounds.count(0) == 8
    plains = trial.calls.count("off")
    assert plains == counts[0] or plains == counts[0] + 1  # the last pass may have been cut


def test_auto_is_measured_to_the_end() -> None:
    """It is what one has without tuning, so a winner is held against it; and that is said."""
    slow = replace(sized("ngram-simple", 1, 8, fixed=True), name=AUTO)
    trial = Replays(EACH_ROW, budget=3000.0)
    standings = halve(off(), [slow, *TRIED], len(ANSWERS), trial, trial.left)
    (found,) = [each for each in standings if each.candidate.name == AUTO]
    assert found.n_pairs == max(each.n_pairs for each in standings) and found.value < 0.9
    trial = Replays(FLAT, budget=700.0)
    choice = choose(halve(off(), [slow, *TRIED], len(ANSWERS), trial, trial.left))
    assert choice.candidate.name != AUTO and "auto, what specli does untuned, ran at " in choice.why


@pytest.mark.parametrize(("methods", "both"), [(["draft-self"], False), (["draft-self", "draft-mtp"], True)])
def test_what_auto_does_anyway_is_not_tried_beside_it(methods: list[str], both: bool) -> None:
    target = SimpleNamespace(max_rows=64)
    generator = SimpleNamespace(
        methods=methods, settings=profiles.resolve(profiles.load(), {}), target=target
    )
    plan = Plan(profiles.load(), {}, tuple(methods))
    session = Session(SimpleNamespace(generator=generator), plan, time.perf_counter())  # type: ignore[arg-type]
    same, other = sized("draft-self", 2, 64), sized("draft-self", 4, 16)
    tried = session._tried(screen([same, other], ANSWERS, MEASURED), [], MEASURED)
    assert tried[0].name == AUTO and other.name in [each.name for each in tried]
    assert (same.name in [each.name for each in tried]) == both


def test_what_was_left_out_on_the_way_is_not_chosen() -> None:
    """It ran on the first prompts alone, where others did better, too."""
    trial = Replays(FLAT, budget=700.0)
    standings = halve(off(), TRIED, len(ANSWERS), trial, trial.left)
    last, early = standings[0], standings[-1]
    assert early.round < last.round
    early.pairs = {at: [replace(p, other=9 * p.other) for p in pairs] for at, pairs in last.pairs.items()}
    early.runs = last.runs
    assert early.value > last.value and choose(standings).candidate == last.candidate


def test_no_more_passes_than_change_anything() -> None:
    trial = Replays(FLAT)
    (standing,) = halve(off(), [auto_like()], len(ANSWERS), trial, trial.left)
    assert standing.n_pairs == MOST_PASSES


def auto_like() -> Candidate:
    return sized("draft-self", 2, 16)


def test_a_budget_too_short_to_tell_is_off() -> None:
    trial = Replays(FLAT, budget=1.0)
    choice = choose(halve(off(), TRIED, len(ANSWERS), trial, trial.left))
    assert choice.candidate.name == "off" and "budget" in choice.why
    assert choose([]).candidate.name == "off"
    assert not choice.settled and not choose([]).settled


# -- the choice -----------------------------------------------------------------------------------


def standings_of(**speeds: float | tuple[float, ...]) -> list[object]:
    """Candidates by name with their speed over plain's, on all or each of four prompts."""

    class Given:
        def __call__(self, candidate: Candidate, workload: int, repeat: int) -> Run:
            speed = speeds.get(candidate.name, 1.0)
            speed = speed[workload] if isinstance(speed, tuple) else speed
            rate = 10.0 * speed * (1 + 0.01 * ((workload + repeat) % 3))
            stats = Stats()
            for _ in range(4):
                stats.fold(
                    Cycle(Draft((1, 1), candidate.name), Verdict((1, 1), 1, 2), 3, 0, 0.0, 2 / rate, 2 / rate)
                )
            return Run(candidate.name, str(workload), "x", repeat, (1,), stats)

    candidates = [auto(8) if n == AUTO else replace(off(), name=n, spec={"types": (n,)}) for n in speeds]
    clock = iter(range(1000, 0, -1))
    return halve(off(), candidates, 4, Given(), lambda: float(next(clock)), finalists=len(candidates))  # type: ignore[return-value]


def test_auto_is_taken_when_it_is_about_as_good() -> None:
    def chosen(**speeds: float) -> str:
        return choose(standings_of(**speeds)).candidate.name  # type: ignore[arg-type]

    assert chosen(auto=1.49, other=1.5) == "auto"
    assert chosen(auto=1.3, other=1.5) == "other"
    assert chosen(auto=0.9, other=1.2, slow=0.7) == "other"
    assert chosen(auto=0.99, other=0.98) == "auto"  # it costs next to nothing, and may gain elsewhere
    assert chosen(auto=0.9, other=0.98) == "off"
    assert "adapts" in choose(standings_of(auto=1.49, other=1.5)).why  # type: ignore[arg-type]


def test_auto_is_taken_where_it_gains_on_some_prompts_and_loses_on_none() -> None:
    def chosen(**speeds: tuple[float, ...]) -> Choice:
        return choose(standings_of(**speeds))  # type: ignore[arg-type]

    uneven, losing = (0.98, 1.0, 1.0, 2.0), (0.85, 0.9, 1.0, 2.0)
    assert chosen(auto=uneven).candidate.name == "auto"
    assert "0.9" in chosen(auto=uneven).why and "drafts only where that pays" in chosen(auto=uneven).why
    assert chosen(auto=uneven).settled
    assert chosen(other=uneven).candidate.name == "off"  # it drafts on whatever comes
    assert chosen(auto=losing).candidate.name == "auto"
    assert chosen(auto=(0.99, 1.0, 1.01, 1.04)).candidate.name == "auto"
    assert chosen(auto=(0.8, 0.9, 1.0, 1.0)).candidate.name == "off"


@pytest.mark.parametrize(
    ("n", "runs", "several"),
    [(8, 1000.0, 8), (8, 35.0, 8), (8, 25.0, 6), (8, 17.0, 2), (8, 12.0, 1), (1, 2.0, 1)],
)
def test_no_more_is_tried_than_can_be_told_apart(n: int, runs: float, several: int) -> None:
    """By hand: 17 runs are five prompts for two candidates and plain decoding beside them."""
    assert affordable(n, runs) == several


def test_what_had_no_token_accepted_is_not_faster_whatever_the_clock_says() -> None:
    standings = standings_of(busy=1.4)
    for run in standings[0].runs:  # type: ignore[attr-defined]
        run.stats.generated = run.stats.cycles  # one token a cycle, as plain decoding
    choice = choose(standings)  # type: ignore[arg-type]
    assert choice.candidate.name == "off" and "no draft token was accepted" in choice.why


# -- rules of thumb -------------------------------------------------------------------------------


def failed(rules: Sequence[Rule]) -> list[bool | None]:
    return [rule.holds for rule in rules]


def test_rules_that_fail_are_shown_by_what_was_measured() -> None:
    # 62% accepted of drafts of 3: above 50%, and the product above 1; yet costs rise too fast for it
    scouted = Scouted("draft-model", (0.62,) * 8, step_s=0.25 * MEASURED.at(1))
    trial = Replays(EACH_ROW)
    slow = halve(off(), [sized("ngram-simple", 1, 8, fixed=True)], len(ANSWERS), trial, trial.left)
    (standing,) = slow
    assert standing.acceptance is not None and standing.acceptance > 0.5 and standing.value < 0.9
    rules = rules_of_thumb(slow, [scouted], MEASURED)
    assert failed(rules) == [False, False, False]
    assert "ngram-simple,size-n=1,size-m=8,fixed" in rules[0].said and "times plain" in rules[0].said
    assert "draft-model with 3" in rules[2].said
    assert failed(rules_of_thumb([], [], MEASURED)) == [None, None, None]


def test_rules_that_hold() -> None:
    trial = Replays(FLAT)
    good = halve(off(), [sized("ngram-simple", 3, 8, fixed=True)], len(ANSWERS), trial, trial.left)
    cheap = Scouted("draft-model", (0.75,) * 8, step_s=0.15 * FLAT.at(1))
    assert failed(rules_of_thumb(good, [cheap], FLAT)) == [True, True, True]
    longer = Scouted("draft-mtp", (0.95,) * 8, step_s=0.01 * FLAT.at(1))
    rule = rules_of_thumb(good, [longer], FLAT)[2]
    assert rule.holds is False and "best with 8" in rule.said


def test_what_was_measured_too_seldom_speaks_to_no_rule() -> None:
    trial = Replays(EACH_ROW)
    (slow,) = halve(off(), [sized("ngram-simple", 1, 8, fixed=True)], len(ANSWERS), trial, trial.left)
    assert slow.has_interval
    each_once = [replace(slow, pairs={prompt: pairs[:1]}) for prompt, pairs in slow.pairs.items()]
    once = min(each_once, key=lambda standing: standing.value)
    assert not once.has_interval and once.value < 0.9
    assert failed(rules_of_thumb([once], [], MEASURED)) == [None, None, None]


def test_speed_expected_of_lengths() -> None:
    """By hand: 2 tokens at 0.5 each emit 1.75 in a verify of 3 and two steps."""
    costs = WidthCosts({1: 1.0, 2: 1.2, 3: 1.5, 4: 1.6})
    found = Scouted("draft-model", (0.5, 0.5, 0.5), 0.1)
    assert found.speedup(2, costs) == pytest.approx(1.75 / 1.7)
    assert found.lengths(costs)[0] == 1 and found.speedup(1, costs) == pytest.approx(1.5 / 1.3)
    needed = found.break_even(2, costs)
    assert needed is not None and 1 + needed + needed**2 == pytest.approx(1.7, rel=1e-6)
    assert found.break_even(1, WidthCosts({1: 1.0, 2: 2.0, 3: 3.0})) is None


# -- the profile ----------------------------------------------------------------------------------

KEY = Key("model", "draft", "build", "cpu", 2)


def measured(choice: Choice) -> Measured:
    standings = [choice.standing] if choice.standing else []
    return Measured(KEY, MEASURED, standings, [Scouted("draft-model", (0.5,), 0.1)], 0.8, "mix", "2025-01-01")


def test_the_profile_says_what_was_measured_and_for_what() -> None:
    trial = Replays(FLAT)
    choice = choose(halve(off(), [sized("draft-self", 2, 16)], len(ANSWERS), trial, trial.left))
    written = profiles.to_toml(to_profile("tuned-m", "f", choice, measured(choice), "d.gguf"))
    back = profiles.parse(written, "tuned-m", "f")
    assert dict(back.section("spec")) == {"types": ("draft-self",), "self-size-n": 2, "self-size-m": 16}
    assert "draft-model" not in back.given  # it is not used
    found = judge(back, KEY)
    assert isinstance(found, Tuned) and found.speedup == pytest.approx(choice.speedup, abs=1e-3)
    assert found.acceptance["draft-self"] > 0.5 and not found.uses_draft
    assert choice.standing is not None
    over = f"on average over {choice.standing.n_pairs} answers to {measured(choice).workload}"
    assert f"measured {found.speedup:.2f}× plain here, {over}" in found.line
    on_busy = to_profile("tuned-m", "f", choice, replace(measured(choice), busy=True), "d.gguf")
    still = judge(profiles.parse(profiles.to_toml(on_busy), "tuned-m", "f"), KEY)
    assert isinstance(still, Tuned) and "plain here while the machine was busy, on average" in still.line
    none = to_profile("tuned-m", "f", Choice(off(), None, ""), replace(measured(choice), busy=True), None)
    idle = judge(none, KEY)
    assert (
        isinstance(idle, Tuned) and "nothing is drafted; `specli tune` on a quiet one may find" in idle.line
    )
    settings = profiles.resolve(found.over(profiles.load("chat")), {"temp": 0.3})
    assert settings.types == ("draft-self",) and settings.self_size_m == 16 and settings.temp == 0.3


def test_a_neural_choice_keeps_the_draft() -> None:
    for candidate in (neural("draft-model", 3, fixed=True), auto(8)):
        profile = to_profile(
            "t", "f", Choice(candidate, None, ""), measured(Choice(off(), None, "")), "d.gguf"
        )
        back = profiles.parse(profiles.to_toml(profile), "t", "f")
        assert back.given["draft-model"] == "d.gguf" and back.given["draft-n-max"] in (3, 8)


@pytest.mark.parametrize(
    ("candidate", "flags"),
    [
        (off(), "--spec-type none"),
        (auto(None), "--spec-type auto"),
        (auto(8), "--spec-type auto --spec-draft-n-max 8"),
        (neural("draft-model", 3, fixed=True), "--spec-type draft-model --spec-draft-n-max 3 --fixed"),
        (
            sized("draft-self", 2, 64),
            "--spec-type draft-self --spec-self-size-n 2 --spec-self-size-m 64",
        ),
    ],
)
def test_a_candidate_says_how_to_get_it_by_flags(
    candidate: Candidate, flags: str, specli: Specli, tiny_target: Path, tiny_draft: Path
) -> None:
    assert candidate.flags == flags
    files = ["-m", tiny_target, *(["--draft-model", tiny_draft] if "draft-model" in flags else [])]
    done = specli("run", *files, "--no-repack", "--threads", "1", "--max-tokens", "3", *flags.split(), "One")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"target": "x"}, "another version of the model"),
        ({"draft": ""}, "another version of the draft"),
        ({"build": "x"}, "another build of llama.cpp"),
        ({"devices": "x", "threads": 1}, "another processor or GPU and --threads 2"),
        ({"exact_width": 4}, "no --exact"),
    ],
)
def test_a_stale_key_is_noticed(change: dict[str, object], says: str) -> None:
    choice = Choice(off(), None, "")
    profile = to_profile("tuned-m", "f", choice, measured(choice), None)
    assert isinstance(judge(profile, KEY), Tuned)
    found = judge(profile, replace(KEY, **change))  # type: ignore[arg-type]
    assert isinstance(found, Stale) and says in found.line and "specli tune" in found.line
    damaged = replace(profile, measured={**profile.measured, "format": 99})
    assert isinstance(judge(damaged, KEY), Stale)
    assert isinstance(judge(replace(profile, measured={}), KEY), Stale)


def test_acceptance_well_below_is_said_once() -> None:
    profile = profiles.parse("", "tuned-m", "f")
    watch = Watch(Tuned(profile, 1.5, "draft-self", {"draft-self": 0.8}))

    def fold(tested: int, accepted: int, method: str = "draft-self") -> str | None:
        return watch.fold({method: MethodStats(tested, tested, accepted)})

    assert fold(30, 3) is None  # too few to tell
    assert fold(200, 10, "ngram-simple") is None  # never measured
    line = fold(40, 8)
    assert line is not None and "16% of draft-self's tokens" in line and "80%" in line
    assert fold(100, 0) is None
    fine = Watch(Tuned(profile, 1.5, "draft-self", {"draft-self": 0.8}))
    assert fine.fold({"draft-self": MethodStats(400, 400, 250)}) is None  # 62%: less, not well below


# -- the command ----------------------------------------------------------------------------------

MODELS = Path(__file__).parent / "models"
TARGET, DRAFT = MODELS / "tiny-target-mtp.gguf", MODELS / "tiny-draft.gguf"
TINY = ["-m", str(TARGET), "--draft-model", str(DRAFT), "--threads", "1", "--no-repack", "--temp", "0"]


@pytest.fixture(scope="module")
def tuning(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """One tuning of the tiny models, on few prompts."""
    import subprocess
    import sys

    prompts = tmp_path_factory.mktemp("like") / "prompts.txt"
    prompts.write_text("def add(a, b):\nfor i in range(10): print(i)\nimport os\n")
    command = [sys.executable, "-m", "specli", "tune", *TINY, "--budget", "12", "--tokens", "16"]
    done = subprocess.run(
        [*command, "--like", str(prompts), "--json"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_the_command_measures_and_writes(tuning: dict[str, object]) -> None:
    path = Path(str(tuning["profile"]))
    assert path.name == "tuned-tiny-target-mtp+tiny-draft.toml"
    profile = profiles.load(str(path))
    assert profile.measured["choice"] == tuning["choice"]
    assert {"1", "2", "4"} <= set(tuning["width_costs"])  # type: ignore[call-overload]
    assert {d["method"] for d in tuning["drafters"]} == {"draft-model", "draft-mtp"}  # type: ignore[attr-defined]
    assert len(tuning["rules_of_thumb"]) == 3  # type: ignore[arg-type]
    assert len(tuning["screened"]) == len(free(FREE))  # type: ignore[arg-type]


def test_run_picks_it_up_and_notices_when_it_is_stale(tuning: dict[str, object], specli: Specli) -> None:
    path = Path(str(tuning["profile"]))
    name, text = path.stem, path.read_text()
    run = ["run", *TINY, "--max-tokens", "8", "hi", "--json"]

    def notices(*more: str) -> tuple[str, str]:
        result = specli(*run, *more)
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout)
        return found["profile"], " ".join(found["notices"])

    profile, said = notices()
    assert profile == name and f"{name}: " in said
    assert "--profile auto leaves it aside" in said
    alone = path.with_name("tuned-tiny-target-mtp.toml")
    alone.write_text(text)
    path.rename(path.with_suffix(".away"))
    profile, said = notices()
    assert profile == "auto" and "tuned-tiny-target-mtp was measured with no draft model" in said
    assert "`specli tune --draft-model " in said
    path.with_suffix(".away").rename(path)
    alone.unlink()
    assert notices("--spec-type", "auto")[0] == "auto" and notices("--profile", "code")[0] == "code"
    profile, said = notices("--profile", "auto")
    assert profile == "auto" and name not in said
    profile, said = notices("--threads", "2")
    assert profile == "auto" and "was measured with --threads 1, so it is left aside" in said
    assert "`specli tune --threads 2` measures again" in said
    assert profiles.load(str(path)).given["threads"] == 1  # as it was measured with, and goes on with
    unsaid = [word for word in run if word not in ("--threads", "1")]
    result = specli(*unsaid)
    assert json.loads(result.stdout)["profile"] == name, result.stderr
    profile, said = notices("--exact-width", "3")
    assert "was measured with no --exact" in said and "`specli tune --exact-width 3`" in said
    path.write_text(text.replace('build = "', 'build = "older-'))
    profile, said = notices()
    assert profile == "auto" and "another build of llama.cpp" in said
    path.write_text("types = [")
    assert "cannot be read" in notices()[1]
    path.write_text(text)
    assert specli(*run[:-1], "-q").stderr == ""


def test_what_was_tuned_before_is_named(tuning: dict[str, object], specli: Specli) -> None:
    """Whether it stays or another one takes its place; and what drafted nothing has no figure."""
    path = Path(str(tuning["profile"]))
    before = path.read_text()
    done = specli("tune", *TINY, "--budget", "4", "--tokens", "16")
    written = path.read_text()
    path.write_text(before)
    assert done.returncode == 0, done.stderr
    said = "It takes the place of" if written != before else "What was tuned before stays"
    assert f"{tuning['choice']}" in done.stdout.partition(said)[2], done.stdout
    assert "same prompt. Specli's own prompts: code-edit-1" in done.stdout
    for line in done.stdout.splitlines():
        drafted = line.split()[1:2] != ["as"]
        assert drafted or (line.split()[1:4] == ["as", "off", "-"] and " 1.00 " in line), line


def test_export_takes_what_was_tuned_too(tuning: dict[str, object], specli: Specli) -> None:
    path = Path(str(tuning["profile"]))
    before = path.read_text()
    path.write_text(before.replace("threads = 1", f"threads = {physical_cores()}"))
    command = ("export", "llama-server", "-m", str(TARGET), "--draft-model", str(DRAFT))
    done, general = specli(*command), specli(*command, "--profile", "auto")
    path.write_text(before)
    assert done.returncode == 0, done.stderr
    assert f"profile {path.stem}," in done.stdout and "profile auto," in general.stdout


def test_run_says_when_acceptance_is_far_below(tuning: dict[str, object], specli: Specli) -> None:
    path = Path(str(tuning["profile"]))
    before = path.read_text()
    document = profiles.load(str(path))
    spec = {"types": ("draft-model",), "fixed": True, "draft-n-max": 4}
    measured = {**document.measured, "choice": "draft-model", "acceptance": {"draft-model": 1.0}}
    path.write_text(profiles.to_toml(replace(document, given=spec, measured=measured)))
    result = specli("run", *TINY, "--max-tokens", "200", "def test(self): return 1", "--json")
    path.write_text(before)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["by_method"]["draft-model"]["tested"] >= Watch.ENOUGH
    assert "another kind of text" in found["notices"][-1]


@pytest.mark.parametrize(
    ("args", "says", "code"),
    [
        (["--fixed"], "--fixed: that is what tune finds out", 2),
        (["--spec-self-size-n", "3"], "--spec-self-size-n: that", 2),
        (["--spec-type", "none"], "nothing to tune", 2),
        (["--like", "no-such-file"], "no-such-file", 1),
        (["--budget", "0"], "--budget", 2),
    ],
)
def test_wrong_usage(specli: Specli, args: list[str], says: str, code: int) -> None:
    result = specli("tune", *TINY, *args)
    assert says in error_line(result) and result.returncode == code
