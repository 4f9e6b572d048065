"""JSON schemas brought into a plain form: references followed, allOf joined, alternatives spelled out.

A form is a schema without $ref, allOf, anyOf and oneOf. What fits one of the forms of a schema fits the schema,
but for keywords that are named as not kept.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from specli.engine.pattern import pattern_of
from specli.errors import UsageError

Form = dict[str, Any]
Unkept = Callable[[str], None]
Visit = Callable[[int], None]

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
FAMILIES: Mapping[str, frozenset[str]] = {
    "object": frozenset({
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties",
    }),
    "array": frozenset({
        "items", "prefixItems", "minItems", "maxItems", "additionalItems", "uniqueItems", "contains", "minContains",
        "maxContains", "unevaluatedItems",
    }),
    "string": frozenset({"pattern", "minLength", "maxLength", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}  # fmt: skip
"""What is said of values of one type; it says nothing of others."""
OF_ANY = ("not", "if", "then", "else")
_COMPOSED = ("$ref", "allOf", "anyOf", "oneOf")
_SILENT = frozenset({
    "$schema", "$id", "id", "$comment", "$defs", "definitions", "$anchor", "$vocabulary", "title", "description",
    "default", "nullable", "example", "examples", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType",
    "contentSchema",
})  # fmt: skip
_KNOWN = frozenset({"type", "enum", "const", *OF_ANY, *_COMPOSED, *_SILENT}.union(*FAMILIES.values()))
_ELSEWHERE = ("$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor")

_OBJECT, _NEEDS, _LIST, _TEXT, _COUNT, _NUMBER, _SCHEMA, _TRUTH = (
    "an object", "an object of lists of names", "a list", "a text", "a whole number from 0 up", "a number", "a schema: an object, true or false",
    "true or false",
)  # fmt: skip
_SHAPES: Mapping[str, str] = {
    "properties": _OBJECT, "patternProperties": _OBJECT, "dependentRequired": _NEEDS, "dependentSchemas": _OBJECT,
    "required": _LIST, "enum": _LIST, "allOf": _LIST, "anyOf": _LIST, "oneOf": _LIST, "prefixItems": _LIST,
    "$ref": _TEXT, "pattern": _TEXT, "format": _TEXT, "minLength": _COUNT, "maxLength": _COUNT, "minItems": _COUNT,
    "maxItems": _COUNT, "minProperties": _COUNT, "maxProperties": _COUNT, "minimum": _NUMBER, "maximum": _NUMBER,
    "exclusiveMinimum": _NUMBER, "exclusiveMaximum": _NUMBER, "multipleOf": _NUMBER,
    "additionalProperties": _SCHEMA, "propertyNames": _SCHEMA, "unevaluatedProperties": _SCHEMA, "uniqueItems": _TRUTH,
}  # fmt: skip
_MOST_FORMS = 500


class Forms:
    """The forms of the schemas inside `root`, to which references point. `unkept` hears of what they lose, `visit`
    of the work."""

    def __init__(self, root: Any, unkept: Unkept, visit: Visit) -> None:
        self._root, self._unkept, self._visit = root, unkept, visit
        # Without it twice the next, which is twice the next, and so on would double each time.
        self._referred: dict[str, list[Form]] = {}

    def of(self, schema: Any, seen: frozenset[str] = frozenset()) -> list[Form]:
        """All forms, none where nothing fits. Raises UsageError for what is no schema.

        `seen`: references followed on the way, which must not come again."""
        if isinstance(schema, bool):
            return [{}] if schema else []
        self._visit(1)
        forms = [self._own(schema)]
        if "$ref" in schema:
            name = schema["$ref"]
            if name in seen:
                raise UsageError(f"{name:.60} refers to itself alone")
            if name not in self._referred:
                self._referred[name] = self.of(self._target(name), seen | {name})
            forms = self._both(forms, self._referred[name])
        for part in schema.get("allOf", ()):
            forms = self._both(forms, self.of(part, seen))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                ways = [self.of(each, seen) for each in schema[keyword]]
                if keyword == "oneOf" and not _exclusive(ways):
                    self._unkept("oneOf (only one of them)")
                forms = self._both(forms, [form for way in ways for form in way])
        for rest, of in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            if rest in schema:
                forms = [form if of in form else {**form, of: schema[rest]} for form in forms]
        return forms

    def _own(self, schema: Any) -> Form:
        """What the schema says by itself."""
        if not isinstance(schema, dict):
            raise UsageError(f"a schema is an object, true or false, not {schema!r:.40}")
        schema = _as_now(schema)
        for name, value in schema.items():
            shape = _SHAPES.get(name)
            if shape is not None and not _has_shape(value, shape):
                raise UsageError(f"{name} must be {shape}")
            if name in _ELSEWHERE:
                raise UsageError(f"{name} is not supported; use $ref")
            if name not in _KNOWN and not name.startswith("x-"):
                self._unkept(name)
        form = {k: v for k, v in schema.items() if k in _KNOWN and k not in _SILENT and k not in _COMPOSED}
        form.pop("unevaluatedProperties", None)
        form.pop("unevaluatedItems", None)
        if "type" in form:
            form["type"] = _types(form["type"])
        if "const" in form:
            form["enum"] = [each for each in form.get("enum", [form["const"]]) if same(each, form["const"])]
            del form["const"]
        if isinstance(form.get("items"), list):  # as it was written before 2020
            form["prefixItems"] = form.pop("items")
            form["items"] = form.pop("additionalItems", True)
        form.pop("additionalItems", None)
        if any(not isinstance(name, str) for name in form.get("required", ())):
            raise UsageError("required must be a list of names")
        return form

    def _target(self, name: str) -> Any:
        if name != "#" and not name.startswith("#/"):
            raise UsageError(f"$ref {name:.60}: only references within the schema, #/…, are followed")
        found = self._root
        for part in name.split("/")[1:]:
            part = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isdecimal() and len(part) < 9 and int(part) < len(found):
                found = found[int(part)]
            else:
                raise UsageError(f"$ref {name:.60}: there is no such place")
        return found

    def _both(self, some: Sequence[Form], others: Sequence[Form]) -> list[Form]:
        if len(some) * len(others) > _MOST_FORMS:
            raise UsageError("it has too many combinations of alternatives")
        self._visit(sum(len(form.get("properties", ())) for form in (*some, *others)))
        return [form for a in some for b in others if (form := self._joined(a, b)) is not None]

    def _joined(self, a: Form, b: Form) -> Form | None:
        """What fits both; None if that is nothing."""
        a, b = _closed(a, b), _closed(b, a)
        out = {**a, **b}
        for name in a.keys() & b.keys():
            joined = _JOINED.get(name)
            if joined is not None:
                out[name] = joined(a[name], b[name])
            elif not same(a[name], b[name]):
                out[name] = a[name]
                self._unkept(name)
        if "prefixItems" in a or "prefixItems" in b:
            out["prefixItems"] = _tuples(a, b)
        return None if out.get("type") == [] or out.get("enum") == [] else out


def _as_now(schema: Form) -> Form:
    """Bounds as they are written since 2017: before, exclusiveMinimum was true or false, and spoke of minimum."""
    out = dict(schema)
    for name, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(out.get(name), bool) and out.pop(name) and bound in out:
            out[name] = out.pop(bound)
    return out


def _types(given: Any) -> list[str]:
    names = given if isinstance(given, list) else [given]
    for name in names:
        if name not in TYPES:
            raise UsageError(f"there is no type {name!r:.40}; there are {', '.join(TYPES)}")
    return [name for name in dict.fromkeys(names) if not (name == "integer" and "number" in names)]


def _has_shape(value: Any, shape: str) -> bool:
    if shape == _SCHEMA:
        return isinstance(value, (dict, bool))
    if shape == _TRUTH:
        return isinstance(value, bool)
    if shape in (_OBJECT, _LIST, _TEXT):
        return isinstance(value, {_OBJECT: dict, _LIST: list, _TEXT: str}[shape])
    if shape == _NEEDS:
        lists = list(value.values()) if isinstance(value, dict) else [None]
        return all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in lists)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return shape == _NUMBER or (value >= 0 and value == int(value))


# -- both of two -----------------------------------------------------------------------------------


def _all_of(a: Any, b: Any) -> Any:
    """One schema, each part once: what stands inside itself is joined again and again, and must come to an end."""
    parts = {json.dumps(part): part for each in (a, b) for part in _parts(each)}
    return {"allOf": list(parts.values())} if len(parts) > 1 else next(iter(parts.values()))


def _parts(schema: Any) -> list[Any]:
    several = schema.get("allOf") if isinstance(schema, dict) and len(schema) == 1 else None
    return several if isinstance(several, list) and several else [schema]


def _by_name(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    return {**a, **{name: _all_of(a[name], each) if name in a else each for name, each in b.items()}}


def _common_types(a: Sequence[str], b: Sequence[str]) -> list[str]:
    narrow = {"integer": "number"}
    return [t for t in TYPES if (t in a or narrow.get(t) in a) and (t in b or narrow.get(t) in b)]


_JOINED: Mapping[str, Callable[[Any, Any], Any]] = {
    "type": _common_types,
    "enum": lambda a, b: [each for each in a if any(same(each, other) for other in b)],
    "properties": _by_name,
    "patternProperties": _by_name,
    "required": lambda a, b: list(dict.fromkeys([*a, *b])),
    "additionalProperties": _all_of,
    "propertyNames": _all_of,
    "items": _all_of,
    "prefixItems": lambda a, b: a,  # see _tuples
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
}


def _closed(a: Form, b: Form) -> Form:
    """`a`, whose properties meet what `b` says of those that it does not name."""
    rest = b.get("additionalProperties", True)
    if rest is True or not {"properties", "patternProperties"} & a.keys():
        return a
    if "patternProperties" in a:  # some of the names may be named by `b`: narrower than need be
        a = {**a, "patternProperties": {p: _all_of(each, rest) for p, each in a["patternProperties"].items()}}
    if "properties" not in a:
        return a
    named, patterns = b.get("properties", {}), b.get("patternProperties", {})
    return {
        **a,
        "properties": {
            name: each if name in named or any(found(p, name) for p in patterns) else _all_of(each, rest)
            for name, each in a["properties"].items()
        },
    }


def _tuples(a: Form, b: Form) -> list[Any]:
    first, second = a.get("prefixItems", []), b.get("prefixItems", [])
    more_a, more_b = a.get("items", True), b.get("items", True)
    return [
        _all_of(
            first[i] if i < len(first) else more_a,
            second[i] if i < len(second) else more_b,
        )
        for i in range(max(len(first), len(second)))
    ]  # fmt: skip


def _exclusive(ways: Sequence[Sequence[Form]]) -> bool:
    """Whether what fits one way can be seen to fit none of the others."""
    return all(_apart(a, b) for i, way in enumerate(ways) for other in ways[:i] for a in way for b in other)


def _apart(a: Form, b: Form) -> bool:
    if "enum" in a and "enum" in b:
        return not any(same(x, y) for x in a["enum"] for y in b["enum"])
    if "enum" in a or "enum" in b:
        values, other = (a["enum"], b) if "enum" in a else (b["enum"], a)
        return not any(may_fit(value, other) for value in values)
    shared = _common_types(a.get("type", TYPES), b.get("type", TYPES))  # what names no type fits any
    return not shared or (shared == ["object"] and (_differ(a, b) or (_lacks(a, b) and _lacks(b, a))))


def _differ(a: Form, b: Form) -> bool:
    """Whether both must have a property of which they want other values."""
    for name in set(a.get("required", ())) & set(b.get("required", ())):
        one, other = (each.get("properties", {}).get(name) for each in (a, b))
        if all(isinstance(each, dict) and not set(each) & set(_COMPOSED) for each in (one, other)):
            values = [each.get("enum", [each["const"]] if "const" in each else None) for each in (one, other)]
            if None not in values and not any(same(x, y) for x in values[0] for y in values[1]):
                return True
    return False


def _lacks(a: Form, b: Form) -> bool:
    """Whether what is written for `a` never has a property that `b` requires."""
    extras = "properties" not in a or a.get("additionalProperties", False) is not False
    return not extras and bool(set(b.get("required", ())) - set(a["properties"]) - set(a.get("required", ())))


# -- values ----------------------------------------------------------------------------------------


def implied_types(form: Form) -> list[str]:
    """The types that a form is about: those it names, else those that its keywords are about, else all."""
    if "type" in form:
        return list(form["type"])
    found = [name for name, keywords in FAMILIES.items() if keywords & form.keys()]
    return found or [name for name in TYPES if name != "integer"]


def same(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal: 1 is 1.0, and true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    return bool(a == b)


def found(pattern: str, text: str) -> bool:
    """Whether a pattern matches somewhere. Python looks for what no grammar can say, such as (?!x), where it reads it
    as JSON Schema does. Raises UsageError, in one line, where it cannot be told."""
    try:
        read = pattern_of(pattern)
    except UsageError:
        if not (text.isascii() and text.isprintable()):
            raise
        try:
            return re.search(re.sub(r"(?<!\\)\(\?<(?![=!])", "(?P<", pattern), text, re.ASCII) is not None
        except (re.error, RecursionError, OverflowError):
            pass
        raise
    return read.found_in(text)


def may_fit(value: Any, form: Form) -> bool:
    """Whether a value may fit: False where its type or what is said of numbers and texts forbids it."""
    return all(_conditions(value, form))


def _conditions(value: Any, form: Form) -> Iterator[bool]:
    if "type" in form:
        yield type_of(value) in form["type"] or (type_of(value) == "integer" and "number" in form["type"])
    if isinstance(value, str):
        yield form.get("minLength", 0) <= len(value) <= form.get("maxLength", math.inf)
        yield "pattern" not in form or found(form["pattern"], value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield form.get("minimum", -math.inf) <= value <= form.get("maximum", math.inf)
        yield form.get("exclusiveMinimum", -math.inf) < value < form.get("exclusiveMaximum", math.inf)
    elif isinstance(value, list):
        yield form.get("minItems", 0) <= len(value) <= form.get("maxItems", math.inf)
    elif isinstance(value, dict):
        yield set(form.get("required", ())) <= value.keys()


def type_of(value: Any) -> str:
    """The narrowest type of a JSON value."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if value == int(value) else "number"
    if value is None:
        return "null"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"
