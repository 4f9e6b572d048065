"""What may go wrong around specli: disks that take nothing, files that change, memory, signals, clocks, networks."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gguf_builder import MODELS, STRING
from model_edits import Gguf

from specli import lastwords
from specli.engine import backend

ROOT = Path(__file__).parent.parent / "specli"
DRAFT = MODELS / "tiny-draft.gguf"
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX only")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
ENDLESS = ["--logit-bias", "0-1000", "--logit-bias", "2-1000"]  # no token that ends an answer
PLAIN = ["--no-repack", "--threads", "1", "--temp", "0"]


def specli(*args: object, **more: Any) -> subprocess.CompletedProcess[str]:
    more.setdefault("stdin", subprocess.DEVNULL) if "input" not in more else None
    command = [sys.executable, "-m", "specli", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, **more)


def run(*more: object, model: Path = DRAFT, **rest: Any) -> subprocess.CompletedProcess[str]:
    return specli("run", "-m", model, *PLAIN, "-n", "6", *more, "def f(", **rest)


def limited(*limits: tuple[str, int]) -> Callable[[], None]:
    """Sets resource limits in the child, before it runs."""

    def set_them() -> None:
        import resource

        for name, value in limits:
            resource.setrlimit(getattr(resource, name), (value, value))

    return set_them


# -- disks -------------------------------------------------------------------------------------------


@posix
def test_a_full_disk_spoils_no_answer() -> None:
    """No file can be written at all, as on a full disk: the answer is the same, with one notice at most."""
    whole = run()
    full = run(preexec_fn=limited(("RLIMIT_FSIZE", 0)))
    assert full.returncode == 0 and full.stdout == whole.stdout
    assert full.stderr.count("cannot write") <= 1 and "Traceback" not in full.stderr


@posix
def test_directories_that_are_none_spoil_no_answer(tmp_path: Path) -> None:
    """Cache, configuration and data directory cannot be made: something else has their names."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    names = ("SPECLI_CACHE_DIR", "SPECLI_CONFIG_DIR", "SPECLI_DATA_DIR")
    done = run(env=os.environ | {name: str(blocked / name) for name in names})
    assert done.returncode == 0 and done.stdout
    assert done.stderr.count("cannot write") <= 1 and "Traceback" not in done.stderr


# -- files that change -------------------------------------------------------------------------------


@posix
def test_a_model_that_changes_between_turns_is_noticed(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(DRAFT.read_bytes())
    command = [sys.executable, "-m", "specli", "chat", "-m", str(model), *PLAIN, "-n", "4", "--no-save"]
    chat = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert chat.stdin is not None and chat.stdout is not None
    chat.stdin.write("one\n")
    chat.stdin.flush()
    while not chat.stdout.readline().strip():
        pass
    os.truncate(model, 100_000)
    _, err = chat.communicate("two\nthree\n", timeout=120)
    assert "m.gguf was changed on the disk while it was in use" in err
    assert chat.returncode in (0, 1) and "Traceback" not in err


@posix
def test_a_model_that_another_takes_the_place_of_serves_on(tmp_path: Path) -> None:
    from specli.engine.model import Model, ModelParams
    from specli.errors import ModelFileError

    path = tmp_path / "m.gguf"
    path.write_bytes(DRAFT.read_bytes())
    with Model(path, ModelParams(use_extra_bufts=False)) as model:
        os.utime(path, (1, 1))
        model.check_file()  # touched, and still the same
        (tmp_path / "new").write_bytes(b"other")
        os.replace(tmp_path / "new", path)
        model.check_file()
        path.unlink()
        model.check_file()
    path.write_bytes(DRAFT.read_bytes())
    with Model(path, ModelParams(use_extra_bufts=False)) as model:
        with path.open("r+b") as file:
            file.seek(1000)
            file.write(b"changed in place")
        with pytest.raises(ModelFileError, match=r"m\.gguf was changed on the disk"):
            model.check_file()


@linux
def test_a_model_cut_off_during_an_answer_has_last_words(tmp_path: Path) -> None:
    """The kernel ends whoever touches what is no longer there; it is said why, and the exit code is 1."""
    model = tmp_path / "m.gguf"
    model.write_bytes(DRAFT.read_bytes())
    command = [
        sys.executable,
        "-m",
        "specli",
        "run",
        "-m",
        str(model),
        *PLAIN,
        *ENDLESS,
        "--ctx-size",
        "60000",
        "Hi",
    ]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, bufsize=0
    )
    assert running.stdout is not None
    said = running.stdout.read(1)
    os.truncate(model, 50_000)
    rest, err = running.communicate(timeout=120)
    assert running.returncode == 1, err
    assert said + rest
    last = err.decode().strip().splitlines()[-1]
    assert (
        last
        == "specli: the model file was cut off or changed while it was in use, or its disk failed (SIGBUS)"
    )


@posix
@pytest.mark.parametrize(
    ("name", "says"), [("SIGSEGV", "llama.cpp crashed (SIGSEGV)"), ("SIGABRT", "llama.cpp gave up")]
)
def test_a_crash_is_one_line(name: str, says: str) -> None:
    code = (
        "import os, signal; from specli import lastwords; lastwords.install()\n"
        f"os.kill(os.getpid(), signal.{name}); import time; time.sleep(9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(f"specli: {says}")


def test_the_library_gives_its_reason_for_giving_up(tmp_path: Path) -> None:
    file = Gguf(DRAFT)
    file.set("tokenizer.ggml.model", STRING, "none")
    path = file.write(tmp_path / "m.gguf")
    code = (
        "import sys; from pathlib import Path; from specli import lastwords; lastwords.install()\n"
        "from specli.engine.model import Model, ModelParams\n"
        "Model(Path(sys.argv[1]), ModelParams(vocab_only=True)).vocab.tokenize('x')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    (line,) = done.stderr.strip().splitlines()
    assert done.returncode == 1
    assert re.match(r"specli: llama\.cpp gave up: llama-vocab\.cpp:\d+: GGML_ASSERT\(tokenizer", line)


def test_last_words_are_short() -> None:
    assert lastwords.words("SIGBUS").endswith("(SIGBUS)")
    assert len(lastwords.words("SIGILL")) < 200


# -- memory ------------------------------------------------------------------------------------------


@linux
@pytest.mark.parametrize("mib", [250, 330, 420])
def test_little_address_space_is_one_line_or_enough(mib: int) -> None:
    done = run(preexec_fn=limited(("RLIMIT_AS", mib << 20)))
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) < 4


@linux
def test_memory_that_would_be_refused_is_refused_with_the_figures(tmp_path: Path) -> None:
    done = run("--ctx-size", 4_000_000, preexec_fn=limited(("RLIMIT_AS", 1 << 30)))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "tiny-draft with a context of 4000000 tokens needs" in line and "fits at most" in line


def test_the_tightest_cgroup_counts(tmp_path: Path) -> None:
    from specli.engine.memory import _cgroup_free

    own = tmp_path / "own"
    own.write_text("4:memory:/docker/x\n0::/user.slice/app\n1:cpu,cpuacct:/other\nnonsense\n")
    for folder, limit in (
        ("user.slice", "900"),
        ("user.slice/app", "max"),
        ("memory/docker", "700"),
        ("other", "1"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        names = (
            ("memory.max", "memory.current")
            if "memory" not in folder
            else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        for name, text in zip(
            (*names, "memory.stat"), (limit, "200", "inactive_file 50\ntotal_inactive_file 0\n")
        ):
            (tmp_path / folder / name).write_text(text)
    assert _cgroup_free(tmp_path, own) == 500
    (tmp_path / "memory" / "docker" / "memory.limit_in_bytes").write_text(str(2**63))
    assert _cgroup_free(tmp_path, own) == 750
    assert _cgroup_free(tmp_path, tmp_path / "none") is None


# -- signals and clocks ------------------------------------------------------------------------------


@posix
def test_a_terminal_that_is_gone_ends_it_in_order() -> None:
    command = [
        sys.executable,
        "-m",
        "specli",
        "run",
        "-m",
        str(DRAFT),
        *PLAIN,
        *ENDLESS,
        "--ctx-size",
        "60000",
        "Hi",
    ]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, bufsize=0,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup leaves it ignored
    )  # fmt: skip
    assert running.stdout is not None
    said = running.stdout.read(1)
    running.send_signal(signal.SIGHUP)
    rest, err = running.communicate(timeout=120)
    assert running.returncode == 128 + signal.SIGHUP
    assert said + rest and b"Traceback" not in err


@posix
def test_suspended_and_continued_it_says_the_same() -> None:
    command = [
        sys.executable,
        "-m",
        "specli",
        "run",
        "-m",
        str(DRAFT),
        *PLAIN,
        *ENDLESS,
        "-n",
        "150",
        "def f(",
    ]
    whole = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL).stdout
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, bufsize=0
    )
    assert running.stdout is not None
    said = running.stdout.read(1)
    running.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    running.send_signal(signal.SIGCONT)
    rest, _ = running.communicate(timeout=120)
    assert running.returncode == 0
    # pacing follows the clock, and drafts of other lengths may round otherwise; the text goes on all the same
    assert len(said + rest) > 100 and (said + rest)[:20] == whole[:20]


def _attributes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def test_no_duration_is_taken_from_a_clock_that_jumps() -> None:
    """`time.time` serves to compare with the times of files, and for nothing else."""
    users = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if "time.time" in _attributes(ast.parse(path.read_text("utf-8")))
    }
    compared = {"engine/saved.py": "st_mtime", "shelf.py": "st_mtime", "ui/listing.py": "each.changed"}
    assert users <= {*compared}
    for path in ROOT.rglob("*.py"):
        text = path.read_text("utf-8")
        assert "from time import time" not in text
        assert str(path.relative_to(ROOT)) in compared or "time.time()" not in text
    for name, beside in compared.items():
        lines = [line for line in (ROOT / name).read_text("utf-8").splitlines() if "time.time()" in line]
        assert all(beside in line for line in lines)


# -- another version of the library ------------------------------------------------------------------


def _used() -> set[str]:
    """What engine/ takes from llama_cpp: every attribute that begins as its names do."""
    found = set()
    for path in (ROOT / "engine").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and re.match(r"(llama|LLAMA)_[A-Za-z]", node.attr):
                base = ast.unparse(node.value)
                if "ext" not in base and base not in (
                    "self",
                    "lib.llama_cpp",
                ):  # the extension checks its own
                    found.add(node.attr)
    return found - {"llama_cpp"}


def test_all_that_is_used_of_the_library_is_looked_for_when_it_is_loaded() -> None:
    missing, idle = _used() - set(backend.API), set(backend.API) - _used()
    assert not missing
    assert not idle


# -- privacy -----------------------------------------------------------------------------------------

_GUARD = """
import os, socket
def _noted(*_, **__):
    with open(os.environ["GUARD"], "a") as file:
        file.write("network\\n")
    raise OSError("no network here")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = _noted
"""


@pytest.fixture
def guarded(tmp_path: Path) -> dict[str, str]:
    """An environment in which every use of the network is noted, and fails."""
    (tmp_path / "guard").mkdir()
    (tmp_path / "guard" / "sitecustomize.py").write_text(_GUARD)
    return os.environ | {
        "PYTHONPATH": str(tmp_path / "guard"),
        "GUARD": str(tmp_path / "noted"),
        "HOME": str(tmp_path),
        "HF_HOME": str(tmp_path / "hf"),
    }


COMMANDS = {
    "run": ["run", "-m", DRAFT, *PLAIN, "-n", "3", "Hi"],
    "chat": ["chat", "-m", DRAFT, *PLAIN, "-n", "3"],
    "check-draft": ["check-draft", MODELS / "tiny-target-mtp.gguf", DRAFT],
    "models": ["models"],
    "doctor": ["doctor", "-m", DRAFT],
    "profiles": ["profiles", "show", "code"],
    "export": ["export", "llama-server", "-m", DRAFT],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_network_unless_asked(command: str, guarded: dict[str, str], tmp_path: Path) -> None:
    done = specli(*COMMANDS[command], env=guarded, input="Hi\n")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "noted").exists()


def test_the_guard_sees_the_network(guarded: dict[str, str], tmp_path: Path) -> None:
    done = specli("models", "pull", "someone/something:Q4_0", env=guarded)
    assert done.returncode == 1 and (tmp_path / "noted").exists()
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def gaudy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose file name and metadata hold escape sequences."""
    file = Gguf(DRAFT)
    for key in (
        "general.name",
        "general.basename",
        "general.size_label",
        "general.finetune",
        "general.description",
    ):
        file.set(key, STRING, "\x1b[2J\x1b]0;taken\x07name\r\n\u202e")
    return file.write(tmp_path_factory.mktemp("gaudy") / "ga\x1b[31mudy\u202e.gguf")


@pytest.mark.parametrize(
    "args",
    [
        ["run", *PLAIN, "-n", "2", "Hi", "-m"],
        ["doctor", "-m"],
        ["check-draft", DRAFT],
        ["check-draft", DRAFT, "--json"],
        ["export", "llama-server", "-m"],
        ["run", *PLAIN, "-n", "2", "Hi", "--draft-model"],
        ["profiles", "show"],
    ],
    ids=lambda args: " ".join(str(a) for a in args if not str(a).startswith("/"))[:30],
)
def test_names_and_metadata_cannot_steer_the_terminal(
    args: list[object], gaudy: Path, tiny_target: Path
) -> None:
    model = ["-m", tiny_target] if "--draft-model" in args else []
    done = specli(args[0], *model, *args[1:], gaudy)
    assert "Traceback" not in done.stderr
    for text in (done.stdout, done.stderr):
        assert not re.search(
            r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u202a-\u202e\u2066-\u2069]", text.replace("\r\n", "\n")
        ), repr(text)


def test_models_lists_odd_names_harmlessly(gaudy: Path) -> None:
    done = specli(
        "models",
        env=os.environ | {"LLAMA_CACHE": str(gaudy.parent), "HF_HOME": str(gaudy.parent)},
        cwd=gaudy.parent,
    )
    assert "udy" in done.stdout and "\x1b" not in done.stdout + done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "attack", ["{{ cycler.__init__.__globals__.os.system('touch MARK') }}", "{% include '/etc/passwd' %}"]
)
def test_nothing_in_a_model_is_executed(attack: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    file = Gguf(DRAFT)
    file.set("tokenizer.chat_template", STRING, attack.replace("MARK", str(mark)))
    done = run(model=file.write(tmp_path / "m.gguf"))
    assert done.returncode == 1 and "chat template: " in done.stderr and not mark.exists()
    assert "Traceback" not in done.stderr


def test_nothing_in_a_profile_is_executed(tmp_path: Path) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text('model = "$(touch mark)"\n[sampling]\nstop = ["`touch mark`"]\n')
    done = specli("run", "--profile", profile, "Hi", cwd=tmp_path)
    assert done.returncode == 1 and not (tmp_path / "mark").exists()
    assert json.dumps(done.stderr).count("Traceback") == 0
