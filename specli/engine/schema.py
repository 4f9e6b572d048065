"""JSON schemas as grammars. Every text of the grammar is JSON, and fits the schema but for the keywords that are
named as not kept; the grammar may be narrower than the schema: properties come in its order, and only those that
it names where it names any."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specli.engine.gbnf import (
    MOST_REPEATS,
    RuleBook,
    character_class,
    integers,
    json_literal,
    literal,
    numbers,
    repeated,
    separated,
)
from specli.engine.pattern import pattern_of
from specli.engine.pattern_syntax import inverse
from specli.engine.schema_forms import FAMILIES, OF_ANY, Form, Forms, found, implied_types, may_fit, type_of
from specli.errors import UsageError

_UNFORESEEN = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
_MOST_RULES = 20_000
_COMMA = ' "," space '
_HEX = "[0-9a-fA-F]"
_HARD_OF_NAMES = {"format", *OF_ANY}
_LEAP = '([0-9] [0-9] ("0" [48] | [2468] [048] | [13579] [26]) | ([02468] [048] | [13579] [26]) "00")'
_DATE = (
    '([0-9]{4} "-" (("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01]) | ("0" [469] | "11") "-" '
    '("0" [1-9] | [12] [0-9] | "30") | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8]))'
    f' | {_LEAP} "-02-29")'
)
_TIME = (
    '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{3})? '
    '("Z" | [-+] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])'
)
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": ' "-" '.join(f"{_HEX}{{{n}}}" for n in (8, 4, 4, 4, 12)),
}


@dataclass(frozen=True, slots=True)
class SchemaGrammar:
    """A schema as GBNF. `unkept`: keywords of the schema that the grammar does not hold answers to."""

    text: str
    unkept: tuple[str, ...]


def schema_grammar(text: str) -> SchemaGrammar:
    """The grammar of the JSON texts that fit the schema `text`. Raises UsageError, in one line, for what is
    no schema, what nothing fits, and what cannot be made a grammar."""
    try:
        schema = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise UsageError("a JSON schema is an object, {…}")
    try:
        return _Converter(schema).grammar()
    except RecursionError as error:
        raise UsageError("nested too deeply") from error
    except _UNFORESEEN as error:
        said = " ".join(str(error).split())
        raise UsageError(f"a keyword has a value that it cannot have: {said:.80}") from error


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large a number")
    return value


class _Nothing(Exception):
    """No value fits."""


class _Converter:
    """Turns a schema, and what is inside it, into rules; each schema text once."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._rules = RuleBook()
        self._unkept: set[str] = set()
        self._forms = Forms(schema, self._unkept.add, self._rules.visit)
        self._known: dict[str, str] = {}
        self._open: set[str] = set()  # schemas that are not done
        self._taken: set[str] = set()  # of these, those that stand inside themselves
        self._barred: set[str] = set()  # what nothing fits
        self._again = False
        self._by_type: dict[str, Callable[[Form], str]] = {
            "object": self._object, "array": self._array, "string": self._string, "number": self._number,
            "integer": self._number, "boolean": lambda form: "boolean", "null": lambda form: "null",
        }  # fmt: skip

    def grammar(self) -> SchemaGrammar:
        while True:
            try:
                root = self._value(self._schema)
            except _Nothing:
                raise UsageError("nothing fits it: what it asks for contradicts itself") from None
            if not self._again:
                unkept = {" ".join(name.split()) for name in self._unkept}  # keys may have line ends
                return SchemaGrammar(self._rules.text(root), tuple(sorted(unkept)))
            # Some rule leads into what nothing fits, and could not go on there: anew, knowing that.
            self._again = False
            self._known.clear()
            self._taken.clear()
            self._rules.clear()

    def _value(self, schema: Any) -> str:
        """The name of the rule for what fits. Raises _Nothing."""
        key = json.dumps(schema)
        if key in self._barred:
            raise _Nothing
        if key in self._open:
            self._taken.add(key)
        elif key not in self._known:
            if len(self._rules) > _MOST_RULES:
                raise UsageError("it is too large")
            self._known[key] = name = self._rules.reserve()  # the schema may stand inside itself
            self._open.add(key)
            rules = [rule for form in self._forms.of(schema) for rule in self._form(form)]
            self._open.remove(key)
            if not rules:
                self._rules.bar(name)
                self._barred.add(key)
                self._again = self._again or key in self._taken
                raise _Nothing
            self._rules.define(name, " | ".join(dict.fromkeys(rules)))
        return self._known[key]

    def _maybe(self, schema: Any) -> str | None:
        try:
            return self._value(schema)
        except _Nothing:
            return None

    def _form(self, form: Form) -> list[str]:
        """A rule for each type; none where nothing fits."""
        self._unkept.update(name for name in OF_ANY if name in form)
        if "enum" in form:
            return self._enum(form)
        if not form or form.keys() <= set(OF_ANY):
            return ["value"]
        rules = []
        for name in implied_types(form):
            try:
                rules.append(self._by_type[name]({**form, "type": [name]}))
            except _Nothing:
                continue
        return rules

    def _enum(self, form: Form) -> list[str]:
        values = [value for value in form["enum"] if may_fit(value, form)]
        for kind in {type_of(value) for value in values}:
            family = FAMILIES.get("number" if kind == "integer" else kind, frozenset())
            checked = {"minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum",
                       "exclusiveMaximum", "minItems", "maxItems", "required"}  # fmt: skip
            self._unkept.update((family - checked) & form.keys())
        return [json_literal(value) for value in values]

    # -- objects ---------------------------------------------------------------------------------

    def _object(self, form: Form) -> str:
        named, required = form.get("properties", {}), form.get("required", [])
        patterns, rest = form.get("patternProperties", {}), form.get("additionalProperties")
        names = self._forms.of(form.get("propertyNames", True))
        if any(_HARD_OF_NAMES & each.keys() for each in names):
            self._unkept.add("propertyNames")
        if not named and not required and not patterns and rest in (None, True):
            self._note_counts(form, set(), set(), free=True)
            return "object"
        pairs: dict[str, str] = {}
        for name in (*named, *(name for name in required if name not in named)):
            value = self._property(form, name) if _may_be_named(name, names) else None
            if value is not None:
                pairs[name] = self._rules.add(f'{json_literal(name)} space ":" space {value}')
            elif name in required:
                raise _Nothing
        more = self._more(form, {*named, *required})
        self._note_counts(form, set(pairs), set(required), free=more is not None)
        some = form.get("minProperties", 0) > 0
        if some and not pairs and more is None:
            raise _Nothing
        must = [pairs[name] for name in pairs if name in required]
        may = [pairs[name] for name in pairs if name not in required]
        return f'"{{" space {self._members(must, may, more, some)} "}}" space'

    def _property(self, form: Form, name: str) -> str | None:
        """The rule of a property that is named; None if no value fits."""
        parts = [form["properties"][name]] if name in form.get("properties", {}) else []
        parts += [each for pattern, each in form.get("patternProperties", {}).items() if found(pattern, name)]
        if not parts:
            parts = [form.get("additionalProperties", True)]
        return self._maybe(parts[0] if len(parts) == 1 else {"allOf": parts})

    def _more(self, form: Form, named: set[str]) -> str | None:
        """The rule of one more property, with a name that is none of `named`; None if there may be none."""
        patterns, rest = form.get("patternProperties", {}), form.get("additionalProperties")
        if not named and len(patterns) == 1 and rest in (None, False):
            ((pattern, value),) = patterns.items()
            rule = self._maybe(value)
            key = self._rules.add(pattern_of(pattern).rule(self._rules))
            return rule and self._rules.add(rf'"\"" {key} "\"" space ":" space {rule}')
        if rest is None or rest is False:
            if patterns and not named:
                self._unkept.add("patternProperties")  # those that it would allow are left out
            return None
        if patterns:
            self._unkept.add("patternProperties")
        rule = self._maybe(rest)
        return rule and self._rules.add(rf'"\"" {self._other_name(named)} "\"" space ":" space {rule}')

    def _other_name(self, named: set[str]) -> str:
        """The inside of a string that is none of these, without escapes: they could spell one."""
        tree: dict[str, Any] = {}
        for name in named:
            at = tree
            for char in name:
                at = at.setdefault(char, {})
            at[""] = {}
        return self._none_in(tree)

    def _none_in(self, tree: dict[str, Any]) -> str:
        chars = sorted(char for char in tree if char)
        if not chars:
            return self._rules.add("bare bare*" if "" in tree else "bare*")
        others = inverse(
            [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), *((ord(c), ord(c)) for c in chars)]
        )
        ways = [f"{character_class(others)} bare*"]
        for char in chars:
            if char not in '"\\' and ord(char) >= 0x20 and ord(char) != 0x7F:  # else it needs an escape
                ways.append(f"{literal(char)} {self._none_in(tree[char])}")
        return self._rules.add(f"({' | '.join(ways)})" + ("" if "" in tree else "?"))

    def _members(self, must: Sequence[str], may: Sequence[str], more: str | None, some: bool) -> str:
        """All of `must`, any of `may`, then any number of `more`, with commas between; one at least if `some`."""
        tails = [
            f'("," space {more})*' if more else '""'
        ]  # behind the last of `may`, the one before, and so on
        for pair in reversed(may):
            tails.append(self._rules.add(f'("," space {pair})? {tails[-1]}'))
        if must:
            return f"{_COMMA.join(must)} {tails[-1]}"
        heads = [f"{pair} {tail}" for pair, tail in zip(may, reversed(tails[:-1]))]
        heads += [f"{more} {tails[0]}"] if more else []
        return f"({' | '.join(heads)})" + ("" if some else "?") if heads else '""'

    def _note_counts(self, form: Form, pairs: set[str], required: set[str], free: bool) -> None:
        """Name what is said of objects and is not kept."""
        if form.get("minProperties", 0) > (len(required) or (0 if free and not pairs else 1)):
            self._unkept.add("minProperties")
        if "maxProperties" in form and (free or len(pairs) > form["maxProperties"]):
            self._unkept.add("maxProperties")
        if "propertyNames" in form and free and form["propertyNames"] is not True:
            self._unkept.add("propertyNames")
        asked = form.get("dependentRequired", {})
        if any((free or name in pairs) and set(needed) - required for name, needed in asked.items()):
            self._unkept.add("dependentRequired")
        self._unkept.update({"dependentSchemas", "dependencies"} & form.keys())

    # -- arrays ----------------------------------------------------------------------------------

    def _array(self, form: Form) -> str:
        low, high = int(form.get("minItems", 0)), form.get("maxItems")
        high = None if high is None else int(high)
        if high is not None and low > high:
            raise _Nothing
        if "uniqueItems" in form and form["uniqueItems"] and (high is None or high > 1):
            self._unkept.add("uniqueItems")
        self._unkept.update({"contains", "minContains", "maxContains"} & form.keys())
        first = form.get("prefixItems", [])[:high]
        if "items" not in form and "prefixItems" in form:
            high = max(low, len(first))  # no more than are named, unless there must be
        fixed: list[str] = []
        for each in first:
            rule = self._maybe(each)
            if rule is None:  # it ends before this place
                high = len(fixed)
                break
            fixed.append(rule)
        if high is not None and low > high:
            raise _Nothing
        low, high = max(0, low - len(fixed)), None if high is None else high - len(fixed)
        low, high = self._within("minItems", "maxItems", low, high)
        rest = self._maybe(form.get("items", True)) if high != 0 else None
        if rest is None:
            if low:
                raise _Nothing
            high = 0
        more = separated(rest or "value", low, high)
        if fixed and high != 0:
            more = repeated(f'("," space {rest})', low, high)
        return f'"[" space {_COMMA.join(fixed)} {more} "]" space'

    def _within(self, lowest: str, highest: str, low: int, high: int | None) -> tuple[int, int | None]:
        """Bounds that the library can count to; those that it cannot are named as not kept."""
        if high is not None and low > high:
            raise _Nothing
        if low > MOST_REPEATS:
            self._unkept.add(lowest)
            low = 0
        if high is not None and high > MOST_REPEATS:
            self._unkept.add(highest)
            high = None
        return low, high

    # -- texts and numbers -----------------------------------------------------------------------

    def _string(self, form: Form) -> str:
        low, high = int(form.get("minLength", 0)), form.get("maxLength")
        high = None if high is None else int(high)
        if high is not None and low > high:
            raise _Nothing
        kind = form.get("format")
        if isinstance(kind, str) and kind.startswith("uuid") and kind[4:] in tuple("12345"):
            kind = "uuid"
        if "pattern" in form:
            pattern = pattern_of(form["pattern"]).within(low, high)
            shortest, longest = pattern.lengths()
            if (high is not None and shortest > high) or (longest is not None and longest < low):
                raise _Nothing
            self._unkept.update({"minLength"} if low > shortest else ())
            self._unkept.update(
                {"maxLength"} if high is not None and (longest is None or longest > high) else ()
            )
            self._unkept.update({f"format {kind}"} if kind is not None else ())
            inner = pattern.rule(self._rules)
        elif kind in _FORMATS:
            self._unkept.update({"minLength", "maxLength"} & form.keys())
            inner = _FORMATS[kind]
        else:
            self._unkept.update({f"format {kind}"} if kind is not None else ())
            inner = repeated("char", *self._within("minLength", "maxLength", low, high))
        return rf'"\"" {inner} "\"" space'

    def _number(self, form: Form) -> str:
        low, over = _tighter(form.get("minimum"), form.get("exclusiveMinimum"), max)
        high, under = _tighter(form.get("maximum"), form.get("exclusiveMaximum"), min)
        if form["type"] == ["integer"]:
            if form.get("multipleOf", 1) != 1:
                self._unkept.add("multipleOf")
            least = None if low is None else math.floor(low) + 1 if over else math.ceil(low)
            most = None if high is None else math.ceil(high) - 1 if under else math.floor(high)
            rule = integers(least, most)
        else:
            self._unkept.update({"multipleOf"} & form.keys())
            if low is not None and low != int(low):
                self._unkept.update({"minimum", "exclusiveMinimum"} & form.keys())
                low, over = math.floor(low), False
            if high is not None and high != int(high):
                self._unkept.update({"maximum", "exclusiveMaximum"} & form.keys())
                high, under = math.ceil(high), False
            if low is None and high is None:
                return "number"
            rule = numbers(_whole(low), over, _whole(high), under)
        if rule is None:
            raise _Nothing
        return f"{rule} space"


def _may_be_named(name: str, names: Sequence[Form]) -> bool:
    """Whether a property may have this name, by the forms of propertyNames."""
    return any(may_fit(name, each) and name in each.get("enum", [name]) for each in names)


def _whole(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


def _tighter(bound: Any, open_bound: Any, tightest: Callable[[Any, Any], Any]) -> tuple[float | None, bool]:
    """The bound that counts, and whether it is left out itself."""
    if bound is None or open_bound is None:
        return (bound, False) if open_bound is None else (open_bound, True)
    chosen = tightest(bound, open_bound)
    return chosen, bool(chosen == open_bound)
