"""What scripts meet beside answers: closed and narrow outputs, places that cannot be read, files that cannot be had."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import SETTINGS, TINY, Runner, environment, run

from specli.cli.main import main
from specli.doctor import _places
from specli.errors import SpecliError
from specli.profiles import available, load

__all__ = ["run"]

posix = pytest.mark.skipif(os.name == "nt", reason="descriptors and links as POSIX has them")
MODEL = str(TINY)
EVERY = [
    ["--version"], ["--help"], ["run", *SETTINGS, "-q", "--no-stdin", "-n", "4", "hi"],
    ["profiles"], ["profiles", "list"],
    ["profiles", "list", "--json"], ["profiles", "show"], ["profiles", "show", "code", "--plain"], ["profiles", "path"],
    ["explain"], ["explain", "auto"], ["export", "llama-server", "-m", MODEL], ["models"], ["models", "--json"],
    ["sessions"], ["sessions", "--json"],
    ["check-draft", MODEL, MODEL],
]  # fmt: skip


CALLS = (
    "import json, os, sys, specli.cli.main\n"
    "for words in json.loads(sys.argv[1]):\n"
    "    if (child := os.fork()) == 0:\n"
    "        os._exit(specli.cli.main.main(words))\n"
    "    print('code', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), *words, file=sys.stderr)\n"
)
"""Calls commands, each in a process of its own that need not import everything again, and says how they ended."""


@posix
def test_every_command_ends_well_where_standard_output_is_closed(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", CALLS, json.dumps(EVERY)],
        stderr=subprocess.PIPE, text=True, timeout=120, env=environment() | {"SPECLI_CONFIG_DIR": str(tmp_path)},
    )  # fmt: skip
    ended = [line for line in done.stderr.splitlines() if line.startswith("code ")]
    assert ended == [f"code 0 {' '.join(words)}" for words in EVERY], done.stderr


@pytest.mark.parametrize(
    ("variables", "args", "said"),
    [
        ({"PYTHONIOENCODING": "ascii"}, [], True),
        ({"PYTHONIOENCODING": "ascii"}, ["-q"], False),
        ({"PYTHONIOENCODING": "utf-8"}, [], False),
    ],
)
def test_characters_that_an_output_lacks_are_told_of(
    tmp_path: Path, variables: dict[str, str], args: list[str], said: bool
) -> None:
    words = ["run", *SETTINGS, "--no-stdin", "--temp", "0", "--grammar", 'root ::= "é."', "hi", *args]
    env = {k: v for k, v in environment().items() if k != "PYTHONUTF8"} | variables
    done = subprocess.run([sys.executable, "-m", "specli", *words], capture_output=True, timeout=60, env=env)
    assert done.returncode == 0
    assert done.stdout.strip() == ("é." if variables["PYTHONIOENCODING"] == "utf-8" else "?.").encode()
    lines = [line for line in done.stderr.decode().splitlines() if "lacks" in line]
    assert len(lines) == said and all("PYTHONIOENCODING=utf-8" in line for line in lines)


# -- places and files that cannot be read -----------------------------------------------------------


@posix
def test_a_folder_that_cannot_be_looked_into_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link to itself cannot be read by anyone, root included."""
    monkeypatch.setenv("SPECLI_CONFIG_DIR", str(tmp_path))
    for name in ("profiles", "config.toml"):
        (tmp_path / name).symlink_to(name)
    with pytest.raises(SpecliError, match=r"cannot read .*profiles: "):
        available()
    checks = {check.name: check for check in _places()}
    assert checks["profiles"].state == checks["config"].state == "broken"
    for words in (
        ["profiles", "list"],
        ["models", "default", MODEL],
        ["run", *SETTINGS, "--profile", "nosuch", "hi"],
    ):
        assert main(words) in (1, 2)
        shown = capsys.readouterr()
        assert (
            shown.err.startswith("specli: ") and shown.err.count("\n") == 1 and "unexpected" not in shown.err
        )
    assert load("code").name == "code"


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv, to take root's rights from it")
def test_no_rights_to_the_own_folders(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        caps = "-dac_override,-dac_read_search"
        without = ["setpriv", "--bounding-set", caps, "--inh-caps", caps]
        if subprocess.run([*without, "true"], capture_output=True).returncode != 0:
            pytest.skip("setpriv may not do it here")
    else:
        without = []
    folders = {f"SPECLI_{name.upper()}_DIR": tmp_path / name for name in ("config", "cache", "data")}
    commands = [["doctor", "-m", MODEL], ["profiles", "list"], ["profiles", "show", "code"], ["sessions"], ["explain"], ["models"],
                ["models", "default", MODEL], ["export", "llama-server", "-m", MODEL]]  # fmt: skip
    locked = tmp_path / "locked"
    locked.touch(0o000)
    unread = [["run", *SETTINGS, "-f"], ["run", *SETTINGS, "--no-stdin", "hi", "--chat-template-file"],
              ["bench", "-m", MODEL, "--workloads"], ["tune", "-m", MODEL, "--like"], ["layers", MODEL, "--like"]]  # fmt: skip
    commands += [[*words, str(locked)] for words in unread]
    for path in folders.values():
        path.mkdir(0o000)
    try:
        done = subprocess.run(
            [*without, sys.executable, "-c", CALLS, json.dumps(commands)], capture_output=True, text=True,
            timeout=100, env=environment() | {name: str(path) for name, path in folders.items()},
        )  # fmt: skip
    finally:
        for path in folders.values():
            path.chmod(0o700)
    assert "unexpected" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    for words in (["doctor", "-m", MODEL], ["profiles", "list"], *commands[-len(unread) :]):
        assert f"code 1 {' '.join(words)}\n" in done.stderr, (words, done.stderr)
    assert done.stdout.count("broken") >= 2


@pytest.mark.parametrize(
    "option", ["-f", "--prompts", "--chat-template-file", "--grammar-file", "--json-schema-file"]
)
def test_a_file_that_cannot_be_read_could_not_be_done(run: Runner, tmp_path: Path, option: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for place in (tmp_path / "none", tmp_path, tmp_path / "loop"):
        result = run(option, place, *([] if option == "--prompts" else ["hi"]))
        assert result.code == 1 and str(place) in result.line


# -- events, exports, sizes -------------------------------------------------------------------------


def test_a_model_that_cannot_be_had_is_an_event(run: Runner, tmp_path: Path) -> None:
    result = run("--stream", "json", "-m", "no-such.gguf", "hi")
    assert result.code == 1 and [row["event"] for row in result.rows] == ["error"]
    assert result.rows[0]["error"] in result.line
    (tmp_path / "out").write_text("old")
    assert run("--stream", "json", "-m", "no-such.gguf", "-o", tmp_path / "out", "hi").code == 1
    assert (tmp_path / "out").read_text() == "old"


def test_an_export_names_heads_and_refuses_files_that_are_not_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["export", "llama-server", "-m", MODEL]) == 0
    assert "ngram-map-k,draft-mtp" in capsys.readouterr().out
    draft = str(TINY.with_name("tiny-draft.gguf"))
    assert main(["export", "llama-server", "-m", MODEL, "--draft-model", draft]) == 0
    assert "draft-mtp is left out" in capsys.readouterr().out
    assert main(["export", "vllm", "-m", "user/repo", "--draft-model", "user/small"]) == 0
    capsys.readouterr()
    for words in (
        ["-m", "no-such.gguf"],
        ["-m", "user/repo", "--draft-model", "./no-such.gguf"],
        ["-m", "alias"],
    ):
        assert main(["export", "llama-server", *words]) == 1
        shown = capsys.readouterr()
        assert shown.out == "" and "no such file" in shown.err


@pytest.mark.parametrize(("asked", "said"), [(300, "so it is 512"), (512, "")])
def test_a_context_that_is_rounded_up_is_told_of(run: Runner, asked: int, said: str) -> None:
    result = run("--json", "--ctx-size", asked, "hi")
    notices = [each for each in result.rows[0]["notices"] if "--ctx-size" in each]
    assert len(notices) == bool(said) and all(said in each for each in notices)
