"""What `specli tune` tries: settings of [spec] under a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from specli.keys import Value
from specli.settings import NEURAL, key
from specli.sizes import SIZE_STEMS

OFF = "off"
AUTO = "auto"
LONGEST = 8
"""Longest neural draft that is tried; acceptance falls with each position, and costs do not."""

_SELF_SIZES = (2, 3, 4, 6, 8)
_SIZES = (*range(1, 11), 12)
_FIXED_SIZES = (2, 3, 4, 6, 8, 12)


@dataclass(frozen=True, slots=True)
class Candidate:
    """`spec`: what a profile's [spec] would set. `length`: of a neural draft, 0 for others."""

    name: str
    spec: Mapping[str, Value]
    length: int = 0

    @property
    def types(self) -> tuple[str, ...]:
        """Who drafts."""
        types = self.spec["types"]
        assert isinstance(types, tuple)
        return types

    @property
    def flags(self) -> str:
        """The same on a command line."""
        return " ".join(
            key(name).flag if value is True else f"{key(name).flag} {_as_word(value)}"
            for name, value in self.spec.items()
        )

    @property
    def fixed(self) -> bool:
        """Whether it drafts its full length always."""
        return self.spec.get("fixed") is True


def _as_word(value: Value) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _candidate(name: str, method: str, spec: Mapping[str, Value], length: int = 0) -> Candidate:
    return Candidate(name, MappingProxyType({"types": (method,), **spec}), length)


def off() -> Candidate:
    """Plain decoding."""
    return _candidate(OFF, "none", {})


def auto(longest: int | None) -> Candidate:
    """Everything there is, by expected profit. `longest`: bound of neural drafts, None where there are none."""
    return _candidate(AUTO, "auto", {} if longest is None else {"draft-n-max": longest})


def free(methods: Sequence[str]) -> list[Candidate]:
    """N-gram methods in many sizes; trying them on recorded answers costs next to nothing."""
    return [each for method in methods if method not in NEURAL for each in _sizes(method)]


def _sizes(method: str) -> Iterator[Candidate]:
    sizes = {"draft-self": _SELF_SIZES, "ngram-simple": _SIZES}.get(method, (3, 6, 12))
    for size_n in sizes:
        for size_m in (16, 64) if method == "draft-self" else (8, 48):
            yield sized(method, size_n, size_m)
    if method == "ngram-simple":
        for size_n in _FIXED_SIZES:
            for size_m in (4, 12):
                yield sized(method, size_n, size_m, fixed=True)


def sized(method: str, size_n: int, size_m: int, fixed: bool = False) -> Candidate:
    """One n-gram method in one size."""
    stem = SIZE_STEMS[method]
    name = f"{method},size-n={size_n},size-m={size_m}" + (",fixed" if fixed else "")
    spec: dict[str, Value] = {f"{stem}-size-n": size_n, f"{stem}-size-m": size_m}
    if fixed:
        spec["fixed"] = True
    return _candidate(name, method, spec)


def neural(method: str, length: int, fixed: bool) -> Candidate:
    """A drafter that computes: its drafts `length` at most, or always."""
    name = f"{method},n-max={length}" + (",fixed" if fixed else "")
    spec: dict[str, Value] = {"draft-n-max": length}
    if fixed:
        spec["fixed"] = True
    return _candidate(name, method, spec, length)
