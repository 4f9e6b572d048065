"""What can be set: one table for validation, flags, `specli profiles show` and the docs.

`Settings` is that table. Its fields make the `KEYS`, and from those come what files and flags may
say, their bounds, and the words for what is wrong with them.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from specli.sizes import MOST_NODES, TreeSize
from specli.sizes import NgramSizes as NgramSizes

Kind = Literal["bool", "int", "float", "text", "choice", "types", "texts", "table"]
Origin = Literal["flag", "profile", "default"]
Value: TypeAlias = "bool | int | float | str | tuple[str, ...] | Mapping[str, float] | None"

DEFAULT_PROFILE = "auto"
SECTIONS = ("", "spec", "sampling", "engine")
TYPES = (
    "none",
    "draft-model",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "draft-mtp",
    "draft-eagle3",
    "draft-dflash",
    "draft-dspark",
    "draft-self",
    "draft-self-layers",
    "auto",
)
NEURAL = ("draft-model", "draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark", "draft-self-layers")
"""Those of the types that compute their drafts."""
TYPE_ALIASES: Mapping[str, str] = MappingProxyType({"draft-simple": "draft-model"})
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
GRAMMARS = ("grammar", "grammar-file", "json-schema", "json-schema-file")
"""Ways to say what answers must be; no two of them at once."""
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


def _key(section: str, kind: Kind, default: Value, help: str, *bounds: float, **more: Any) -> Any:
    low, high = (*bounds, None, None)[:2]
    key = Key(section, kind, default, help, low, high, **more)
    if kind == "table":
        return field(default_factory=lambda: MappingProxyType({}), metadata={"key": key})
    return field(default=default, metadata={"key": key})


_MATCH, _DRAFT, _HITS = "tokens that must match", "most tokens drafted", "occurrences needed before"
_TYPES_HELP = "who drafts, tried in this order"
SELF_METHODS = {"history": "draft-self", "layers": "draft-self-layers"}
"""What `self-method` makes of draft-self."""


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What results from flags, profile and defaults; `origin` says which.

    The sampling defaults are llama.cpp's.
    """

    description: str = _key("", "text", "", "what the profile is for")
    parallel: int = _key("", "int", 1, "conversations at once: 1, any other number is refused, as one "
                         "conversation owns the cache", 1, 1)
    model: str | None = _key("", "text", None, "the target: path, alias or user/repo[:quant]", unset="none")
    draft_model: str | None = _key("", "text", None, "the smaller model that drafts", unset="none")
    system: str | None = _key("", "text", None, "system message", unset="none")
    reasoning: str = _key("", "choice", "auto", "whether the model reasons before it answers, where its template lets "
                          "one choose", choices=("auto", "on", "off"))

    types: tuple[str, ...] = _key("spec", "types", ("auto",), _TYPES_HELP, choices=TYPES, flag="--spec-type")
    draft_n_max: int = _key("spec", "int", 4, "most tokens of a neural draft; 0 drafts none", 0, 64)
    draft_n_min: int = _key("spec", "int", 0, "shorter neural drafts are dropped", 0, 64)
    draft_p_min: float = _key("spec", "float", 0.0, "a neural draft ends below this probability", 0, 1)
    tree: str = _key("spec", "text", "off", "off, or WIDTHxDEPTH: token trees of a draft model, so many at a place on so "
                     "many levels; draft-n-max, if given as a flag, bounds all")
    ngram_simple_size_n: int = _key("spec", "int", 12, _MATCH, 1, 1024)
    ngram_simple_size_m: int = _key("spec", "int", 48, _DRAFT, 1, 1024)
    ngram_simple_min_hits: int = _key("spec", "int", 1, _HITS, 1, 1024)
    ngram_map_k_size_n: int = _key("spec", "int", 12, _MATCH, 1, 1024)
    ngram_map_k_size_m: int = _key("spec", "int", 48, _DRAFT, 1, 1024)
    ngram_map_k_min_hits: int = _key("spec", "int", 1, _HITS, 1, 1024)
    ngram_map_k4v_size_n: int = _key("spec", "int", 12, _MATCH, 1, 1024)
    ngram_map_k4v_size_m: int = _key("spec", "int", 48, _DRAFT, 1, 1024)
    ngram_map_k4v_min_hits: int = _key("spec", "int", 1, _HITS, 1, 1024)
    self_size_n: int = _key("spec", "int", 2, _MATCH + " (draft-self)", 1, 1024)
    self_size_m: int = _key("spec", "int", 64, _DRAFT + " (draft-self)", 1, 1024)
    self_min_hits: int = _key("spec", "int", 1, _HITS + " (draft-self)", 1, 1024)
    self_method: str = _key("spec", "choice", "history", "how draft-self drafts: from earlier text, or as the model "
                            "without some layers", choices=tuple(SELF_METHODS), flag="--self-method")
    same_vocab: bool = _key("spec", "bool", False, "refuse a draft model of another vocabulary", flag="--same-vocab")
    fixed: bool = _key("spec", "bool", False, "always draft the full length, without pacing", flag="--fixed")
    exact: bool = _key("spec", "bool", False, "fixed width: the same tokens whoever drafts", flag="--exact")
    exact_width: int = _key("spec", "int", 4, "rows a decode; implies exact", 2, 64, flag="--exact-width")

    temp: float = _key("sampling", "float", 0.8, "temperature; 0 takes the likeliest token", 0, 1000)
    top_k: int = _key("sampling", "int", 40, "keep the k likeliest tokens; 0 keeps all", 0, 10_000_000)
    top_p: float = _key("sampling", "float", 0.95, "keep the likeliest tokens up to this sum; 1 is off", 0, 1)
    min_p: float = _key("sampling", "float", 0.05, "drop below this share of the likeliest; 0 is off", 0, 1)
    typical_p: float = _key("sampling", "float", 1.0, "locally typical sampling; 1 is off", 0, 1)
    repeat_penalty: float = _key("sampling", "float", 1.0, "penalty for repeated tokens; 1 is off", 0.01, 100)
    repeat_last_n: int = _key("sampling", "int", 64, "tokens penalties see; 0 none, -1 all", -1, 10_000_000)
    frequency_penalty: float = _key("sampling", "float", 0.0, "per earlier use of a token", -100, 100)
    presence_penalty: float = _key("sampling", "float", 0.0, "once a token was used", -100, 100)
    seed: int | None = _key("sampling", "int", None, "repeats an answer exactly", 0, 2**32 - 1,
                            automatic=-1, unset="new each time")
    max_tokens: int | None = _key("sampling", "int", None, "most tokens of an answer", 1, 2**31 - 1,
                                  automatic=-1, unset="until it ends")
    stop: tuple[str, ...] = _key("sampling", "texts", (), "texts that end the answer")
    logit_bias: Mapping[str, float] = _key("sampling", "table", {},
                                           "token = amount added to its logit", -1000, 1000)
    verify: str = _key("sampling", "choice", "rejection", "how drafts are judged; coupled: same seed, same draws",
                       choices=("rejection", "coupled"))
    grammar: str | None = _key("sampling", "text", None, "what answers must be, in GBNF", unset="none")
    grammar_file: str | None = _key("sampling", "text", None, "a file with such a grammar", unset="none")
    json_schema: str | None = _key("sampling", "text", None, "a JSON schema that answers must fit", unset="none")
    json_schema_file: str | None = _key("sampling", "text", None, "a file with such a schema", unset="none")

    ctx_size: int | None = _key("engine", "int", None, "tokens of context", 8, 2**31 - 1,
                                automatic=0, unset="automatic: the model's, as memory allows, up to 8192")
    threads: int | None = _key("engine", "int", None, "threads for one token", 1, 4096,
                               automatic=-1, unset="automatic: physical cores")
    threads_batch: int | None = _key("engine", "int", None, "threads for several tokens", 1, 4096,
                                     automatic=-1, unset="automatic: as threads")
    gpu_layers: int | None = _key("engine", "int", None, "layers on the GPU", 0, 100_000,
                                  automatic=-1, unset="automatic: all")
    spec_draft_ngl: int | None = _key("engine", "int", None, "the draft model's GPU layers", 0, 100_000,
                                      automatic=-1, unset="automatic: all")
    flash_attn: str = _key("engine", "choice", "auto", "flash attention", choices=("auto", "on", "off"))
    cache_type_k: str = _key("engine", "choice", "f16", "type of the cached keys", choices=CACHE_TYPES)
    cache_type_v: str = _key("engine", "choice", "f16", "type of the cached values", choices=CACHE_TYPES)
    no_repack: bool = _key("engine", "bool", False, "keep weights as stored; slower, for CPUs that crash")
    batch_size: int = _key("engine", "int", 2048, "most tokens in one decode", 1, 1_000_000)
    swa_full: bool = _key("engine", "bool", True, "full-size cache for sliding-window attention")

    profile: str = DEFAULT_PROFILE
    origins: Mapping[str, Origin] = field(default_factory=lambda: MappingProxyType({}))
    # fmt: on

    def origin(self, name: str) -> Origin:
        """Where the value of the key `name` came from. Raises KeyError for what is no key."""
        return self.origins.get(key(name).name, "default")

    def asked_by_flag(self, method: str) -> bool:
        """Whether a flag named this type: then what it needs must be there, else a notice will do."""
        return method in self.types and self.origin("types") == "flag"

    @property
    def fixed_width(self) -> int | None:
        """Rows of every decode where `exact` is on, else None."""
        return self.exact_width if self.exact else None

    @property
    def coupled(self) -> bool:
        """Whether drafts are matched with the target's own draw: asked for, or because of exact mode."""
        return self.exact or self.verify == "coupled"

    @property
    def tree_size(self) -> TreeSize | None:
        """The bounds of token trees, None where they are off."""
        return TreeSize.read(self.tree)

    @property
    def tree_nodes(self) -> int:
        """Most tokens of a tree where a flag bounds them, else 0."""
        return self.draft_n_max if self.origin("draft-n-max") == "flag" else 0

    def ngram(self, method: str) -> NgramSizes:
        """The sizes of ngram-simple, ngram-map-k, ngram-map-k4v or draft-self."""
        stem = "self" if method == "draft-self" else method.replace("-", "_")
        sizes = ("size_n", "size_m", "min_hits")
        return NgramSizes(*(int(getattr(self, f"{stem}_{size}")) for size in sizes))


def _named(name: str, key: Key) -> Key:
    usual = f"--spec-{name}" if key.section == "spec" else f"--{name}"
    return replace(key, name=name, flag="" if name == "description" else key.flag or usual)


KEYS: tuple[Key, ...] = tuple(
    _named(each.name.replace("_", "-"), each.metadata["key"]) for each in fields(Settings) if each.metadata
)
BY_NAME: Mapping[str, Key] = {each.name: each for each in KEYS}
_BY_FLAG: Mapping[str, Key] = {each.flag[2:]: each for each in KEYS if each.flag}


def key(name: str) -> Key:
    """The key called `name`, in a profile's, an attribute's or a flag's spelling. Raises KeyError."""
    found = find(name)
    if found is None:
        raise KeyError(name)
    return found


def find(name: str) -> Key | None:
    plain = name.lstrip("-").replace("_", "-")
    return BY_NAME.get(plain) or _BY_FLAG.get(plain)


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
