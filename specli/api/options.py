"""The settings as keyword arguments: the flags' names in snake case, checked by what checks profiles."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypedDict

from specli.errors import UsageError
from specli.keys import Key, Value, did_you_mean
from specli.settings import GRAMMARS, KEYS, Origin, Settings


class AnswerOptions(TypedDict, total=False):
    """What may differ from answer to answer. None, or left out: as the model was loaded with."""

    system: str | None
    temp: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repeat_penalty: float | None
    repeat_last_n: int | None
    frequency_penalty: float | None
    presence_penalty: float | None
    seed: int | None
    max_tokens: int | None
    stop: str | Sequence[str] | None
    logit_bias: Mapping[str, float] | Mapping[int, float] | None


class LoadOptions(AnswerOptions, total=False):
    """Everything that can be set; `specli run --help` says what each means."""

    parallel: int | None
    reasoning: str | None
    draft_model: str | os.PathLike[str] | None
    spec_type: str | Sequence[str] | None
    spec_draft_n_max: int | None
    spec_draft_n_min: int | None
    spec_draft_p_min: float | None
    spec_ngram_simple_size_n: int | None
    spec_ngram_simple_size_m: int | None
    spec_ngram_simple_min_hits: int | None
    spec_ngram_map_k_size_n: int | None
    spec_ngram_map_k_size_m: int | None
    spec_ngram_map_k_min_hits: int | None
    spec_ngram_map_k4v_size_n: int | None
    spec_ngram_map_k4v_size_m: int | None
    spec_ngram_map_k4v_min_hits: int | None
    spec_self_size_n: int | None
    spec_self_size_m: int | None
    spec_self_min_hits: int | None
    spec_tree: str | None
    self_method: str | None
    same_vocab: bool | None
    fixed: bool | None
    exact: bool | None
    exact_width: int | None
    verify: str | None
    grammar: str | None
    grammar_file: str | os.PathLike[str] | None
    json_schema: str | Mapping[str, object] | None
    json_schema_file: str | os.PathLike[str] | None
    ctx_size: int | None
    threads: int | None
    threads_batch: int | None
    gpu_layers: int | None
    spec_draft_ngl: int | None
    flash_attn: str | None
    cache_type_k: str | None
    cache_type_v: str | None
    no_repack: bool | None
    batch_size: int | None
    swa_full: bool | None


def spelled(key: Key) -> str:
    """A key's name as a keyword argument."""
    return key.flag[2:].replace("-", "_")


_AT_LOAD_ONLY = {*GRAMMARS, "verify"}
FOR_LOAD: Mapping[str, Key] = {spelled(k): k for k in KEYS if k.flag and k.name != "model"}
FOR_ANSWER: Mapping[str, Key] = {
    name: k
    for name, k in FOR_LOAD.items()
    if k.name == "system" or (k.section == "sampling" and k.name not in _AT_LOAD_ONLY)
}


def given(options: Mapping[str, object]) -> dict[str, object]:
    """`options` by attribute of `Settings`, as flags would have given them. Raises UsageError for a name
    that there is not."""
    found: dict[str, object] = {}
    for name, value in options.items():
        key = _known(name, FOR_LOAD)
        if isinstance(value, (list, tuple)) and not value and key.kind not in ("texts", "table"):
            _checked(name, key, value)  # no flag can be empty, so below it would count as not given
        found[key.attribute] = _plain(key, value)
    return found


def changed(settings: Settings, options: Mapping[str, object]) -> Settings:
    """`settings` with the `options` of one answer. Raises UsageError like `profiles.resolve`."""
    values: dict[str, object] = {}
    origins: dict[str, Origin] = dict(settings.origins)
    for name, raw in options.items():
        key = _known(name, FOR_ANSWER)
        if raw is None:
            continue
        values[key.attribute] = _checked(name, key, raw)
        origins[key.name] = "flag"
    if not values:
        return settings
    return replace(settings, **values, origins=MappingProxyType(origins))  # type: ignore[arg-type]


def _checked(name: str, key: Key, raw: object) -> Value:
    try:
        return accepted(key, raw)
    except ValueError as error:
        raise UsageError(f"{name} {error}") from error


def accepted(key: Key, raw: object) -> Value:
    """`raw` as the value of `key`; raises ValueError that says what it must be instead."""
    return key.accept_flag(_plain(key, raw))


def _known(name: str, known: Mapping[str, Key]) -> Key:
    if name in known:
        return known[name]
    if name in FOR_LOAD:
        raise UsageError(f"{name} is set when a model is loaded, not for each answer")
    raise UsageError(f"no setting {name}{did_you_mean(name, known, '{}')}")


def _plain(key: Key, value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if key.name == "json-schema" and isinstance(value, Mapping):
        try:
            return json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"json_schema is no JSON: {error}") from error
    return [value] if key.kind == "texts" and isinstance(value, str) else value
