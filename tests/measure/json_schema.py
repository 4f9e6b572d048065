"""Answers under JSON schemas, with speculation: all parse and fit, and greedy ones are as without.

    python tests/measure/json_schema.py MODEL.gguf [--answers 200] [--methods ngram-simple] [--threads N]

Half of the answers are drawn at temperature 0 and compared with plain decoding, the others at 0.8; all in
exact mode. Ends with the totals; exit code 1 if an answer does not parse, does not fit, is not finished, or
differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.answer import Answer
from specli.chat.conversation import Message

TEXT = {"type": "string", "maxLength": 30}
SHORT = {"type": "string", "maxLength": 12}
SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": {"name": SHORT, "year": {"type": "integer"}, "true": {"type": "boolean"}},
    "enum": {"colour": {"enum": ["red", "green", "blue", "none"]}, "size": {"enum": ["small", "large"]}},
    "list": {"tags": {"type": "array", "items": SHORT, "maxItems": 4}, "count": {"type": "integer"}},
    "nested": {"what": SHORT, "where": {"type": "object", "properties": {"country": SHORT, "city": SHORT},
                                        "required": ["country", "city"], "additionalProperties": False}},
    "null": {"title": {"type": ["string", "null"], "maxLength": 12}, "score": {"type": "number"}},
    "records": {"parts": {"type": "array", "maxItems": 2, "items": {
        "type": "object", "properties": {"part": SHORT, "use": TEXT}, "required": ["part"],
        "additionalProperties": False}}},
    "escapes": {'a "quoted" name': SHORT, "back\\slash": {"const": "line\nend"}, "ünï": {"type": "null"}},
    "either": {"value": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"},
                                                         "maxItems": 3}, {"const": "unknown"}]}},
}  # fmt: skip
SUBJECTS = (
    "a cat", "a house", "the sea", "a city", "a book", "bread", "a king", "the moon", "a train", "rain", "a tree",
    "gold", "a dog", "a song", "a river", "the sun", "a shoe", "tea", "a war", "a clock", "snow", "a bee", "salt",
    "a ship", "a game",
)  # fmt: skip


def schema_of(name: str) -> dict[str, Any]:
    properties = SCHEMAS[name]
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether `value` fits `schema`, for the keywords used above."""
    if "anyOf" in schema:
        return any(fits(value, each) for each in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return any(_is(value, each, schema) for each in types)


def _is(value: Any, kind: str, schema: dict[str, Any]) -> bool:
    if kind == "object":
        known = schema["properties"]
        return isinstance(value, dict) and set(schema["required"]) <= set(value) <= set(known) and all(
            fits(each, known[name]) for name, each in value.items()
        )  # fmt: skip
    if kind == "array":
        short = isinstance(value, list) and len(value) <= schema.get("maxItems", len(value))
        return short and all(fits(each, schema["items"]) for each in value)
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema.get("maxLength", len(value))
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    return isinstance(value, int if kind == "integer" else (int, float))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--methods", default="ngram-simple")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--max-tokens", type=int, default=300)
    args = parser.parse_args()
    results: Counter[str] = Counter()
    for i, name in enumerate(SCHEMAS):
        numbers = range(i, args.answers, len(SCHEMAS))
        if len(numbers):
            _answers(args, name, numbers, results)
    print(dict(results))
    bad = sum(results[each] for each in ("unfinished", "broken", "unfit", "differs"))
    return 1 if bad else 0


def _answers(args: argparse.Namespace, name: str, numbers: range, results: Counter[str]) -> None:
    schema = schema_of(name)
    flags = {
        "json-schema": json.dumps(schema), "spec-type": args.methods, "exact-width": 4, "seed": 1, "ctx-size": 1024,
        "max-tokens": args.max_tokens, "threads": args.threads, "fixed": True, "spec-ngram-simple-size-n": 3,
        "spec-ngram-simple-size-m": 16,
    }  # fmt: skip
    settings = profiles.resolve(profiles.load("auto"), flags)
    with Generator(Request(settings, args.model), lambda s: print(s, file=sys.stderr)) as g:
        for number in numbers:
            subject = SUBJECTS[number // len(SCHEMAS) % len(SUBJECTS)]
            prompt = g.prompter.tokens([Message("user", f"Describe {subject} as JSON.")])
            greedy = number // len(SCHEMAS) % 2 == 0
            g.reset(replace(settings, temp=0.0 if greedy else 0.8))
            g.seed = number
            answer = finished(g, prompt)
            verdict = judged(answer, schema)
            if greedy:
                g.drafters = []
                verdict += " same" if finished(g, prompt).tokens == answer.tokens else " differs"
            results.update(verdict.split())
            accepted = {m: f"{s.accepted}/{s.tested}" for m, s in answer.stats.by_method.items()}
            print(
                f"{name:8} {subject:9} {verdict:14} {answer.stats.cycles} cycles {accepted} {answer.text}",
                flush=True,
            )


def judged(answer: Answer, schema: dict[str, Any]) -> str:
    if answer.finish != "stop":
        return "unfinished"
    try:
        return "fits" if fits(json.loads(answer.text), schema) else "unfit"
    except ValueError:
        return "broken"


def finished(g: Generator, prompt: list[int]) -> Answer:
    answer = g.answer(prompt)
    for _ in answer:
        pass
    return answer


if __name__ == "__main__":
    sys.exit(main())
