"""The trial run: a child process that loads a model and decodes, so that a crash hits nobody.

    python -m specli.engine.probe PATH SETTINGS USE_EXTRA_BUFTS

Exit code 0: it decoded at all widths. REFUSED: the library said no without dying; its reason is the
last line of stdout. Any other end is a death. Not for people to run: `backend.repack_verdict` does,
through `run_trial`.

SPECLI_PROBE_FAULT is a hook for tests, HOW-WHEN: the child dies (segv, kill) or hangs (hang), in any case
(always) or only when weights are repacked (repack); for example "segv-repack".
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from specli.errors import SpecliError

REFUSED = 3
FAULT_VARIABLE = "SPECLI_PROBE_FAULT"
# one row, two rows (where AMX crashes), an even tile, and more than one tile of rows
WIDTHS = (1, 2, 8, 40)


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """The user's settings that a trial run must share with the real one; as in ModelParams (`gpu_layers`,
    -1 for all) and ContextParams (`threads` for any width, `flash_attn`, and the cache's types)."""

    threads: int
    gpu_layers: int = -1
    flash_attn: str = "auto"
    type_k: str = "f16"
    type_v: str = "f16"

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

    `ended` "died": crashed or hung; "refused": the library said no without dying; "unstarted": no child.
    `lasting`: it would end so again, whatever the model's size and the memory of the moment.
    """

    ended: Literal["ok", "died", "refused", "unstarted"]
    how: str = ""
    lasting: bool = False


def run_trial(path: Path, settings: TrialSettings, extra: bool, timeout: float) -> Outcome:
    """Decode in a child process, away from the terminal; more than `timeout` seconds is a death."""
    root = str(Path(__file__).resolve().parents[2])
    # the child must find what this process found, and run no module of the directory we are in
    found = os.pathsep.join([root, *(entry for entry in sys.path if entry)])
    env = {**os.environ, "PYTHONPATH": found, "GGML_NO_BACKTRACE": "1"}
    command = [sys.executable, "-m", "specli.engine.probe", str(path), settings.to_json(), str(int(extra))]
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
    return _death(done.returncode, _last_line(done.stderr))


def _death(code: int, said: str) -> Outcome:
    """Names the signal, and adds what an abort or an ordinary failure said on stderr."""
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"exit code {code:#x}" if code > 255 else f"exit code {code}"
    crash = name not in ("SIGABRT", "exit code 1")
    # killed from outside: most likely this model was too big for the memory, which says nothing of others
    return Outcome("died", name if crash or not said else f"{name}: {said}", lasting=name != "SIGKILL")


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def main(arguments: list[str]) -> int:
    """Run one trial; returns the exit code."""
    path, settings, extra = Path(arguments[0]), TrialSettings.from_json(arguments[1]), arguments[2] == "1"
    _die_quietly()
    _fault(os.environ.get(FAULT_VARIABLE, ""), extra)
    try:
        _trial(path, settings, extra)
    except SpecliError as error:
        print(error, flush=True)
        return REFUSED
    return 0


def _die_quietly() -> None:
    """No core file, and on Windows no dialogue, if this process crashes as it may."""
    if sys.platform == "win32":
        import ctypes

        ctypes.windll.kernel32.SetErrorMode(0x0001 | 0x0002)
    else:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _fault(fault: str, extra: bool) -> None:
    how, _, when = fault.partition("-")
    if when != "always" and not (when == "repack" and extra):
        return
    if how == "hang":
        time.sleep(3600)
    if how in ("segv", "kill"):
        os.kill(os.getpid(), signal.Signals[f"SIG{how.upper()}"])


def _trial(path: Path, settings: TrialSettings, extra: bool) -> None:
    """One decode of each width, through the same code as the real run."""
    # here and not above: `backend` imports this module
    from specli.engine.context import Context, ContextParams
    from specli.engine.model import Model, ModelParams

    model = Model(path, ModelParams(gpu_layers=settings.gpu_layers, use_extra_bufts=extra))
    params = ContextParams(
        n_ctx=128,
        threads=settings.threads,
        threads_batch=settings.threads,
        flash_attn=settings.flash_attn,
        type_k=settings.type_k,
        type_v=settings.type_v,
    )
    context = Context(model, params)
    for width in WIDTHS:
        tokens = [(7 * i + 1) % context.n_vocab for i in range(width)]
        context.decode(tokens, rows=min(width, context.max_rows))


if __name__ == "__main__":
    # nothing is freed and nothing unwound: the end of the process must not be what crashes
    os._exit(main(sys.argv[1:]))
