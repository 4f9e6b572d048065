"""Whether the library may repack weights for this processor: found out once, in a child process, and kept."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from specli import paths
from specli.engine import backend
from specli.engine.gguf import Header, read_header
from specli.engine.gguf_types import REPACKED
from specli.engine.probe import FAULT_VARIABLE, Outcome, TrialSettings, run_trial
from specli.errors import EngineError, SpecliError

# types whose matrices some processor's extra buffers take over; KleidiAI and AMX those of floats too
_TAKEN_OVER = REPACKED | {"F16", "F32"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the library may repack weights for this processor (`model_params.use_extra_bufts`).

    `cached`: read from the cache directory, no trial was run. `notice`: what to tell the user, once.
    `tried`: this very file was decoded with just now, with what is decided here.
    """

    use_extra_bufts: bool
    reason: str
    cached: bool = False
    notice: str | None = None
    tried: bool = False


def verdict(
    model_path: str | os.PathLike[str],
    settings: TrialSettings,
    *,
    force_off: bool = False,
    timeout: float | None = None,
    before_trial: Callable[[], None] | None = None,
    header: Header | None = None,
) -> Verdict:
    """Find out, in a child process, whether weight repacking crashes on this processor.

    The child decodes with the model at `model_path` and the user's settings. The verdict is kept under
    library build, processor, operating system, architecture, repackable tensor types, and GPU or not.
    Call it before loading the model: the child needs the memory. `timeout` in seconds: the default is
    120 and 1 more for each 25 MB; a hang counts as a death. `before_trial` is called when a trial is
    really to be run. `header`: the file's, where it has been read already.

    Raises EngineError if the child dies without repacking too, ModelFileError for a file that is no model.
    """
    if force_off:
        return Verdict(False, "weight repacking is switched off (--no-repack)")
    path = Path(model_path).absolute()  # links kept: parts of a split model are found by their names
    header = header or read_header(path)
    key = _verdict_key(header, settings)
    if key is None:
        return Verdict(True, "nothing to repack: no tensor of a type that is repacked")
    file = paths.cache_dir() / f"repack-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    known = _recall(file, key)
    if known is not None:
        return known
    if before_trial is not None:
        before_trial()
    limit = timeout if timeout is not None else 120 + header.file_size * header.split_count / 25e6
    found, lasting = _try(path, settings, limit)
    unkept = _remember(file, key, found) if lasting else "it may be another time"
    if found.notice is None:
        return found
    memory = f"not remembered: {unkept}" if unkept else f"remembered in {file}"
    return replace(found, notice=f"{found.notice}; {memory}")


def _verdict_key(header: Header, settings: TrialSettings) -> str | None:
    """What a verdict holds for, as text; None where the model has nothing that could be repacked."""
    parts = (read_header(part) for part in header.parts) if header.is_split else (header,)
    matrices = (tensor for part in parts for tensor in part.tensors if len(tensor.dims) > 1)
    types = sorted({tensor.type.name for tensor in matrices} & _TAKEN_OVER)
    if not types:
        return None
    gpu = settings.gpu_layers != 0 and backend.supports_gpu_offload()
    key = [
        backend.build_id(),
        backend.processor_id(),
        f"{platform.system()} {platform.release()}",
        header.architecture,
    ]
    key += ["+".join(types), "gpu" if gpu else "cpu"]
    # a fault provoked in a test must not be remembered as one of this processor
    fault = os.environ.get(FAULT_VARIABLE)
    return " | ".join(key + ([f"fault {fault}"] if fault else []))


def _recall(file: Path, key: str) -> Verdict | None:
    """The verdict kept in `file`; None where there is none, or the file is not what it should be."""
    try:
        kept = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(kept, dict) or kept.get("holds_for") != key:
        return None
    extra, reason = kept.get("use_extra_bufts"), kept.get("reason")
    if not isinstance(extra, bool) or not isinstance(reason, str):
        return None
    return Verdict(extra, reason, cached=True)


def _remember(file: Path, key: str, found: Verdict) -> str:
    """Keep a verdict for later runs; returns why that failed, or nothing."""
    kept = {"holds_for": key, "use_extra_bufts": found.use_extra_bufts, "reason": found.reason}
    try:
        paths.write_atomic(file, json.dumps(kept, indent=1) + "\n")
    except SpecliError as error:
        return str(error)
    return ""


def _try(path: Path, settings: TrialSettings, timeout: float) -> tuple[Verdict, bool]:
    """One trial with repacking and, if it fails, one without. Also says whether that will stay so."""
    first = run_trial(path, settings, True, timeout)
    if first.ended == "ok":
        return Verdict(True, "weight repacking works in a trial run", tried=True), True
    if first.ended == "unstarted":
        why = f"no trial run could be started ({first.how}): going on without weight repacking"
        return Verdict(False, why, notice=why), False
    second = run_trial(path, settings, False, timeout)
    if second.ended == "died":
        raise EngineError(
            f"llama.cpp crashes here with {path.name} even without weight repacking ({second.how} in the "
            "trial run): try --gpu-layers 0 or --flash-attn off, or reinstall llama-cpp-python"
        )
    if first.ended in ("refused", "broken") and second.ended != "ok":
        # nothing crashes: the real load will be refused in the same way, and say it better
        return Verdict(True, f"the library refused the trial run: {first.how}"), False
    return replace(_off(first), tried=second.ended == "ok"), first.lasting and second.ended == "ok"


def _off(first: Outcome) -> Verdict:
    crash = "this processor crashes llama.cpp's weight repacking"
    if first.ended == "broken":
        crash = "weight repacking computes wrongly on this processor"
    why = f"{crash if first.lasting else 'weight repacking fails here'} ({first.how} in the trial run)"
    return Verdict(False, why, notice=f"{why}: going on without it")
