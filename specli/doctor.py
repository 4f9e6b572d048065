"""What works on this machine, found out by trying. No printing here: `specli doctor` does that."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from specli import __version__, paths
from specli.errors import EngineError, ModelFileError, SpecliError

if TYPE_CHECKING:
    from specli.engine.context import Context
    from specli.engine.model import Model

State = Literal["ok", "note", "broken"]
NOISY = 1.25
"""Slowest over median of repeated equal decodes from which timings here cannot be trusted much."""
_PACKAGES = ("llama-cpp-python", "numpy", "huggingface-hub", "typer", "rich", "prompt-toolkit")
_WIDTH, _TIMINGS = 4, 15


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. `said`: the finding in a line; what to do is in it where it is not "ok"."""

    name: str
    state: State
    said: str


@dataclass(frozen=True, slots=True)
class Report:
    """All that was looked at, in order."""

    checks: tuple[Check, ...]

    @property
    def broken(self) -> bool:
        """Whether something does not work that specli needs."""
        return any(check.state == "broken" for check in self.checks)


def examine(model: Path | None, say: Callable[[str], None] = lambda _: None) -> Report:
    """Look at everything. `model`: the one to try things with; without it only the library is looked at."""
    checks: list[Check] = []
    for part in (_versions, _places, _library, _machine):
        _run(part.__name__.strip("_"), part(), checks)
    if any(check.name == "library" and check.state == "broken" for check in checks):
        return Report(tuple(checks))
    if model is None:
        checks.append(
            Check("model", "note", "none to try with; name one with -m to test repacking and --exact")
        )
        _run("repacking", _known_verdicts(), checks)
    else:
        _run("model", _model(model, say), checks)
    return Report(tuple(checks))


def _run(name: str, found: Iterator[Check], checks: list[Check]) -> None:
    """Take checks as they come; what fails in the middle is a finding of its own."""
    try:
        checks.extend(found)
    except (SpecliError, OSError) as error:  # a folder that may not be looked into, for example
        checks.append(Check(name, "broken", str(error)))


# -- without a model -------------------------------------------------------------------------------


def _versions() -> Iterator[Check]:
    yield Check("specli", "ok", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            yield Check("package", "broken", f"{package} is not installed: pip install {package}")
    yield Check("packages", "ok", ", ".join(found))


def _places() -> Iterator[Check]:
    from specli.download import hf_cache_dir, is_offline

    for name, path in (
        ("config directory", paths.config_dir()),
        ("cache directory", paths.cache_dir()),
        ("data directory", paths.data_dir()),
    ):
        yield _place(name, path)
    yield _config()
    from specli.profiles import available

    try:
        found = available()
        problem = next((entry.problem for entry in found if entry.problem), None)
    except SpecliError as error:
        found, problem = [], str(error)
    yield Check("profiles", "broken" if problem else "ok", problem or f"{len(found)}, all valid")
    offline = " (offline: HF_HUB_OFFLINE is set)" if is_offline() else ""
    yield Check("models folder", "ok", f"{hf_cache_dir()}{offline}")


def _place(name: str, path: Path) -> Check:
    """Whether a folder can be read and written. Unwritable it is a pity; unreadable, what is in it is not honoured."""
    try:
        os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        return Check(
            name, "broken", f"{path}: cannot be read ({error.strerror}); set another by SPECLI_*_DIR"
        )
    if os.path.isdir(path) and os.access(path, os.W_OK):
        return Check(name, "ok", str(path))
    advice = "cannot be written; nothing is remembered there, set another by SPECLI_*_DIR"
    return Check(name, "note", f"{path}: {advice}")


def _config() -> Check:
    """The user's config.toml, and the file of the default model it names."""
    from specli.config import config_path, load_config
    from specli.engine.gguf import read_header
    from specli.hub import default_model

    place = config_path()
    try:
        default = load_config().default
        file = default_model() if default else None
        if file is not None:
            read_header(file)
    except ModelFileError as error:
        said = f"{place}: the default model cannot be used: {error}; `specli models default` chooses another"
        return Check("config", "broken", said)
    except SpecliError as error:
        return Check("config", "broken", str(error))
    if not os.path.exists(place):
        return Check("config", "ok", "none, and none needed")
    return Check("config", "ok", f"{place}: {f'default model {default}' if default else 'no default model'}")


def _library() -> Iterator[Check]:
    from specli.engine import backend

    try:
        lib = backend.load_library()
        yield Check("library", "ok", f"llama-cpp-python {backend.build_id()}")
    except EngineError as error:
        yield Check("library", "broken", str(error))
        return
    features = lib.llama_print_system_info().decode(errors="replace").strip().strip("|").strip()
    yield Check("features", "ok", features or "none reported")
    for device in backend.devices():
        memory = (
            f", {device.memory_free >> 20} of {device.memory_total >> 20} MiB free"
            if device.memory_total
            else ""
        )
        yield Check("device", "ok", f"{device.name} ({device.kind}): {device.description}{memory}")
    unused = backend.unused_gpu()
    if unused:
        yield Check("GPU", "note", unused)


def _machine() -> Iterator[Check]:
    import psutil

    from specli.engine.machine import busy, other_load, physical_cores, processor_id
    from specli.engine.memory import available_bytes, gib

    logical = os.cpu_count() or 1
    yield Check(
        "processor", "ok", f"{processor_id()}, {physical_cores()} cores used of {logical} threads there are"
    )
    free = available_bytes()
    state: State = "ok" if free > 1 << 30 else "note"
    advice = "" if state == "ok" else "; close other programs, models need more"
    yield Check("memory", state, f"{gib(free)} free of {gib(int(psutil.virtual_memory().total))}{advice}")
    load = other_load()
    if load is not None:
        noisy = busy(load)
        said = f"load {load:.1f}" + ("; other programs compute too, timings will waver" if noisy else "")
        yield Check("load", "note" if noisy else "ok", said)


def _known_verdicts() -> Iterator[Check]:
    """What earlier loads found about repacking on this build and processor."""
    import json

    from specli.engine import backend

    for file in sorted(paths.cache_dir().glob("repack-*.json")):
        try:
            kept = json.loads(file.read_text("utf-8"))
            holds, reason = str(kept["holds_for"]), str(kept["reason"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        here = holds.startswith(f"{backend.build_id()} | {backend.processor_id()}")
        if here and "fault " not in holds:
            yield Check(
                "repacking", "ok" if kept.get("use_extra_bufts") else "note", f"{reason} (earlier: {file})"
            )


# -- with a model ----------------------------------------------------------------------------------


def _model(path: Path, say: Callable[[str], None]) -> Iterator[Check]:
    """Load it as chat and run would, and try what they rely on."""
    from specli.engine import backend, repack
    from specli.engine.admission import admit, sound_header
    from specli.engine.memory import gib, weight_bytes
    from specli.engine.model import Model, ModelParams
    from specli.engine.probe import TrialSettings

    header = sound_header(path)
    size = gib(weight_bytes(header))
    about = f"{path.name}: {header.architecture}, {header.file_type or 'unknown type'}, {size}"
    yield Check("model", "ok", about)
    yield _profile(path)
    threads = backend.physical_cores()
    settings = TrialSettings(threads=threads)
    verdict = repack.verdict(
        path, settings, before_trial=lambda: say("trying the library in a child process")
    )
    admit(path, settings, before_trial=lambda: say(f"trying {path.name} in a child process"))
    how = "remembered from an earlier trial" if verdict.cached else "found now"
    yield Check("repacking", "ok" if verdict.use_extra_bufts else "note", f"{verdict.reason} ({how})")
    say(f"loading {path.name}")
    with Model(path, ModelParams(use_extra_bufts=verdict.use_extra_bufts)) as model:
        yield from _contexts(model, threads, say)


def _profile(model: Path) -> Check:
    """Which profile chat and run would use, nothing else being asked for."""
    from specli import profiles, tuned
    from specli.hub import resolve_model

    settings = profiles.resolve(profiles.load())
    draft = resolve_model(settings.draft_model) if settings.draft_model else None
    found = tuned.find(model, draft, settings)
    if found is None:
        return Check("profile", "ok", f"{settings.profile}; `specli tune` finds what is fastest here")
    return Check("profile", "ok" if isinstance(found, tuned.Tuned) else "note", found.line)


def _contexts(model: Model, threads: int, say: Callable[[str], None]) -> Iterator[Check]:
    from specli.engine.context import Context, ContextParams
    from specli.engine.exact import remembered_self_test

    def params(flash: str, batch: int = 128) -> ContextParams:
        return ContextParams(1024, batch, batch, _WIDTH, threads, threads, flash)

    say("trying flash attention")
    try:
        with Context(model, params("on")) as context:
            context.decode([0] * _WIDTH, rows=_WIDTH)
        yield Check("flash attention", "ok", "works")
    except SpecliError as error:
        yield Check("flash attention", "note", f"does not work here ({error}); --flash-attn off avoids it")
    with Context(model, params("auto")) as context:
        say("testing fixed width (--exact)")
        reason, known = remembered_self_test(context, _WIDTH, 128)
        how = "remembered" if known else "tested now"
        said = (
            f"{_WIDTH} rows give the same bits whatever drafts ({how})"
            if reason is None
            else f"refused: {reason} ({how})"
        )
        yield Check("--exact", "ok" if reason is None else "note", said)
        say("timing")
        yield from _timings(context)


def _timings(context: Context) -> Iterator[Check]:
    """Equal decodes, again and again: how far their times waver, and whether they grow."""
    context.rewind(0)
    context.decode([0] * 8)
    times = []
    for _ in range(_TIMINGS):
        began = perf_counter()
        context.decode([0])
        times.append(perf_counter() - began)
    times = times[3:]  # the first ones warm up
    middle = median(times)
    yield Check("one token", "ok", f"{1e3 * middle:.1f} ms")
    spread, third = max(times) / middle, len(times) // 3
    grown = median(times[-third:]) / median(times[:third])
    if grown > NOISY:
        said = (
            f"decodes slowed down by {grown - 1:.0%} within seconds: the processor gets hot or shares power"
        )
        yield Check("timing", "note", said)
    elif spread > NOISY:
        said = f"equal decodes differ by up to {spread - 1:.0%}: other programs compute too, figures waver"
        yield Check("timing", "note", said)
    else:
        yield Check("timing", "ok", f"equal decodes differ by at most {spread - 1:.0%}")
