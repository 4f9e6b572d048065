"""Where what is made goes when a user names the place: files whole, devices and pipes as they are, and known
before anything long is done."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from made_models import Made, words
from running import FULL, SETTINGS, TINY, device, environment

from specli import paths
from specli.cli.main import main
from specli.errors import SpecliError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="descriptors and pipes as POSIX names them")

ASKED = ["-q", "--no-stdin", "--temp", "0", "--max-tokens", "6", "--seed", "1", "hi"]
BENCH = ["bench", "-m", str(TINY), "--threads", "1", "--no-repack", "--temp", "0", "--tokens", "4", "-q",
         "--spec-type", "ngram-simple", "--per-category", "1", "--category", "chat", "--repeats", "1"]  # fmt: skip


def shell(script: str, folder: Path, *args: str) -> str:
    """A script in which `specli` is this program; its standard error. It must end well."""
    program = f'specli() {{ "{sys.executable}" -m specli "$@"; }}\n{script}'
    done = subprocess.run(
        ["sh", "-ec", program, "sh", *args], cwd=folder, capture_output=True, text=True, timeout=120,
        env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("place", "descriptor"),
    [("/dev/stdout", 1), ("/dev/stderr", 2), ("/dev/fd/3", 3), ("/proc/self/fd/4", 4), ("link", 1)],
)
def test_an_open_file_goes_on_where_it_stands(tmp_path: Path, place: str, descriptor: int) -> None:
    if not os.path.exists(os.path.dirname(place)) and place != "link":
        pytest.skip(f"there is no {place} here")
    (tmp_path / "link").symlink_to("/dev/stdout")
    script = '{ printf "before "; specli run "$@"; printf " behind"; }'
    arguments = [*SETTINGS, *ASKED]
    shell(f"{script} > plain", tmp_path, *arguments)
    to = "" if descriptor == 1 else f" >&{descriptor}"
    marked = f'{{ printf "before "{to}; specli run "$@" -o {place}; printf " behind"{to}; }}'
    shell(f"{marked} {descriptor}> file", tmp_path, *arguments)
    expected = (tmp_path / "plain").read_text()
    assert expected.startswith("before ") and expected.endswith(" behind") and len(expected) > 15
    assert (tmp_path / "file").read_text() == expected
    assert sorted(os.listdir(tmp_path)) == ["file", "link", "plain"]


def test_what_another_process_holds_open_is_written_at_its_end(tmp_path: Path) -> None:
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("there is no /proc here")
    (tmp_path / "log").write_text("before ")
    shell('exec 3>>log; specli run "$@" -o /proc/$$/fd/3', tmp_path, *SETTINGS, *ASKED)
    assert (tmp_path / "log").read_text().startswith("before ") and (tmp_path / "log").stat().st_size > 8


@pytest.mark.parametrize(("place", "says"), [("/dev/fd/77", "Bad file descriptor"), ("/dev/fd/5", "reading")])
def test_a_descriptor_that_cannot_be_written(tmp_path: Path, place: str, says: str) -> None:
    (tmp_path / "file").write_text("old")
    script = f'if specli run "$@" -o {place} 5< file; then exit 9; fi'
    assert f"cannot write {place}: " in (line := shell(script, tmp_path, *SETTINGS, *ASKED)) and says in line
    assert (tmp_path / "file").read_text() == "old"


def reader(fifo: Path) -> tuple[threading.Thread, list[bytes]]:
    """Reads a pipe to its end."""
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(fifo.read_bytes()), daemon=True)
    thread.start()
    return thread, found


def test_a_picture_goes_into_a_pipe_and_leaves_it_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fifo = tmp_path / "pipe.svg"
    os.mkfifo(fifo)
    thread, found = reader(fifo)
    assert main([*BENCH, "--svg", str(fifo)]) == 0
    thread.join(20)
    assert found and found[0].startswith(b"<svg") and stat.S_ISFIFO(fifo.stat().st_mode)
    assert "95% interval" in capsys.readouterr().out and os.listdir(tmp_path) == ["pipe.svg"]


def test_written_whole_or_into_what_is_no_file(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    thread, found = reader(fifo)
    paths.write_atomic(fifo, "text")
    thread.join(20)
    assert found == [b"text"] and stat.S_ISFIFO(fifo.stat().st_mode) and os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize(
    ("place", "says", "code"),
    [
        ("none/out.svg", "No such file", 1),
        (".", "Is a directory", 1),
        ("file/out.svg", "Not a directory", 1),
        ("loop", "symbolic links", 1),
        ("", "--svg: the name of the file is empty", 2),
        ("-", "--svg -", 2),
    ],
)
def test_a_picture_that_cannot_be_written_is_known_before_a_model_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, says: str, code: int
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    named = place if place in ("", "-") else str(tmp_path / place)
    assert main([*BENCH, "-m", "no-such.gguf", "--svg", named]) == code
    shown = capsys.readouterr()
    assert says in shown.err and shown.err.count("\n") == 1 and "no-such" not in shown.err
    assert sorted(os.listdir(tmp_path)) == ["file", "loop"]


def test_the_table_is_there_when_the_picture_fails(tmp_path: Path) -> None:
    full = device(tmp_path, FULL)
    done = subprocess.run(
        [sys.executable, "-m", "specli", *BENCH, "--svg", str(full)], capture_output=True, text=True,
        timeout=120, env=environment(),
    )  # fmt: skip
    assert "95% interval" in done.stdout and done.returncode == 1
    assert done.stderr == f"specli: cannot write {full}: No space left on device\n"
    assert stat.S_ISCHR(full.stat().st_mode)


def test_an_empty_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *SETTINGS, *ASKED, "-o", ""]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == "specli: --output: the name of the file is empty\n"


@pytest.mark.parametrize("made", [True, False], ids=["a file stands there", "its folder is a file"])
def test_long_work_asks_before_whether_its_result_can_be_kept(
    tmp_path: Path, made: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Made(words(300), layers=6, seed=5, width=64, context=1024).write(tmp_path / "six.gguf")
    config = tmp_path / "config"
    if made:
        config.mkdir()
        for name in ("profiles", "layers"):
            (config / name).touch()
    else:
        config.touch()
    monkeypatch.setenv("SPECLI_CONFIG_DIR", str(config))
    for command in (["tune", "-m", "no-such.gguf"], ["layers", str(model)]):
        assert main([*command, "-q"]) == 1
        shown = capsys.readouterr()
        assert shown.err.startswith(f"specli: cannot write {config}") and shown.err.count("\n") == 1
    with pytest.raises(SpecliError, match="cannot write"):
        paths.require_place(config / "profiles")
