"""What models, caches and work space will take, before anything is loaded.

Weights as the files say. The cache is n_ctx tokens of keys and values in every layer that attends.
The work space was compared with what llama.cpp reports for four models: it is the larger of one
ubatch through the feed-forward layer and the rows of logits, and the attention mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import psutil

from specli.engine.gguf import ArrayInfo, Header, present_parts
from specli.errors import MemoryShortage

_BITS = {
    "f32": 32.0,
    "f16": 16.0,
    "bf16": 16.0,
    "q8_0": 8.5,
    "q5_1": 6.0,
    "q5_0": 5.5,
    "q4_1": 5.0,
    "q4_0": 4.5,
    "iq4_nl": 4.5,
}
_MIB = 1 << 20
RESERVE = 128 * _MIB
"""Left to the rest of this process: Python, the library's own tables, the texts."""


def kv_bytes_per_token(header: Header, type_k: str, type_v: str, heads_inside: bool = False) -> float:
    """Bytes of cache for one token of context; 0.0 where the file does not say enough. `heads_inside`: of the
    prediction heads inside the model, which keep a cache of their own."""
    arch = header.architecture
    heads = header.integer(f"{arch}.attention.head_count") or 0
    width = header.integer(f"{arch}.embedding_length") or 0
    head = width // heads if heads else 0
    key = header.integer(f"{arch}.attention.key_length") or head
    value = header.integer(f"{arch}.attention.value_length") or head
    n_heads = _heads_kv_heads(header, heads) if heads_inside else _kv_heads(header, heads)
    return n_heads * (key * _BITS[type_k] + value * _BITS[type_v]) / 8


def _kv_heads(header: Header, heads: int) -> int:
    """Key-value heads of all attending layers together."""
    arch = header.architecture
    key = f"{arch}.attention.head_count_kv"
    layers = (header.block_count or 0) - header.nextn_predict_layers
    if isinstance(header.metadata.get(key), ArrayInfo):  # a number for each layer, 0 where it does not attend
        return sum(n for n in header.array(key)[:layers] if isinstance(n, int))
    interval = (
        header.integer(f"{arch}.full_attention_interval") or 1
    )  # hybrids attend in every so many layers
    return layers // interval * (header.integer(key) or heads)


def _heads_kv_heads(header: Header, heads: int) -> int:
    """Key-value heads of the layers of the prediction heads together, which come last."""
    key = f"{header.architecture}.attention.head_count_kv"
    layers = header.nextn_predict_layers
    if isinstance(header.metadata.get(key), ArrayInfo):
        last = header.array(key)[-layers:] if layers else []
        return sum(n or heads for n in last if isinstance(n, int))
    return layers * (header.integer(key) or heads)


def available_bytes() -> int:
    """Memory that this process can have without swapping: the machine's, within the limits of its cgroups
    and of its own address space (`ulimit -v`)."""
    limits = [int(psutil.virtual_memory().available), _cgroup_free(_CGROUPS), _address_space_left()]
    return min(limit for limit in limits if limit is not None)


def _address_space_left() -> int | None:
    """Bytes that this process may still map; None without a limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    return max(0, limit - int(psutil.Process().memory_info().vms) - _MAPPED_UNUSED)


_MAPPED_UNUSED = 192 * _MIB
"""Address space that threads to come take beside what they use: stacks, and what malloc sets apart for each."""
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def _cgroup_free(root: Path, own: Path = _OWN_CGROUPS) -> int | None:
    """Bytes left under the tightest memory limit of this process's cgroups (v2 and v1), those around them
    included; None without a limit."""
    found = []
    for folder in _cgroup_folders(root, own):
        for most, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            try:
                limit, current = int((folder / most).read_text()), int((folder / used).read_text())
                lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
                kept = next((int(line[1]) for line in lines if line[0] == cache), 0)
            except (OSError, ValueError, IndexError):  # no such file, or "max"
                continue
            if limit < 1 << 60:
                found.append(max(0, limit - current + kept))
    return min(found, default=None)


def _cgroup_folders(root: Path, own: Path) -> list[Path]:
    """Where limits on this process may stand: each line of `own` is "number:controllers:/path"."""
    folders = [root, root / "memory"]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return folders
    for controllers, path in (line.split(":", 2)[1:] for line in lines if line.count(":") > 1):
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders += [top.joinpath(*parts[: n + 1]) for n in range(len(parts))]
    return folders


def default_ctx_size(
    header: Header, type_k: str, type_v: str, most: int = 8192, heads_inside: bool = False
) -> int:
    """Context for those who asked for none: the model's own, at most `most`, and at most what a
    quarter of the memory left beside the weights can hold, the cache of its prediction heads (`heads_inside`)
    included; at least 512."""
    size = min(header.context_length or most, most)
    per_token = kv_bytes_per_token(header, type_k, type_v)
    if heads_inside:
        per_token += kv_bytes_per_token(header, type_k, type_v, heads_inside=True)
    if per_token:
        free = available_bytes() - weight_bytes(header)
        size = min(size, max(512, int(free / 4 / per_token) // 256 * 256))
    return size


def weight_bytes(header: Header) -> int:
    """Bytes of all weights, those in the other parts of a split model included where they are there."""
    return sum(part.tensor_bytes for part in present_parts(header))


@dataclass(frozen=True, slots=True)
class Load:
    """A model with one context that is to be loaded. `gpu_layers`: how many layers go to the GPU, -1 for
    all; 0 also where there is none. `n_ubatch`, `max_rows`, `type_k`, `type_v`: as in ContextParams. `state`:
    bytes of its recurrent states, snapshots included. `heads_inside`: it is the context of the prediction heads
    inside a model, whose weights another load has."""

    header: Header
    n_ctx: int
    n_ubatch: int = 512
    max_rows: int = 64
    type_k: str = "f16"
    type_v: str = "f16"
    gpu_layers: int = 0
    state: int = 0
    heads_inside: bool = False

    @property
    def name(self) -> str:
        """The model's name in messages."""
        name = self.header.path.name.removesuffix(".gguf")
        return f"{name}'s prediction heads" if self.heads_inside else name


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that one load takes: weights, cache, work space; and what of it lies on the GPU."""

    weights: int
    cache: int
    work: int
    on_gpu: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.work

    @property
    def in_ram(self) -> int:
        """What the machine's own memory must hold."""
        return self.total - self.on_gpu


def need(load: Load) -> Need:
    """What `load` takes, estimated from its file's header."""
    weights = 0 if load.heads_inside else weight_bytes(load.header)
    per_token = kv_bytes_per_token(load.header, load.type_k, load.type_v, load.heads_inside)
    cache = ceil(per_token * load.n_ctx) + load.state
    return Need(weights, cache, _work(load), int(_gpu_share(load) * (weights + cache)))


def _work(load: Load) -> int:
    header, arch = load.header, load.header.architecture
    width = header.integer(f"{arch}.embedding_length") or 0
    inner = header.integer(f"{arch}.feed_forward_length") or 4 * width
    experts = header.integer(f"{arch}.expert_used_count") or 0
    inner = max(inner, experts * (header.integer(f"{arch}.expert_feed_forward_length") or 0))
    layer = 4 * load.n_ubatch * (3 * inner + 4 * width)
    logits = 4 * load.max_rows * (header.n_vocab or 0)
    return max(layer, logits) + 2 * load.n_ubatch * load.n_ctx


def _gpu_share(load: Load) -> float:
    layers = (load.header.block_count or 0) + 1  # the output layer counts as one
    return 1.0 if load.gpu_layers < 0 else min(1.0, load.gpu_layers / layers)


@dataclass(frozen=True, slots=True)
class Plan:
    """What fits. `needs`: of each load, in order. `free`, `gpu_free` in bytes. `fits` says whether all of
    it does; `largest_ctx`: most tokens of context that would (0: not even the weights). `gpu_layers`: how
    many of the first load's layers the GPU can hold, None without a GPU."""

    loads: tuple[Load, ...]
    needs: tuple[Need, ...]
    free: int
    gpu_free: int
    fits: bool
    largest_ctx: int
    gpu_layers: int | None


def plan(loads: Sequence[Load], free: int, gpu_free: int = 0) -> Plan:
    """Set what the loads need against the free memory of the machine and of its GPUs, in bytes."""
    loads = tuple(loads)
    largest = _largest_ctx(loads, free, gpu_free)
    on_gpu = None
    if gpu_free:
        layers = (loads[0].header.block_count or 0) + 1
        on_gpu = max((n for n in range(layers + 1) if _fits_gpu(_with_layers(loads, n), gpu_free)), default=0)
    return Plan(loads, tuple(map(need, loads)), free, gpu_free, _fits(loads, free, gpu_free), largest, on_gpu)


def _fits(loads: Sequence[Load], free: int, gpu_free: int) -> bool:
    in_ram = sum(need(load).in_ram for load in loads)
    return in_ram + RESERVE <= free and _fits_gpu(loads, gpu_free)


def _fits_gpu(loads: Sequence[Load], gpu_free: int) -> bool:
    on_gpu = sum(need(load).on_gpu + (_work(load) if load.gpu_layers else 0) for load in loads)
    return on_gpu <= gpu_free


def _with_layers(loads: tuple[Load, ...], n: int) -> tuple[Load, ...]:
    return replace(loads[0], gpu_layers=n), *loads[1:]


def _largest_ctx(loads: tuple[Load, ...], free: int, gpu_free: int) -> int:
    """By bisection; in steps of 256 tokens, as the library rounds."""
    low, high = 0, 1 << 23
    while low < high:
        middle = (low + high + 1) // 2
        if _fits([replace(load, n_ctx=256 * middle) for load in loads], free, gpu_free):
            low = middle
        else:
            high = middle - 1
    return 256 * low


def require_memory(loads: Sequence[Load], free: int, gpu_free: int = 0) -> Plan:
    """The plan, or MemoryShortage with the figures and with what would fit."""
    found = plan(loads, free, gpu_free)
    if not found.fits:
        raise MemoryShortage(shortage(found))
    return found


def shortage(found: Plan) -> str:
    """One line on what a plan that does not fit needs, what there is, and what would do."""
    needs = "; ".join(
        f"{load.name} with a context of {load.n_ctx} tokens needs {gib(n.total)} (weights {gib(n.weights)}, "
        f"cache {gib(n.cache)}, work space {gib(n.work)})"
        for load, n in zip(found.loads, found.needs)
    )
    gpu = f" and {gib(found.gpu_free)} on the GPU" if found.gpu_free else ""
    return f"{needs}; {gib(found.free)} are free{gpu}: {_remedy(found)}"


def _remedy(found: Plan) -> str:
    # a context so small that nobody can use it is no advice
    asked = found.loads[0].n_ctx
    if min(512, asked) <= found.largest_ctx < asked:
        quantised = (
            "" if found.loads[0].type_k != "f16" else " (more with --cache-type-k q8_0 --cache-type-v q8_0)"
        )
        return f"--ctx-size {found.largest_ctx} fits at most{quantised}"
    if found.gpu_layers is not None and found.loads[0].gpu_layers != 0:
        return f"--gpu-layers {found.gpu_layers} fits at most"
    without = " or leave the draft out" if len(found.loads) > 1 else ""
    return f"take a smaller model or quantisation, close other programs{without}"


def gib(n: int) -> str:
    """Bytes in words: GiB, or MiB for less than one."""
    return f"{n / (1 << 30):.1f} GiB" if n >= 1 << 30 else f"{ceil(n / _MIB)} MiB"
