"""Files of strangers: what has to be known of a model file before this process loads it.

First its metadata is checked (`gguf_model`). Then it is loaded and decoded with in a child process, so
that what llama.cpp would abort on ends the child and becomes one line. Both once for each file: it is
known again by size, time, header and a few samples of its weights, and then costs nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specli import paths
from specli.engine import backend, repack
from specli.engine.gguf import Header, read_header
from specli.engine.gguf_cursor import shown
from specli.engine.gguf_model import check_model, check_vocabulary
from specli.engine.opening import check_params
from specli.engine.probe import Outcome, TrialSettings, context_params, run_trial
from specli.errors import EngineError, MemoryShortage, ModelFileError, SpecliError

_CHECKS = 1  # raise it with every condition added to `gguf_model`, so that known files are looked at again
_WIDTHS = (1, 4)
_LARGE = 256 << 20  # bytes; the trial of a smaller file is over before anyone could read of it


@dataclass(frozen=True, slots=True)
class Admission:
    """A file that may be loaded. `use_extra_bufts`: as the repacking verdict says. `notices`: for the user."""

    use_extra_bufts: bool
    notices: tuple[str, ...] = ()


@dataclass(slots=True)
class _Record:
    """What is known of a file: which checks it passed, and under which settings it was decoded with."""

    holds_for: str
    checks: int = 0
    tried: list[str] = field(default_factory=list)

    @property
    def file(self) -> Path:
        name = hashlib.sha256(self.holds_for.encode()).hexdigest()[:16]
        return paths.cache_dir(create=False) / f"file-{name}.json"

    def keep(self) -> str:
        """Write it down; returns why that failed, or nothing."""
        try:
            paths.write_atomic(self.file, json.dumps(asdict(self)))
        except SpecliError as error:
            return str(error)
        return ""


def sound_header(path: Path) -> Header:
    """The header of a file whose metadata is such that llama.cpp can take it. Raises ModelFileError."""
    header = read_header(path)
    record = _recall(header)
    if record.checks != _CHECKS:
        check_model(header)
        record.checks = _CHECKS
        record.keep()
    return header


def admit(
    path: Path,
    settings: TrialSettings,
    *,
    no_repack: bool = False,
    before_repack_trial: Callable[[], None] = lambda: None,
    before_trial: Callable[[], None] = lambda: None,
) -> Admission:
    """Find out whether a file can be loaded here, and whether with repacked weights.

    The `before_` functions are called where a child process is really to be run: on the first use of the
    library on a processor, and on the first use of a file that is large enough to take a while.
    Raises ModelFileError for a file that the library cannot load or would die over, MemoryShortage where
    the child was killed, EngineError where the library crashes without repacking too, UsageError for cache types
    that do not fit the model.
    """
    path = path.absolute()  # links kept: parts of a split model are found by their names
    header = sound_header(path)
    verdict = repack.verdict(
        path, settings, force_off=no_repack, before_trial=before_repack_trial, header=header
    )
    notices = [verdict.notice] if verdict.notice else []
    record, key = _recall(header), _settings_key(settings, verdict.use_extra_bufts)
    if key not in record.tried:
        check_params(header, context_params(settings))
        if not verdict.tried and header.file_size > _LARGE:
            before_trial()
        if verdict.tried or _tried(header, settings, verdict.use_extra_bufts):
            notices += _remember(record, key, path)
    return Admission(verdict.use_extra_bufts, tuple(notices))


def admit_head(
    head: Path,
    target: Path,
    settings: TrialSettings,
    use_extra_bufts: bool,
    before_trial: Callable[[], None] = lambda: None,
) -> str | None:
    """Find out whether a file that drafts from the hidden rows of `target` can be loaded beside it; the target
    itself must have been admitted under the same settings. `before_trial` is called where that takes a while.

    Gives a notice, None if there is nothing to say. Raises ModelFileError for a file that llama.cpp would die over,
    MemoryShortage where the child was killed. Whether the two fit is not asked here.
    """
    path, model = head.absolute(), target.absolute()
    header, beside = sound_header(path), read_header(model)
    record = _recall(header)
    key = f"{beside.fingerprint} {_settings_key(settings, use_extra_bufts)}"
    if key in record.tried:
        return None
    if beside.file_size > _LARGE:
        before_trial()
    size = header.file_size * header.split_count + beside.file_size * beside.split_count
    outcome = run_trial(
        model, settings, use_extra_bufts, 120 + size / 25e6, room=room(size, settings), head=path
    )
    if outcome.ended == "died":
        raise _death(path, outcome)
    if outcome.ended == "broken":
        raise ModelFileError(outcome.how)
    if outcome.ended != "ok":  # what does not fit is said where it is opened, better than here
        return None
    return next(iter(_remember(record, key, path)), None)


def admit_vocabulary(path: Path) -> None:
    """Find out whether a file's vocabulary alone can be loaded. Raises ModelFileError if not."""
    header = read_header(path.absolute())
    record = _recall(header)
    if record.tried:
        return
    check_vocabulary(header)
    settings = TrialSettings(threads=1, gpu_layers=0, vocab_only=True)
    if _tried(header, settings, False):
        record.tried.append(_settings_key(settings, False))
        record.keep()


def _remember(record: _Record, key: str, path: Path) -> list[str]:
    """Keep that a file survived its trial; what to say where that cannot be kept."""
    record.checks = _CHECKS
    record.tried.append(key)
    unkept = record.keep()
    return [f"{path.name} will be tried in a child process again next time: {unkept}"] if unkept else []


def _tried(header: Header, settings: TrialSettings, extra: bool) -> bool:
    """Whether it was decoded with in a child process: not where none can be started, as in some containers,
    and the check must do."""
    size = header.file_size * header.split_count
    outcome = run_trial(header.path, settings, extra, 120 + size / 25e6, _WIDTHS, room(size, settings))
    if outcome.ended in ("refused", "broken"):
        raise ModelFileError(outcome.how)
    if outcome.ended == "died":
        raise _death(header.path, outcome)
    return outcome.ended == "ok"


def _death(path: Path, outcome: Outcome) -> EngineError | ModelFileError:
    if not outcome.lasting:
        return MemoryShortage(
            f"{shown(path.name)}: the trial run was killed ({outcome.how}), most likely for want of memory; "
            "close other programs, or take a smaller model"
        )
    return ModelFileError(
        f"{shown(path)}: llama.cpp does not survive this file ({outcome.how} in a trial run): it is damaged, "
        "or not for this version; download it again, or try --flash-attn off and other --cache-type-k/v"
    )


def room(size: int, settings: TrialSettings) -> int | None:
    """Bytes of address space for the trial of a file of `size` bytes; None for no limit (a GPU's driver
    reserves more than there is memory)."""
    on_gpu = settings.gpu_layers != 0 and backend.supports_gpu_offload()
    return None if on_gpu else 2 * size + (2 << 30)


def _settings_key(settings: TrialSettings, extra: bool) -> str:
    """What a trial holds for: library, processor, and the settings, but for the number of threads, whose end is
    all the same."""
    chosen = {name: value for name, value in asdict(settings).items() if name != "threads"}
    if not backend.supports_gpu_offload():
        chosen["gpu_layers"] = 0
    here = {"build": backend.build_id(), "processor": backend.processor_id()}
    return json.dumps({**here, **chosen, "repack": extra}, sort_keys=True)


def _recall(header: Header) -> _Record:
    """What is known of the file; a record that knows nothing where there is none, or it is not what it
    should be."""
    parts = [part for part in header.parts if part.is_file()]
    known_by = [(stat.st_size, stat.st_mtime_ns) for stat in (part.stat() for part in parts)]
    record = _Record(f"{header.fingerprint} {known_by}")
    try:
        kept: Any = json.loads(record.file.read_text("utf-8"))
        if kept["holds_for"] == record.holds_for:
            tried = [str(key) for key in kept["tried"]]
            return _Record(record.holds_for, int(kept["checks"]), tried)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return record
