"""The sampler chain written the slow, plain way: sort everything, follow llama.cpp's order step by step.

It shares no code with `specli.core.sampling`, which it is the measure of.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specli.core.sampling import SamplingParams
from specli.core.table_model import TableModel


def chain(logits: NDArray[np.float32], context: Sequence[int], params: SamplingParams) -> NDArray[np.float64]:
    """Probability of every token after `context`, shape (n_vocab,)."""
    x = [float(v) for v in logits]
    for token, bias in params.logit_bias.items():
        x[token] += bias
    n = params.repeat_last_n
    window = list(context) if n < 0 else list(context)[-n:] if n else []
    for token in set(window):
        x[token] = x[token] * params.repeat_penalty if x[token] <= 0 else x[token] / params.repeat_penalty
        x[token] -= window.count(token) * params.frequency_penalty + params.presence_penalty

    kept = sorted((t for t in range(len(x)) if x[t] != -np.inf), key=lambda t: -x[t])  # stable
    if params.top_k > 0:
        kept = kept[: params.top_k]
    if params.typical_p < 1:
        p = _softmax(x, kept)
        entropy = -sum(v * np.log(v) for v in p.values() if v > 0)
        by_typicality = sorted(kept, key=lambda t: abs(-np.log(max(p[t], 1e-300)) - entropy))
        typical = _shortest(by_typicality, p, lambda mass: mass > params.typical_p)
        kept = [t for t in kept if t in typical]
    if params.top_p < 1:
        kept = _shortest(kept, _softmax(x, kept), lambda mass: mass >= params.top_p)
    if params.min_p > 0:
        p = _softmax(x, kept)
        kept = [t for t in kept if p[t] >= params.min_p * p[kept[0]]]
    result = np.zeros(len(x))
    if params.temp <= 0:
        result[kept[0]] = 1.0
        return result
    for token, v in _softmax([v / params.temp for v in x], kept).items():
        result[token] = v
    return result


def _softmax(x: Sequence[float], kept: Sequence[int]) -> dict[int, float]:
    peak = max(x[t] for t in kept)
    e = {t: float(np.exp(x[t] - peak)) for t in kept}
    total = sum(e.values())
    return {t: v / total for t, v in e.items()}


def _shortest(kept: Sequence[int], p: dict[int, float], enough) -> list[int]:  # type: ignore[no-untyped-def]
    mass, result = 0.0, []
    for token in kept:
        mass += p[token]
        result.append(token)
        if enough(mass):
            break
    return result


def joint(model: TableModel, prompt: Sequence[int], params: SamplingParams, n: int) -> NDArray[np.float64]:
    """The law of the first `n` tokens after `prompt`, shape (n_vocab,) * n."""
    if n == 0:
        return np.ones(())
    first = chain(model.row(prompt), prompt, params)
    rest = (1,) * (n - 1)
    later = np.stack(
        [
            joint(model, [*prompt, token], params, n - 1)
            if first[token] > 0
            else np.zeros((model.n_vocab,) * (n - 1))
            for token in range(model.n_vocab)
        ]
    )
    law: NDArray[np.float64] = first.reshape(-1, *rest) * later
    return law
