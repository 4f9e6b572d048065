"""Randomness keyed by seed, position and token, so that it does not depend on who drafted what.

A sequential generator hands its next number to whoever asks first: draft one token more and every
later draw changes. Here the number for a token at a position is a hash of (seed, stream, position,
token). Target and drafter see the same one, and speculation on or off sees the same one: the
coupling of Daliri, Musco and Suresh, "Coupling without communication and drafter-invariant
speculative decoding" (2024).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specli.core.types import Distribution

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MUL_1, _MUL_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S12, _S27, _S30, _S31 = np.uint64(12), np.uint64(27), np.uint64(30), np.uint64(31)
_UNIT = 2.0**-52  # the top 52 bits and a half, times this: exact, and never 0 or 1


def _mix(x: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): one 64-bit word, well stirred."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def derive(seed: int, *parts: int) -> int:
    """A seed for a part of the work (a turn, a retry), independent of those for other parts."""
    for part in parts:
        seed = _mix((seed + (part + 1) * _GOLDEN) & _MASK)
    return seed


def answer_seed(seed: int, n: int) -> int:
    """The seed of the answer behind `n` others: of the first the given one, of later ones seeds that can be given
    again (32 bits)."""
    return derive(seed, n) & 0xFFFFFFFF if n else seed


class Noise:
    """Noise of one answer. `stream` separates uses that must be independent of each other."""

    def __init__(self, seed: int, stream: int = 0) -> None:
        self.seed = seed
        self._key = derive(_mix(seed & _MASK), stream)

    def uniform(self, position: int, sibling: int = 0) -> float:
        """A number in (0, 1) for one accept-or-reject at `position`, of the sibling of that number."""
        return ((derive(self._key, position, 1 + sibling) >> 12) + 0.5) * _UNIT

    def gumbel(self, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Independent standard Gumbel noise, one number for each token of `ids`, shape (n,)."""
        key = np.uint64(derive(self._key, position, 0))
        x = ids.astype(np.uint64)
        x *= np.uint64(_GOLDEN)  # wraps, as a hash should
        x += key
        for _ in range(2):  # two rounds: neighbouring ids must not resemble each other
            x ^= x >> _S30
            x *= _MUL_1
            x ^= x >> _S27
            x *= _MUL_2
            x ^= x >> _S31
        u = (x >> _S12).astype(np.float64)
        u += 0.5
        u *= _UNIT
        return -np.log(-np.log(u))  # type: ignore[no-any-return]

    def choose(self, p: Distribution, position: int) -> int:
        """Sample from `p` by the Gumbel-max trick: argmax(log p + noise)."""
        if len(p.ids) == 1:
            return int(p.ids[0])
        return int(p.ids[int(np.argmax(np.log(p.probs) + self.gumbel(position, p.ids)))])


def entropy_seed() -> int:
    """A seed for those who gave none, short enough to be typed again."""
    import secrets

    return secrets.randbelow(2**31)
