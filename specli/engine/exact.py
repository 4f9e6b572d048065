"""The fixed-width self-test: may `--exact` promise the same bits here?

In exact mode every decode has W rows, whatever was drafted. The promise then rests on one property
of the library on this machine: a row's logits do not depend on where in the W rows it stands, nor
on what the rows after it hold. This decodes one stretch in several such ways and compares bits,
across the steps in which the library pads its cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specli import paths
from specli.core.decoding import sync
from specli.engine import backend
from specli.engine.context import Context, ContextParams, Rollback
from specli.errors import SpecliError

# just before the cache's steps at 256 and 512 cells, so that the test crosses them, and a shallow one
DEPTHS = (96, 250, 506)
_LARGE = 256 << 20  # bytes times rows, from which a test is not over at once
_SINGLE = 8  # tokens that are decoded one at a time at each depth; more would take minutes where W is large


def self_test(context: Context, width: int, chunk: int) -> str | None:
    """Why fixed width is not exact for this model and these settings; None if it is.

    Uses and empties the context's cache. `width`: W. `chunk`: tokens a prompt is decoded in.
    """
    if context.rollback is Rollback.CHECKPOINT:
        return "its recurrent state can only be replayed, at other widths than it was first computed"
    if context.rollback is Rollback.WINDOW:
        return "the small sliding-window cache places tokens by the history of decodes; use --swa-full"
    if context.max_rows < width:
        return f"its memory allows {context.max_rows} rows in one decode, not {width}"
    rng = random.Random(0)
    vocab = context.model.vocab
    words = [t for t in (rng.randrange(vocab.n_tokens) for _ in range(4000)) if not vocab.is_control(t)]
    tokens = words[: DEPTHS[-1] + 4 * width]
    try:
        for depth in DEPTHS:
            if depth + 3 * width > context.n_ctx:
                break
            reason = _compare(context, tokens, depth, width, chunk, rng)
            if reason:
                return reason
        return None
    finally:
        context.rewind(0)


def _compare(
    context: Context, tokens: list[int], depth: int, width: int, chunk: int, rng: random.Random
) -> str | None:
    stretch = 2 * width
    reference: list[NDArray[np.float32]] | None = None
    for steps in _ways(width, stretch, rng):
        sync(context, tokens[:depth], chunk)
        rows = _decode(context, tokens, depth, width, steps, rng)
        if reference is None:
            reference = rows
            continue
        for i, (a, b) in enumerate(zip(reference, rows)):
            if not np.array_equal(a, b):
                gap = float(np.abs(a - b).max())
                return f"at width {width}, {depth + i} tokens deep, logits moved by {gap:.2g} with the rows around them"
    return None


def _ways(width: int, stretch: int, rng: random.Random) -> list[list[int]]:
    """How many tokens each decode of the stretch really advances: one at a time, all, and mixed."""

    def mixed(n: int) -> list[int]:
        steps: list[int] = []
        while sum(steps) < n:
            steps.append(min(rng.randint(1, width), n - sum(steps)))
        return steps

    single = min(stretch, _SINGLE)
    return [[1] * single + mixed(stretch - single), [width] * 2, mixed(stretch)]


def _decode(
    context: Context, tokens: list[int], depth: int, width: int, steps: Sequence[int], rng: random.Random
) -> list[NDArray[np.float32]]:
    out: list[NDArray[np.float32]] = []
    at = depth
    for step in steps:
        fill = [rng.choice(tokens) for _ in range(width - step)]
        rows = context.decode([*tokens[at : at + step], *fill], rows=width)
        out += [row.copy() for row in rows[:step]]
        at += step
        context.rewind(at)
    return out


def remembered_self_test(
    context: Context, width: int, chunk: int, before_test: Callable[[], None] = lambda: None
) -> tuple[str | None, bool]:
    """`self_test`, its verdict kept in the cache directory under model, build, processor and settings.

    Returns the reason (None: exact) and whether it was remembered rather than tested now. `before_test` is called
    where it was not, and the model is large enough for that to take a while.
    """
    p: ContextParams = context.params
    model = context.model
    key = " | ".join(
        str(part)
        for part in (
            "fixed-width 1", backend.build_id(), backend.processor_id(), model.header.fingerprint, model.params, p,
            width, chunk,
        )
    )  # fmt: skip
    path = paths.cache_dir() / f"exact-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    try:
        known = json.loads(path.read_text("utf-8"))
        if known["key"] == key and (known["reason"] is None or isinstance(known["reason"], str)):
            return known["reason"], True
    except (OSError, ValueError, KeyError, TypeError):
        pass
    if model.size_bytes * width > _LARGE:
        before_test()
    reason = self_test(context, width, chunk)
    with contextlib.suppress(SpecliError):  # else it is tested again next time
        paths.write_atomic(path, json.dumps({"key": key, "reason": reason}))
    return reason, False
