"""Models and contexts, opened as the machine's part of the settings says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from specli.casting import CastList, Request
from specli.engine import backend, context
from specli.engine.context import Context, ContextParams
from specli.engine.gguf import Header, read_header
from specli.engine.memory import Load, available_bytes, default_ctx_size, require_memory
from specli.engine.model import Model, ModelParams
from specli.engine.opening import snapshot_rows

Say = Callable[[str], None]
_CPU_CHUNK = 128  # tokens of a prompt between two looks at Ctrl-C: about a second on two cores


class Loader:
    """Opens what a request needs; `stack` closes it, the latest first.

    `say` gets a line on what takes long, `notice` what is worth keeping. `chunk`: tokens of a prompt that
    one decode takes. `cast_list`: who can draft.
    """

    def __init__(self, request: Request, stack: ExitStack, say: Say, notice: Say) -> None:
        self.request = request
        self._settings = s = request.settings
        self._stack, self._say, self._notice = stack, say, notice
        self.threads = s.threads or backend.physical_cores()
        self.on_gpu = backend.supports_gpu_offload() and s.gpu_layers != 0
        self.chunk = s.batch_size if self.on_gpu else min(_CPU_CHUNK, s.batch_size)
        self.cast_list = CastList(request)
        self.methods = self.cast_list.methods(s, notice)

    # -- the target -----------------------------------------------------------------------------

    def open_target(self) -> Context:
        """The target with an empty cache; its weights are `Context.model`. Refuses with the figures now what
        would die in the middle of an answer."""
        self._check_memory()
        inside = "draft-mtp" in self.methods and self.cast_list.draft_heads is None
        model = self.open_model(self.request.model, self._settings.gpu_layers, load_mtp=inside)
        return self._open_context(model, self._ctx_size(model.header), self._rows(), is_target=True)

    def _rows(self) -> int:
        if self._settings.fixed_width is not None:
            return self._settings.fixed_width
        return context.MAX_ROWS if self.methods else 1

    def _ctx_size(self, header: Header) -> int:
        s = self._settings
        return s.ctx_size or default_ctx_size(header, s.cache_type_k, s.cache_type_v)

    def _check_memory(self) -> None:
        s = self._settings
        target = read_header(self.request.model)
        n_ctx = self._ctx_size(target)
        loads = [self._load_of(target, n_ctx, self._rows(), s.gpu_layers)]
        drafts = {"auto", "draft-model"} & set(s.types) or s.origin("draft-model") == "flag"
        if self.request.draft is not None and drafts:
            loads.append(self._load_of(read_header(self.request.draft), n_ctx, 1, s.spec_draft_ngl))
        gpus = [d for d in backend.devices() if d.kind in ("gpu", "igpu")] if self.on_gpu else []
        require_memory(loads, available_bytes(), sum(d.memory_free for d in gpus))

    def _load_of(self, header: Header, n_ctx: int, rows: int, gpu_layers: int | None) -> Load:
        s = self._settings
        on_gpu = (-1 if gpu_layers is None else gpu_layers) if self.on_gpu else 0
        n_ubatch = max(rows, min(512, self.chunk))
        return Load(header, n_ctx, n_ubatch, rows, s.cache_type_k, s.cache_type_v, on_gpu)

    # -- anything -------------------------------------------------------------------------------

    def open_model(self, path: Path, gpu_layers: int | None, load_mtp: bool = False) -> Model:
        """A file's weights, repacked for this processor where that is known to work."""
        s = self._settings
        trial = backend.TrialSettings(
            threads=self.threads,
            gpu_layers=-1 if gpu_layers is None else gpu_layers,
            flash_attn=s.flash_attn,
            type_k=s.cache_type_k,
            type_v=s.cache_type_v,
        )
        verdict = backend.repack_verdict(
            path,
            trial,
            force_off=s.no_repack,
            before_trial=lambda: self._say("trying this library on this processor, once…"),
        )
        if verdict.notice:
            self._notice(verdict.notice)
        params = ModelParams(-1 if gpu_layers is None else gpu_layers, verdict.use_extra_bufts, load_mtp)
        return self._stack.enter_context(Model(path, params))

    def open_draft_context(self, model: Model, n_ctx: int) -> Context:
        """An empty cache of a draft model: one row at a time."""
        return self._open_context(model, n_ctx, 1, is_target=False)

    def _open_context(self, model: Model, n_ctx: int, rows: int, is_target: bool) -> Context:
        s = self._settings
        snapshots = 0
        if (
            is_target and model.takes_snapshots and rows > 1
        ):  # each row can be gone back to, at a state's cost
            rows = s.fixed_width or min(rows, snapshot_rows(model.header, available_bytes()))
            snapshots = rows - 1
        n_batch = max(rows + 1, self.chunk)
        params = ContextParams(
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=max(rows + 1, min(512, n_batch)),
            max_rows=rows,
            threads=self.threads,
            threads_batch=s.threads_batch or self.threads,
            flash_attn=s.flash_attn,
            type_k=s.cache_type_k,
            type_v=s.cache_type_v,
            swa_full=s.swa_full or not is_target,  # drafts are cut too often for the small one
            snapshots=snapshots,
            hidden=is_target and "draft-mtp" in self.methods,
        )
        return self._stack.enter_context(Context(model, params))
