"""JSON schemas as grammars, by the converter that comes with the library, less its faults.

Mended here: text with backslashes or line ends in names and constants, control characters and quotes inside
strings, several types in one schema.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specli.errors import UsageError

_CHAR = r'[^"\\\x00-\x1F\x7F]'
# the converter passes over these in silence: a grammar cannot count or compare like that
_BEYOND = frozenset({
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "uniqueItems", "not", "if",
    "then", "else", "minProperties", "maxProperties", "patternProperties", "propertyNames", "contains",
    "minContains", "maxContains", "dependentRequired", "dependentSchemas", "dependencies",
    "unevaluatedProperties", "unevaluatedItems", "additionalItems",
})  # fmt: skip
_FORMATS = re.compile(r"date|time|date-time|uuid[1-5]?")
# what the converter looks at first, and alone
_ALONE = ("$ref", "oneOf", "anyOf", "const", "enum", "pattern")
_TELLING = frozenset({
    "enum", "const", "properties", "required", "items", "prefixItems", "minItems", "maxItems", "pattern",
    "minLength", "maxLength", "allOf", "anyOf", "oneOf", "$ref",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class SchemaGrammar:
    """A schema as GBNF. `unkept`: keywords of the schema that the grammar does not hold answers to."""

    text: str
    unkept: tuple[str, ...]


def schema_grammar(text: str) -> SchemaGrammar:
    """The grammar of the JSON texts that fit the schema `text`. Raises UsageError, in one line, for what is
    no schema, or one that the converter cannot turn into a grammar."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise UsageError("a JSON schema is an object, {…}")
    try:
        unkept = tuple(sorted(set(_unkept(schema))))
        return SchemaGrammar(_mended(_converted(_prepared(schema))), unkept)
    except RecursionError as error:
        raise UsageError("nested too deeply") from error
    except (AssertionError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UsageError(f"cannot be made a grammar ({type(error).__name__}: {reason})") from error


def _converted(schema: Mapping[str, Any]) -> str:
    module = importlib.import_module("llama_cpp.llama_grammar")
    converter = module.SchemaConverter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
    converter._format_literal = _literal
    converter.visit(converter.resolve_refs(schema, "schema"), "")
    return str(converter.format_grammar())


def _literal(text: str) -> str:
    """JSON text as a GBNF literal: what is escaped in it stays so."""
    text = json.dumps(json.loads(text), ensure_ascii=False)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _mended(grammar: str) -> str:
    """Characters of strings as JSON has them; the converter's rules let line ends and quotes through."""
    lines = []
    for line in grammar.split("\n"):
        name, _, rule = line.partition(" ::= ")
        if name == "char":
            rule = _CHAR + rule[rule.index(" | ") :]
        lines.append(f"{name} ::= {_CHAR if name == 'dot' else rule}")
    return "\n".join(lines)


def _prepared(schema: Any) -> Any:
    """The schema with each list of types spelled out as alternatives, and patterns that stay inside a JSON
    string."""
    if isinstance(schema, list):
        return [_prepared(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    out = {name: value if name in ("enum", "const") else _prepared(value) for name, value in schema.items()}
    types, pattern = out.get("type"), out.get("pattern")
    if isinstance(types, list):
        del out["type"]
        if not any(name in out for name in _ALONE):
            out = {"anyOf": [{**out, "type": each} for each in types]}
    if isinstance(pattern, str):
        out["pattern"] = re.sub(r"(?<!\\)\[\^", lambda _: _CHAR[:-1], pattern)
    return out


def _unkept(schema: Any) -> Iterator[str]:
    """Names of the keywords, here and below, that the grammar does not enforce."""
    if not isinstance(schema, dict):
        return
    yield from _BEYOND & schema.keys()
    form = schema.get("format")
    if isinstance(form, str) and not _FORMATS.fullmatch(form):
        yield f"format {form}"
    alone = next((name for name in _ALONE if name in schema), None)
    if alone is not None:
        yield from _TELLING & schema.keys() - {alone}
    if "required" in schema and set(schema["required"]) - set(schema.get("properties", ())):
        yield "required"
    if {"minItems", "maxItems"} & schema.keys() and not isinstance(schema.get("items"), dict):
        yield "minItems/maxItems"
    for name in ("properties", "$defs", "definitions"):
        for each in schema.get(name, {}).values():
            yield from _unkept(each)
    for name in ("items", "additionalProperties"):
        yield from _unkept(schema.get(name))
    for name in ("anyOf", "oneOf", "allOf", "prefixItems", "items"):
        several = schema.get(name)
        for each in several if isinstance(several, list) else ():
            yield from _unkept(each)
