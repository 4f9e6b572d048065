"""The trial run: a child process that loads a model and decodes, so that a crash hits nobody.

    python -m specli.engine.probe PATH SETTINGS USE_EXTRA_BUFTS WIDTHS ROOM [HEAD]

Exit code 0: it decoded at all widths, and drafted with the file HEAD. REFUSED: the library said no without dying; its reason is the
last line of stdout. BROKEN: likewise, and so it does wherever it is loaded. Any other end is a death. Not for people to run: `admission.admit` and
`repack.verdict` do, through `run_trial`. ROOM: bytes of address space, 0 for any.

SPECLI_PROBE_FAULT is a hook for tests, HOW-WHEN: the child dies (segv, kill) or hangs (hang), in any case
(always) or only when weights are repacked (repack); for example "segv-repack".
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from specli.errors import SpecliError
from specli.lastwords import without_folders

if TYPE_CHECKING:
    from specli.core.types import Logits
    from specli.engine.opening import ContextParams

REFUSED, BROKEN = 3, 4
FAULT_VARIABLE = "SPECLI_PROBE_FAULT"
# one row, two rows (where AMX crashes), an even tile, and more than one tile of rows
WIDTHS = (1, 2, 8, 40)
_TOKENS, _BATCH, _HEAD_TOKENS = 128, 64, 8


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """The user's settings that a trial run must share with the real one; as in ModelParams (`gpu_layers`,
    -1 for all, `load_mtp`, `vocab_only`) and ContextParams (`threads` for any width, `flash_attn`, the
    cache's types)."""

    threads: int
    gpu_layers: int = -1
    flash_attn: str = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    load_mtp: bool = False
    vocab_only: bool = False

    def to_json(self) -> str:
        """As one argument of the child's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TrialSettings:
        """What `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended; `how` says it in a few words, empty after "ok".

    `ended` "died": crashed or hung; "refused": the library said no without dying; "broken": it computes no numbers;
    "unstarted": no child.
    `lasting`: it would end so again, whatever the model's size and the memory of the moment.
    """

    ended: Literal["ok", "died", "refused", "broken", "unstarted"]
    how: str = ""
    lasting: bool = False


def run_trial(
    path: Path,
    settings: TrialSettings,
    extra: bool,
    timeout: float,
    widths: Sequence[int] = WIDTHS,
    room: int | None = None,
    head: Path | None = None,
) -> Outcome:
    """Decode in a child process, away from the terminal; more than `timeout` seconds is a death.

    `room`: bytes of address space that the child may take for the model, None for any. `head`: a file that drafts
    from the model's hidden rows, tried beside it.
    """
    root, env = child_environment()
    arguments = [str(path), settings.to_json(), str(int(extra)), json.dumps(list(widths)), str(room or 0)]
    command = [sys.executable, "-m", "specli.engine.probe", *arguments, *([str(head)] if head else [])]
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return Outcome("died", f"no end within {timeout:.0f} s", lasting=True)
    except OSError as error:
        return Outcome("unstarted", error.strerror or str(error))
    if done.returncode == 0:
        return Outcome("ok", lasting=True)
    if done.returncode == REFUSED:
        return Outcome("refused", _last_line(done.stdout))
    if done.returncode == BROKEN:
        return Outcome("broken", _last_line(done.stdout), lasting=True)
    return _death(done.returncode, _last_line(done.stderr))


def child_environment() -> tuple[str, dict[str, str]]:
    """Working directory and environment of a Python child, which must find what this process found, and run
    no module of the directory we are in."""
    root = str(Path(__file__).resolve().parents[2])
    found = os.pathsep.join([root, *(entry for entry in sys.path if entry)])
    return root, {**os.environ, "PYTHONPATH": found, "GGML_NO_BACKTRACE": "1"}


def _death(code: int, said: str) -> Outcome:
    """Names the signal, and adds what an abort or an ordinary failure said on stderr."""
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"exit code {code:#x}" if code > 255 else f"exit code {code}"
    crash = name not in ("SIGABRT", "exit code 1")
    # killed from outside: most likely this model was too big for the memory, which says nothing of others
    return Outcome(
        "died", name if crash or not said else f"{name}: {without_folders(said)}", lasting=name != "SIGKILL"
    )


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def main(arguments: list[str]) -> int:
    """Run one trial; returns the exit code."""
    path, settings, extra = Path(arguments[0]), TrialSettings.from_json(arguments[1]), arguments[2] == "1"
    _die_quietly()
    _fault(os.environ.get(FAULT_VARIABLE, ""), extra)
    try:
        _limit(int(arguments[4]))
        if len(arguments) > 5:
            exercise_head(path, Path(arguments[5]), settings, extra)
        else:
            exercise(path, settings, extra, json.loads(arguments[3]))
    except MemoryError:
        print(f"{path.name}: loading it takes far more memory than its size", flush=True)
        return REFUSED
    except NoNumbers:
        broken = Path(arguments[5]) if len(arguments) > 5 else path
        print(f"{broken}: it computes no numbers (NaN): the file is damaged; download it again", flush=True)
        return BROKEN
    except SpecliError as error:
        print(error, flush=True)
        return REFUSED
    return 0


class NoNumbers(Exception):
    """What was computed is NaN."""


def _require_numbers(row: Logits) -> None:
    if math.isnan(float(row.max())):
        raise NoNumbers


def _die_quietly() -> None:
    """No core file, and on Windows no dialogue, if this process crashes as it may."""
    if sys.platform == "win32":
        import ctypes

        ctypes.windll.kernel32.SetErrorMode(0x0001 | 0x0002)
    else:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit(room: int) -> None:
    """No more address space than `room` bytes beyond what the library itself takes, where the system can
    say how much that is."""
    if not room or not sys.platform.startswith("linux"):
        return
    import resource

    from specli.engine.backend import load_library

    load_library()
    with contextlib.suppress(OSError, ValueError):
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = held + room if most == resource.RLIM_INFINITY else min(held + room, most)
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def _fault(fault: str, extra: bool) -> None:
    how, _, when = fault.partition("-")
    if when != "always" and not (when == "repack" and extra):
        return
    if how == "hang":
        time.sleep(3600)
    if how in ("segv", "kill"):
        os.kill(os.getpid(), signal.Signals[f"SIG{how.upper()}"])


def exercise(path: Path, settings: TrialSettings, extra: bool, widths: Sequence[int] = WIDTHS) -> None:
    """Load, spell the vocabulary, and decode once at each width, through the same code as the real run."""
    # here and not above: `backend` imports this module
    from specli.engine.context import Context
    from specli.engine.model import Model, ModelParams
    from specli.engine.mtp import Heads
    from specli.engine.nextn import file_heads

    loading = ModelParams(settings.gpu_layers, extra, settings.load_mtp, settings.vocab_only)
    model = Model(path, loading)
    for token in range(model.vocab.n_tokens):
        model.vocab.piece(token)
    if settings.vocab_only:
        return
    model.vocab.tokenize(" Hi\n\n<|é1", special=True)
    snapshots = max(widths) - 1 if model.takes_snapshots else 0
    params = replace(context_params(settings), snapshots=snapshots, hidden=settings.load_mtp)
    context = Context(model, params)
    runs_heads = settings.load_mtp and file_heads(model.header).problem is None
    heads = Heads(context, params) if runs_heads else None
    for width in widths:
        tokens = [(7 * i + 1) % context.n_vocab for i in range(width)]
        for row in context.decode(tokens, rows=min(width, context.max_rows)):
            _require_numbers(row)
    if heads is not None:
        _require_numbers(heads.extend(int(heads.start(1).argmax())))


def exercise_head(path: Path, head: Path, settings: TrialSettings, extra: bool) -> None:
    """Draft with a file of prediction heads, an EAGLE-3 head or a block draft, beside the model at `path`."""
    from specli.engine.blocks import Blocks
    from specli.engine.context import Context
    from specli.engine.eagle3 import Eagle
    from specli.engine.features import feature_draft
    from specli.engine.gguf import read_header
    from specli.engine.model import Model, ModelParams
    from specli.engine.mtp import Heads

    found = feature_draft(read_header(head))
    target = Model(path, ModelParams(settings.gpu_layers, extra))
    own = Model(head, ModelParams(settings.gpu_layers, extra, load_mtp=found is None))
    layers = found.layers if found is not None else ()
    params = replace(context_params(settings), hidden=found is None, layers=layers)
    context = Context(target, params)
    tokens = [7 * i % context.n_vocab for i in range(_HEAD_TOKENS)]
    if found is not None and found.block > 1:
        blocks = Blocks(context, params, own)
        context.decode(tokens, rows=1)
        for row in blocks.propose(1, found.most or 1):
            _require_numbers(row)
        return
    cache = Heads(context, params, own) if found is None else Eagle(context, params, own)
    context.decode(tokens, rows=1)
    for _ in range(2):
        first = cache.start(1)
        _require_numbers(first)
        _require_numbers(cache.extend(int(first.argmax())))
        context.decode([1, 2], rows=1)


def context_params(settings: TrialSettings) -> ContextParams:
    """Those of a trial: a small context, with what the user set."""
    from specli.engine.opening import ContextParams

    return ContextParams(
        n_ctx=_TOKENS,
        n_batch=_BATCH,
        n_ubatch=_BATCH,
        threads=settings.threads,
        threads_batch=settings.threads,
        flash_attn=settings.flash_attn,
        type_k=settings.type_k,
        type_v=settings.type_v,
    )


if __name__ == "__main__":
    # nothing is freed and nothing unwound: the end of the process must not be what crashes
    os._exit(main(sys.argv[1:]))
