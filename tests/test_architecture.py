"""The house stays as it is drawn: who may import whom, and how long a file may be."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "specli"
FILES = sorted(p for p in ROOT.rglob("*.py"))

# room: what it may import of specli, besides itself. A room is a package or a module at the top.
_BASE = {"errors", "core"}
_LIVE = {
    *_BASE, "paths", "sizes", "keys", "settings", "profiles", "engine", "drafters", "chat", "costs", "tuned", "casting", "rules",
    "loading", "drafting", "assembly", "interrupts",
    "pruned",
}  # fmt: skip
ROOMS: dict[str, set[str]] = {
    "__init__": {"errors", "api", "chat"},
    "errors": set(),
    "core": {"errors"},
    "paths": {"errors"},
    "sizes": set(),
    "keys": {"sizes"},
    "settings": {"sizes", "keys"},
    "profiles": {"errors", "paths", "keys", "settings"},
    "interrupts": {"errors"},
    "lastwords": set(),
    "engine": {*_BASE, "paths", "lastwords", "interrupts"},
    "drafters": {*_BASE, "engine"},
    "chat": {*_BASE, "engine", "paths"},
    "config": {"errors", "paths", "keys", "settings"},
    "download": {"errors"},
    "hub": {"errors", "paths", "engine", "config", "download", "keys", "settings"},
    "pairing": _LIVE,
    "shelf": {*_LIVE, "hub", "config", "download", "pairing"},
    "assembly": _LIVE - {"assembly", "interrupts"},
    "costs": {*_BASE, "paths", "engine"},
    "tuned": {*_BASE, "keys", "settings", "profiles", "engine", "costs"},
    "rules": {*_BASE, "settings", "engine"},
    "pruned": {"errors", "paths", "engine"},
    "casting": {"errors", "profiles", "engine", "tuned", "pruned"},
    "loading": {"errors", "settings", "engine", "casting", "pruned"},
    "drafting": {*_BASE, "settings", "engine", "drafters", "casting", "loading"},
    "opening": {*_LIVE, "hub", "shelf"},
    "api": {*_LIVE, "opening"},
    "layers": {*_LIVE, "workloads", "pairing"},
    "workloads": {"errors", "keys", "settings"},
    "tune": {*_LIVE, "bench", "workloads"},
    "bench": {*_LIVE, "workloads"},
    "doctor": {*_LIVE, "hub", "config", "download"},
    "export": {*_LIVE, "hub"},
    "explain": {"errors", "keys", "settings"},
    "advise": {*_LIVE, "hub", "pairing"},
    "measure": {*_LIVE, "hub"},
    "ui": {"errors", "core", "chat", "paths", "profiles", "keys", "settings", "interrupts"},
}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Full names of the modules a file imports, those inside functions included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    here = room(path)
    if here in ("cli", "__main__"):
        return
    assert here in ROOMS, f"{here} is a new room: draw it here and in docs/architecture.md"
    used = {name.split(".")[1] for name in imports(path) if name.startswith("specli.")}
    used = {name for name in used if (ROOT / name).is_dir() or (ROOT / f"{name}.py").exists()}
    assert used <= {here, *ROOMS[here]}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_libraries_stay_in_their_rooms(path: Path) -> None:
    used = {name.split(".")[0] for name in imports(path)}
    if room(path) != "engine":
        assert "llama_cpp" not in used
    if room(path) not in ("ui", "cli"):
        assert not used & {"rich", "prompt_toolkit", "typer"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_can_be_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 420


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_path_of_the_users_ends_the_program(path: Path) -> None:
    """These methods raise RuntimeError for an unknown user or a link to itself; those of os.path never do."""
    text = path.read_text("utf-8").replace("Path(__file__).resolve()", "")
    assert ".expanduser()" not in text.replace("os.path.expanduser(", "") and ".resolve()" not in text
