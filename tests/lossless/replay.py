"""The loop's noise for thousands of seeds at once: the very bits of `Noise`, computed in one sweep."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from specli.core.noise import Noise

_GOLDEN = 0x9E3779B97F4A7C15
_BATCH = 4096


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _derive(seeds: NDArray[np.uint64], part: int) -> NDArray[np.uint64]:
    return _mix(seeds + np.uint64((part + 1) * _GOLDEN % 2**64))


def _unit(x: NDArray[np.uint64]) -> NDArray[np.float64]:
    return ((x >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


class Replayed(Noise):
    """What `Noise(seed, stream)` would say for tokens below some number at a few positions.

    `gumbels` (positions, n_vocab) and `uniforms` (positions,) begin at position `first`.
    """

    def __init__(self, first: int, gumbels: NDArray[np.float64], uniforms: list[float]) -> None:
        self.first, self.gumbels, self.uniforms = first, gumbels, uniforms

    def uniform(self, position: int) -> float:
        return self.uniforms[position - self.first]

    def gumbel(self, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        at = position - self.first
        if at < 0:
            raise IndexError(position)
        return self.gumbels[at, ids]  # type: ignore[no-any-return]


def replay(seeds: range, stream: int, positions: range, n_vocab: int) -> Iterator[Replayed]:
    """The noise of each of `seeds` in turn."""
    for at in range(0, len(seeds), _BATCH):
        batch = np.array(seeds[at : at + _BATCH], np.uint64)
        keys = _derive(_mix(batch), stream)
        here = [_derive(keys, position) for position in positions]
        uniforms = _unit(np.stack([_derive(key, 1) for key in here], axis=1)).tolist()
        words = np.stack([_derive(key, 0) for key in here], axis=1)[:, :, None]
        words = words + np.arange(n_vocab, dtype=np.uint64) * np.uint64(_GOLDEN)
        gumbels = -np.log(-np.log(_unit(_mix(_mix(words)))))
        for g, u in zip(gumbels, uniforms):
            yield Replayed(positions.start, g, u)
