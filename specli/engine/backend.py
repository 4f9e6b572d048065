"""Everything about the library and what it runs on, nothing about a loaded model."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import importlib
import os
import re
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specli import lastwords
from specli.engine.machine import ROOT, find_gpu, physical_cores, processor_id
from specli.errors import EngineError

__all__ = [
    "Device",
    "build_id",
    "devices",
    "last_library_errors",
    "library_reason",
    "load_library",
    "physical_cores",
    "processor_id",
    "set_verbose",
    "supports_gpu_offload",
    "unused_gpu",
]

OLDEST_VERSION = "0.3.36"
# what specli/engine calls; one that is missing is found here and not in the middle of an answer
API = (
    "llama_backend_init", "llama_batch_free", "llama_batch_init", "llama_context_default_params",
    "llama_decode", "llama_encode", "llama_free", "llama_get_logits", "llama_get_memory", "llama_init_from_model",
    "llama_log_callback", "llama_log_set", "llama_memory_clear", "llama_memory_seq_cp", "llama_memory_seq_pos_max",
    "llama_memory_seq_rm", "llama_model_chat_template", "llama_model_default_params", "llama_model_free",
    "llama_model_get_vocab", "llama_model_is_hybrid", "llama_model_is_recurrent",
    "LLAMA_CONTEXT_TYPE_MTP", "LLAMA_LOAD_MODE_MMAP", "llama_model_load_from_file", "llama_model_n_embd",
    "llama_model_n_embd_out", "llama_model_n_layer", "llama_model_n_layer_nextn", "llama_model_n_params", "llama_model_n_swa",
    "llama_model_quantize", "llama_model_quantize_default_params", "llama_model_size",
    "llama_n_ctx", "llama_n_rs_seq", "llama_pos", "llama_print_system_info", "llama_progress_callback", "llama_sampler_accept",
    "llama_sampler_apply", "llama_sampler_clone", "llama_sampler_free", "llama_sampler_init_grammar",
    "llama_set_causal_attn",
    "llama_state_seq_get_data_ext", "llama_state_seq_get_size_ext", "llama_state_seq_set_data_ext",
    "llama_supports_gpu_offload", "llama_token", "llama_token_data", "llama_token_data_array",
    "llama_token_to_piece", "llama_tokenize", "llama_vocab_bos", "llama_vocab_eos", "llama_vocab_eot",
    "llama_vocab_get_add_bos", "llama_vocab_get_add_eos", "llama_vocab_get_attr", "llama_vocab_get_text",
    "llama_vocab_is_control", "llama_vocab_is_eog", "llama_vocab_n_tokens", "llama_vocab_type",
)  # fmt: skip
# likewise the fields of its parameter records: ctypes would take a misnamed one without a word
FIELDS = {
    "llama_model_params": ("load_mode", "load_mtp", "n_gpu_layers", "progress_callback", "use_extra_bufts", "vocab_only"),
    "llama_context_params": (
        "ctx_other", "ctx_type", "flash_attn_type", "n_batch", "n_ctx", "n_outputs_max", "n_rs_seq",
        "n_threads", "n_threads_batch", "n_ubatch", "swa_full", "type_k", "type_v",
    ),
}  # fmt: skip


class _Log:
    """Takes the library's log: keeps warnings and errors, prints all of it only when verbose."""

    _WARN, _ERROR, _CONTINUED = 3, 4, 5

    def __init__(self) -> None:
        self.kept: deque[str] = deque(maxlen=50)
        self.reason = ""
        self.verbose = False
        self.callback: Any = None
        self.on_abort: Any = None
        self._level = 0
        self._line = ""

    def __call__(self, level: int, text: bytes | None, _data: Any) -> None:
        said = (text or b"").decode(errors="replace")
        if self.verbose:
            with contextlib.suppress(OSError, ValueError):  # stderr is closed: nobody reads it
                sys.stderr.write(said)
                sys.stderr.flush()
        if level != self._CONTINUED:
            self._end_line()
            self._level = level
        self._line += said
        if self._line.endswith("\n"):
            self._end_line()

    def _end_line(self) -> None:
        line, self._line = self._line.strip(), ""
        if not line or self._level not in (self._WARN, self._ERROR):
            return
        self.kept.append(line)
        # less the names of C functions; the last word on a load says only that there was no load
        bare = re.sub(r"^(\w+: |error loading model: )+", "", line)
        if self._level == self._ERROR and bare != "failed to load model":
            self.reason = bare


_log = _Log()


def set_verbose(verbose: bool) -> None:
    """Whether the library's own log goes to stderr."""
    _log.verbose = verbose


def last_library_errors() -> list[str]:
    """The latest warnings and errors of the library's log, oldest first, at most 50 lines."""
    return list(_log.kept)


def library_reason() -> str:
    """Why the library refused what it was last asked, in its words; empty if it gave no reason."""
    return _log.reason


@functools.cache
def load_library() -> Any:
    """The module llama_cpp, imported once, silent, checked and initialised.

    Raises EngineError where it is not installed, does not load, or lacks something specli uses.
    """
    try:
        lib = importlib.import_module("llama_cpp")
    except ModuleNotFoundError as error:
        if error.name != "llama_cpp":
            raise EngineError(f"llama-cpp-python does not load: {error}; reinstall it") from error
        wanted = f"pip install 'llama-cpp-python>={OLDEST_VERSION}'"
        raise EngineError(f"llama-cpp-python is not installed: {wanted}") from error
    except Exception as error:  # a shared library that is missing or broken raises all sorts
        said = " ".join(str(error).split())
        raise EngineError(f"llama-cpp-python does not load: {said}; reinstall it for this machine") from error
    check_api(lib)
    _take_log(lib)
    if lastwords.installed():
        _take_abort_message()
    lib.llama_backend_init()
    return lib


def check_api(lib: Any) -> None:
    """Raises EngineError naming what the module `lib` lacks of what specli calls."""
    lacks = [name for name in API if not hasattr(lib, name)]
    for record, fields in FIELDS.items():
        has = {field[0] for field in getattr(getattr(lib, record, None), "_fields_", ())}
        lacks += [f"{record}.{field}" for field in fields if field not in has]
    if lacks:
        shown = ", ".join(lacks[:3]) + (f" and {len(lacks) - 3} more" if len(lacks) > 3 else "")
        version = getattr(lib, "__version__", "of unknown version")
        raise EngineError(f"llama-cpp-python {version} lacks {shown}; install >={OLDEST_VERSION}")


def _take_log(lib: Any) -> None:
    _log.callback = lib.llama_log_callback(_log)
    lib.llama_log_set(_log.callback, None)
    # backends may log while the process is torn down, when Python can no longer be called:
    # leave them a C function that does nothing
    nothing = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, lib.llama_log_callback)
    atexit.register(lib.llama_log_set, nothing, None)


def _take_abort_message() -> None:
    """What the library says when it ends the process goes into our last line, not before it."""
    kind = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
    with contextlib.suppress(AttributeError):  # an older libggml says it itself
        _log.on_abort = kind(lambda said: lastwords.because((said or b"").decode(errors="replace")))
        take = importlib.import_module("llama_cpp._ggml").libggml.ggml_set_abort_callback
        take.argtypes, take.restype = [kind], ctypes.c_void_p
        take(_log.on_abort)


def _library_directory(lib: Any) -> Path:
    """Where the shared libraries lie that were really loaded."""
    loaded = getattr(getattr(lib.llama_cpp, "_lib", None), "_name", "")
    return Path(loaded).parent if loaded else Path(lib.__file__).parent / "lib"


@functools.cache
def build_id() -> str:
    """Version of the library and a hash of its build: features it reports, sizes and times of its files."""
    lib = load_library()
    digest = hashlib.sha256(lib.llama_print_system_info())
    for file in sorted(_library_directory(lib).iterdir()):
        if "ggml" in file.name or "llama" in file.name:
            found = file.stat()
            digest.update(f"{file.name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return f"{lib.__version__}-{digest.hexdigest()[:12]}"


DeviceKind = Literal["cpu", "gpu", "igpu", "accel"]
_KINDS: tuple[DeviceKind, ...] = ("cpu", "gpu", "igpu", "accel")


@dataclass(frozen=True, slots=True)
class Device:
    """Something the library can compute on. Memory in bytes; 0 where the library does not know."""

    name: str
    description: str
    kind: DeviceKind
    memory_total: int
    memory_free: int


def devices() -> tuple[Device, ...]:
    """What this build of the library finds to compute on, in its order."""
    load_library()
    ggml = _ggml()
    return tuple(_device(ggml, ggml.ggml_backend_dev_get(i)) for i in range(ggml.ggml_backend_dev_count()))


@functools.cache
def _ggml() -> Any:
    """libggml with the signatures of the device functions, which llama-cpp-python does not declare."""
    ggml = importlib.import_module("llama_cpp._ggml").libggml
    pointer, size = ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)
    for name, result, arguments in (
        ("count", ctypes.c_size_t, []),
        ("get", pointer, [ctypes.c_size_t]),
        ("name", ctypes.c_char_p, [pointer]),
        ("description", ctypes.c_char_p, [pointer]),
        ("type", ctypes.c_int, [pointer]),
        ("memory", None, [pointer, size, size]),
    ):
        try:
            function = getattr(ggml, f"ggml_backend_dev_{name}")
        except AttributeError:
            raise EngineError(f"libggml lacks ggml_backend_dev_{name}: reinstall llama-cpp-python") from None
        function.restype, function.argtypes = result, arguments
    return ggml


def _device(ggml: Any, handle: int) -> Device:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
    number = ggml.ggml_backend_dev_type(handle)
    kind: DeviceKind = _KINDS[number] if 0 <= number < len(_KINDS) else "accel"
    name = ggml.ggml_backend_dev_name(handle).decode(errors="replace")
    said = ggml.ggml_backend_dev_description(handle).decode(errors="replace")
    return Device(name, said, kind, total.value, _really_free(kind, free.value))


def _really_free(kind: DeviceKind, reported: int) -> int:
    """For the CPU the library calls all memory free; ask the system instead."""
    if kind != "cpu":
        return reported
    import psutil

    return int(psutil.virtual_memory().available)


def supports_gpu_offload() -> bool:
    """Whether this build of the library has found a GPU it can use."""
    return bool(load_library().llama_supports_gpu_offload())


def unused_gpu(root: Path = ROOT) -> str | None:
    """One line on a GPU of this machine that this build of the library cannot use, or None.

    It names the GPU and the install line of a build that could. `root`: where /proc and /sys are looked for.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if hidden or supports_gpu_offload():
        return None
    gpu = find_gpu(root)
    if gpu is None:
        return None
    lacks = f"{gpu.name} is not used: this build of llama.cpp lacks {gpu.backend}"
    return f"{lacks}; get it with: {gpu.install_line}"
