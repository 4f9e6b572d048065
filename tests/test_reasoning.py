"""Reasoning told apart from the answer: in pieces of any size, by template, over turns, in what scripts get."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parrot import OPENED, TEMPLATE, THINKING, parrot, pieces

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.answer import Answer
from specli.chat.conversation import Message
from specli.chat.reasoning import KNOWN, Splitter, Tags, find_thinking

THINK = Tags("<think>", "</think>")
HARMONY = KNOWN[0]


def split(text: str, tags: Tags = THINK, opened: bool = False, cuts: tuple[int, ...] = ()) -> tuple[str, str]:
    """Reasoning and answer of `text`, fed in pieces."""
    splitter = Splitter(tags, opened)
    at = sorted({0, len(text), *(min(c, len(text)) for c in cuts)})
    parts = [part for a, b in pairwise(at) for part in splitter.feed(text[a:b])]
    parts += splitter.finish()
    return "".join(p.text for p in parts if p.reasoning), "".join(p.text for p in parts if not p.reasoning)


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "answer"),
    [
        ("<think>\nhm\n</think>\n\nYes", False, "hm", "Yes"),
        ("hm\n</think>\n\nYes", True, "hm", "Yes"),
        ("\n<think>hm</think>Yes\n", False, "hm", "Yes\n"),
        ("<think>\n\n</think>\n\nYes", False, "", "Yes"),
        ("<think>cut off", False, "cut off", ""),
        ("<think>cut off</thi", False, "cut off</thi", ""),
        ("  Yes, <think> is a tag</think>", False, "", "  Yes, <think> is a tag</think>"),
        ("<thin", False, "", "<thin"),
        ("<think>a</think> <think>b</think>c", False, "ab", "c"),
        ("", False, "", ""),
        (" \n", False, "", " \n"),
        ("<think>a  b\n\n c</think>x </think>", False, "a  b\n\n c", "x </think>"),
    ],
)
def test_what_is_reasoning(text: str, opened: bool, reasoning: str, answer: str) -> None:
    for cuts in ((), tuple(range(len(text)))):
        assert split(text, THINK, opened, cuts) == (reasoning, answer)


def test_headers_of_channels_are_no_text() -> None:
    said = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes"
    assert split(said, HARMONY, cuts=tuple(range(len(said)))) == ("hm", "Yes")
    assert split("<|channel|>final<|message|>Yes", HARMONY) == ("", "Yes")


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<th", "</", "a", " ", "\n", "bc"]), max_size=12),
    st.lists(st.integers(0, 60), max_size=12),
    st.booleans(),
)
def test_it_does_not_matter_how_the_text_is_cut(words: list[str], cuts: list[int], opened: bool) -> None:
    text = "".join(words)
    assert split(text, THINK, opened, tuple(cuts)) == split(text, THINK, opened)


# -- with a model -------------------------------------------------------------------------------


SAID = "<think>\nLet me see: 2+2.\n</think>\n\nIt is **four**, 中文."


def live(path: Path, **flags: object) -> Generator:
    settings = profiles.resolve(
        profiles.load("auto"), {"temp": 0.0, "threads": 1, "no-repack": True, **flags}
    )
    return Generator(Request(settings, path))


def ask(generator: Generator, *before: Message) -> Answer:
    answer = generator.answer(generator.prompter.tokens([*before, Message("user", "hi")]))
    for _ in answer:
        pass
    return answer


@pytest.mark.parametrize("template", [THINKING, OPENED, TEMPLATE])
def test_an_answer_with_reasoning(tmp_path: Path, template: str) -> None:
    said = SAID.removeprefix("<think>\n") if template == OPENED else SAID
    with live(parrot(tmp_path / "p.gguf", pieces(said, 4), template)) as generator:
        if template == TEMPLATE:  # nothing says that the tags mean anything
            assert generator.thinking is None
            assert ask(generator).text == SAID
            return
        answer = ask(generator)
        assert (answer.reasoning, answer.text) == ("Let me see: 2+2.", "It is **four**, 中文.")
        assert 3 < answer.reasoning_tokens < len(answer.tokens) - 3
        assert answer.whole_text == SAID
        assert answer.timing.reasoning_s is not None


def test_tags_that_are_tokens_speak_for_themselves(tmp_path: Path) -> None:
    control = ("[THINK]", "[/THINK]")
    says = [control[0], "Hm ", "hm.", control[1], "Yes", " sir."]
    with live(parrot(tmp_path / "p.gguf", says, TEMPLATE, control)) as generator:
        answer = ask(generator)
        assert (answer.reasoning, answer.text) == ("Hm hm.", "Yes sir.")


def test_the_next_prompt_leaves_reasoning_out_where_the_template_does(tmp_path: Path) -> None:
    with live(
        parrot(tmp_path / "a.gguf", ["<think>", "hm hm", "</think>", "\n\n", "Yes", " sir"], THINKING)
    ) as g:
        answer = ask(g)
        assert answer.message == Message("assistant", "Yes sir", answer.tokens and tuple(answer.tokens[4:6]))
        prompt = g.model.vocab.text(
            g.prompter.tokens([Message("user", "hi"), answer.message, Message("user", "x")])
        )
        assert b"Yes sir" in prompt and b"hm" not in prompt and b"think" not in prompt
    cut_across = ["<think>", "hm hm", "</think>", "\n\nYes", " sir"]
    with live(parrot(tmp_path / "b.gguf", cut_across, THINKING)) as g:
        assert ask(g).message == Message("assistant", "Yes sir", None)


def test_a_template_that_keeps_reasoning_keeps_the_cache(tmp_path: Path) -> None:
    keeps = TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    said = ["hm hm", "</think>", "\n\n", "Yes"]
    with live(parrot(tmp_path / "p.gguf", said, keeps)) as generator:
        assert generator.thinking is not None and generator.thinking.kept
        answer = ask(generator)
        assert answer.text == "Yes"
        following = generator.prompter.tokens([Message("user", "hi"), answer.message, Message("user", "x")])
        assert following[: len(generator.target.tokens)] == list(generator.target.tokens)


def test_a_grammar_bounds_all_that_is_said(tmp_path: Path) -> None:
    path = parrot(tmp_path / "p.gguf", pieces("ignored, since only yes may be said"), OPENED)
    with live(path, grammar='root ::= "yes"') as generator:
        answer = ask(generator)
        assert (answer.text, answer.reasoning) == ("yes", None)


def test_a_stop_string_in_the_reasoning_ends_it_all(tmp_path: Path) -> None:
    with live(parrot(tmp_path / "p.gguf", pieces(SAID, 4), THINKING), stop=("2+2",)) as generator:
        answer = ask(generator)
        assert (answer.reasoning, answer.text, answer.finish) == ("Let me see:", "", "stop")
        assert answer.message.text == ""


def test_every_known_pair_is_found_in_a_template_that_names_it(tmp_path: Path) -> None:
    with live(parrot(tmp_path / "p.gguf", ["ok", "ay"])) as generator:
        template, vocab = generator.template, generator.model.vocab
        assert template is not None
        for tags in KNOWN:
            template.source = TEMPLATE + tags.close
            found = find_thinking(template, vocab)
            assert found is not None and found.tags == tags
        assert find_thinking(None, vocab) is None
