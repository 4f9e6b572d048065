"""Models and contexts, opened as the machine's part of the settings says."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from specli import pruned
from specli.casting import CastList, Request
from specli.engine import backend, context, template
from specli.engine.admission import admit, admit_head, sound_header
from specli.engine.context import Context, ContextParams
from specli.engine.features import KINDS as FEATURES
from specli.engine.gguf import Header, read_header
from specli.engine.memory import Load, available_bytes, default_ctx_size, require_memory
from specli.engine.model import Model, ModelParams
from specli.engine.opening import CELLS, snapshot_rows, state_bytes
from specli.engine.probe import TrialSettings
from specli.errors import UsageError
from specli.settings import Settings

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
        self.threads = self._bounded("threads", s.threads) or backend.physical_cores()
        self._threads_batch = self._bounded("threads-batch", s.threads_batch) or self.threads
        self.on_gpu = backend.supports_gpu_offload() and s.gpu_layers != 0
        self.chunk = s.batch_size if self.on_gpu else min(_CPU_CHUNK, s.batch_size)
        self.cast_list = CastList(request)
        self.methods = self.cast_list.methods(s, notice)
        self.tree = s.tree_size if self.cast_list.tree_method(s, self.methods, notice) else None
        self._repacks = False  # the target's weights

    def _bounded(self, name: str, threads: int | None) -> int | None:
        """No more than there are processors: threads that wait for their turn spin, and nothing gets done."""
        most = os.cpu_count() or 1
        if threads is None or threads <= most:
            return threads
        self._notice(f"--{name} {threads}: this machine has {most} processors, so {most} threads are used")
        return most

    # -- the target -----------------------------------------------------------------------------

    def open_target(self) -> Context:
        """The target with an empty cache; its weights are `Context.model`. Refuses with the figures now what
        would die in the middle of an answer."""
        self._check_memory()
        template.prepare()
        self._try_head()
        self._say_rounded()
        model = self.open_model(self.request.model, self._settings.gpu_layers, load_mtp=self._heads_inside)
        self._repacks = model.params.use_extra_bufts and model.header.repackable
        return self._open_context(model, self._ctx_size(model.header), self._rows(), is_target=True)

    def _rows(self) -> int:
        if self._settings.fixed_width is not None:
            return self._settings.fixed_width
        return context.MAX_ROWS if self.methods else 1

    @property
    def _heads_inside(self) -> bool:
        """Whether prediction heads in the target's own file draft."""
        return "draft-mtp" in self.methods and self.cast_list.draft_heads is None

    def _ctx_size(self, header: Header) -> int:
        s = self._settings
        return s.ctx_size or default_ctx_size(
            header, s.cache_type_k, s.cache_type_v, heads_inside=self._heads_inside
        )

    def _say_rounded(self) -> None:
        asked = self._settings.ctx_size
        if asked and asked % CELLS:
            size = -(-asked // CELLS) * CELLS
            self._notice(
                f"--ctx-size {asked}: contexts are whole multiples of {CELLS} tokens, so it is {size}"
            )

    def _check_memory(self) -> None:
        s = self._settings
        target = sound_header(self.request.model)
        n_ctx = self._ctx_size(target)
        rows = self._rows()
        loads = [replace(self._load_of(target, n_ctx, rows, s.gpu_layers), state=_states(target, rows, s))]
        if self._heads_inside:
            heads = self._load_of(target, n_ctx, self.cast_list.heads.heads, s.gpu_layers)
            loads.append(replace(heads, heads_inside=True))
        drafts = {"auto", "draft-model", *FEATURES} & set(s.types) or s.origin("draft-model") == "flag"
        drafts = drafts or (self.cast_list.draft_heads is not None and "draft-mtp" in self.methods)
        if self.request.draft is not None and drafts:
            loads.append(
                self._load_of(read_header(self.request.draft), n_ctx, self._draft_rows, s.spec_draft_ngl)
            )
        if pruned.METHOD in self.methods:
            copy = pruned.draft_header(self.request.model, self.layer_set)
            loads.append(self._load_of(copy, n_ctx, self._draft_rows, s.spec_draft_ngl))
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
        extra = self._admitted(path, gpu_layers, load_mtp)
        params = ModelParams(-1 if gpu_layers is None else gpu_layers, extra, load_mtp)
        return self._stack.enter_context(Model(path, params))

    def _admitted(self, path: Path, gpu_layers: int | None, load_mtp: bool) -> bool:
        """Whether a file's weights may be repacked; says what there is to say of it."""
        admitted = admit(
            path,
            self._trial(gpu_layers, load_mtp),
            no_repack=self._settings.no_repack,
            before_repack_trial=lambda: self._say(
                "trying this library on this processor with this kind of model, once…"
            ),
            before_trial=lambda: self._say_trying(path),
        )
        for line in admitted.notices:
            self._notice(line)
        return admitted.use_extra_bufts

    def _say_trying(self, path: Path) -> None:
        self._say(f"trying {path.name} in a process of its own, once…")

    def _try_head(self) -> None:
        """A file that drafts beside the target is tried with it, before the target takes up memory here."""
        head, gpu_layers = self.request.draft, self._settings.gpu_layers
        beside = {"draft-mtp"} if self.cast_list.draft_heads is not None else set(FEATURES)
        if head is None or not beside & set(self.methods):
            return
        extra = self._admitted(self.request.model, gpu_layers, load_mtp=False)
        trial = self._trial(gpu_layers, load_mtp=False)
        line = admit_head(head, self.request.model, trial, extra, lambda: self._say_trying(head))
        if line is not None:
            self._notice(line)

    @cached_property
    def layer_set(self) -> pruned.LayerSet:
        """The layers that the target's own draft does without. Raises ModelFileError where they are not known."""
        return pruned.layer_set(self.request.model)

    def open_pruned(self, gpu_layers: int | None) -> Model:
        """The target without the layers that `specli layers` found; its file is written first if need be."""
        model, no_repack = self.request.model, self._settings.no_repack
        trial = self._trial(gpu_layers, load_mtp=False)
        copy = pruned.copy_of(model, self.layer_set, trial, no_repack, self._notice)
        return self.open_model(copy, gpu_layers)

    def open_head(self, gpu_layers: int | None, load_mtp: bool = False) -> Model:
        """The draft's weights where they are no model but a head beside the target, with which it was tried
        out: its weights are repacked where the target's are."""
        path = self.request.draft
        assert path is not None
        sound_header(path)
        params = ModelParams(-1 if gpu_layers is None else gpu_layers, self._repacks, load_mtp)
        return self._stack.enter_context(Model(path, params))

    @property
    def _layers(self) -> tuple[int, ...]:
        """The target's layers that a draft reads."""
        found = self.cast_list.features
        return found.layers if found is not None and found.method in self.methods else ()

    def _trial(self, gpu_layers: int | None, load_mtp: bool) -> TrialSettings:
        s = self._settings
        return TrialSettings(
            threads=self.threads,
            gpu_layers=-1 if gpu_layers is None else gpu_layers,
            flash_attn=s.flash_attn,
            type_k=s.cache_type_k,
            type_v=s.cache_type_v,
            load_mtp=load_mtp,
        )

    def open_draft_context(self, model: Model, n_ctx: int) -> Context:
        """An empty cache of a draft model: one row at a time, or one for every node on a level of a tree."""
        return self._open_context(model, n_ctx, self._draft_rows, is_target=False)

    @property
    def _draft_rows(self) -> int:
        return self.tree.width if self.tree is not None else 1

    def _branches(self, model: Model) -> int:
        """Sequences that a cache holds at once. Raises UsageError where those of a tree cannot share one."""
        if self.tree is None:
            return 1
        asked = f"--spec-tree {self.tree}: {model.name}"
        if model.takes_snapshots:
            raise UsageError(f"{asked} keeps a recurrent state, which the branches of a tree cannot share")
        if model.n_swa and not self._settings.swa_full:
            raise UsageError(
                f"{asked} keeps a small sliding-window cache, which the branches of a tree cannot share; leave "
                "out --no-swa-full"
            )
        return self.tree.nodes

    def _open_context(self, model: Model, n_ctx: int, rows: int, is_target: bool) -> Context:
        s = self._settings
        snapshots = 0
        if (
            is_target and model.takes_snapshots and rows > 1
        ):  # each row can be gone back to, at a state's cost
            rows = s.fixed_width or min(rows, snapshot_rows(model.header, available_bytes()))
            snapshots = rows - 1
        branches = self._branches(model)
        n_batch = max(rows + 1, branches, self.chunk)
        params = ContextParams(
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=max(rows + 1, min(512, n_batch)),
            max_rows=rows,
            threads=self.threads,
            threads_batch=self._threads_batch,
            flash_attn=s.flash_attn,
            type_k=s.cache_type_k,
            type_v=s.cache_type_v,
            swa_full=s.swa_full or not is_target,  # drafts are cut too often for the small one
            snapshots=snapshots,
            hidden=is_target and "draft-mtp" in self.methods,
            layers=self._layers if is_target else (),
            branches=branches,
            steady=s.fixed_width is not None,
        )
        return self._stack.enter_context(Context(model, params))


def _states(header: Header, rows: int, s: Settings) -> int:
    """Bytes of a target's recurrent states: one, and one for each row that can be gone back to."""
    one = state_bytes(header)
    if rows > 1:
        rows = s.fixed_width or min(rows, snapshot_rows(header, available_bytes()))
    return one * rows
