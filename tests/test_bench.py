"""Comparing settings: what is named, what is run, and what the numbers say. No test looks at the clock."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from test_cli import Run as Specli
from test_cli import environment, error_line, specli

from specli import profiles
from specli.assembly import Generator, Request
from specli.bench.contest import Contest, Run
from specli.bench.contestants import PLAIN, Contestant, contestants, together
from specli.bench.figures import Pair, pairs, ratio, summarise
from specli.bench.outputs import Difference, differences, first_difference
from specli.core.stats import Stats
from specli.core.types import NO_DRAFT, Cycle, Draft, Verdict
from specli.errors import SpecliError, UsageError
from specli.ui.chart import Bar, bars, svg
from specli.ui.tables import fold, table
from specli.workloads import Workload, chosen, load, mixed, parse, shipped

__all__ = ["environment", "specli"]  # fixtures of test_cli

BASE: dict[str, object] = {"threads": 1, "no-repack": True, "temp": 0, "max-tokens": 24, "ctx-size": 512}


def compared(*against: str, **flags: object) -> list[Contestant]:
    return contestants(profiles.load(), {**BASE, **flags}, against)


# -- who is compared ------------------------------------------------------------------------------


def test_plain_and_the_own_settings() -> None:
    plain, own = compared()
    assert (plain.name, plain.settings.types) == (PLAIN, ("none",))
    assert (own.name, own.settings.types) == ("auto", ("auto",))
    assert [c.name for c in compared("none", **{"spec-type": "ngram-simple"})] == [
        "plain",
        "ngram-simple",
        "none",
    ]
    assert [c.name for c in compared("none", **{"spec-type": "none"})] == ["plain", "none"]


def test_settings_in_a_short_text() -> None:
    _, _, a, b, c, d = compared(
        "draft-self,n-max=3", "draft-self+ngram-simple,size-n=5,fixed", "draft-simple,p-min=0.5", "@code"
    )
    assert (a.name, a.settings.types, a.settings.draft_n_max) == ("draft-self,n-max=3", ("draft-self",), 3)
    assert b.settings.types == ("draft-self", "ngram-simple") and b.settings.fixed
    assert (b.settings.self_size_n, b.settings.ngram_simple_size_n) == (5, 5)
    assert c.settings.types == ("draft-model",) and c.settings.draft_p_min == 0.5
    assert d.settings.types == ("draft-self", "draft-model") and d.settings.temp == 0  # only [spec] is taken


def test_flags_are_the_rest_of_every_setting() -> None:
    _, _, a, b = compared("draft-model", "draft-model,n-max=2", draft_n_max=7, exact=True)
    assert (a.settings.draft_n_max, b.settings.draft_n_max) == (7, 2)
    assert a.settings.fixed_width == b.settings.fixed_width == 4


def test_the_same_twice_gets_numbers() -> None:
    assert [c.name for c in compared("auto", "auto")] == ["plain", "auto", "auto #2", "auto #3"]


def test_loaded_is_what_all_need() -> None:
    settings = together(compared("ngram-map-k", "draft-mtp,n-max=9", "none"))
    assert settings.types == ("none", "auto", "ngram-map-k", "draft-mtp") and settings.draft_n_max == 9


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ngram-simpel", "ngram-simple"),
        ("draft-self,size-m", "needs a value"),
        ("draft-self,size-m=many", "must be a number"),
        ("draft-self,size-m=0", "must be 1 to"),
        ("draft-model,size-n=3", "n-gram methods"),
        ("draft-self,exact", "give it as a flag"),
        ("draft-self,temp=1", "no key temp"),
        ("draft-self,fixed=maybe", "true or false"),
        ("draft-self,draft-n-mx=1", "draft-n-max"),
        ("draft-self+auto", "mix"),
        ("@cod", "code"),
        ("", "one of"),
    ],
)
def test_what_cannot_be_meant(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        compared(text)


# -- workloads ------------------------------------------------------------------------------------


def test_the_shipped_set() -> None:
    found = shipped()
    kinds = {w.category for w in found}
    assert kinds == {"code-edit", "code-gen", "rag", "summary", "chat", "extraction"}
    assert len({w.id for w in found}) == len(found) == 12
    assert [w.category for w in mixed(found)[:6]] == list(dict.fromkeys(w.category for w in found))
    assert len(chosen(found, ["rag", "chat"], 1)) == 2
    with pytest.raises(UsageError, match='did you mean "rag"'):
        chosen(found, ["rags"])


def test_own_prompts(tmp_path: Path) -> None:
    rows = (
        '{"prompt": "a", "category": "x"}\n\n{"prompt": "b"}\n{"prompt": "c", "category": "x", "id": "z"}\n'
    )
    assert [(w.id, w.category) for w in parse(rows, "f")] == [("x-1", "x"), ("own-1", "own"), ("z", "x")]
    assert [w.prompt for w in parse("one {line}\ntwo\n", "f")] == ["one {line}", "two"]
    for text, says in (
        ('{"prompt": 3}', "f:1: needs"),
        ('{"prompt": "a"}\n{"prompt": ', "f:2: not valid JSON"),
        ('{"prompt": "a", "id": 1}', '"id" must be'),
        ('{"prompt": "a", "id": "i"}\n{"prompt": "b", "id": "i"}', "stands twice"),
        ("\n \n", "no prompts"),
    ):
        with pytest.raises(UsageError, match=says):
            parse(text, "f")
    with pytest.raises(SpecliError, match="No such file"):
        load(tmp_path / "none.jsonl")
    (tmp_path / "latin").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UsageError, match="UTF-8"):
        load(tmp_path / "latin")


# -- numbers --------------------------------------------------------------------------------------


def run_of(
    name: str, workload: str, repeat: int, rate: float, category: str = "x", draft: int = 0, accepted: int = 0
) -> Run:
    """A run of three equal cycles of which the later two make `rate`."""
    stats = Stats()
    tokens = accepted + 1
    proposal = Draft((0,) * draft, "m", match=1) if draft else NO_DRAFT
    for _ in range(3):
        seconds = tokens / rate
        verdict = Verdict((0,) * tokens, accepted, min(draft, accepted + 1))
        stats.fold(Cycle(proposal, verdict, draft + 1, 0, 0.25 * seconds, 0.5 * seconds, seconds))
    return Run(name, workload, category, repeat, (1, 2, 3), stats, 0.5)


def test_a_ratio_is_of_medians_over_prompts() -> None:
    assert ratio([]) is None and ratio([[], []]) is None
    one = ratio([[Pair(10, 20), Pair(1, 1)]])
    assert one is not None and one.low is None and one.value == pytest.approx(10.5 / 5.5)
    both = ratio([[Pair(10, 20)], [Pair(10, 5)], [Pair(10, 10)]])
    assert both is not None and both.value == pytest.approx(1.0)
    assert both.low is not None and both.high is not None and both.low < 1 < both.high


def test_intervals() -> None:
    sure = ratio([[Pair(10, 13), Pair(10, 14)] for _ in range(6)])
    assert sure is not None and sure.clears_plain and sure.low is not None and sure.low > 1.25
    unsure = ratio([[Pair(10, 9)], [Pair(10, 16)], [Pair(10, 10)]])
    assert unsure is not None and unsure.value > 1 and not unsure.clears_plain
    few = ratio([[Pair(10, 20), Pair(10, 20)]])
    assert few is not None and not few.clears_plain  # two pairs cannot tell
    again = ratio([[Pair(10, 9)], [Pair(10, 16)], [Pair(10, 10)]])
    assert again == unsure


def test_an_outlier_among_repeats_does_not_count() -> None:
    steady = [Pair(10, 12)] * 4
    found = ratio([[*steady, Pair(10, 0.1)], [*steady, Pair(0.1, 12)]])
    assert found is not None and found.value == pytest.approx(1.2)


def test_summaries() -> None:
    runs = [
        run_of(PLAIN, "a", 0, 10.0),
        run_of("m", "a", 0, 20.0, draft=4, accepted=1),
        run_of(PLAIN, "a", 1, 12.0),
        run_of("m", "a", 1, 18.0, draft=4, accepted=1),
        run_of(PLAIN, "b", 0, 10.0, "y"),
        run_of("m", "b", 0, 5.0, "y", draft=4, accepted=1),
        run_of("m", "c", 0, 5.0, "y"),  # plain was interrupted: no pair
    ]
    found = summarise(runs, "m", [Difference("m", "b", 1, 0.5), Difference(PLAIN, "a", 0, None)])
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx((19 / 11 * 0.5) ** 0.5)
    assert found.tokens_per_second == pytest.approx(11.5)
    assert found.spread == pytest.approx(1 / 19)
    assert found.acceptance == pytest.approx(0.5) and found.mean_accepted_length == pytest.approx(21 / 12)
    assert (found.draft_share, found.verify_share) == (pytest.approx(0.25), pytest.approx(0.5))
    assert found.wasted == 27 and (found.equal, found.compared) == (1, 2)
    assert found.first_token_s == 0.5
    only = summarise(runs, "m", [], "y")
    assert only.ratio is not None and only.ratio.value == pytest.approx(0.5) and only.runs == 2
    assert only.spread is None
    assert len(pairs(runs, PLAIN)) == 2
    assert summarise(runs, "nobody", []).ratio is None


def test_first_differences() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2


# -- pictures -------------------------------------------------------------------------------------


def test_bars_are_in_proportion() -> None:
    lines = bars([Bar("plain", 1.0), Bar("fast", 2.0), Bar("slow", 0.5)], 60, ascii_only=True)
    assert all(len(line) <= 60 and line.isascii() for line in lines)
    counts = [line.count("#") for line in lines]
    assert (
        counts[1] == max(counts)
        and abs(counts[1] - 2 * counts[0]) <= 1
        and abs(counts[0] - 2 * counts[2]) <= 1
    )
    assert "|" in lines[2] and lines[1].endswith("2.00")
    assert bars([], 60) == []


def test_the_picture_is_well_formed() -> None:
    drawn = svg("a <b> & c", "sub", [Bar("x & y", 1.4, 1.2, 1.6, "g<1>"), Bar("z", 0.6)])
    root = ElementTree.fromstring(drawn)
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a <b> & c", "g<1>", "x & y", "1.40", "0.60"} <= set(texts)
    widths = [float(n.get("width", "0")) for n in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert widths[0] / widths[1] == pytest.approx(1.4 / 0.6, rel=0.01)


def test_tables_line_up() -> None:
    lines = table(("", "a"), [("name", "1.00"), ("x", "12.00")])
    assert lines == ["          a", "name   1.00", "x     12.00"]


def test_a_table_too_wide_goes_on_below() -> None:
    header, rows = ("", "a", "long", "c"), [("name", "1", "2", "3"), ("x", "4", "5", "6")]
    whole = table(header, rows)
    assert fold(header, rows, None) == fold(header, rows, 16) == [whole] and len(whole[0]) == 16
    first, second = ["      a  long", "name  1     2", "x     4     5"], ["      c", "name  3", "x     6"]
    assert fold(header, rows, 15) == [first, second]
    assert [part[1] for part in fold(header, rows, 1)] == ["name  1", "name     2", "name  3"]


# -- runs, on the tiny models ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def several() -> list[Contestant]:
    return compared(
        "draft-self", "draft-model,n-max=3,fixed", "draft-mtp,n-max=2,fixed", "ngram-simple,size-n=2"
    )


@pytest.fixture(scope="module")
def generator(several: Sequence[Contestant]) -> Iterator[Generator]:
    models = Path(__file__).parent / "models"
    request = Request(
        together(several), models / "tiny-target-mtp.gguf", models / "tiny-draft.gguf", ignore_end=True
    )
    with Generator(request) as loaded:
        yield loaded


PROMPTS = [
    Workload("a", "x", "def add(a, b):"),
    Workload("b", "y", "for i in range(10):\n    print(i)\n" * 3),
]


def test_all_run_in_turns(generator: Generator, several: Sequence[Contestant]) -> None:
    contest = Contest(generator, PROMPTS)
    contest.warm_up(several)
    runs = list(contest.runs(several, 2))
    names = [c.name for c in several]
    assert [(r.workload, r.repeat, r.contestant) for r in runs] == [
        (w.id, repeat, name) for w in PROMPTS for repeat in range(2) for name in names
    ]
    assert all(len(r.tokens) == 24 for r in runs)  # end tokens are ignored
    assert all(r.first_token_s is not None for r in runs)
    drafted = {name: sum(r.stats.drafted for r in runs if r.contestant == name) for name in names}
    assert (
        drafted[PLAIN] == 0 and drafted["draft-model,n-max=3,fixed"] > 0 < drafted["draft-mtp,n-max=2,fixed"]
    )
    neural = [r for r in runs if r.contestant == "draft-model,n-max=3,fixed"]
    assert all(r.step_s is not None and max(r.stats.widths) <= 4 for r in neural)
    for each in differences(contest, runs):
        assert each.gap is None or each.gap < 0.5


def test_every_run_starts_from_the_same_state(generator: Generator, several: Sequence[Contestant]) -> None:
    """What one run learned, or left in a cache, would show in the next one's drafts."""
    contest = Contest(generator, PROMPTS[1:])
    fixed = [c for c in several if c.settings.fixed]
    first = [contest.run(c, PROMPTS[1]) for c in fixed]
    for c in several:
        contest.run(c, PROMPTS[1])
    again = [contest.run(c, PROMPTS[1]) for c in fixed]
    for one, other in zip(first, again):
        assert one is not None and other is not None
        assert one.tokens == other.tokens
        assert one.stats.by_method == other.stats.by_method and one.stats.widths == other.stats.widths


def test_drafters_forget_on_reset(generator: Generator, several: Sequence[Contestant]) -> None:
    own = next(c for c in several if c.name == "draft-self")
    generator.reset(own.settings)
    prompt = generator.prompter.raw("import os\nimport sys\nimport re\n")
    list(generator.answer(prompt))
    generator.reset()
    assert list(generator.target.tokens) == [] and generator.draft_cache is not None
    assert list(generator.draft_cache.tokens) == []
    (drafter,) = generator.drafters
    drafter.begin([5])
    assert not drafter.propose([5, *prompt[:6]], 8).tokens


def test_a_kept_prompt_is_not_decoded_again(generator: Generator, several: Sequence[Contestant]) -> None:
    contest = Contest(generator, PROMPTS, keep_prompt=True)
    generator.reset()
    runs = list(contest.runs(several[:2], 2))
    assert [r.first_token_s is None for r in runs[:4]] == [False, True, True, True]
    fresh = list(Contest(generator, PROMPTS).runs(several[:1], 1))
    assert [r.tokens for r in fresh] == [r.tokens for r in runs if r.contestant == PLAIN and r.repeat == 1]


def test_reset_refuses_what_was_not_loaded(generator: Generator) -> None:
    (_, own) = compared(**{"spec-type": "ngram-map-k4v"})
    with pytest.raises(UsageError, match="ngram-map-k4v was not loaded"):
        generator.reset(own.settings)


def test_a_prompt_that_does_not_fit_is_named(generator: Generator) -> None:
    with pytest.raises(SpecliError, match="workload long has"):
        Contest(generator, [Workload("long", "x", "word " * 3000)])


def test_an_interrupted_run_does_not_count(generator: Generator, several: Sequence[Contestant]) -> None:
    contest = Contest(generator, PROMPTS)
    asked = iter([False] * 40 + [True] * 1000)
    runs = list(contest.runs(several, 3, lambda: next(asked)))
    assert 0 < len(runs) < 12 and all(len(r.tokens) == 24 for r in runs)


# -- the command ----------------------------------------------------------------------------------

TINY = ["-m", str(Path(__file__).parent / "models" / "tiny-target-mtp.gguf"), "--threads", "1", "--no-repack"]


def test_the_command(specli: Specli, tmp_path: Path) -> None:
    picture = tmp_path / "out.svg"
    common = [*TINY, "--temp", "0", "--tokens", "12", "--ignore-end", "--per-category", "1", "--category", "chat",
              "--category", "rag", "--repeats", "2", "--against", "none", "--against", "ngram-simple,size-n=3"]  # fmt: skip
    result = specli("bench", *common, "--json", "--svg", str(picture))
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert [c["name"] for c in found["contestants"]] == ["plain", "auto", "none", "ngram-simple,size-n=3"]
    assert len(found["runs"]) == 16 and all(r["tokens"]["generated"] == 12 for r in found["runs"])
    control = found["contestants"][2]
    assert control["equal_outputs"] == control["compared_outputs"] == 2
    assert (
        control["acceptance"] is None and control["interval"][0] <= control["ratio"] <= control["interval"][1]
    )
    assert len(found["by_category"]) == 8
    ElementTree.parse(picture)
    shown = specli("bench", *common, env={"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"})
    assert shown.returncode == 0, shown.stderr
    assert "95% interval" in shown.stdout and "ngram-simple,size-n=3" in shown.stdout and "#" in shown.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--spec-type", "none"], "only plain decoding"),
        (["--against", "ngram-simpel"], "ngram-simple"),
        (["--tokens", "5", "--max-tokens", "6"], "--tokens and --max-tokens"),
        (["--category", "chats"], "chat"),
    ],
)
def test_wrong_usage(specli: Specli, args: list[str], says: str) -> None:
    result = specli("bench", *TINY, *args)
    assert says in error_line(result) and result.returncode == 2


@pytest.mark.parametrize(
    "command",
    [("bench", *TINY, "--workloads"), ("tune", *TINY, "--like"), ("layers", TINY[1], "--like")],
)
def test_prompts_that_are_not_there(specli: Specli, command: tuple[str, ...]) -> None:
    result = specli(*command, "no-such-file")
    assert "no-such-file: No such file" in error_line(result) and result.returncode == 1
