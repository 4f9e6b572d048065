"""`specli run --stream json`, and readers that go away."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys

import pytest
from running import ENDLESS, SETTINGS, Runner, environment, run, start

__all__ = ["run"]

PROMPT = "def add(a, b):\n    return a + b\n\n" * 3


def test_events_add_up_to_the_answer(run: Runner) -> None:
    plain = run(
        "--json", "--seed", 3, "--temp", 1, "--spec-type", "draft-self", "--max-tokens", 40, PROMPT
    ).rows[0]
    result = run(
        "--stream", "json", "--seed", 3, "--temp", 1, "--spec-type", "draft-self", "--max-tokens", 40, PROMPT
    )
    assert result.code == 0 and result.err == ""
    start_, *middle, end = result.rows
    assert start_ == {
        "event": "start", "model": "tiny-target-mtp", "draft": None, "methods": ["draft-self"],
        "prompt_tokens": plain["tokens"]["prompt"], "seed": 3,
    }  # fmt: skip
    assert list(end) == ["event", *plain] and end["event"] == "end"
    assert end["token_ids"] == plain["token_ids"]
    texts = [row for row in middle if row["event"] == "text"]
    cycles = [row for row in middle if row["event"] == "cycle"]
    assert len(texts) + len(cycles) == len(middle)
    assert "".join(row["text"] for row in texts) == plain["text"]
    assert sum(row["emitted"] for row in cycles) == len(plain["token_ids"])
    for key in ("drafted", "tested", "accepted"):
        assert sum(row[key] for row in cycles) == plain["tokens"][key]
    assert plain["tokens"]["accepted"] > 0
    assert {row["method"] for row in texts} == {None, "draft-self"}


def test_log_probabilities_come_with_the_end(run: Runner) -> None:
    end = run("--stream", "json", "--logprobs", 1, PROMPT).rows[-1]
    assert len(end["logprobs"]) == len(end["token_ids"])


def test_an_error_is_an_event_too(run: Runner) -> None:
    result = run("--stream", "json", "--raw", "word " * 600)
    assert result.code == 1 and "the context holds" in result.line
    assert result.rows == [{"event": "error", "error": result.line.removeprefix("specli: ").rstrip()}]
    assert run("--json", "--raw", "word " * 600).out == ""


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--stream", "json", "--json"], "--stream json ends with the object"),
        (["--stream", "text", "--json"], "--stream text contradicts --json"),
        (["--stream", "xml"], "--stream xml: must be one of text, json"),
        (["--stream", "text", "--logprobs", "2"], "--logprobs"),
    ],
)
def test_what_cannot_be_meant(run: Runner, args: list[str], says: str) -> None:
    result = run(*args, "hi")
    assert result.code == 2 and says in result.line


def test_stream_text_is_the_default(run: Runner) -> None:
    assert run("--seed", 1, "--stream", "text", PROMPT).out == run("--seed", 1, PROMPT).out != ""


def test_events_come_as_they_happen() -> None:
    process = start(*ENDLESS, "--stream", "json", "a")
    assert process.stdout is not None and process.stderr is not None
    assert [b'"start"' in process.stdout.readline(), b'"text"' in process.stdout.readline()] == [True, True]
    process.stdout.close()  # nobody reads any more: it ends, quietly and well
    assert process.stderr.read() == b"" and process.wait(60) == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("form", [[], ["--stream", "json"]], ids=["text", "events"])
def test_head_takes_20_bytes(form: list[str]) -> None:
    """Row 27: stops at once, although the answer would go on for minutes."""
    command = shlex.join(
        [sys.executable, "-m", "specli", "run", *SETTINGS, *ENDLESS, "-q", "--no-stdin", *form, "a"]
    )
    result = subprocess.run(
        ["bash", "-c", f'{command} | head -c 20; echo " ${{PIPESTATUS[*]}}"'],
        env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.stdout[20:] == " 0 0\n" and result.stderr == ""


@pytest.mark.skipif(os.name == "nt", reason="needs a shell")
def test_a_closed_standard_output() -> None:
    command = shlex.join(
        [sys.executable, "-m", "specli", "run", *SETTINGS, "-q", "--no-stdin", "--max-tokens", "3"]
    )
    for form in ("--stream json", "--json"):
        result = subprocess.run(
            ["sh", "-c", f"{command} {form} a >&-"], env=environment(), stderr=subprocess.PIPE, timeout=300
        )
        assert result.returncode == 0 and result.stderr == b""
