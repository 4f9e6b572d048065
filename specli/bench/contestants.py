"""Who is compared with plain decoding: settings of [spec], written in one short text.

    ngram-simple                          one method, the rest as in the own settings
    draft-self+draft-model,n-max=3,fixed  methods tried in turn, and keys of a profile's [spec]
    @code                                 a profile's [spec]

`n-max`, `n-min` and `p-min` stand for those of the draft, `size-n`, `size-m` and `min-hits` for those of
each n-gram method named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specli import profiles
from specli.errors import UsageError
from specli.keys import TYPE_ALIASES, Key, did_you_mean
from specli.profiles import Profile, Settings
from specli.settings import BY_NAME
from specli.sizes import LARGEST_TREE, SIZE_STEMS

PLAIN = "plain"
_ELSEWHERE = ("types", "exact", "exact-width")  # keys of [spec] that a contestant cannot set for itself
_DRAFT = ("n-max", "n-min", "p-min")
_SIZES = ("size-n", "size-m", "min-hits")


@dataclass(frozen=True, slots=True)
class Contestant:
    """Settings under a name. Only who drafts, and how, differs between contestants."""

    name: str
    settings: Settings


def contestants(profile: Profile, flags: Mapping[str, object], against: Sequence[str]) -> list[Contestant]:
    """Plain decoding, the own settings, and what `against` names. Raises UsageError for what cannot be meant.

    Own settings that draft nothing are plain decoding, and do not run twice.
    """
    own = profiles.resolve(profile, flags)
    found = [Contestant(PLAIN, profiles.resolve(profile, {**flags, "spec-type": ["none"]}))]
    if own.types != ("none",):
        name = "+".join(own.types) if own.origin("types") == "flag" else own.profile
        found.append(Contestant(name, own))
    for text in against:
        found.append(_parsed(text, profile, flags))
    return _renamed(found)


def together(several: Sequence[Contestant]) -> Settings:
    """Settings to load with, so that each contestant's methods, and trees of its size, are there."""
    first = several[1 if len(several) > 1 else 0].settings
    types = dict.fromkeys(t for each in several for t in each.settings.types)
    trees = {c.settings.tree for c in several} - {"off"}
    tree = "off" if not trees else trees.pop() if len(trees) == 1 else LARGEST_TREE
    n_max = max(c.settings.draft_n_max for c in several)
    return replace(first, types=tuple(types), draft_n_max=n_max, tree=tree)


def _renamed(found: Sequence[Contestant]) -> list[Contestant]:
    out: list[Contestant] = []
    for each in found:
        same = sum(other.name.partition(" #")[0] == each.name for other in out)
        out.append(replace(each, name=f"{each.name} #{same + 1}") if same else each)
    return out


def _parsed(text: str, profile: Profile, flags: Mapping[str, object]) -> Contestant:
    who, *pairs = (part.strip() for part in text.split(","))
    base = profile
    if who.startswith("@"):
        theirs = profiles.load(who[1:]).section("spec")
        spec = {name: value for name, value in theirs.items() if name not in ("exact", "exact-width")}
        base = replace(profile, given={**profile.given, **spec})
        flags = {name: value for name, value in flags.items() if not _of_spec(name)}
        types = list(profiles.resolve(base, flags).types)
        given: dict[str, object] = {}
    else:
        types = [TYPE_ALIASES.get(name.strip(), name.strip()) for name in who.split("+")]
        given = {"spec-type": types}
    try:
        for pair in pairs:
            given |= _settings(pair, types)
        return Contestant(text, profiles.resolve(base, {**flags, **given}))
    except UsageError as error:
        raise UsageError(f'--against "{text}": {error}') from error


def _of_spec(name: str) -> bool:
    key = BY_NAME.get(name.replace("_", "-"))
    return key is not None and key.section == "spec" and key.name not in ("exact", "exact-width")


def _settings(pair: str, types: Sequence[str]) -> dict[str, object]:
    """What "key=value" sets, by full names."""
    name, equals, value = (part.strip() for part in pair.partition("="))
    found: dict[str, object] = {}
    for full in _full_names(name, types):
        key = BY_NAME.get(full)
        if key is None or key.section != "spec" or full in _ELSEWHERE:
            raise UsageError(_unknown(name))
        if key.kind == "bool":
            if value not in ("", "true", "false"):
                raise UsageError(f"{name} must be true or false, not {value}")
            found[full] = value != "false"
        elif not equals:
            raise UsageError(f"{name} needs a value: {name}=...")
        elif key.kind in ("text", "choice"):
            found[full] = value
        else:
            found[full] = _number(key, name, value)
    return found


def _full_names(name: str, types: Sequence[str]) -> list[str]:
    if name in _DRAFT:
        return [f"draft-{name}"]
    if name in _SIZES:
        stems = [SIZE_STEMS[t] for t in types if t in SIZE_STEMS] or (["self"] if "auto" in types else [])
        if not stems:
            raise UsageError(f"{name} is for n-gram methods, and none is named")
        return [f"{stem}-{name}" for stem in stems]
    return [name]


def _unknown(name: str) -> str:
    if name in _ELSEWHERE:
        return f"{name} is the same for all that are compared; give it as a flag"
    known = [k.name for k in BY_NAME.values() if k.section == "spec" and k.name not in _ELSEWHERE]
    return f"no key {name} in [spec]{did_you_mean(name, [*known, *_DRAFT, *_SIZES])}"


def _number(key: Key, name: str, value: str) -> float:
    try:
        return int(value) if key.kind == "int" else float(value)
    except ValueError:
        raise UsageError(f"{name} must be a number, not {value}") from None
