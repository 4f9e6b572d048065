"""What can be set: one table for validation, flags, `specli profiles show` and the docs.

`Settings` is that table. Its fields make the `KEYS`, and from those come what files and flags may
say, their bounds, and the words for what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal

from specli.keys import Key, Kind, Value
from specli.sizes import SIZE_STEMS, TreeSize
from specli.sizes import NgramSizes as NgramSizes

Origin = Literal["flag", "profile", "default"]

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
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
GRAMMARS = ("grammar", "grammar-file", "json-schema", "json-schema-file")
"""Ways to say what answers must be; no two of them at once."""


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

    ctx_size: int | None = _key("engine", "int", None, "tokens of context, rounded up to a multiple of 256", 8, 2**31 - 1,
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
        stem = SIZE_STEMS[method].replace("-", "_")
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
