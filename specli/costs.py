"""What the target's decodes cost by width on this machine: measured, kept in the cache directory, recalled.

Costs have steps (kernels work in blocks of rows), so widths are measured one by one where drafts mostly
end, and around the steps above. Only their proportions serve as a start; seconds are learned anew in
each run, since the machine may be busier now.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType

from specli import paths
from specli.core.costs import interpolated
from specli.core.types import LanguageModel
from specli.engine import backend
from specli.engine.context import Context
from specli.errors import SpecliError

WIDTHS = (*range(1, 18), 24, 32, 33, 48, 64)
_COARSE_FIRST = (1, 2, 4, 8, 16, 64, 32, 3, 5, 6, 7, 12, 17, 24, 33, 48, 9, 10, 11, 13, 14, 15)
"""All of WIDTHS, in the order in which they say most where time runs out."""
_LEAST_WIDTHS = 3  # fewer are no shape


@dataclass(frozen=True, slots=True)
class WidthCosts:
    """`seconds` of a decode by width. `steps`: seconds of one drafted token, by the draft's fingerprint.

    `spread`: how far equal decodes differed, slow ones over fast ones; near 1 on a quiet machine. `by_run`: not
    measured for their own sake, but what a run learned on the way.
    """

    seconds: Mapping[int, float]
    steps: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    spread: float = 1.0
    by_run: bool = False

    @property
    def shape(self) -> Mapping[int, float]:
        """Cost by width, relative to one token's."""
        return {width: seconds / self.seconds[1] for width, seconds in self.seconds.items()}

    def step(self, fingerprint: str) -> float | None:
        """What a draft token costs relative to a target token; None where it was not measured."""
        seconds = self.steps.get(fingerprint)
        return None if seconds is None else seconds / self.seconds[1]

    def at(self, width: int) -> float:
        """Seconds at `width`, linear between measured widths and beyond them."""
        return interpolated(sorted(self.seconds.items()), width)


def measure_widths(
    target: LanguageModel,
    enough: Callable[[], bool] = lambda: False,
    most: int = WIDTHS[-1],
    rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> WidthCosts:
    """Time decodes of all WIDTHS up to `most` behind what the cache holds, which must be at least one token.

    In rounds, so that what else the machine does meets all widths alike; `enough()` ends it early once
    three widths are known. The cache then holds some tokens more; where it is nearly full, it is cut first.
    """
    filler = list(target.tokens)
    widths = [width for width in _COARSE_FIRST if width <= min(most, target.max_rows)]
    target.rewind(max(1, target.n_ctx - max(widths) - rounds * len(widths)))
    times: dict[int, list[float]] = {}
    target.decode(filler[:1], rows=1)  # the first decode of all warms up
    for turn in range(rounds):
        for width in widths:
            if len(target.tokens) + width > target.n_ctx:
                continue
            if enough() and (turn or len(times) >= 3):
                return _folded(times)
            times.setdefault(width, []).append(_time(target, _cut(filler, width, turn), clock))
    return _folded(times)


def _cut(tokens: Sequence[int], width: int, turn: int) -> list[int]:
    """`width` tokens of the text: not one repeated, which experts and caches would make cheaper."""
    start = turn * 67 % len(tokens)
    return [tokens[(start + i) % len(tokens)] for i in range(width)]


def _time(target: LanguageModel, tokens: Sequence[int], clock: Callable[[], float]) -> float:
    held = len(target.tokens)
    began = clock()
    target.decode(tokens, rows=len(tokens))
    taken = clock() - began
    target.rewind(held + 1)  # every cache can drop all rows but the first
    return taken


def _folded(times: Mapping[int, Sequence[float]]) -> WidthCosts:
    if 1 not in times:
        raise SpecliError("the context has no room to measure what decodes cost; raise --ctx-size")
    seconds = rising({width: median(each) for width, each in times.items()})
    spreads = [sorted(each)[-2] / min(each) for each in times.values() if len(each) > 2]
    return WidthCosts(seconds, spread=median(spreads) if spreads else 1.0)


@dataclass(slots=True)
class _Level:
    """Neighbouring widths that were found to cost the same."""

    widths: list[int]
    seconds: float


def rising(seconds: Mapping[int, float]) -> dict[int, float]:
    """The nearest costs that never fall with width (isotonic regression, by pooling adjacent violators).

    More rows never take less time; where they were measured to, it was noise.
    """
    levels: list[_Level] = []
    for width in sorted(seconds):
        levels.append(_Level([width], seconds[width]))
        while len(levels) > 1 and levels[-2].seconds > levels[-1].seconds:
            last, before = levels.pop(), levels[-1]
            total = before.seconds * len(before.widths) + last.seconds * len(last.widths)
            before.widths += last.widths
            before.seconds = total / len(before.widths)
    return {width: level.seconds for level in levels for width in level.widths}


def learned(
    seen: Mapping[int, float], steps: Mapping[str, float], before: WidthCosts | None
) -> WidthCosts | None:
    """What a run learned, over what was known `before`; None where it is no more than that, or not comparable.

    `seen`: seconds by width. `steps`: seconds of a drafted token, by the draft's fingerprint.
    """
    if 1 not in seen or (before is not None and not before.by_run):
        return None
    one = seen[1]
    old = {} if before is None else {width: one * cost for width, cost in before.shape.items()}
    old_steps = (
        {} if before is None else {name: one * s / before.seconds[1] for name, s in before.steps.items()}
    )
    seconds = {**old, **seen}
    if len(seconds) < _LEAST_WIDTHS:
        return None
    return WidthCosts(rising(seconds), {**old_steps, **steps}, by_run=True)


# -- remembered ------------------------------------------------------------------------------------


def machine(on_gpu: bool) -> str:
    """The devices that compute, in words that change when they do."""
    gpus = [d.description for d in backend.devices() if d.kind in ("gpu", "igpu")] if on_gpu else []
    return ", ".join([backend.processor_id(), *gpus])


def costs_key(target: Context, on_gpu: bool) -> str:
    """What a measurement holds for: model, build, devices, threads, and the settings that decodes feel."""
    model, p = target.model, target.params
    return " | ".join(
        str(part)
        for part in (
            "widths 1", model.header.fingerprint, backend.build_id(), machine(on_gpu), p.threads, p.threads_batch,
            model.params.gpu_layers if on_gpu else "cpu", model.params.use_extra_bufts, p.flash_attn, p.type_k,
            p.type_v,
        )
    )  # fmt: skip


def _file(key: str) -> str:
    return f"widths-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def recall_costs(key: str) -> WidthCosts | None:
    """The measurement kept under `key`; None without one, and for a file that is not what it should be."""
    try:
        kept = json.loads((paths.cache_dir(create=False) / _file(key)).read_text("utf-8"))
        if kept["key"] != key:
            return None
        seconds = {int(width): float(s) for width, s in kept["seconds"].items()}
        steps = {str(name): float(s) for name, s in kept["steps"].items()}
        good = (
            1 in seconds
            and len(seconds) > 2
            and all(0 < s < 1e6 for s in [*seconds.values(), *steps.values()])
        )
        return WidthCosts(seconds, steps, float(kept["spread"]), kept.get("by_run") is True) if good else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remember_costs(key: str, costs: WidthCosts) -> None:
    """Keep a measurement; where that fails, the next run starts from a general shape instead."""
    kept = {
        "key": key, "seconds": dict(costs.seconds), "steps": dict(costs.steps), "spread": costs.spread,
        "by_run": costs.by_run,
    }  # fmt: skip
    with suppress(SpecliError):
        paths.write_atomic(paths.cache_dir() / _file(key), json.dumps(kept))
