"""The profile that `specli tune` wrote for a model: finding it, and noticing when it no longer holds."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specli import profiles
from specli.core.stats import MethodStats
from specli.costs import machine
from specli.engine import backend
from specli.engine.gguf import read_header
from specli.errors import ProfileError
from specli.keys import Value
from specli.profiles import Profile
from specli.settings import NEURAL, Settings

WITH_FILE = frozenset(NEURAL) - {"draft-self-layers"} | {"auto"}
"""Types that a draft's own file may serve."""
_ALONG = ("threads", "gpu_layers")
FORMAT = 1
"""Of the [measured] section; one of another number is as if there were none."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a tuned profile holds for. Models by fingerprint, `draft` "" without one; `exact_width` 0
    outside exact mode; `gpu_layers` as set, None for all."""

    target: str
    draft: str
    build: str
    devices: str
    threads: int
    gpu_layers: int | None = None
    exact_width: int = 0

    def as_table(self) -> dict[str, str | int]:
        """For a profile's [measured.key]."""
        return {name.replace("_", "-"): value for name, value in asdict(self).items() if value is not None}

    def changed(self, table: Mapping[str, object]) -> list[str]:
        """In what another key, as a table, differs from this one."""
        now = self.as_table()
        return [name for name in _WORDS if now.get(name) != table.get(name)]

    def flags(self, changed: Sequence[str]) -> str:
        """With which flags `specli tune` measures for this key, where it is in these that another one differs."""
        now = self.as_table()
        flags = [_FLAGS[name].format(now[name]) for name in changed if name in _FLAGS and now.get(name)]
        return "".join(f" {flag}" for flag in flags)


_WORDS = {
    "target": "another version of the model",
    "draft": "another version of the draft",
    "build": "another build of llama.cpp",
    "devices": "another processor or GPU",
    "threads": "--threads {}",
    "gpu-layers": "{} layers on the GPU",
    "exact-width": "--exact-width {}",
}
_FLAGS = {name: _WORDS[name] for name in ("threads", "exact-width")} | {"gpu-layers": "--gpu-layers {}"}


def _said(name: str, value: object) -> str:
    if name == "exact-width" and not value:
        return "no --exact"
    return _WORDS[name].format("other" if value is None else value)


def key_of(model: Path, draft: Path | None, settings: Settings) -> Key:
    """The key of a run. Raises EngineError without the library."""
    on_gpu = backend.supports_gpu_offload() and settings.gpu_layers != 0
    return Key(
        read_header(model).fingerprint,
        read_header(draft).fingerprint if draft is not None else "",
        backend.build_id(),
        machine(on_gpu),
        settings.threads or backend.physical_cores(),
        settings.gpu_layers if on_gpu else None,
        settings.fixed_width or 0,
    )


def profile_file(model: Path, draft: Path | None) -> Path:
    """Where the tuned profile of these models is; its name is that of the file, without the ending."""
    parts = [re.sub(r"[^\w.-]+", "-", path.name.removesuffix(".gguf")) for path in (model, draft) if path]
    return profiles.own_profiles_dir() / f"tuned-{'+'.join(parts)}.toml"


@dataclass(frozen=True, slots=True)
class Tuned:
    """A tuned profile that holds here. `acceptance`: measured, by method."""

    profile: Profile
    speedup: float
    choice: str
    acceptance: Mapping[str, float]

    @property
    def uses_draft(self) -> bool:
        """Whether the second file serves it."""
        return bool(WITH_FILE & set(_types(self.profile)))

    @property
    def line(self) -> str:
        """What to say on using it."""
        measured = self.profile.measured
        busy = " while the machine was busy" if measured.get("busy") else ""
        if self.choice == "off":
            again = "; `specli tune` on a quiet one may find otherwise" if busy else ""
            found = f"nothing was faster than plain decoding here{busy}, so nothing is drafted{again}"
        else:
            n, prompts = measured.get("answers"), measured.get("workload", "its prompts")
            over = f"{n} answers to {prompts}" if n else f"answers to {prompts}"
            found = f"{self.choice}, measured {self.speedup:.2f}× plain here{busy}, on average over {over}"
        return f"{self.profile.name}: {found} (--profile auto leaves it aside)"

    def over(self, base: Profile) -> Profile:
        """`base` with who drafts, and how, as tuned, and what that was measured with."""
        brought = {name.replace("_", "-"): value for name, value in _brought(self.profile).items()}
        given = {**base.given, **self.profile.section("spec"), **brought}
        return Profile(self.profile.name, self.profile.source, given, self.profile.measured)


@dataclass(frozen=True, slots=True)
class Stale:
    """A tuned profile that does not hold for this run, and why. `flags`: with which a new one would."""

    name: str
    why: str
    flags: str = ""

    @property
    def line(self) -> str:
        """What to say on not using it."""
        return f"{self.name} was measured with {self.why}, so it is left aside; `specli tune{self.flags}` measures again"


def find(model: Path, draft: Path | None, settings: Settings) -> Tuned | Stale | None:
    """The tuned profile of these models, None if there is none."""
    path = profile_file(model, draft)
    if not os.path.isfile(path):
        return _without_draft(model, draft)
    try:
        profile = profiles.load(str(path))
    except ProfileError as error:
        return Stale(path.stem, f"something that cannot be read any more ({error})")
    brought: dict[str, Any] = {
        name: value for name, value in _brought(profile).items() if settings.origin(name) == "default"
    }
    return judge(profile, key_of(model, draft, replace(settings, **brought)))


def along(settings: Settings) -> dict[str, Value]:
    """What of `settings` a tuned profile brings along, as it would not hold without."""
    found: dict[str, Value] = {name: getattr(settings, name) for name in _ALONG}
    return {name.replace("_", "-"): value for name, value in found.items() if value is not None}


def _brought(profile: Profile) -> dict[str, Value]:
    """The same, of the profile, by attribute."""
    return {name: v for name in _ALONG if (v := profile.given.get(name.replace("_", "-"))) is not None}


def _without_draft(model: Path, draft: Path | None) -> Stale | None:
    """What was tuned for the model alone does not hold with a draft."""
    path = profile_file(model, None)
    if draft is None or not os.path.isfile(path):
        return None
    return Stale(path.stem, "no draft model", f" --draft-model {shlex.quote(str(draft))}")


def judge(profile: Profile, key: Key) -> Tuned | Stale:
    """Whether `profile` holds for `key`."""
    measured: Mapping[str, Any] = profile.measured
    table = measured.get("key")
    if measured.get("format") != FORMAT or not isinstance(table, Mapping):
        return Stale(profile.name, "another version of specli")
    changed = key.changed(table)
    if changed:
        said = " and ".join(_said(name, table.get(name)) for name in changed)
        return Stale(profile.name, said, key.flags(changed))
    try:
        acceptance = {str(name): float(rate) for name, rate in measured.get("acceptance", {}).items()}
        return Tuned(profile, float(measured["speedup"]), str(measured["choice"]), acceptance)
    except (KeyError, TypeError, ValueError, AttributeError):
        return Stale(profile.name, "figures that cannot be read any more")


def _types(profile: Profile) -> tuple[str, ...]:
    types = profile.given.get("types", ())
    return types if isinstance(types, tuple) else ()


class Watch:
    """Whether drafts are still accepted as often as when the profile was measured."""

    ENOUGH = 60  # tested tokens before it can be said
    WELL_BELOW = 0.7  # of the measured acceptance; its upper bound must lie below that

    def __init__(self, tuned: Tuned) -> None:
        self._tuned = tuned
        self._seen: dict[str, tuple[int, int]] = {}
        self._said = False

    def fold(self, by_method: Mapping[str, MethodStats]) -> str | None:
        """Add the figures of an answer; what to say, once."""
        for name, each in by_method.items():
            tested, accepted = self._seen.get(name, (0, 0))
            self._seen[name] = (tested + each.tested, accepted + each.accepted)
        if self._said:
            return None
        line = next((said for name in by_method if (said := self._judge(name))), None)
        self._said = line is not None
        return line

    def _judge(self, method: str) -> str | None:
        tested, accepted = self._seen[method]
        measured = self._tuned.acceptance.get(method)
        if measured is None or tested < self.ENOUGH:
            return None
        rate = accepted / tested
        if rate + 2 * (rate * (1 - rate) / tested) ** 0.5 >= self.WELL_BELOW * measured:
            return None
        return (
            f"{rate:.0%} of {method}'s tokens are accepted here, {measured:.0%} when {self._tuned.profile.name} "
            "was measured: this is another kind of text, or a draft that no longer fits; "
            "`specli tune --like FILE` measures with your own prompts"
        )
