"""What the target hands out: its hidden rows for prediction heads, or the inputs of some of its layers for
drafts that read those (EAGLE-3, DFlash, DSpark).

llama-cpp-python does not bind the functions for layer inputs; here they are, through ctypes, under the names
that C++ compilers give them.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from specli.engine import backend
from specli.engine.hidden import Rows, copied, extension
from specli.engine.model import Model
from specli.errors import EngineError

# Architectures whose graph names the inputs of its layers. For any other the library aborts.
READABLE = frozenset(
    {
        "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan-dense", "hunyuan_vl", "lfm2", "lfm2moe",
        "llama", "mimo2", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h",
        "nemotron_h_moe", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next",
    }
)  # fmt: skip
# ... of these, those that also name what leaves the last layer, and those that hand it to prediction heads
READABLE_AT_END = frozenset({"deepseek4", "mimo2", "nemotron_h", "nemotron_h_moe"})
HIDDEN_AT_END = frozenset(
    {"bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "mimo2", "nemotron_h", "nemotron_h_moe", "qwen35",
     "qwen35moe", "qwen3next"}
)  # fmt: skip

_SYMBOLS = {
    "llama_set_embeddings_layer_inp": (
        "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
        "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
    ),
    "llama_get_embeddings_layer_inp": (
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
        "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
    ),
    "llama_model_target_layer_ids": (
        "_Z28llama_model_target_layer_idsPK11llama_model",
        "?llama_model_target_layer_ids@@YAPEBHPEBUllama_model@@@Z",
    ),
    "llama_model_target_layer_ids_n": (
        "_Z30llama_model_target_layer_ids_nPK11llama_model",
        "?llama_model_target_layer_ids_n@@YAIPEBUllama_model@@@Z",
    ),
}


@dataclass(frozen=True, slots=True)
class LayerFunctions:
    """The library's functions for layer inputs."""

    enable: Any  # (context, layer, on)
    read: Any  # (context, layer) -> float *
    target_layers: Any  # (model) -> int32 *
    n_target_layers: Any  # (model) -> uint32


def layer_functions(library: Any = None) -> LayerFunctions:
    """Bind them in `library` (None: llama.cpp's). Raises EngineError naming what this build lacks."""
    if library is None:
        return _own_functions()
    found: dict[str, Any] = {}
    for name, symbols in _SYMBOLS.items():
        for symbol in (name, *symbols):
            function = getattr(library, symbol, None)
            if function is not None:
                found[name] = function
                break
    missing = [name for name in _SYMBOLS if name not in found]
    if missing:
        raise EngineError(
            f"this build of llama.cpp cannot hand out the inputs of layers, so EAGLE-3 and block drafts do not "
            f"run with it (it lacks {', '.join(missing)}); install another llama-cpp-python"
        )
    enable, read, ids, n_ids = (found[name] for name in _SYMBOLS)
    pointer = ctypes.c_void_p
    enable.argtypes, enable.restype = [pointer, ctypes.c_uint32, ctypes.c_bool], None
    read.argtypes, read.restype = [pointer, ctypes.c_uint32], ctypes.POINTER(ctypes.c_float)
    ids.argtypes, ids.restype = [pointer], ctypes.POINTER(ctypes.c_int32)
    n_ids.argtypes, n_ids.restype = [pointer], ctypes.c_uint32
    return LayerFunctions(enable, read, ids, n_ids)


@lru_cache(maxsize=1)
def _own_functions() -> LayerFunctions:
    backend.load_library()  # says in one line what is wrong with it
    return layer_functions(getattr(importlib.import_module("llama_cpp.llama_cpp"), "_lib", object()))


def target_layers(model: Model) -> tuple[int, ...]:
    """The layers of its target that a draft reads, as the library has them from its file."""
    functions = layer_functions()
    n = int(functions.n_target_layers(model.handle))
    ids = functions.target_layers(model.handle)
    return tuple(int(ids[i]) for i in range(n))


class RowSource(Protocol):
    """Where the rows of the latest decode are. `width`: values of one row."""

    width: int

    def read(self, n: int) -> Rows:
        """The rows of the `n` tokens of the latest decode, shape (n, width), as memory of their own."""
        ...


class HiddenSource:
    """The rows that leave the model: what prediction heads take."""

    def __init__(self, handle: Any, model: Model) -> None:
        self.width = model.n_embd_out
        self._handle, self._ext = handle, extension()
        self._ext.llama_set_embeddings_nextn(handle, True, False)

    def read(self, n: int) -> Rows:
        return copied(self._ext.llama_get_embeddings_nextn(self._handle), n, self.width)


class LayerSource:
    """The inputs of `layers`, side by side. The number of layers stands for what leaves the last one."""

    def __init__(self, handle: Any, model: Model, layers: Sequence[int]) -> None:
        """Raises EngineError for layers that this model does not hand out, on which the library aborts."""
        arch = model.header.architecture
        n_layer, n_embd = model.n_layer, model.n_embd
        self._handle, self._layers, self._functions = handle, tuple(layers), layer_functions()
        at_end = n_layer in layers
        if arch not in READABLE or not all(0 <= layer <= n_layer for layer in layers):
            raise EngineError(f"{model.name} ({arch}, {n_layer} layers) does not hand out layers {layers}")
        if at_end and arch not in HIDDEN_AT_END | READABLE_AT_END:
            raise EngineError(f"{model.name} ({arch}) does not hand out what leaves its last layer")
        self._hidden = HiddenSource(handle, model) if at_end and arch not in READABLE_AT_END else None
        self._n_layer, self._n_embd = n_layer, n_embd
        self.width = n_embd * len(self._layers)
        for layer in layers:
            if layer < n_layer or self._hidden is None:
                self._functions.enable(handle, layer, True)

    def read(self, n: int) -> Rows:
        out = np.empty((n, len(self._layers), self._n_embd), np.float32)
        for i, layer in enumerate(self._layers):
            out[:, i] = self._one(layer, n)
        return out.reshape(n, self.width)

    def _one(self, layer: int, n: int) -> Rows:
        if layer == self._n_layer and self._hidden is not None:
            return self._hidden.read(n)
        pointer = self._functions.read(self._handle, layer)
        return np.ctypeslib.as_array(pointer, (n, self._n_embd))


def open_source(handle: Any, model: Model, hidden: bool, layers: Sequence[int]) -> RowSource | None:
    """What a context of `model` hands out: hidden rows, the inputs of `layers`, or nothing."""
    if layers:
        return LayerSource(handle, model, layers)
    return HiddenSource(handle, model) if hidden else None
