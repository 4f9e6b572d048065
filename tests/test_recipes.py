"""The recipes of docs/recipes.md, run as they are written, on the model of the demo extra."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).parent.parent / "docs" / "recipes.md"
pytestmark = [
    pytest.mark.smol,
    pytest.mark.skipif(shutil.which("bash") is None, reason="recipes are for a shell"),
    pytest.mark.usefixtures("smol"),
]
FILES = {
    "src/area.py": "def area(r):\n    return 3.14 * r * r\n",
    "src/shapes.py": "def square(a):\n    return a * a\n",
    "logs/app.log": "10:00 INFO started\n10:02 ERROR database not reachable\n10:03 WARN retry 1\n10:04 INFO up\n",
    "README.md": "# Clock\n\nShows the time.\n\n    clock --utc\n",
    "mails/1.txt": "Hello, please send 12 blue chairs to Ada Byron. Thanks!",
    "mails/2.txt": "We need 3 desks.\n\nRegards, Carl Gauss",
}


def snippets() -> dict[str, str]:
    """The first shell snippet under each heading that has one."""
    found: dict[str, str] = {}
    for section in RECIPES.read_text("utf-8").split("\n## ")[1:]:
        heading, _, body = section.partition("\n")
        _, fence, rest = body.partition("```sh\n")
        if fence:
            found[heading] = rest.partition("\n```")[0] + "\n"
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`specli` and `python3` on the path, and directories of their own."""
    root = tmp_path_factory.mktemp("recipes")
    bin_dir, profiles = root / "bin", root / "config" / "profiles"
    bin_dir.mkdir()
    profiles.mkdir(parents=True)
    for name, command in (("specli", f'"{sys.executable}" -m specli'), ("python3", f'"{sys.executable}"')):
        (bin_dir / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (bin_dir / name).chmod(0o755)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SPECLI_", "GIT_"))}
    return env | {
        "PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}", "PYTHONUTF8": "1",
        "SPECLI_CONFIG_DIR": str(root / "config"), "SPECLI_CACHE_DIR": str(root / "cache"),
        "SPECLI_DATA_DIR": str(root / "data"), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@example.org",
    }  # fmt: skip


def run(name: str, where: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for path, text in FILES.items():
        (where / path).parent.mkdir(exist_ok=True)
        (where / path).write_text(text)
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", snippets()[name]],
        cwd=where, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result


def test_there_are_five() -> None:
    assert len(snippets()) == 5


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_commit_message_from_a_diff(tmp_path: Path, environment: dict[str, str]) -> None:
    def git(*args: str) -> str:
        return subprocess.run(
            ["git", *args], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        ).stdout

    git("init", "--quiet")
    (tmp_path / "clock.py").write_text("def now(utc=False):\n    return 12\n")
    git("add", "clock.py")
    run("A commit message from a diff", tmp_path, environment)
    message = git("log", "--format=%B").strip()
    assert message == (tmp_path / "message.txt").read_text("utf-8").strip()
    assert re.fullmatch(r"[A-Z].{11,71}", message)


def test_docstrings_into_a_file(tmp_path: Path, environment: dict[str, str]) -> None:
    run("Docstrings into a file", tmp_path, environment)
    for name in ("area", "shapes"):
        assert (tmp_path / "src" / f"{name}.documented").read_text("utf-8").strip()
        assert (tmp_path / "src" / f"{name}.py").read_text("utf-8") == FILES[f"src/{name}.py"]


def test_summarise_logs(tmp_path: Path, environment: dict[str, str]) -> None:
    result = run("Summarise logs", tmp_path, environment)
    assert result.stdout == (tmp_path / "summary.md").read_text("utf-8") and result.stdout.strip()
    assert result.stderr == ""


def test_translate_a_readme(tmp_path: Path, environment: dict[str, str]) -> None:
    result = run("Translate a README", tmp_path, environment)
    answer = json.loads((tmp_path / "answer.json").read_text("utf-8"))
    assert (tmp_path / "README.de.md").read_text("utf-8") == answer["text"] + "\n"
    assert answer["text"].strip()
    assert f"ended by: {answer['finish_reason']}" in result.stdout


def test_json_from_text(tmp_path: Path, environment: dict[str, str]) -> None:
    result = run("JSON from text", tmp_path, environment)
    orders = [json.loads(line) for line in result.stdout.splitlines()]
    assert [order["mail"] for order in orders] == ["1", "2"]
    for order in orders:
        assert list(order) == ["mail", "customer", "product", "quantity"]
        assert len(order["customer"]) <= 30 and 1 <= order["quantity"] <= 999
