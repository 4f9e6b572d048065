"""A model's weights in memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from specli.engine import backend
from specli.engine.gguf import Header, read_header
from specli.engine.vocab import Vocab
from specli.errors import EngineError, Interrupted, ModelFileError
from specli.interrupts import held


@dataclass(frozen=True, slots=True)
class ModelParams:
    """How to load. `gpu_layers`: how many layers go to the GPU, -1 for all (ignored by builds without
    one). `use_extra_bufts`: let the library repack weights for this processor. `load_mtp`: load the
    prediction heads inside the model. `vocab_only`: the tokenizer alone. `mapped`: compute from the mapped
    file itself, whatever the library would choose."""

    gpu_layers: int = -1
    use_extra_bufts: bool = True
    load_mtp: bool = False
    vocab_only: bool = False
    mapped: bool = False


class Model:
    """Weights and vocabulary of one GGUF file. Close contexts first, then the model."""

    def __init__(self, path: Path, params: ModelParams | None = None) -> None:
        params = params or ModelParams()
        self.path = path
        self.params = params
        self.header: Header = read_header(path)
        self._looked, self._fingerprint = _looks(self.header), self.header.fingerprint
        self._lib = backend.load_library()
        self._handle: Any = None
        p = self._lib.llama_model_default_params()
        p.n_gpu_layers = params.gpu_layers if backend.supports_gpu_offload() else 0
        p.use_extra_bufts = params.use_extra_bufts
        p.load_mtp = params.load_mtp
        p.vocab_only = params.vocab_only
        if params.mapped:
            p.load_mode = self._lib.LLAMA_LOAD_MODE_MMAP
        handle = self._load(p)
        if not handle:
            reason = backend.library_reason()
            raise ModelFileError(
                f"{path}: the library cannot load this model{f' ({reason})' if reason else ''}"
            )
        vocab = self._lib.llama_model_get_vocab(handle)
        if not vocab:
            self._lib.llama_model_free(handle)
            raise ModelFileError(f"{path}: this file carries no tokenizer")
        self._handle = handle
        self.vocab = Vocab(vocab)

    def _load(self, params: Any) -> Any:
        """The library's pointer to the weights; given up where the user ends it. Raises what the signal raises."""
        handle = None
        try:
            with held() as interrupted:
                going_on = self._lib.llama_progress_callback(lambda _share, _data: not interrupted())
                params.progress_callback = going_on
                handle = self._lib.llama_model_load_from_file(os.fsencode(self.path), params)
            if interrupted():
                raise Interrupted(f"interrupted while {self.name} was loaded")
        except BaseException:
            if handle:
                self._lib.llama_model_free(handle)
            raise
        return handle

    def check_file(self) -> None:
        """Raises ModelFileError if the file was changed in place since it was loaded: the weights are mapped, so
        they changed too, and where the file became shorter the next decode would be the last. A file that
        another one took the place of is still the old one here."""
        now = _looks(self.header)
        same = [(was, new) for was, new in zip(self._looked, now) if was[0] == new[0]]
        if all(was == new for was, new in same):
            return
        if any(new[1] < was[1] for was, new in same) or self.header.fingerprint != self._fingerprint:
            raise ModelFileError(f"{self.path.name} was changed on the disk while it was in use; start again")
        self._looked = now

    @property
    def handle(self) -> Any:
        """The library's pointer; an error once closed."""
        if self._handle is None:
            raise EngineError(f"{self.path.name} has been closed")
        return self._handle

    @property
    def name(self) -> str:
        """What to call the model on screen: the file's name without its ending."""
        return self.path.name.removesuffix(".gguf")

    @property
    def n_embd(self) -> int:
        """Width of the hidden rows."""
        return int(self._lib.llama_model_n_embd(self.handle))

    @property
    def n_embd_out(self) -> int:
        """Width of the hidden rows that leave the model, to prediction heads among others."""
        return int(self._lib.llama_model_n_embd_out(self.handle))

    @property
    def n_layer(self) -> int:
        """Layers, prediction heads not counted."""
        return int(self._lib.llama_model_n_layer(self.handle))

    @property
    def n_layer_nextn(self) -> int:
        """Prediction heads (NextN/MTP layers) named by the file."""
        return int(self._lib.llama_model_n_layer_nextn(self.handle))

    @property
    def n_swa(self) -> int:
        """Width of the attention window in tokens, 0 where attention is not windowed."""
        return int(self._lib.llama_model_n_swa(self.handle))

    @property
    def is_recurrent(self) -> bool:
        """Whether the cache holds recurrent state, wholly or beside attention."""
        return bool(
            self._lib.llama_model_is_recurrent(self.handle) or self._lib.llama_model_is_hybrid(self.handle)
        )

    @property
    def takes_snapshots(self) -> bool:
        """Whether its cache may keep recurrent snapshots; the context says how many it really keeps."""
        # the compressed attention of deepseek4 is not called recurrent, and is rolled back by snapshots too
        return self.is_recurrent or self.header.architecture == "deepseek4"

    @property
    def size_bytes(self) -> int:
        """Bytes of the weights."""
        return int(self._lib.llama_model_size(self.handle))

    @property
    def n_params(self) -> int:
        """Number of parameters."""
        return int(self._lib.llama_model_n_params(self.handle))

    @property
    def chat_template(self) -> str | None:
        """The Jinja template of the file, None where it has none."""
        raw = self._lib.llama_model_chat_template(self.handle, None)
        return raw.decode("utf-8", "replace") if raw else None

    def close(self) -> None:
        """Free the weights. Safe to call twice."""
        if self._handle is not None:
            self.vocab.close()
            self._lib.llama_model_free(self._handle)
            self._handle = None

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _looks(header: Header) -> list[tuple[int, int, int]]:
    """Which file each part is, its size and time; zeros for one that is not there."""
    looks = []
    for part in header.parts:
        try:
            found = part.stat()
            looks.append((found.st_ino, found.st_size, found.st_mtime_ns))
        except OSError:
            looks.append((0, 0, 0))
    return looks
