"""Profiles: what is read is what was written, what is wrong is named, and a flag beats a profile."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from specli import paths
from specli.cli.profiles import app
from specli.engine import opening
from specli.errors import ProfileError, SpecliError, UsageError
from specli.profiles import (
    BUILT_IN,
    KEYS,
    Key,
    NgramSizes,
    Profile,
    Settings,
    available,
    key,
    load,
    own_profiles_dir,
    parse,
    path_of,
    resolve,
    thawed,
    to_toml,
)
from specli.settings import CACHE_TYPES, GRAMMARS

SHIPPED = ["auto", "chat", "code", "draft-eagle3", "draft-model", "draft-self", "ngram-simple", "text"]
EMPTY = Profile("empty", "empty.toml")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Own directories for each test, so that no profile of the person running it plays a part."""
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"SPECLI_{name}_DIR", str(tmp_path / name.lower()))
    return tmp_path


def own(name: str, text: str) -> Path:
    path = own_profiles_dir() / f"{name}.toml"
    paths.write_atomic(path, text)
    return path


def refused(text: str) -> str:
    """The message for a file with this text, checked to be one line that names the file."""
    path = own("mine", text)
    with pytest.raises(ProfileError) as caught:
        load("mine")
    message = str(caught.value)
    assert "\n" not in message and message.startswith(str(path))
    assert caught.value.exit_code == 2
    return message[len(str(path)) :]


# What is shipped


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_profile_loads_and_describes_itself(name: str) -> None:
    profile = load(name)
    assert (profile.name, profile.source) == (name, BUILT_IN)
    assert profile.description and resolve(profile).profile == name


def test_all_that_is_shipped_is_listed() -> None:
    assert [entry.name for entry in available()] == SHIPPED
    assert all(entry.problem is None and entry.path.is_file() for entry in available())


def test_shipped_profiles_say_what_they_promise() -> None:
    assert resolve(load()).types == ("auto",)
    code = resolve(load("code"))
    assert code.types == ("draft-self", "draft-model") and code.temp == 0.2 and code.draft_n_max == 4
    assert resolve(load("text")).ngram("ngram-simple") == NgramSizes(8, 32, 2)
    for name in ("draft-model", "ngram-simple", "draft-self"):
        assert resolve(load(name)).types == (name,)


# Defaults and resolution


def test_defaults_are_llama_cpps() -> None:
    s = resolve(EMPTY)
    assert (s.temp, s.top_k, s.top_p, s.min_p, s.typical_p) == (0.8, 40, 0.95, 0.05, 1.0)
    assert (s.repeat_penalty, s.repeat_last_n, s.frequency_penalty, s.presence_penalty) == (1.0, 64, 0.0, 0.0)
    for method in ("ngram-simple", "ngram-map-k", "ngram-map-k4v"):
        assert s.ngram(method) == NgramSizes(12, 48, 1)
    assert s.ngram("draft-self") == NgramSizes(2, 64, 1)
    assert (s.ctx_size, s.threads, s.gpu_layers, s.max_tokens, s.seed) == (None,) * 5
    assert s == Settings(profile="empty")
    assert {s.origin(each.name) for each in KEYS} == {"default"}


def test_flag_beats_profile_beats_default() -> None:
    profile = parse("[sampling]\ntemp = 0.2\ntop-k = 7", "p", "p.toml")
    s = resolve(profile, {"temp": 0.5, "top_p": None, "stop": []})
    assert (s.temp, s.top_k, s.top_p) == (0.5, 7, 0.95)
    assert (s.origin("temp"), s.origin("top-k"), s.origin("top_p")) == ("flag", "profile", "default")


def test_a_flag_equal_to_the_default_still_counts_as_asked() -> None:
    profile = parse("[sampling]\ntemp = 0.2", "p", "p.toml")
    assert resolve(profile, {"temp": 0.8}).origin("temp") == "flag"


def test_flags_take_the_forms_of_a_command_line() -> None:
    s = resolve(EMPTY, {"spec_type": ["draft-self,draft-simple", "ngram-map-k"], "spec_draft_n_max": 8})
    assert s.types == ("draft-self", "draft-model", "ngram-map-k") and s.draft_n_max == 8
    s = resolve(EMPTY, {"logit_bias": ["5+1.5", "a-b-1e-2", "x=+2"], "stop": ["a,b"]})
    assert s.logit_bias == {"5": 1.5, "a-b": -0.01, "x=": 2.0} and s.stop == ("a,b",)


def test_a_flag_takes_a_setting_of_the_profile_back_to_automatic() -> None:
    profile = parse(
        "[sampling]\nseed = 7\nmax-tokens = 9\n[engine]\nthreads = 3\nctx-size = 512", "p", "p.toml"
    )
    s = resolve(profile, {"seed": -1, "max_tokens": -1, "threads": -1, "ctx_size": 0})
    assert (s.seed, s.max_tokens, s.threads, s.ctx_size) == (None,) * 4
    assert s.origin("seed") == "flag"


def test_who_asked_for_a_type() -> None:
    profile = parse('[spec]\ntypes = ["draft-model"]', "p", "p.toml")
    assert not resolve(profile).asked_by_flag("draft-model")
    asked = resolve(profile, {"spec_type": "draft-model"})
    assert asked.asked_by_flag("draft-model") and not asked.asked_by_flag("draft-self")


@pytest.mark.parametrize(
    ("text", "flags", "width", "origin"),
    [
        ("", {}, None, "default"),
        ("", {"exact": True}, 4, "flag"),
        ("", {"exact_width": 8}, 8, "flag"),
        ("[spec]\nexact-width = 6", {}, 6, "profile"),
        ("[spec]\nexact-width = 6", {"exact": False}, None, "flag"),
        ("[spec]\nexact = false\nexact-width = 6", {}, None, "profile"),
        ("[spec]\nexact = false\nexact-width = 6", {"exact": True}, 6, "flag"),
        ("[spec]\nexact = false", {"exact_width": 8}, 8, "flag"),
    ],
)
def test_a_width_implies_exact(text: str, flags: dict[str, object], width: int | None, origin: str) -> None:
    s = resolve(parse(text, "p", "p.toml"), flags)
    assert (s.fixed_width, s.exact, s.origin("exact")) == (width, width is not None, origin)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"parallel": 2}, ["--parallel", "one sequence owns the cache"]),
        ({"temp": math.nan}, ["--temp", "finite"]),
        ({"temp": True}, ["--temp", "number", "true"]),
        ({"top_p": 1.5}, ["--top-p", "0 to 1", "1.5"]),
        ({"spec_type": "ngram-simpel"}, ["--spec-type", '"ngram-simple"?']),
        ({"spec_type": "none,draft-self"}, ["--spec-type", "none", "mix"]),
        ({"spec_type": "draft-model,draft-simple"}, ["--spec-type", "twice"]),
        ({"draft_n_max": 65}, ["--spec-draft-n-max", "0 to 64"]),
        ({"self_size_m": 0}, ["--spec-self-size-m", "1 to 1024"]),
        ({"logit_bias": ["5"]}, ["--logit-bias", "TOKEN+X"]),
        ({"logit_bias": ["5+9e9"]}, ["--logit-bias", "1000"]),
        ({"exact": False, "exact_width": 4}, ["--exact-width", "--no-exact"]),
        ({"draft_n_max": 2, "draft_n_min": 3}, ["draft-n-min 3", "flag and flag"]),
        ({"tempp": 1}, ["--tempp", '"--temp"?']),
        ({"description": "x"}, ["--description"]),
        ({"stop": [""]}, ["--stop", "empty"]),
        ({"model": "a\0b"}, ["--model", "NUL"]),
    ],
)
def test_wrong_flags_are_usage_errors(flags: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(EMPTY, flags)
    message = str(caught.value)
    assert type(caught.value) is UsageError and "\n" not in message
    assert [word for word in words if word not in message] == []


# What is wrong in a file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[spec]\nngram-simple-sizen = 1", [":2:", "[spec] ngram-simple-size-n?"]),
        ("[sampling]\n\ntemperature = 1", [":3:", "temperature", "[sampling] temp?"]),
        ("[sampling]\ntop_k = 1", [":2:", "[sampling] top-k?"]),
        ("[spec]\nspec-draft-n-max = 1", [":2:", "[spec] draft-n-max?"]),
        ("temp = 1", [":1:", "temp", "[sampling]"]),
        ("[spec]\nparallel = 1", [":2:", "parallel", "at the top"]),
        ("[sampling]\nzzzz = 1", [":2:", "unknown key zzzz"]),
        ('[sampling]\n"a\\nb" = 1', ["unknown key", "a\\nb"]),
        ("[sampler]\ntemp = 1", ["[sampler]", "[sampling]?"]),
        ("[[spec]]\nfixed = true", ["spec must be a section"]),
        ("spec = 1", ["spec must be a section"]),
        ("measured = 1", ["measured must be a table"]),
        ("parallel = 4", [":1:", "parallel", "one sequence owns the cache and the draft's state"]),
        ("parallel = true", [":1:", "parallel", "whole number"]),
        ("description = 1", [":1:", "description", "text"]),
        ('model = ""', [":1:", "model", "empty"]),
        ("[sampling]\ntemp = '0.2'", [":2:", "[sampling] temp", "number", '"0.2"']),
        ("[sampling]\ntemp = true", [":2:", "[sampling] temp", "number", "true"]),
        ("[sampling]\ntemp = nan", [":2:", "[sampling] temp", "finite"]),
        ("[sampling]\ntemp = inf", [":2:", "[sampling] temp", "finite"]),
        ("[sampling]\ntemp = 1" + "0" * 400, [":2:", "[sampling] temp", "finite"]),
        ("[sampling]\ntop-k = 1.0", [":2:", "[sampling] top-k", "whole number"]),
        ("[sampling]\ntop-k = true", [":2:", "[sampling] top-k", "whole number"]),
        ("[sampling]\ntop-k = 1" + "0" * 5000, ["TOML"]),
        ("[sampling]\nmin-p = -0.1", [":2:", "[sampling] min-p", "0 to 1"]),
        ("[sampling]\nstop = 'x'", [":2:", "[sampling] stop", "list"]),
        ("[sampling]\nstop = [1]", [":2:", "[sampling] stop", "list"]),
        ("[sampling]\nlogit-bias = 1", [":2:", "[sampling] logit-bias", "table"]),
        ("[sampling]\nlogit-bias = { a = true }", [":2:", "[sampling] logit-bias", '"a"', "number"]),
        ("[sampling.logit-bias]\na = inf", ["[sampling] logit-bias", '"a"', "finite"]),
        ("[spec]\nfixed = 1", [":2:", "[spec] fixed", "true or false"]),
        ("[spec]\ntypes = 'auto'", [":2:", "[spec] types", "list"]),
        ("[spec]\ntypes = []", [":2:", "[spec] types", "at least one"]),
        ("[spec]\ntypes = [1]", [":2:", "[spec] types", "one of none, draft-model"]),
        ("[spec]\ntypes = ['draft-modle']", [":2:", "[spec] types", '"draft-model"?']),
        ("[spec]\ntypes = ['auto', 'draft-self']", [":2:", "[spec] types", "auto"]),
        ("[spec]\nexact-width = 1", [":2:", "[spec] exact-width", "2 to 64"]),
        ("[spec]\ndraft-n-max = 2\ndraft-n-min = 3", ["[spec] draft-n-min 3", "draft-n-max 2"]),
        ("[engine]\nflash-attn = true", [":2:", "[engine] flash-attn", "auto, on, off"]),
        ("[engine]\ncache-type-k = 'q8'", [":2:", "[engine] cache-type-k", '"q8_0"?']),
        ("[engine]\nthreads = 0", [":2:", "[engine] threads", "-1 for automatic"]),
        ("temp = \nx = 1", ["TOML", "line 1"]),
        ("a = 1\na = 2", ["TOML"]),
        ("a = " + "[" * 100_000, ["TOML"]),
    ],
)
def test_wrong_files_name_key_file_and_the_right_one(text: str, words: list[str]) -> None:
    message = refused(text)
    assert [word for word in words if word not in message] == []


def test_no_line_is_named_where_it_could_be_the_wrong_one() -> None:
    message = refused('system = """\n[sampling]\ntemp = "x"\n"""\n[sampling]\ntemp = "x"')
    assert message.startswith(": [sampling] temp")


def test_files_that_are_no_profiles(home: Path) -> None:
    (home / "latin.toml").write_bytes(b"description = '\xe9'")
    (home / "huge.toml").write_bytes(b"#" * (2 << 20))
    (home / "dir.toml").mkdir()
    for name, words in [
        ("latin.toml", "UTF-8"),
        ("huge.toml", "no profile"),
        ("dir.toml", "irectory"),
        ("gone.toml", "o such file"),
        ("nul\0.toml", "null"),
    ]:
        with pytest.raises(ProfileError, match=words) as caught:
            load(str(home / name))
        assert "\n" not in str(caught.value) and str(home) in str(caught.value)


def test_a_bom_and_windows_line_ends_are_no_error(home: Path) -> None:
    (home / "w.toml").write_bytes(b"\xef\xbb\xbf[sampling]\r\ntemp = 1\r\n")
    assert resolve(load(str(home / "w.toml"))).temp == 1.0


# Looking up


@pytest.mark.parametrize("name", ["cdoe", "x" * 5000, "", "a\0b"])
def test_a_missing_name_lists_those_there_are(name: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load(name)
    message = str(caught.value)
    assert "\n" not in message and ", ".join(SHIPPED) in message and str(own_profiles_dir()) in message
    assert ('did you mean "code"?' in message) == (name == "cdoe")


def test_own_profiles_win(home: Path) -> None:
    path = own("code", "description = 'mine'\n[sampling]\ntemp = 0.9")
    profile = load("code")
    assert (profile.description, profile.source, resolve(profile).temp) == ("mine", str(path), 0.9)
    assert path_of("code") == path
    assert [e.source for e in available() if e.name == "code"] == [str(path)]


def test_a_broken_own_profile_is_listed_with_its_problem() -> None:
    own("broken", "[sampling]\ntemp = 'x'")
    entry = next(entry for entry in available() if entry.name == "broken")
    assert entry.problem is not None and "[sampling] temp" in entry.problem


def test_a_path_is_taken_as_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "here.toml").write_text("[sampling]\ntemp = 0.1")
    (home / "plain").write_text("[sampling]\ntemp = 0.3")
    monkeypatch.chdir(home)
    assert resolve(load("here.toml")).temp == 0.1
    assert resolve(load("./plain")).temp == 0.3


def test_looking_up_creates_nothing(home: Path) -> None:
    load("code")
    available()
    assert list(home.iterdir()) == []


# Round trips


def values(each: Key) -> st.SearchStrategy[object]:
    low, high = each.low, each.high
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
    if each.kind == "int":
        assert low is not None and high is not None
        numbers: st.SearchStrategy[object] = st.integers(int(low), int(high))
        return numbers if each.automatic is None else numbers | st.just(each.automatic)
    if each.kind == "float":
        return st.floats(low, high)
    if each.name == "tree":
        return st.sampled_from(["off", "2x3", "16x2"])
    if each.kind == "types":
        several = [name for name in each.choices if name not in ("none", "auto")]
        return st.lists(st.sampled_from(several), min_size=1, unique=True) | st.just(["auto"])
    return {
        "bool": st.booleans(),
        "text": text,
        "choice": st.sampled_from(each.choices or [""]),
        "texts": st.lists(text, max_size=3),
        "table": st.dictionaries(text, st.floats(low, high), max_size=3),
    }[each.kind]


def profiles() -> st.SearchStrategy[Profile]:
    leaves = (
        st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8"))
    )
    names = st.text(st.characters(codec="utf-8"), max_size=8)
    free = st.recursive(
        leaves, lambda kids: st.lists(kids, max_size=3) | st.dictionaries(names, kids, max_size=3)
    )
    # The two bounds of a draft's length are drawn elsewhere: most pairs contradict each other. So do grammars.
    others = {"draft-n-min", *GRAMMARS[1:]}
    plain = {each.name: values(each) for each in KEYS if each.name not in others}
    return st.builds(
        lambda given, measured: Profile("p", "p.toml", given, measured),
        st.fixed_dictionaries({}, optional=plain)
        .filter(lambda raw: raw.get("tree", "off") == "off" or not {"exact", "exact-width"} & raw.keys())
        .map(lambda raw: {name: key(name).accept(value) for name, value in raw.items()}),
        st.dictionaries(names, free, max_size=3),
    )


@given(profiles())
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read_back(profile: Profile) -> None:
    again = parse(to_toml(profile), "p", "p.toml")
    assert dict(again.given) == profile.given
    assert thawed(again.measured) == thawed(profile.measured)
    assert resolve(again) == resolve(profile)


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_profile_or_one_line(text: str) -> None:
    try:
        parse(text, "p", "p.toml")
    except ProfileError as error:
        assert "\n" not in str(error) and str(error).startswith("p.toml")


def test_measured_is_kept_and_frozen() -> None:
    text = "[measured]\nkey = 1\nat = 2026-01-02\ncost = [1.0, 1.5]\n[measured.auto]\nspeedup = 1.7\n"
    profile = parse(text, "p", "p.toml")
    assert thawed(profile.measured)["auto"] == {"speedup": 1.7}
    assert parse(to_toml(profile), "p", "p.toml") == profile
    with pytest.raises(TypeError):
        profile.measured["key"] = "b"  # type: ignore[index]
    with pytest.raises(TypeError):
        profile.measured["auto"]["speedup"] = 9.0  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        profile.name = "q"  # type: ignore[misc]


def test_sections_hold_what_was_given() -> None:
    profile = parse("description = 'd'\n[sampling]\ntop-k = 3\n[engine]\nthreads = -1", "p", "p.toml")
    assert profile.section("") == {"description": "d"}
    assert profile.section("sampling") == {"top-k": 3}
    assert profile.section("engine") == {"threads": None}


# The table of keys


def test_names_and_flags_are_unique_and_the_defaults_are_in_bounds() -> None:
    assert len({each.name for each in KEYS}) == len(KEYS) == len(fields(Settings)) - 2
    flags = [each.flag for each in KEYS if each.flag]
    assert len(set(flags)) == len(flags) == len(KEYS) - 1
    for each in KEYS:
        assert each.help and each.bounds
        if each.default is not None and each.name != "description":
            assert each.accept(each.default) == each.default


@pytest.mark.parametrize(
    "each", [k for k in KEYS if k.low is not None and k.kind != "table"], ids=lambda k: k.name
)
def test_both_bounds_hold(each: Key) -> None:
    assert each.low is not None and each.high is not None
    step = 1 if each.kind == "int" else 0.001
    number = int if each.kind == "int" else float
    assert each.accept(number(each.low)) == each.low and each.accept(number(each.high)) == each.high
    for outside in (number(each.low) - step, number(each.high) + step):
        if outside != each.automatic:
            with pytest.raises(ValueError, match="must be"):
                each.accept(outside)


def test_flags_are_those_of_the_command_line() -> None:
    assert key("types").flag == "--spec-type" and key("--spec-type") is key("types")
    assert key("draft_n_max").flag == "--spec-draft-n-max"
    assert key("ngram-map-k4v-size-n").flag == "--spec-ngram-map-k4v-size-n"
    assert key("exact").flag == "--exact" and key("draft-model").flag == "--draft-model"
    with pytest.raises(KeyError):
        key("nothing")


# Paths


def test_directories_follow_the_environment_and_are_private(home: Path) -> None:
    for made, name in [
        (paths.config_dir(), "config"),
        (paths.cache_dir(), "cache"),
        (paths.data_dir(), "data"),
    ]:
        assert made == home / name and made.is_dir()
        if os.name == "posix":
            assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_directory_that_cannot_be_made_is_reported_by_the_write(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("SPECLI_CACHE_DIR", str(home / "file" / "x"))
    assert load("code").name == "code"
    with pytest.raises(SpecliError, match="cannot write") as caught:
        paths.write_atomic(paths.cache_dir() / "a", "b")
    assert "\n" not in str(caught.value)


def test_without_overrides_the_platforms_places_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLI_CONFIG_DIR", "")
    assert paths.config_dir(create=False).is_absolute() and "specli" in str(paths.config_dir(create=False))


@pytest.mark.parametrize("content", ["grün\n", b"\x00\xff"])
def test_a_write_is_whole_and_private(home: Path, content: str | bytes) -> None:
    path = home / "deep" / "er" / "file"
    paths.write_atomic(path, b"old")
    paths.write_atomic(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [each.name for each in path.parent.iterdir()] == ["file"]
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_failed_write_leaves_the_old_file_and_nothing_else(home: Path) -> None:
    path = home / "file"
    paths.write_atomic(path, "old")
    (home / "dir" / "full").mkdir(parents=True)
    for target, content in [(path, "\ud800"), (home / "dir", "x"), (home / "a\0b", "x")]:
        with pytest.raises(SpecliError, match="cannot write") as caught:
            paths.write_atomic(target, content)
        assert "\n" not in str(caught.value)
    assert path.read_text() == "old"
    assert sorted(each.name for each in home.iterdir()) == ["dir", "file"]


@pytest.mark.skipif(os.name != "posix", reason="links need rights elsewhere")
def test_a_link_is_followed(home: Path) -> None:
    (home / "real").write_text("old")
    (home / "link").symlink_to(home / "real")
    paths.write_atomic(home / "link", "new")
    assert (home / "link").is_symlink() and (home / "real").read_text() == "new"


# The command


def cli(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_list_names_all_and_marks_the_users_own() -> None:
    own("mine", "description = 'my own'")
    own("broken", "x = 1")
    lines = {line.split()[0]: line for line in cli("list").splitlines()}
    assert sorted(lines) == sorted([*SHIPPED, "mine", "broken"])
    assert lines["mine"].endswith("own       my own") and BUILT_IN in lines["code"]
    assert "unknown key x" in lines["broken"]
    assert {row["name"] for row in json.loads(cli("list", "--json"))} == set(lines)


def test_show_prints_every_key_with_its_value_and_whence() -> None:
    lines = cli("show", "code").splitlines()
    assert lines[0] == "code (built in): Code editing and refactoring"
    rows = {line.split("  ")[0].strip(): line.split() for line in lines[1:]}
    assert set(rows) == {each.written for each in KEYS} - {"description"}
    assert rows["[sampling] temp"] == ["[sampling]", "temp", "0.2", "profile"]
    assert rows["[sampling] top-k"] == ["[sampling]", "top-k", "40", "default"]


def test_show_without_a_name_shows_the_default_and_what_was_measured() -> None:
    assert cli("show").startswith("auto (built in)")
    own("tuned", "[measured]\nspeedup = 1.5")
    assert cli("show", "tuned", "--plain").splitlines()[-1].split() == [
        "[measured]",
        "speedup",
        "1.5",
        "tune",
    ]


def test_control_characters_of_a_profile_do_not_reach_the_terminal() -> None:
    own("evil", 'description = "a\\u001b[2J\\nb"\nsystem = "\\u009b2J"')
    for output in (cli("list"), cli("show", "evil")):
        assert all(char.isprintable() or char == "\n" for char in output)
    assert len(cli("list").splitlines()) == len(SHIPPED) + 1


def test_show_json_is_complete() -> None:
    own("tuned", "[measured]\nat = 2026-01-02\n[measured.a]\nb = [1]\n[sampling]\nlogit-bias = { x = 1 }")
    shown = json.loads(cli("show", "tuned", "--json"))
    assert shown["measured"] == {"at": "2026-01-02", "a": {"b": [1]}}
    assert shown["sampling"]["logit-bias"] == {"value": {"x": 1.0}, "origin": "profile"}
    assert shown["engine"]["threads"] == {"value": None, "origin": "default"}
    assert {name for part in ("top", "spec", "sampling", "engine") for name in shown[part]} == {
        k.name for k in KEYS
    }


def test_path_tells_the_file_and_the_place_for_own_ones() -> None:
    assert cli("path").strip() == str(own_profiles_dir())
    assert Path(cli("path", "code").strip()).read_text().startswith("# For writing")


@pytest.mark.parametrize("words", [("show", "cdoe"), ("path", "cdoe"), ("path", "./gone.toml")])
def test_errors_are_raised_for_the_main_app_to_report(words: tuple[str, ...]) -> None:
    assert isinstance(CliRunner().invoke(app, list(words)).exception, ProfileError)


def test_profiles_need_nothing_heavy() -> None:
    code = (
        "import sys, specli.profiles, specli.cli.profiles; print(*{'numpy', 'llama_cpp'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_one_long_value_pads_no_other_line() -> None:
    own("long", f"system = '{'word ' * 80}'\n[spec]\ntypes = ['none']")
    lines = cli("show", "long").splitlines()
    assert all(line == line.rstrip() for line in [*lines, *cli("list").splitlines()])
    assert [line.split()[0] for line in lines if len(line) > 120] == ["system"]


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_a_terminal_gets_a_table_that_fits_it(home: Path) -> None:
    text = on_a_terminal(40, "list")
    assert "\x1b[1m" in text and "profile" in text.splitlines()[0]
    own("long", f"model = '/{'x' * 90}/end.gguf'")
    shown = on_a_terminal(40, "show", "long").split("\n", 1)[1]  # below the line that says where it lies
    assert shown.count("x") >= 90
    for table in (text, shown):
        assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in table.splitlines()) <= 40
        assert "…" not in table


def on_a_terminal(columns: int, *words: str) -> str:
    import pty  # not there on Windows

    master, slave = pty.openpty()
    code = "from specli.cli.profiles import app; app()"
    environment = {**os.environ, "COLUMNS": str(columns), "LINES": "24", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    child = subprocess.Popen([sys.executable, "-c", code, *words], stdout=slave, env=environment)
    os.close(slave)
    output = b""
    try:
        while chunk := os.read(master, 4096):
            output += chunk
    except OSError:  # Linux reports the end of a pseudo-terminal as an error
        pass
    os.close(master)
    assert child.wait() == 0
    return output.decode()


def test_the_cache_types_on_offer_are_those_of_the_engine() -> None:
    assert set(CACHE_TYPES) == set(opening.CACHE_TYPES)
