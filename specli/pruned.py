"""Which layers of a model may be left out of its draft, and the copy of the model without them.

The set is what `specli layers` found, kept in the configuration directory beside tuned profiles. The copy
can be written again at any time, so it lies in the cache directory, named by the model's fingerprint and
the set.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import BinaryIO

from specli import paths
from specli.engine.admission import admit
from specli.engine.gguf import Header, read_header
from specli.engine.memory import gib, weight_bytes
from specli.engine.probe import TrialSettings
from specli.engine.prune import prune_problem, pruned_header, write_pruned
from specli.engine.silence import WORK
from specli.errors import Interrupted, ModelFileError, SpecliError

METHOD = "draft-self-layers"
FORMAT = 1
SPARE = 128 << 20
"""Bytes that stay free on the disk."""

Say = Callable[[str], None]
Stop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class LayerSet:
    """Layers to leave out of the draft of one model file, and how often it then agrees.

    `target`: the file's fingerprint; `blocks`: its layers; `layers`: those left out, ascending.
    `agreement`: part of `positions` at which whole and pruned model hold the same token likeliest;
    `overlap`: the sum of min(p, q), on average. `text`: whose prompts; `date`: ISO.
    """

    target: str
    blocks: int
    layers: tuple[int, ...]
    agreement: float
    overlap: float
    positions: int
    text: str
    date: str

    @property
    def kept(self) -> int:
        """Layers that the draft has."""
        return self.blocks - len(self.layers)


# -- the set ---------------------------------------------------------------------------------------


def set_path(model: Path, fingerprint: str) -> Path:
    """Where the set of a model is kept. Files of one name need not be one model, so the fingerprint counts."""
    return _sets() / f"{_plain(model)}-{fingerprint[:8]}.json"


def _sets() -> Path:
    return paths.config_dir(create=False) / "layers"


def _plain(model: Path) -> str:
    return re.sub(r"[^\w.-]+", "-", model.name.removesuffix(".gguf"))


def remember(model: Path, found: LayerSet) -> Path:
    """Keep a set; returns its file. Sets and copies of what the file held before go."""
    for old in _outdated(model, found.target):
        _drop(old)
    path = set_path(model, found.target)
    kept = {"format": FORMAT, "file": str(model.absolute()), **asdict(found)}
    paths.write_atomic(path, json.dumps(kept, indent=1) + "\n")
    return path


def layer_set(model: Path) -> LayerSet:
    """The set kept for `model`. Raises ModelFileError saying what is missing and what to do."""
    header = read_header(model)
    problem = prune_problem(header)
    if problem:
        raise ModelFileError(problem)
    fingerprint = header.fingerprint
    path = set_path(model, fingerprint)
    find = f"`specli layers {model}` finds"
    if os.path.exists(path):
        found = _read(path)
        if found is None or (found.target, found.blocks) != (fingerprint, header.block_count):
            raise ModelFileError(f"{path} cannot be read any more; {find} the layers anew")
        return found
    if _outdated(model, fingerprint):
        raise ModelFileError(
            f"{model.name} is not the file any more whose layers were judged; {find} them anew"
        )
    raise ModelFileError(
        f"which layers of {model.name} can be left out is not known yet; {find} them, and says whether it pays"
    )


def _read(path: Path) -> LayerSet | None:
    """A kept set; None for a file that is not what it should be."""
    try:
        kept = json.loads(path.read_text("utf-8"))
        known = {field.name: kept[field.name] for field in fields(LayerSet)}
        found = LayerSet(**{**known, "layers": tuple(kept["layers"])})
        return found if kept["format"] == FORMAT and _sound(found) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _outdated(model: Path, fingerprint: str) -> list[Path]:
    """Sets kept for the same file when it held another model."""
    return [path for path in _own(model) if path != set_path(model, fingerprint)]


def _own(model: Path) -> list[Path]:
    """All sets kept for this file, whatever it held."""
    found = []
    for path in sorted(_sets().glob(f"{_plain(model)}-*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            if json.loads(path.read_text("utf-8"))["file"] == str(model.absolute()):
                found.append(path)
    return found


def _sound(found: LayerSet) -> bool:
    layers = found.layers
    return (
        all(isinstance(layer, int) and 0 <= layer < found.blocks for layer in layers)
        and 0 < len(layers) < found.blocks
        and list(layers) == sorted(set(layers))
        and re.fullmatch("[0-9a-f]+", found.target) is not None
    )


def forget(model: Path) -> int:
    """Drop the set of `model` and its copies; returns how many bytes that frees."""
    fingerprint = read_header(model).fingerprint
    freed = sum(_drop(path) for path in {*_own(model), set_path(model, fingerprint)})
    return freed + _drop_copies(fingerprint)


def _drop(path: Path) -> int:
    found = _read(path)
    path.unlink(missing_ok=True)
    return _drop_copies(found.target) if found is not None else 0


def _drop_copies(target: str) -> int:
    freed = 0
    for copy in _copies(target):
        with suppress(OSError):  # in use on Windows
            size = copy.stat().st_size
            copy.unlink()
            freed += size
    return freed


# -- the copy --------------------------------------------------------------------------------------


def folder() -> Path:
    """Where copies lie; made if need be."""
    path = paths.cache_dir() / "layers"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SpecliError(f"cannot make {path}: {error.strerror or error}") from error
    return path


def copy_path(found: LayerSet) -> Path:
    """Where the copy without the layers of a set is, or will be."""
    digest = hashlib.sha256(repr(found.layers).encode()).hexdigest()[:8]
    name = f"{found.target}-{found.kept}of{found.blocks}-{digest}.gguf"
    return paths.cache_dir(create=False) / "layers" / name


def _copies(fingerprint: str) -> list[Path]:
    return sorted((paths.cache_dir(create=False) / "layers").glob(f"{fingerprint}-*.gguf"))


def draft_header(model: Path, found: LayerSet) -> Header:
    """The header of the copy; where it is not written yet, one that says what it will take."""
    copy = copy_path(found)
    if os.path.exists(copy):
        return read_header(copy)
    return pruned_header(read_header(model), found.layers, copy)


def copy_of(
    model: Path,
    found: LayerSet,
    trial: TrialSettings,
    no_repack: bool,
    say: Say,
    stop: Stop = lambda: False,
) -> Path:
    """The copy of `model` without the layers of `found`, written now if it is not there.

    `trial`, `no_repack`: how it will be run, and is tried before it gets its name. `say` hears what it takes
    before anything is written. Copies without other sets of this model's layers are removed. Raises
    SpecliError where the disk has no room, or the copy cannot be written or run.
    """
    copy = copy_path(found)
    if _usable(copy, found):
        return copy
    header = pruned_header(read_header(model), found.layers, copy)
    where = folder()
    with exclusive(where, say, stop):
        if _usable(copy, found):  # another process has written it meanwhile
            return copy
        _require_room(where, header.file_size, f"a copy of {model.name} without {len(found.layers)} layers")
        say(
            f"writing a copy of {model.name} without {len(found.layers)} of its {found.blocks} layers, once: "
            f"{gib(header.file_size)} on the disk ({where}), {gib(weight_bytes(header))} more memory while it drafts"
        )
        temporary = where / f"{WORK}{copy.name}"
        try:
            write_pruned(model, temporary, found.layers, stop)
            admit(temporary, trial, no_repack=no_repack)
            os.replace(temporary, copy)
        except OSError as error:
            raise SpecliError(f"cannot write {copy}: {error.strerror or error}") from error
        finally:
            temporary.unlink(missing_ok=True)
        for other in _copies(found.target):
            if other != copy:
                with suppress(OSError):  # in use on Windows
                    other.unlink()
    return copy


def _usable(copy: Path, found: LayerSet) -> bool:
    """Whether it is there and whole. It was tried before it got its name."""
    try:
        return read_header(copy).block_count == found.kept
    except ModelFileError:
        return False


def require_room_to_search(model: Path) -> None:
    """Refuse with the figures where the disk has no room for a working copy of the whole model, and where what
    is found could not be kept."""
    paths.require_place(_sets())
    paths.require_place(folder())
    header = read_header(model)
    parts = [read_header(part).file_size for part in header.parts]
    _require_room(folder(), sum(parts), f"a working copy of {model.name}")


def _require_room(where: Path, needed: int, what: str) -> None:
    free = shutil.disk_usage(where).free
    if free < needed + SPARE:
        raise SpecliError(
            f"{what} takes {gib(needed)} and {where} has {gib(free)} free: make room there, or set another "
            "place by SPECLI_CACHE_DIR"
        )


# -- one at a time ---------------------------------------------------------------------------------


@contextmanager
def exclusive(where: Path, say: Say, stop: Stop = lambda: False) -> Iterator[None]:
    """Hold the folder of copies alone; waits for another process, and removes what a killed one left."""
    with _opened(where / "lock") as file:
        if not paths.lock(file.fileno()):
            say("waiting for another specli that writes a copy of a model")
            while not paths.lock(file.fileno()):
                if stop():
                    raise Interrupted("interrupted while waiting for another specli")
                time.sleep(0.2)
        for leftover in where.glob(f"{WORK}*"):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)
        yield  # closing the file ends the lock


def _opened(lock: Path) -> BinaryIO:
    try:
        return open(lock, "a+b")
    except OSError as error:
        raise SpecliError(f"cannot write {lock}: {error.strerror or error}") from error


def as_text(layers: Sequence[int]) -> str:
    """Layer numbers as people write them: "3, 5-7, 20"."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
