"""`specli run -o FILE`: whole, or not at all."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from pathlib import Path

import pytest
from running import ENDLESS, FULL, NULL, Runner, device, run, start

__all__ = ["run"]

PROMPT = "def add(a, b):\n    return a + b\n"
posix = pytest.mark.skipif(os.name == "nt", reason="signals and modes are POSIX")


def test_the_file_gets_what_would_have_been_printed(run: Runner, tmp_path: Path) -> None:
    for form in ([], ["--json"]):
        printed = run(*form, "--seed", 1, PROMPT)
        written = run(*form, "--seed", 1, "-o", tmp_path / "out", PROMPT)
        assert written.code == 0 and written.out == written.err == ""
        text = (tmp_path / "out").read_text("utf-8")
        if form:
            assert json.loads(text)["token_ids"] == printed.rows[0]["token_ids"]
        else:
            assert text == printed.out
    assert run("--seed", 1, "-o", "-", PROMPT).out == run("--seed", 1, PROMPT).out
    assert os.listdir(tmp_path) == ["out"]


def test_many_answers_and_events_too(run: Runner, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    prompts.write_text('"one"\n"two"\n')
    assert run("--prompts", prompts, "-o", tmp_path / "out").code == 0
    assert [json.loads(line)["index"] for line in (tmp_path / "out").read_text().splitlines()] == [0, 1]
    assert run("--stream", "json", "-o", tmp_path / "events", PROMPT).code == 0
    assert json.loads((tmp_path / "events").read_text().splitlines()[-1])["event"] == "end"


@posix
def test_modes_and_links_stay(run: Runner, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        run("-o", tmp_path / "new", PROMPT)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "script").touch(0o700)
    (tmp_path / "script").chmod(0o750)
    (tmp_path / "link").symlink_to("script")
    run("-o", tmp_path / "link", PROMPT)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "script").stat().st_size > 0
    assert stat.S_IMODE((tmp_path / "script").stat().st_mode) == 0o750


def test_an_error_leaves_the_old_file(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("old")
    result = run("--raw", "-o", tmp_path / "out", "word " * 600)
    assert result.code == 1 and "the context holds" in result.line
    assert (tmp_path / "out").read_text() == "old" and os.listdir(tmp_path) == ["out"]
    assert run("-o", tmp_path / "new", "-m", "no-such.gguf", PROMPT).code == 1
    assert os.listdir(tmp_path) == ["out"]


def test_where_nothing_can_be_written(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(0o555)
    (tmp_path / "fixed").touch(0o444)
    places = [(tmp_path / "none" / "out", "No such file"), (tmp_path, "Is a directory")]
    if os.name != "nt" and os.geteuid() != 0:
        places += [(tmp_path / "locked" / "out", "denied"), (tmp_path / "fixed", "denied")]
    for place, says in places:
        result = run("-o", place, "-m", "no-such.gguf", PROMPT)  # known before a model is looked for
        assert result.code == 1 and f"cannot write {place}: " in result.line and says in result.line
    assert run("-o", "a\0b", PROMPT).code == 1


@pytest.mark.parametrize("form", [[], ["--json"], ["--stream", "json"]], ids=["text", "json", "events"])
def test_a_full_disk(run: Runner, tmp_path: Path, form: list[str]) -> None:
    full = device(tmp_path, FULL)
    result = run("-o", full, *form, PROMPT)
    assert result.code == 1 and result.line == f"specli: cannot write {full}: No space left on device\n"
    assert stat.S_ISCHR(os.stat(full).st_mode)


def test_a_device_is_not_replaced(run: Runner, tmp_path: Path) -> None:
    null = device(tmp_path, NULL)
    assert run("-o", null, PROMPT).code == 0
    assert stat.S_ISCHR(os.stat(null).st_mode)


@posix
def test_a_file_that_may_grow_no_further(tmp_path: Path) -> None:
    import resource

    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))

    out = tmp_path / "out"
    out.write_text("old")
    process = start(
        "-q", "--no-stdin", "--max-tokens", "40", "--temp", "0", "-o", out, PROMPT, preexec_fn=small
    )
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1 and errors.decode().startswith(f"specli: cannot write {out}: ")
    assert errors.count(b"\n") == 1 and out.read_text() == "old" and os.listdir(tmp_path) == ["out"]


@posix
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_what_was_said_is_kept_beside(tmp_path: Path, number: signal.Signals, code: int) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    process = start(*ENDLESS, "-o", out, "a")
    while not any(path.suffix == ".tmp" and path.stat().st_size > 20 for path in tmp_path.iterdir()):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    said, errors = process.communicate(timeout=300)
    assert process.returncode == code and said == b"" and b"Traceback" not in errors
    assert out.read_text() == "old" and (tmp_path / "out.partial").stat().st_size > 20
    assert (
        errors.decode().splitlines()[-1] == f"specli: interrupted; what was said so far is in {out}.partial"
    )
    assert sorted(os.listdir(tmp_path)) == ["out", "out.partial"]
