"""Answers under a grammar: the machine itself, the loop around it, schemas, and row 37 of the list of cases."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scripted import ScriptedDrafter
from test_core_sampling import PARAMS, random_logits
from test_engine_cases import finished, generator

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.conversation import Message
from specli.core.decoding import Rules, decode
from specli.core.sampling import SamplingParams, distribution
from specli.core.table_model import TableModel
from specli.core.types import Cycle
from specli.engine.grammar import Grammar
from specli.engine.model import Model, ModelParams
from specli.engine.schema import schema_grammar
from specli.errors import EngineError, ProfileError, SpecliError, UsageError

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "colour": {"enum": ["red", "green", "blue"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
    },
    "required": ["name", "colour", "tags"],
    "additionalProperties": False,
}
LIST = 'root ::= "[" ws (number ("," ws number)*)? "]"\nnumber ::= "0" | [1-9] [0-9]{0,2}\nws ::= " "?\n'


@pytest.fixture(scope="module")
def tiny_model() -> Iterator[Model]:
    with Model(
        Path(__file__).parent / "models" / "tiny-draft.gguf",
        ModelParams(use_extra_bufts=False, vocab_only=True),
    ) as model:
        yield model


def ids(*tokens: int) -> NDArray[np.int64]:
    return np.array(tokens, np.int64)


def legal_texts(grammar: Grammar, model: Model) -> set[bytes]:
    vocab = model.vocab
    every = np.arange(vocab.n_tokens)
    return {vocab.piece(int(t), special=True) for t in every[grammar.legal(every)]}


# -- the machine --------------------------------------------------------------------------------


def test_only_what_the_grammar_allows_is_legal_and_it_is_read_token_by_token(tiny_model: Model) -> None:
    vocab = tiny_model.vocab
    with Grammar(vocab, 'root ::= "if x" | "return"', vocab.ends) as grammar:
        assert {b"i", b"if", b"r", b"re"} <= legal_texts(grammar, tiny_model)
        for text in legal_texts(grammar, tiny_model):
            assert text and (b"return".startswith(text) or b"if x".startswith(text))
        for token in vocab.tokenize("if"):
            grammar.advance(token)
        assert {text[:1] for text in legal_texts(grammar, tiny_model)} == {b" "}
        grammar.begin()
        assert b"re" in legal_texts(grammar, tiny_model)


def test_end_tokens_are_legal_where_the_answer_is_whole_and_change_nothing(tiny_model: Model) -> None:
    vocab = tiny_model.vocab
    with Grammar(vocab, 'root ::= "x" "y"?', vocab.ends) as grammar:
        (x,), (y,) = vocab.tokenize("x"), vocab.tokenize("y")
        assert list(grammar.legal(ids(vocab.eos, x, y))) == [False, True, False]
        grammar.advance(x)
        assert list(grammar.legal(ids(vocab.eos, x, y))) == [True, False, True]
        grammar.advance(vocab.eos)
        assert list(grammar.legal(ids(vocab.eos, x, y))) == [True, False, True]
        grammar.advance(y)
        assert legal_texts(grammar, tiny_model) == {vocab.piece(t, special=True) for t in (vocab.eos, 0)}
        assert not grammar.over


def test_control_tokens_are_no_text(tiny_model: Model) -> None:
    vocab = tiny_model.vocab
    with Grammar(vocab, "root ::= [^x]+", vocab.ends) as grammar:
        assert vocab.piece(1, special=True) == b"<|im_start|>"
        assert list(grammar.legal(ids(1, *vocab.tokenize("<")))) == [False, True]


def test_what_is_illegal_is_refused_before_it_could_end_the_process(tiny_model: Model) -> None:
    vocab = tiny_model.vocab
    with Grammar(vocab, 'root ::= "x"', vocab.ends) as grammar:
        for token in (*vocab.tokenize("y"), 1):
            with pytest.raises(EngineError):
                grammar.advance(token)
        grammar.advance(*vocab.tokenize("x"))


def test_without_end_tokens_it_is_over_where_nothing_more_fits(tiny_model: Model) -> None:
    vocab = tiny_model.vocab
    with Grammar(vocab, 'root ::= "x" "y"?', ()) as grammar:
        for text in "xy":
            assert not grammar.over
            grammar.advance(*vocab.tokenize(text))
        assert grammar.over
        assert legal_texts(grammar, tiny_model) == set()


def test_characters_split_over_tokens_are_followed(tiny_model: Model) -> None:
    vocab = tiny_model.vocab
    with Grammar(vocab, 'root ::= [äö] "x"', vocab.ends) as grammar:
        for token in vocab.tokenize("öx"):
            assert not grammar.legal(ids(vocab.eos))[0]
            assert grammar.legal(ids(token))[0]
            grammar.advance(token)
        assert grammar.legal(ids(vocab.eos))[0]


@pytest.mark.parametrize(
    ("text", "before", "must_follow"),
    [
        ('root ::= "def main(self):" [a-z]+', "", b"def main(self)"),  # its last token may grow
        ('root ::= "def main"', "", b"def main<end>"),
        ('root ::= "def " ("a" | "b")', "", b"def"),
        ('root ::= ("yes" | "no") " sir"', "y", b"es sir<end>"),
        ('root ::= "a" | "b"', "", b""),
        ('root ::= "a" "b"?', "a", b""),
        ('root ::= "ö" [a-z]', "", "ö".encode()),
        ("root ::= [äö]", "", b""),  # of two characters one byte is the same
    ],
)
def test_text_without_a_choice_is_known_beforehand(
    tiny_model: Model, text: str, before: str, must_follow: bytes
) -> None:
    vocab = tiny_model.vocab
    must_follow = must_follow.replace(b"<end>", vocab.piece(vocab.eot, special=True))
    with Grammar(vocab, text, vocab.ends) as grammar:
        for token in vocab.tokenize(before):
            grammar.advance(token)
        tokens = grammar.forced(64)
        assert must_follow.startswith(vocab.text(tokens, special=True)) if must_follow else tokens == []
        assert len(vocab.text(tokens, special=True)) >= len(must_follow) - 3
        for token in tokens:  # and looking ahead left the state as it was
            assert grammar.legal(ids(token))[0]
            grammar.advance(token)


def test_no_more_is_forced_than_asked_for(tiny_model: Model) -> None:
    with Grammar(tiny_model.vocab, f'root ::= "{"ab " * 400}"', tiny_model.vocab.ends) as grammar:
        assert len(grammar.forced(5)) == 5
        assert len(grammar.forced(1)) == 1


@pytest.mark.parametrize(
    "text",
    [
        f'root ::= "{"several words, " * 60}" [a-z]* "{"and more " * 9}"',
        f'root ::= "{"für söhne " * 30}" ("x" | "y" | "")',
        'root ::= ("yes" | "no") " sir, " ("or " | "and ") "' + "so on " * 20 + '"',
        schema_grammar(json.dumps(PERSON)).text,
    ],
)
def test_what_is_kept_of_the_text_ahead_is_what_one_finds_anew(tiny_model: Model, text: str) -> None:
    """Wherever the answer has come to, by drafted tokens and by others."""
    vocab, rng = tiny_model.vocab, np.random.default_rng(1)
    every = np.arange(vocab.n_tokens)
    with Grammar(vocab, text, vocab.ends) as grammar, Grammar(vocab, text, vocab.ends) as fresh:
        said: list[int] = []
        while len(said) < 40:
            limit = int(rng.choice([1, 3, 15, 63]))
            found = grammar.forced(limit)
            fresh.begin()
            for token in said:
                fresh.advance(token)
            assert found == fresh.forced(limit)
            legal = every[grammar.legal(every)]
            tokens = found[: rng.integers(len(found) + 1)] if rng.random() < 0.7 else [int(rng.choice(legal))]
            for token in tokens:
                grammar.advance(token)
            said += tokens
            if any(token in vocab.ends for token in tokens) or len(legal) == 1:
                break


def test_each_byte_that_must_follow_is_looked_for_once(tiny_model: Model) -> None:
    """However often one asks, and however few tokens of it are taken each time."""
    with Grammar(tiny_model.vocab, f'root ::= "{"several words, " * 60}" [a-z]+', ()) as grammar:
        grammar._lib = counted = CountedSteps(grammar._lib)
        said = 0
        for _ in range(20):
            (token,) = grammar.forced(63)[:1]
            grammar.advance(token)
            said += len(tiny_model.vocab.piece(token))
        assert 8 * 63 <= counted.steps <= 8 * 63 + said + 20


class CountedSteps:
    """The library, which counts the steps of grammars."""

    def __init__(self, library: Any) -> None:
        self._library, self.steps = library, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def llama_sampler_accept(self, state: Any, token: int) -> None:
        self.steps += 1
        self._library.llama_sampler_accept(state, token)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("root = 3", "expecting ::="),
        ('root ::= "a', "unexpected end"),
        ("root ::= other", "other"),
        ('start ::= "a"', "root"),
        ('root ::= root "a"', "left recursion"),
        ("   ", "no rule"),
        ("root ::= <[3]>", "not supported"),
        ("root ::= !<|im_end|>", "not supported"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nested"),
        ('root ::= "a\0b"', "NUL"),
        ('root ::= "\udcff"', "no UTF-8"),
        ('root ::= [a-z]{1,99999999999999999999999}', ""),
        ('root ::= "a"{2001,}', "repetitions"),
    ],
)  # fmt: skip
def test_what_is_no_grammar_is_one_line(
    tiny_model: Model, text: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        Grammar(tiny_model.vocab, text, tiny_model.vocab.ends)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
    assert capfd.readouterr() == ("", "")


def test_brackets_in_text_are_no_token_rules(tiny_model: Model) -> None:
    text = 'root ::= "<b>!" [<!] # <none>\n'
    with Grammar(tiny_model.vocab, text, tiny_model.vocab.ends) as grammar:
        assert legal_texts(grammar, tiny_model) >= {b"<"}


# -- from legal tokens to a distribution --------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    PARAMS, st.integers(0, 10**6), st.sampled_from([0.0, 0.001, 0.05, 0.5, 0.99]), st.sampled_from([1, 3, 9])
)
def test_asking_about_few_tokens_is_as_good_as_about_all(
    params: SamplingParams, seed: int, share: float, scale: float
) -> None:
    n = 6000
    logits = random_logits(n, seed, scale)
    allowed = np.random.default_rng(seed + 1).random(n) < share
    context = [0, 1, 1, 2]
    got = distribution(logits, context, params, lambda ids: allowed[ids])
    if not allowed.any() or all(params.logit_bias.get(t) == -math.inf for t in np.flatnonzero(allowed)):
        assert got.empty
        return
    masked = logits.copy()
    masked[~allowed] = -np.inf
    wanted = distribution(masked, context, params)
    assert list(got.ids) == list(wanted.ids)
    assert np.allclose(got.probs, wanted.probs, rtol=1e-12)


def test_a_likely_legal_token_spares_the_rest() -> None:
    logits = random_logits(50_000, 1)
    logits[7] = 40.0
    asked: list[int] = []

    def legal(ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        asked.extend(ids)
        return np.isin(ids, [7, 8, 9])

    assert list(distribution(logits, [], SamplingParams(), legal).ids) == [7]
    assert len(asked) == len(set(asked)) == 256
    asked.clear()
    assert list(distribution(logits, [], SamplingParams(temp=0.0), legal).ids) == [7]
    assert asked == [7]


# -- the loop -----------------------------------------------------------------------------------


class Alternating:
    """Even and odd tokens in turn, the even ones first; token 9 ends; at most `most` tokens."""

    def __init__(self, most: int = 1000, ends: bool = True) -> None:
        self.most, self.ends = most, ends
        self.told: list[int] = []

    @property
    def over(self) -> bool:
        return not self.ends and len(self.told) >= self.most

    def begin(self) -> None:
        self.told.clear()

    def legal(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        full = len(self.told) >= self.most
        return np.array([t == 9 and self.ends and full if t == 9 or full else t % 2 == len(self.told) % 2
                         for t in ids], np.bool_)  # fmt: skip

    def advance(self, token: int) -> None:
        assert token == 9 or self.legal(ids(token))[0]
        if token != 9:
            self.told.append(token)


def loop(rules: Rules, script: Sequence[int] | None) -> tuple[list[int], list[Cycle]]:
    model = TableModel.random(10, 1, seed=3, scale=1.5)
    history = [4]
    drafters = [] if script is None else [ScriptedDrafter(lambda history: script)]
    cycles = list(decode(model, history, drafters, rules))
    assert model.tokens == history[:-1]
    return history[1:], cycles


@pytest.mark.parametrize("temp", [0.0, 1.0])
@pytest.mark.parametrize("script", [[2, 3, 4, 5], [2, 2, 2], [1], [9, 9], [6, 9, 6], [0, 1, 0, 1, 0, 1]])
def test_drafts_change_nothing_under_a_constraint(temp: float, script: list[int]) -> None:
    """One-hot drafts, legal or not: the same answer as without, and the machine was told all of it, once."""
    params = SamplingParams(temp=temp, top_k=0, top_p=1.0, min_p=0.0)
    said = []
    for drafts in (None, script):
        constraint = Alternating(most=40)
        rules = Rules(params, seed=5, ends={9}, constraint=constraint)
        tokens, cycles = loop(rules, drafts)
        assert constraint.told == tokens[:-1] and tokens[-1] == 9 and len(tokens) == 41
        assert all(token % 2 == i % 2 for i, token in enumerate(tokens[:-1]))
        assert cycles[-1].finish == "stop"
        said.append(tokens)
    assert said[0] == said[1]


@pytest.mark.parametrize("script", [None, [2, 3, 4, 5], [6, 7]])
def test_where_nothing_may_follow_the_answer_ends(script: list[int] | None) -> None:
    rules = Rules(SamplingParams(temp=0.0), constraint=Alternating(most=7, ends=False))
    tokens, cycles = loop(rules, script)
    assert len(tokens) == 7 and cycles[-1].finish == "stop"
    assert loop(Rules(constraint=Alternating(most=0, ends=False)), script) == ([], [])


def test_a_dead_end_is_said() -> None:
    class Stuck(Alternating):
        def legal(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
            return np.zeros(len(ids), np.bool_) if len(self.told) == 3 else super().legal(ids)

    with pytest.raises(SpecliError, match="grammar"):
        loop(Rules(constraint=Stuck()), [0, 1, 0, 1, 0])


# -- schemas ------------------------------------------------------------------------------------


def accepts(model: Model, grammar: str, text: str) -> bool:
    """Whether a text is a whole sentence of the grammar."""
    with Grammar(model.vocab, grammar, model.vocab.ends) as machine:
        for token in model.vocab.tokenize(text):
            if not machine.legal(ids(token))[0]:
                return False
            machine.advance(token)
        return bool(machine.legal(ids(model.vocab.eos))[0])


@pytest.mark.parametrize(
    ("schema", "fits", "fails"),
    [
        (PERSON, ['{"name":"Bo","colour":"red","tags":["a"]}'], ['{"name":"Bo"}', '{"name":3}', "[]"]),
        ({"type": "string", "pattern": "^yes|no$"}, ['"yes"', '"yes!"', '"no"', '"oh no"'], ['"yes', '"nope"']),
        ({"type": "string", "pattern": "^a$|^b$"}, ['"a"', '"b"'], ['"a', 'b"', '"ab"']),
        ({"type": "string", "pattern": '^a"b$'}, [json.dumps('a"b')], ['"a"b"', '"ab"']),
        ({"type": "string", "pattern": r"^\t$"}, [r'"\t"'], ['"\t"', r'"\\t"']),
        ({"type": "string", "pattern": r"^\d{3}$"}, ['"007"'], ['"07"', '"0070"', '"abc"']),
        ({"type": "string", "pattern": r"^\w+$"}, ['"a_1"'], ['""', '"a b"']),
        ({"type": "string", "pattern": r"^a\.b$"}, ['"a.b"'], ['"axb"']),
        ({"type": "string", "pattern": r"^(?:x|\s)[^\d\n-]{2,3}?$"}, ['"xab"', '" a."'], ['"x1b"', '"xa-"', '"xa"']),
        ({"type": "string", "pattern": "b"}, ['"b"', '"abc"'], ['"ac"']),
        ({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3}, ['"ab"', '"abc"'], ['"a"', '"abcd"']),
        ({"allOf": [{"type": "string"}, {"maxLength": 2}]}, ['"ab"', '""'], ["{}", '"abc"']),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"],
          "allOf": [{"properties": {"b": {"type": "null"}}, "required": ["b"]}]},
         ['{"a":null,"b":null}'], ['{"a":null}', '{"b":null}']),
        ({"$ref": "#/$defs/a", "maxLength": 1, "$defs": {"a": {"type": "string"}}}, ['"x"'], ['"xy"', "1"]),
        ({"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
         ["[null,true]", "[null,true,false]"], ["[null]", "[true,true]", "[null,true,true,true]"]),
        ({"type": "array", "prefixItems": [{"type": "null"}, {"type": "null"}], "maxItems": 1}, ["[null]"], ["[null,null]"]),
        ({"type": "object", "required": ["a"]}, ['{"a":1}'], ["{}", '{"b":1}']),
        ({"type": "object", "properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "boolean"}},
         ['{"ab":null,"a":true}', '{"abc":true}'], ['{"ab":true}', r'{"\u0061b":true}']),
        ({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "minProperties": 1},
         ['{"a":null}', '{"b":null}'], ["{}"]),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}], "maximum": 5, "maxLength": 1}, ["5", '"a"'], ["6", '"ab"']),
        ({"type": "string", "format": "date"}, ['"2024-02-29"', '"1999-12-31"'], ['"2023-02-29"', '"1999-04-31"']),
        ({"type": "number", "minimum": 0, "maximum": 1}, ["0", "0.25", "1", "1.0"], ["-1", "1.5", "2"]),
        ({"type": "number", "exclusiveMinimum": 0}, ["0.1", "7"], ["0", "-0.1"]),
        ({"type": "string"}, ['"a b"', r'"\n"', '"ö"'], ['"a\nb"', '"a\tb"', '"a', '"\\x"']),
        ({"type": "string", "pattern": "^a.c$"}, ['"abc"'], ['"a"c"', '"a\\c"', '"a\nc"', '"ab"']),
        ({"type": "string", "pattern": "^[^0-9]+$"}, ['"abc"'], ['"a"c"', '"a1"', '"a\\"']),
        ({"const": 'a"b\\c\nd'}, [json.dumps('a"b\\c\nd')], ['"a"b\\c\nd"', '"a"']),
        ({"enum": ["ja", "né", 3, None]}, ['"ja"', '"né"', "3", "null"], ['"j"', "4"]),
        ({"type": ["string", "null"], "maxLength": 2}, ['"ab"', "null"], ['"abc"', "3"]),
        ({"type": ["string", "null"], "enum": ["a", None]}, ['"a"', "null"], ['"b"']),
        ({"type": "object", "properties": {'q"\\': {"type": "null"}}, "required": ['q"\\']},
         ['{"q\\"\\\\":null}'], ['{"q":null}']),
        ({"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}},
         ["[]", "[1,-2]", "[0]"], ["[01]", "[1.5]", '["a"]']),
        ({"type": "array", "prefixItems": [False], "items": {"type": "integer"}}, ["[]"], ["[1]"]),
        ({"type": "array", "prefixItems": [{"type": "null"}, False], "minItems": 1}, ["[null]"], ["[]", "[null,1]"]),
        ({"type": "number"}, ["1e9", "-2.5E+07", "1e-99"], ["1e100", "1E+3027470332264057"]),
        ({}, ["1e99"], ["1e100"]),
        ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "properties": {"a": {}, "c": {"type": "null"}}},
         ["{}", '{"a":1}'], ['{"c":null}']),
        ({"type": "string", "pattern": "^(?<y>a)$", "enum": ["a", "b"]}, ['"a"'], ['"b"']),
        ({"enum": ["a٣", "a3", "a\n"], "pattern": r"^a\d?$"}, ['"a3"'], ['"a٣"', r'"a\n"']),
        ({"enum": ["x1", "1"], "pattern": "^(?!x)(?<n>.)"}, ['"1"'], ['"x1"']),
        ({"type": "object", "patternProperties": {"^(?<n>a)$": {"type": "integer"}},
          "properties": {"b": {"type": "null"}}, "required": ["b"]}, ['{"b":null}'], ["{}"]),
        ({"type": "string", "pattern": r"^[^\s]$"}, ['"x"'], ['" "', '"\ufeff"', '"\x85"']),
        ({"type": "string", "pattern": r"^[^\S]$"}, ['" "'], ['"x"', '"\ufeff"', '"\x85"']),
        ({"$ref": "#/$defs/a", "$defs": {
            "a": {"properties": {"x": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}}, "type": "object"},
            "b": {"properties": {"x": {"$ref": "#/$defs/a"}}}}}, ['{"x":{"x":{"x":{}}}}'], ['{"x":1}']),
    ],
)  # fmt: skip
def test_schemas_become_grammars(
    tiny_model: Model, schema: dict[str, object], fits: list[str], fails: list[str]
) -> None:
    grammar = schema_grammar(json.dumps(schema)).text
    for text in fits:
        json.loads(text)
        assert accepts(tiny_model, grammar, text), text
    for text in fails:
        assert not accepts(tiny_model, grammar, text), text


@pytest.mark.parametrize(
    ("schema", "unkept"),
    [
        (PERSON, ()),
        ({"type": "integer", "minimum": 0}, ()),
        ({"type": "number", "minimum": 0.5}, ("minimum",)),
        ({"type": "string", "minimum": 3}, ()),
        ({"properties": {"minimum": {"type": "null"}}}, ()),
        (
            {"properties": {"a": {"type": "array", "items": {"type": "number", "multipleOf": 2}}}},
            ("multipleOf",),
        ),
        ({"type": "string", "format": "email"}, ("format email",)),
        ({"type": "string", "format": "date"}, ()),
        (
            {"type": "object", "properties": {"a": {}}, "patternProperties": {"b": {}}, "minProperties": 2},
            ("minProperties",),
        ),
        ({"anyOf": [{"type": "null"}], "maxLength": 3}, ()),
        ({"type": "string", "pattern": "^a+b+$", "minLength": 4}, ("minLength",)),
        ({"type": "string", "maxLength": 5000}, ("maxLength",)),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, ()),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ("oneOf (only one of them)",)),
        ({"type": "null", "maxlength": 3}, ("maxlength",)),
        ({"type": "null", "two\nlines": 3}, ("two lines",)),
        ({"type": "object", "properties": {"a": {}}, "propertyNames": {"enum": ["a"]}}, ()),
        (
            {"type": "object", "properties": {"a": {}}, "propertyNames": {"not": {"const": "a"}}},
            ("propertyNames",),
        ),
    ],
)
def test_what_a_grammar_cannot_enforce_is_named(schema: dict[str, object], unkept: tuple[str, ...]) -> None:
    assert schema_grammar(json.dumps(schema)).unkept == unkept


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "3", '{"type": "strnig"}', '{"$ref": "#/nowhere"}', '{"$ref": "https://example.org/x"}',
        '{"type": "string", "pattern": "(?=a)b"}', '{"pattern": "(a"}', '{"pattern": "a)"}', '{"pattern": "*"}',
        '{"pattern": "[b-a]"}', '{"pattern": "a{2,1}"}', '{"pattern": "\\\\bx"}', '{"pattern": "a^b"}',
        '{"pattern": "\\\\"}', '{"pattern": "(^a)*"}', '{"pattern": "[a"}', '{"pattern": "a{9999}"}',
        '{"pattern": "\\\\p{L}"}', '{"pattern": "(a)\\\\1"}', '{"$ref": "#"}', '{"type": "integer", "minimum": 2, "maximum": 1}',
        '{"allOf": [{"type": "string"}, {"type": "null"}]}', '{"minimum": "3"}', '{"maximum": 1e999}', '{"maxLength": -1}',
        '{"properties": 3}', '{"enum": 3}', "[" * 100_000,
        '{"required": 3, "properties": {}}', '{"type": {}}',
        '{"properties": {"a": {}}, "dependentRequired": {"a": 5}}', '{"properties": {"a": {}}, "dependentRequired": {"a": [{}]}}',
        '{"properties": {"a": {}}, "dependentRequired": {"a": "b"}}', '{"$ref": "#/allOf/' + "9" * 5000 + '", "allOf": []}',
        '{"pattern": "(?!(a", "enum": ["b"]}', '{"pattern": "(?!a)", "enum": ["ö"]}',
        '{"pattern": "^(' + "a?" * 300 + ')*$"}',
    ],
)  # fmt: skip
def test_what_is_no_schema_is_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        schema_grammar(text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 9), (-5, 12), (17, 17), (99, 101), (-120, -7), (9, None), (None, -3), (0, None), (198, 1002)],
)
def test_integers_within_bounds(tiny_model: Model, low: int | None, high: int | None) -> None:
    bounds = {**({} if low is None else {"minimum": low}), **({} if high is None else {"maximum": high})}
    grammar = schema_grammar(json.dumps({"type": "integer", **bounds})).text
    for n in sorted(
        {*range(-22, 22), *range(-125, 1010, 17), 98, 99, 100, 101, 102, 197, 198, 999, 1002, 1003}
    ):
        inside = (low is None or n >= low) and (high is None or n <= high)
        assert accepts(tiny_model, grammar, str(n)) == inside, n
    for text in ("01", "-0", "1.0", "1e1", ""):
        assert not accepts(tiny_model, grammar, text)


def random_answer(model: Model, grammar: str, rng: np.random.Generator) -> str | None:
    """What a model without sense would say; None if it does not come to an end."""
    vocab, said = model.vocab, b""
    every = np.arange(vocab.n_tokens)
    with Grammar(vocab, grammar, vocab.ends) as machine:
        for _ in range(60):
            legal = every[machine.legal(every)]
            ends = [t for t in legal if vocab.is_end(int(t))]
            if ends and (len(ends) == len(legal) or rng.random() < 0.3):
                return said.decode()
            going_on = [int(t) for t in legal if not vocab.is_end(int(t))]
            closing = [t for t in going_on if vocab.piece(t)[:1] in b'"}],']
            token = int(rng.choice(closing if closing and rng.random() < 0.6 else going_on))
            said += vocab.piece(token)
            machine.advance(token)
    return None


@pytest.mark.parametrize(
    "pattern",
    ["^(a?b?){0,900}$", "^((a*|b*c*)*)*$", "^(|a{0,3}){1,2000}$", "^a$|^b$", '^a"b$', r"^\t$",
     r"^\d{3}$", r"^\w+$", r"^a\.b$", "a|b", "^[^a]$", r"^.\\.$", r'^["\\]+$', "^$", "",
     r"^\S{1,3}$", r"^\s$", r"^[\s\S]{2}$", r"^\u00e9|\x41", r"^(?:a|(b))?c*$", "^(^a|b)c", r"^\W$", r"^[\w.-]$"],
)  # fmt: skip
def test_what_a_pattern_lets_through_is_json_and_matches(tiny_model: Model, pattern: str) -> None:
    grammar = schema_grammar(json.dumps({"type": "string", "pattern": pattern}))
    assert grammar.unkept == ()
    rng, answers = np.random.default_rng(1), 0
    for _ in range(12):
        text = random_answer(tiny_model, grammar.text, rng)
        if text is not None:
            answers += 1
            flags = re.ASCII if "\\s" not in pattern else 0  # of spaces JSON Schema knows more than ASCII's
            assert re.search(pattern, json.loads(text), flags), text
    assert answers > 0


def test_a_schema_may_stand_inside_itself(tiny_model: Model) -> None:
    tree = {
        "type": "object",
        "properties": {"v": {"type": "null"}, "next": {"$ref": "#/$defs/t"}},
        "required": ["v"],
    }
    grammar = schema_grammar(json.dumps({"$ref": "#/$defs/t", "$defs": {"t": tree}})).text
    assert accepts(tiny_model, grammar, '{"v":null,"next":{"v":null}}')
    assert not accepts(tiny_model, grammar, '{"v":null,"next":{}}')


def test_what_would_double_at_each_level_is_gone_through_once(tiny_model: Model) -> None:
    pattern = "a?"
    for letter in "bcdefghijklmnopqrstuvwxyz":
        pattern = f"({letter}?({pattern})*)*"
    grammar = schema_grammar(json.dumps({"type": "string", "pattern": f"^{pattern}$"})).text
    assert len(grammar) < 20_000
    assert accepts(tiny_model, grammar, '"aaaaazyx"') and not accepts(tiny_model, grammar, '"aaA"')
    assert schema_grammar(json.dumps({"enum": ["zyx", "A"], "pattern": f"^{pattern}$"}))
    grammar = schema_grammar(json.dumps({"type": "string", "pattern": f"^{'(' * 22}a?{')*' * 22}$"})).text
    assert accepts(tiny_model, grammar, '"aa"')

    defs = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)}
    grammar = schema_grammar(
        json.dumps({"$ref": "#/$defs/d0", "$defs": {**defs, "d30": {"type": "null"}}})
    ).text
    assert accepts(tiny_model, grammar, "null") and not accepts(tiny_model, grammar, "1")
    either = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)}
    with pytest.raises(UsageError, match="too many"):
        schema_grammar(json.dumps({"$ref": "#/$defs/d0", "$defs": {**either, "d30": {"type": "null"}}}))


def test_a_search_that_backtracking_would_not_end(tiny_model: Model) -> None:
    schema = {"type": "string", "pattern": "^(a|a|aa)+$", "enum": ["a" * 60, "a" * 60 + "b"]}
    grammar = schema_grammar(json.dumps(schema)).text
    assert "aaab" not in grammar and "aaaa" in grammar


def test_no_rule_leads_into_what_nothing_fits(tiny_model: Model) -> None:
    """Also where it was taken in before that was known: the answer could not go on."""
    refers = [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]
    schema = {
        "type": "object", "properties": {"x": refers[0], "y": refers[1]},
        "$defs": {
            "a": {"type": "object", "properties": {"b": refers[1], "id": False}, "required": ["id"]},
            "b": {"type": "object", "properties": {"a": refers[0], "c": {"type": "null"}}},
        },
    }  # fmt: skip
    grammar = schema_grammar(json.dumps(schema)).text
    assert accepts(tiny_model, grammar, '{"y":{"c":null}}') and not accepts(tiny_model, grammar, '{"x":{}}')
    with Grammar(tiny_model.vocab, grammar, ()) as machine:
        for token in tiny_model.vocab.tokenize('{"y":{"'):
            machine.advance(token)
        a, c = (tiny_model.vocab.tokenize(text)[0] for text in "ac")
        assert list(machine.legal(ids(a, c))) == [False, True]


def test_what_nothing_fits_inside_is_left_out(tiny_model: Model) -> None:
    """Also where it stands inside itself."""
    dead = {
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/dead"}, "bad": False},
        "required": ["bad"],
    }
    schema = {"type": "object", "properties": {"a": {"type": "null"}, "d": {"$ref": "#/$defs/dead"}},
              "$defs": {"dead": dead}}  # fmt: skip
    grammar = schema_grammar(json.dumps(schema)).text
    assert accepts(tiny_model, grammar, '{"a":null}') and not accepts(tiny_model, grammar, '{"d":{}}')


def test_a_schema_of_what_no_answer_can_say_is_one_line(tiny_target: Path) -> None:
    with pytest.raises(UsageError, match="surrogate") as caught:
        generator(tiny_target, json_schema='{"const": "\\ud800"}')
    assert "\n" not in str(caught.value)


# -- answers ------------------------------------------------------------------------------------


def ask(g: Generator, text: str = "Describe a person as JSON.") -> list[int]:
    return g.prompter.tokens([Message("user", text)]) if g.prompter.has_template else g.prompter.raw(text)


@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_the_same_answer_whoever_drafts(tiny_target: Path, tiny_draft: Path, temp: float) -> None:
    """Exact, so bit for bit; each answer of a generator starts the grammar anew."""
    schema = json.dumps(PERSON)
    outputs = []
    for types in ("none", "draft-self", "draft-model", "draft-mtp"):
        with generator(
            tiny_target, tiny_draft, json_schema=schema, spec_type=types, temp=temp, exact_width=4, fixed=True
        ) as g:
            said = []
            for _ in range(2):
                answer = finished(g, ask(g))
                if answer.finish == "stop":
                    assert json.loads(answer.text)["colour"] in ("red", "green", "blue")
                said.append(answer.tokens)
                drafted = answer.stats.by_method.get("grammar")
                assert (drafted is not None and drafted.accepted > 0) == (types != "none")
            outputs.append(said)
    assert all(said == outputs[0] for said in outputs)


@pytest.mark.parametrize("model", ["tiny_target", "tiny_hybrid"])
def test_without_exact_mode_too_every_answer_fits(model: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(model)
    with generator(path, grammar=LIST, temp=1.5, top_k=0, min_p=0.0, top_p=1.0, seed=3, max_tokens=60) as g:
        for _ in range(6):
            answer = finished(g, ask(g, "numbers"))
            assert answer.finish in ("stop", "length")
            if answer.finish == "stop":
                assert all(0 <= n < 1000 for n in json.loads(answer.text))
            assert set(answer.text) <= set("[]0123456789, ")


def test_where_end_tokens_are_ignored_the_grammar_still_ends_the_answer(tiny_target: Path) -> None:
    flags = {
        "temp": 0.0,
        "seed": 1,
        "max-tokens": 50,
        "ctx-size": 512,
        "threads": 1,
        "grammar": 'root ::= "yes"',
    }
    request = Request(profiles.resolve(profiles.load("auto"), flags), tiny_target, ignore_end=True)
    with Generator(request) as g:
        answer = finished(g, ask(g))
        assert (answer.text, answer.finish) == ("yes", "stop")
        assert not any(g.model.vocab.is_end(t) for t in answer.tokens)


def test_penalties_and_bias_work_among_legal_tokens(tiny_target: Path) -> None:
    with generator(tiny_target, grammar="root ::= [ab]{8}", logit_bias=["a+100"]) as g:
        assert set(finished(g, ask(g)).text) == {"a"}
    with generator(tiny_target, grammar="root ::= [ab]{8}", logit_bias=["a+50"], presence_penalty=80.0) as g:
        assert "b" in finished(g, ask(g)).text


def test_flags_beat_the_profile_and_two_at_once_contradict() -> None:
    profile = profiles.parse("[sampling]\ngrammar = 'x'", "p", "p.toml")
    settings = profiles.resolve(profile, {"json-schema": "{}"})
    assert (settings.grammar, settings.json_schema) == (None, "{}")
    with pytest.raises(UsageError, match="--grammar and --json-schema"):
        profiles.resolve(profile, {"grammar": "x", "json_schema": "{}"})
    with pytest.raises(ProfileError, match="grammar-file"):
        profiles.parse("[sampling]\ngrammar = 'x'\ngrammar-file = 'y'", "p", "p.toml")


def specli(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specli", "run", "--no-stdin", "--no-repack", "--threads", "1", *args]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120)


def test_command_line(tiny_target: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({**PERSON, "not": {"const": 1}}))
    common = ("-m", str(tiny_target), "--temp", "0", "--max-tokens", "120", "hi")
    done = specli(
        *common, "--json-schema-file", str(schema), "--json", "--fixed", "--spec-type", "draft-self"
    )
    shown = json.loads(done.stdout)
    assert done.returncode == 0 and shown["finish_reason"] == "stop"
    assert set(json.loads(shown["text"])) == {"name", "colour", "tags"}
    assert any("enforce not:" in notice for notice in shown["notices"])
    assert shown["by_method"]["grammar"]["accepted"] > 0

    grammar = tmp_path / "list.gbnf"
    grammar.write_text(LIST)
    assert specli(*common, "--grammar-file", str(grammar), "-q").stdout.startswith("[")

    for args, code, says in (
        (("--grammar", "root = 3"), 2, "--grammar: expecting ::="),
        (("--grammar-file", str(schema)), 2, f"--grammar-file {schema}: "),
        (("--json-schema", "{"), 2, "--json-schema: not JSON"),
        (("--json-schema-file", "gone.json"), 1, "--json-schema-file gone.json: No such file"),
        (("--grammar", LIST, "--json-schema", "{}"), 2, "leave one of them out"),
    ):
        done = specli(*common, *args, "-q")
        assert (done.returncode, done.stdout) == (code, "")
        (line,) = done.stderr.splitlines()
        assert says in line


# -- 37: a JSON grammar -------------------------------------------------------------------------

ASKS = ("a cat", "a house", "the sea", "a city", "a book", "bread", "a king", "the moon", "a train", "rain")


def case_37(model: Path, n: int, max_tokens: int) -> None:
    """Finished outputs parse; at temperature 0 they are as without drafts, in exact mode."""
    schema = json.dumps(PERSON)
    outputs = []
    for types in ("none", "ngram-simple"):
        sizes = {"spec_ngram_simple_size_n": 2} if types != "none" else {}
        with generator(
            model, json_schema=schema, spec_type=types, exact_width=4, max_tokens=max_tokens, no_repack=True,
            spec_ngram_simple_size_m=8, **sizes,
        ) as g:  # fmt: skip
            said = []
            for what in ASKS[:n]:
                answer = finished(g, ask(g, f"Describe {what} as JSON."))
                assert answer.finish == "length" or json.loads(answer.text)["tags"] is not None
                said.append(answer.tokens)
            outputs.append(said)
    assert outputs[0] == outputs[1]


def test_case_37_tiny(tiny_target: Path) -> None:
    case_37(tiny_target, 10, 100)


@pytest.mark.smol
def test_case_37_smol(smol: Path) -> None:
    case_37(smol, 3, 60)


@pytest.mark.large
def test_case_37_large(qwen_draft: Path) -> None:
    case_37(qwen_draft, 2, 60)
