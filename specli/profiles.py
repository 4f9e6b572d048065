"""Profiles: TOML files to frozen, validated records, and what they result in.

A flag beats the profile, the profile beats the default.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specli.errors import ProfileError, SpecliError, UsageError
from specli.keys import Key, Value, as_text, bare, did_you_mean, thawed
from specli.paths import config_dir
from specli.settings import (
    BY_NAME,
    DEFAULT_PROFILE,
    GRAMMARS,
    KEYS,
    SECTIONS,
    SELF_METHODS,
    NgramSizes,
    Origin,
    Settings,
    find,
    key,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


BUILT_IN = "built in"
MEASURED = "measured"
"""The one free section: what `specli tune` found out, kept as it is."""
_LARGEST_FILE = 1 << 20  # a profile is some lines; more is another file given by mistake


__all__ = [
    "BUILT_IN", "DEFAULT_PROFILE", "KEYS", "MEASURED", "SECTIONS", "Entry", "Key", "NgramSizes", "Origin",
    "Profile", "Settings", "Value", "as_text", "available", "key", "load", "own_profiles_dir", "parse",
    "path_of", "resolve", "thawed", "to_toml",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profile:
    """A checked profile. `given` holds what it sets, by key name; `measured` is what `tune` wrote.

    `source`: the file's path, or "built in".
    """

    name: str
    source: str
    given: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    measured: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def description(self) -> str:
        """One line on what it is for."""
        return str(self.given.get("description", ""))

    @property
    def place(self) -> str:
        """The file, as messages name it."""
        return f"built-in profile {self.name}" if self.source == BUILT_IN else self.source

    def section(self, name: str) -> Mapping[str, Value]:
        """What one section sets, by key name ("" is the top)."""
        return MappingProxyType({k: v for k, v in self.given.items() if BY_NAME[k].section == name})


@dataclass(frozen=True, slots=True)
class Entry:
    """A profile that can be named. `problem` is why it cannot be loaded, None if it can."""

    name: str
    source: str
    path: Path
    description: str
    problem: str | None = None


def own_profiles_dir() -> Path:
    """Where the user's own profiles stand; they win over built-in ones of the same name."""
    return config_dir(create=False) / "profiles"


def path_of(name_or_path: str) -> Path:
    """The file of a profile: a path if it ends in .toml or has a separator, else a name.

    Raises ProfileError for a name there is no profile of.
    """
    if name_or_path.endswith(".toml") or "/" in name_or_path or os.sep in name_or_path:
        return Path(os.path.expanduser(name_or_path))
    for directory in (own_profiles_dir(), _shipped_dir()):
        path = directory / f"{name_or_path}.toml"
        if os.path.exists(path):
            return path
    names = [entry.name for entry in available()]
    raise ProfileError(
        f"no profile {json.dumps(name_or_path)}; there are {', '.join(names)}; your own go to "
        f"{own_profiles_dir()}{did_you_mean(name_or_path, names)}"
    )


def load(name_or_path: str | None = None) -> Profile:
    """Read and check a profile, the default one without a name. Raises ProfileError: the file, the key, the nearest right one."""
    path = path_of(DEFAULT_PROFILE if name_or_path is None else name_or_path)
    source = BUILT_IN if path.parent == _shipped_dir() else str(path)
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
        if len(data) > _LARGEST_FILE:
            raise ProfileError(f"{path}: larger than 1 MiB, so it is no profile")
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path}: not a profile: not UTF-8 text (byte {error.start})") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ProfileError(f"cannot read profile {path}: {reason}") from error
    return parse(text, path.stem, source)


def available() -> list[Entry]:
    """The profiles that `load` finds by name, sorted; broken ones say why. Raises SpecliError where the user's own
    cannot be looked for."""
    found = {path.stem: path for path in sorted(_shipped_dir().glob("*.toml"))}
    found |= {path.stem: path for path in _own()}
    return [_entry(name, found[name]) for name in sorted(found)]


def _own() -> list[Path]:
    place = own_profiles_dir()
    try:
        names = sorted(os.listdir(place))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise SpecliError(f"cannot read {place}: {error.strerror or error}") from error
    return [place / name for name in names if name.endswith(".toml")]


def parse(text: str, name: str, source: str) -> Profile:
    """A profile from TOML text. Raises ProfileError like `load`."""
    place = Profile(name, source).place
    try:
        document = tomllib.loads(text)
    except RecursionError as error:
        raise ProfileError(f"{place}: not valid TOML: nested too deeply") from error
    except ValueError as error:  # TOMLDecodeError, and Python's own limit on the digits of a number
        raise ProfileError(f"{place}: not valid TOML: {error}") from error
    measured = document.pop(MEASURED, {})
    if not isinstance(measured, dict):
        raise ProfileError(f"{place}: {MEASURED} must be a table, [{MEASURED}]")
    given: dict[str, Value] = {}
    for section, name_, raw in _flatten(document, place):
        where = f"{place}{_line(text, section, name_)}"
        each = BY_NAME.get(name_)
        if each is None or each.section != section:
            raise ProfileError(f"{where}: {_unknown(section, name_)}")
        try:
            given[name_] = each.accept(raw)
        except ValueError as error:
            raise ProfileError(f"{where}: {each.written} {error}") from error
    profile = Profile(name, source, MappingProxyType(given), _frozen(measured))
    resolve(profile)  # keys that contradict each other are found here, not at the first use
    return profile


def to_toml(profile: Profile) -> str:
    """The profile as TOML; `parse` reads the same profile back."""
    import tomli_w

    written = {n: BY_NAME[n].automatic if v is None else thawed(v) for n, v in profile.given.items()}
    document: dict[str, Any] = {n: v for n, v in written.items() if not BY_NAME[n].section}
    for section in SECTIONS[1:]:
        if inner := {n: v for n, v in written.items() if BY_NAME[n].section == section}:
            document[section] = inner
    if profile.measured:
        document[MEASURED] = thawed(profile.measured)
    return tomli_w.dumps(document)


def resolve(profile: Profile, flags: Mapping[str, object] = MappingProxyType({})) -> Settings:
    """What results: a flag beats the profile, the profile beats the default.

    `flags`: by attribute or flag name; None, or an empty list, is a flag that was not given.
    Raises UsageError for a flag, and ProfileError for a profile, that cannot be meant.
    """
    asked = {each.name: value for each, value in _asked(flags)}
    merged = {**profile.given, **asked}
    origins: dict[str, Origin] = {name: "flag" if name in asked else "profile" for name in merged}
    _imply_exact(merged, origins)
    _imply_coupled(merged, origins)
    _one_grammar(merged, origins, profile)
    _name_self(merged, origins)
    _fit_tree(merged, origins, profile)
    values: dict[str, Any] = {BY_NAME[name].attribute: value for name, value in merged.items()}
    settings = Settings(**values, profile=profile.name, origins=MappingProxyType(origins))
    if settings.draft_n_min > settings.draft_n_max:
        message = f"draft-n-min {settings.draft_n_min} is more than draft-n-max {settings.draft_n_max}"
        if {"draft-n-min", "draft-n-max"} & asked.keys():
            by = {"flag": "flag", "profile": f"profile {profile.name}", "default": "default"}
            who = f"{by[settings.origin('draft-n-min')]} and {by[settings.origin('draft-n-max')]}"
            raise UsageError(f"{message} (from {who}); nothing could be drafted")
        raise ProfileError(f"{profile.place}: [spec] {message}; nothing could be drafted")
    return settings


def _asked(flags: Mapping[str, object]) -> Iterable[tuple[Key, Value]]:
    for name, raw in flags.items():
        if raw is None or (isinstance(raw, (list, tuple)) and not raw):
            continue
        each = find(name)
        if each is None or not each.flag:
            flag = "--" + name.lstrip("-").replace("_", "-")
            raise UsageError(f"no option {flag}{did_you_mean(flag, [k.flag for k in KEYS if k.flag])}")
        try:
            yield each, each.accept_flag(raw)
        except ValueError as error:
            raise UsageError(f"{each.flag} {error}") from error


def _imply_exact(merged: dict[str, Value], origins: dict[str, Origin]) -> None:
    """A width asks for exact mode, unless something at least as strong as it says no."""
    width, exact = origins.get("exact-width"), origins.get("exact")
    if width is None or merged.get("exact") is True or (exact == width == "profile") or exact == "flag":
        if width == exact == "flag" and merged["exact"] is False:
            raise UsageError("--exact-width needs --exact, which --no-exact turns off; leave one of them out")
        return
    merged["exact"], origins["exact"] = True, width


def _imply_coupled(merged: dict[str, Value], origins: dict[str, Origin]) -> None:
    """Exact mode draws with coupled noise, whatever a profile says of `verify`."""
    if merged.get("exact") is not True or merged.get("verify", "coupled") == "coupled":
        return
    if origins["verify"] == "flag":
        raise UsageError(
            "--verify rejection cannot be had in exact mode, where it depends on who drafts; add --no-exact"
        )
    merged["verify"], origins["verify"] = "coupled", origins["exact"]


def _name_self(merged: dict[str, Value], origins: dict[str, Origin]) -> None:
    """`self-method` says which of its methods draft-self stands for."""
    method = SELF_METHODS.get(str(merged.get("self-method")), "draft-self")
    types = merged.get("types", BY_NAME["types"].default)
    if method == "draft-self" or not isinstance(types, tuple):
        return
    if not {"draft-self", method, "auto"} & set(types):
        if origins["self-method"] == "flag":
            raise UsageError("--self-method says how draft-self drafts; add --spec-type draft-self")
        return
    if "draft-self" in types:
        merged["types"] = tuple(dict.fromkeys(method if each == "draft-self" else each for each in types))


def _fit_tree(merged: dict[str, Value], origins: dict[str, Origin], profile: Profile) -> None:
    """An accepted branch lies in other cells of the cache than plain decoding would use, so that the last bits
    of what follows differ."""
    if merged.get("tree", "off") == "off":
        return
    if merged.get("exact") is True:
        if "flag" in (origins["tree"], origins["exact"]):
            raise UsageError(
                "--exact cannot be kept with token trees, whose accepted branches lie in other cells of the cache; "
                "add --spec-tree off or --no-exact"
            )
        raise ProfileError(f"{profile.place}: [spec] tree and exact are both set; leave one of them out")


def _one_grammar(merged: dict[str, Value], origins: dict[str, Origin], profile: Profile) -> None:
    """Of the ways to say what answers must be, flags beat those of the profile; two alike contradict."""
    given = [name for name in GRAMMARS if merged.get(name) is not None]
    by_flag = [name for name in given if origins[name] == "flag"]
    for name in given if by_flag else ():
        if name not in by_flag:
            del merged[name], origins[name]
    if len(by_flag) > 1:
        raise UsageError(
            f"{' and '.join(key(n).flag for n in by_flag)} are both given; leave one of them out"
        )
    if len(given) > 1 and not by_flag:
        names = " and ".join(key(n).written for n in given)
        raise ProfileError(f"{profile.place}: {names} are both set; leave one of them out")


def _entry(name: str, path: Path) -> Entry:
    source = BUILT_IN if path.parent == _shipped_dir() else str(path)
    try:
        return Entry(name, source, path, load(str(path)).description)
    except ProfileError as error:
        return Entry(name, source, path, "", str(error))


def _shipped_dir() -> Path:
    """In an installed wheel the profiles lie inside the package, in a checkout beside it."""
    packaged = Path(str(resources.files("specli"))) / "_profiles"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parent.parent / "profiles"


def _flatten(document: Mapping[str, object], place: str) -> Iterable[tuple[str, str, object]]:
    """(section, key, value) of all that is written; unknown sections are refused."""
    sections = [*SECTIONS[1:], MEASURED]
    for name, value in document.items():
        if isinstance(value, dict) and name not in BY_NAME:
            if name not in sections:
                raise ProfileError(
                    f"{place}: no section [{bare(name)}] among {', '.join(sections)}"
                    f"{did_you_mean(name, sections, '[{}]')}"
                )
            yield from ((name, inner, raw) for inner, raw in value.items())
        elif name in sections:
            raise ProfileError(f"{place}: {name} must be a section, [{name}]")
        else:
            yield "", name, value


def _unknown(section: str, name: str) -> str:
    here = f"in [{section}]" if section else "at the top"
    shown = bare(name)
    if name in BY_NAME:
        home = BY_NAME[name].section
        return f"{shown} does not belong {here} but {f'in [{home}]' if home else 'at the top'}"
    flags = {each.flag[2:]: each.name for each in KEYS}
    near = difflib.get_close_matches(name.replace("_", "-"), [*BY_NAME, *flags], 1, 0.5)
    if not near:
        near = [each for each in BY_NAME if name.startswith(each)][:1]
    hint = f"; did you mean {BY_NAME[flags.get(near[0], near[0])].written}?" if near else ""
    return f"unknown key {shown} {here}{hint}"


def _line(text: str, section: str, name: str) -> str:
    """ ":12" for the line where a key is set, "" where that is not plain (the parser keeps no lines)."""
    if '"""' in text or "'''" in text:
        return ""
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            current = header[1]
        elif current == section and re.match(rf"""\s*["']?{re.escape(name)}["']?\s*[.=]""", line):
            return f":{number}"
    return ""


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({name: _frozen(each) for name, each in value.items()})
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value
