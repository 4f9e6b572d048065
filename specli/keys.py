"""One thing that can be set: its bounds, how files and flags say it, and the words for what is wrong."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from specli.sizes import MOST_NODES, TreeSize

Kind = Literal["bool", "int", "float", "text", "choice", "types", "texts", "table"]
Value: TypeAlias = "bool | int | float | str | tuple[str, ...] | Mapping[str, float] | None"
TYPE_ALIASES: Mapping[str, str] = MappingProxyType({"draft-simple": "draft-model"})
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_NEAR = 0.66  # how like what is known a word must be, 1 for equal
_BIAS = re.compile(r"(.+?)([+-](?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Key:
    """One thing that can be set, in a profile and, unless `flag` is empty, by a flag.

    `low`, `high`: bounds, both allowed. `automatic`: the number that stands for None, which `unset`
    puts into words.
    """

    section: str
    kind: Kind
    default: Value
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    automatic: int | None = None
    unset: str = ""
    flag: str = ""
    name: str = ""

    @property
    def attribute(self) -> str:
        """Its name in `Settings`."""
        return self.name.replace("-", "_")

    @property
    def written(self) -> str:
        """Its name with its section, as messages show it."""
        return f"[{self.section}] {self.name}" if self.section else self.name

    @property
    def bounds(self) -> str:
        """What it may be, in words."""
        if self.choices:
            return ", ".join(self.choices)
        if self.low is None:
            return _KIND_WORDS[self.kind]
        words = f"at least {self.low:.10g}" if self.high is None else f"{self.low:.10g} to {self.high:.10g}"
        return words if self.automatic is None else f"{words}, or {self.automatic} for automatic"

    def accept(self, raw: object) -> Value:
        """`raw` as this key's value; raises ValueError that says what it must be instead."""
        return _READERS[self.kind](self, raw)

    def accept_flag(self, raw: object) -> Value:
        """Like `accept`; also takes a command line's forms: "a,b" for types, "TOKEN-1.5" for biases."""
        if self.kind == "types":
            parts = [raw] if isinstance(raw, str) else raw
            if isinstance(parts, (list, tuple)) and all(isinstance(part, str) for part in parts):
                raw = [name.strip() for part in parts for name in part.split(",")]
        elif self.kind == "table" and not isinstance(raw, Mapping):
            raw = _biases([raw] if isinstance(raw, str) else raw)
        return self.accept(raw)

    def show(self, value: Value) -> str:
        """`value` as one would write it in a profile; None in words."""
        return (self.unset or "automatic") if value is None else as_text(value)


# Readers: what a file or a flag gave, as a key's value; ValueError says what it must be instead.


def _shown(raw: object) -> str:
    if isinstance(raw, (dict, list, tuple)):
        return "a table" if isinstance(raw, dict) else "a list"
    text = json.dumps(raw) if isinstance(raw, (str, bool)) else str(raw)
    return text if len(text) <= 60 else text[:57] + "..."


def _bool(key: Key, raw: object) -> bool:
    if not isinstance(raw, bool):
        raise ValueError(f"must be true or false, not {_shown(raw)}")
    return raw


def _int(key: Key, raw: object) -> int | None:
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise ValueError(f"must be a whole number, not {_shown(raw)}")
    if key.name == "parallel" and raw != 1:
        raise ValueError(f"must be 1, not {raw}: one sequence owns the cache and the draft's state")
    return None if raw == key.automatic else int(_bounded(key, raw, "must be"))


def _float(key: Key, raw: object) -> float:
    return float(_bounded(key, _finite(raw, "must be a number"), "must be"))


def _text(key: Key, raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"must be a text in quotes, not {_shown(raw)}")
    if "\0" in raw or (not raw and key.name not in ("description", "system")):
        raise ValueError("must not be empty" if not raw else "must not hold a NUL character")
    if key.name == "tree" and raw != "off" and TreeSize.read(raw) is None:
        raise ValueError(
            f"must be off or WIDTHxDEPTH, as in 3x4, of up to {MOST_NODES} nodes, not {_shown(raw)}"
        )
    return raw


def _choice(key: Key, raw: object) -> str:
    if isinstance(raw, str) and raw in key.choices:
        return raw
    hint = did_you_mean(raw, key.choices) if isinstance(raw, str) else ""
    raise ValueError(f"must be one of {key.bounds}, not {_shown(raw)}{hint}")


def _types(key: Key, raw: object) -> tuple[str, ...]:
    if not isinstance(raw, (list, tuple)):
        raise ValueError(f'must be a list such as ["draft-self", "draft-model"], not {_shown(raw)}')
    types = tuple(
        _choice(key, TYPE_ALIASES.get(each, each) if isinstance(each, str) else each) for each in raw
    )
    if not types:
        raise ValueError('must name at least one type; ["none"] turns drafting off')
    for each in types:
        if types.count(each) > 1:
            raise ValueError(f"names {each} twice")
        if each in ("none", "auto") and len(types) > 1:
            raise ValueError(f"must not mix {each} with other types: {_ALONE[each]}")
    return types


def _texts(key: Key, raw: object) -> tuple[str, ...]:
    if not isinstance(raw, (list, tuple)) or not all(isinstance(each, str) for each in raw):
        raise ValueError(f'must be a list of texts such as ["END"], not {_shown(raw)}')
    if "" in raw:
        raise ValueError("must not hold an empty text: it would stop at once")
    return tuple(raw)


def _table(key: Key, raw: object) -> Mapping[str, float]:
    if not isinstance(raw, Mapping):
        raise ValueError(f'must be a table such as {{ "token" = -1.5 }}, not {_shown(raw)}')
    amounts: dict[str, float] = {}
    for name, amount in raw.items():
        if isinstance(name, int) and not isinstance(name, bool):  # a token's number
            name = str(name)
        if not isinstance(name, str):
            raise ValueError(f"must have tokens as names, texts or whole numbers, not {_shown(name)}")
        what = f"for {json.dumps(name)} must be"
        amounts[name] = float(_bounded(key, _finite(amount, f"{what} a number"), what))
    return MappingProxyType(amounts)


def _finite(raw: object, what: str) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (int, float)):
        raise ValueError(f"{what}, not {_shown(raw)}")
    try:
        if math.isfinite(value := float(raw)):
            return value
    except OverflowError:  # an integer beyond every float
        pass
    raise ValueError(f"{what}, and finite, not {_shown(raw)}")


def _bounded(key: Key, value: float, what: str) -> float:
    low, high = key.low, key.high
    if (low is not None and value < low) or (high is not None and value > high):
        raise ValueError(f"{what} {key.bounds}, not {_shown(value)}")
    return value


def _biases(raw: object) -> object:
    """["5+1.5", "end-2"] as a table."""
    if not isinstance(raw, (list, tuple)):
        return raw
    found: dict[str, float] = {}
    for each in raw:
        match = _BIAS.fullmatch(each) if isinstance(each, str) else None
        if match is None:
            raise ValueError(f"must be TOKEN+X or TOKEN-X, such as 5+1.5, not {_shown(each)}")
        found[match[1]] = float(match[2])
    return found


_ALONE = {"none": "it turns drafting off", "auto": "it chooses among all of them"}
_KIND_WORDS: Mapping[Kind, str] = {
    "bool": "true or false", "int": "whole number", "float": "number", "text": "text",
    "choice": "", "types": "", "texts": "list of texts", "table": "table",
}  # fmt: skip
_READERS: Mapping[Kind, Callable[[Key, object], Value]] = {
    "bool": _bool, "int": _int, "float": _float, "text": _text,
    "choice": _choice, "types": _types, "texts": _texts, "table": _table,
}  # fmt: skip


def did_you_mean(word: str, known: Iterable[str], form: str = '"{}"') -> str:
    """What may have been meant: the nearest of `known`, or one that begins so; "" if nothing is near."""
    names = list(known)
    near = difflib.get_close_matches(word, names, 1, _NEAR) or [
        name for name in names if word.strip("-") and (name.startswith(word) or word.startswith(name))
    ]
    return f"; did you mean {form.format(near[0])}?" if near else ""


def as_text(value: object) -> str:
    """`value` on one line, in the spelling that JSON and TOML share (a table in JSON's)."""
    return json.dumps(thawed(value), ensure_ascii=False, default=str)


def thawed(value: object) -> Any:
    """Read-only mappings and tuples as the dicts and lists that writers of TOML and JSON take."""
    if isinstance(value, Mapping):
        return {name: thawed(each) for name, each in value.items()}
    return [thawed(each) for each in value] if isinstance(value, (list, tuple)) else value


def bare(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)
