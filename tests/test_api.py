"""`import specli`: the Python that the command line is built on."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from running import Runner, run

import specli
from specli import errors
from specli.api.options import FOR_ANSWER, FOR_LOAD, AnswerOptions, LoadOptions

__all__ = ["run"]

MODELS = Path(__file__).parent / "models"
TINY = MODELS / "tiny-target-mtp.gguf"
GUIDE = Path(__file__).parent.parent / "docs" / "python.md"
PROMPT = "def add(a, b):\n    return a + b\n\n" * 3
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "


def load(**options: Any) -> specli.Model:
    usual = {"model": TINY, "threads": 1, "no_repack": True, "ctx_size": 512, "max_tokens": 16}
    return specli.load(**{**usual, **options})


@pytest.fixture(scope="module")
def model() -> Iterator[specli.Model]:
    """Sampled, and nothing seeded."""
    with load() as model:
        yield model


# -- the module -------------------------------------------------------------------------------------


def test_importing_is_light() -> None:
    code = (
        "import sys, specli\n"
        "assert specli.__version__ and 'load' in dir(specli)\n"
        "assert issubclass(specli.UsageError, specli.SpecliError)\n"
        "heavy = {'numpy', 'llama_cpp', 'typer', 'rich', 'prompt_toolkit', 'huggingface_hub'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_all_that_is_promised_is_there() -> None:
    for name in specli.__all__:
        assert getattr(specli, name) is not None
    assert specli.MemoryShortage is errors.MemoryShortage
    with pytest.raises(AttributeError, match="laod"):
        specli.laod  # type: ignore[attr-defined]  # noqa: B018
    assert (Path(specli.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("code", re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.M | re.S))
def test_the_guide_runs_as_written(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.gguf").symlink_to(TINY)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "python.md", "exec"), {})
    assert capsys.readouterr().out


# -- options ----------------------------------------------------------------------------------------

KINDS: Mapping[str, object] = {
    "bool": bool, "int": int, "float": float, "text": str, "choice": str, "types": str | Sequence[str],
    "texts": str | Sequence[str], "table": Mapping[str, float] | Mapping[int, float],
}  # fmt: skip


@pytest.mark.parametrize(("typed", "known"), [(AnswerOptions, FOR_ANSWER), (LoadOptions, FOR_LOAD)])
def test_every_setting_is_an_argument_of_its_type(typed: type, known: Mapping[str, Any]) -> None:
    hints = get_type_hints(typed)
    assert set(hints) == set(known)
    for name, key in known.items():
        kind = KINDS[key.kind]
        wider = str | os.PathLike[str] | None, str | Mapping[str, object] | None
        assert hints[name] in (kind | None, *wider), name  # type: ignore[operator]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tmp": 1}, "no setting tmp; did you mean temp?"),
        ({"spec_typ": "none"}, "did you mean spec_type?"),
        ({"temp": -1}, "--temp must be 0 to 1000"),
        ({"spec_type": "ngram-simpel"}, "ngram-simple"),
        ({"stop": 3}, "--stop must be a list"),
        ({"json_schema": []}, "json_schema must be a text"),
        ({"json_schema": {"a": {1}}}, "json_schema is no JSON"),
        ({"spec_type": []}, "spec_type must name at least one type"),
        ({"temp": []}, "temp must be a number"),
        ({"logit_bias": {1.5: 1.0}}, "--logit-bias must have tokens as names"),
        ({"logit_bias": {5: "x"}}, "must be a number"),
        ({"logit_bias": 5}, "--logit-bias must be a table"),
        ({"on_notice": None}, "on_notice must be a function"),
        ({"raw": True, "system": "x"}, "--raw has no turns"),
        ({"profile": "cod"}, "code"),
        ({"parallel": 2}, "must be 1"),
        ({"model": 3}, "model must be a text or a path, not 3"),
        ({"model": b"m.gguf"}, "model must be a text or a path"),
        ({"profile": 3}, "profile must be a text or a path, not 3"),
        ({"chat_template_file": []}, "chat_template_file must be a text or a path, not []"),
    ],
)
def test_wrong_options_are_usage_errors(options: dict[str, Any], says: str) -> None:
    with pytest.raises(specli.UsageError, match=re.escape(says)):
        load(**options)


@pytest.mark.parametrize("files", [3, "abc", b"abc", Path("abc")])
def test_files_are_a_list(model: specli.Model, files: Any) -> None:
    with pytest.raises(specli.UsageError, match="files must be a list of paths"):
        model.answer("hi", files=files)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tmp": 1}, "no setting tmp; did you mean temp?"),
        ({"exact": True}, "exact is set when a model is loaded"),
        ({"temp": "hot"}, "temp must be a number"),
        ({"seed": -2}, "seed must be 0 to"),
        ({"halt": None}, "halt must be a function"),
        ({"logit_bias": {(1,): 1.0}}, "logit_bias must have tokens as names"),
    ],
)
def test_wrong_options_of_an_answer(model: specli.Model, options: dict[str, Any], says: str) -> None:
    with pytest.raises(specli.UsageError, match=re.escape(says)):
        model.answer("hi", **options)


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(specli.ModelFileError, match=r"none\.gguf"):
        specli.load("none.gguf")


def test_notices_are_told_and_kept() -> None:
    told: list[str] = []
    with load(profile="draft-model", on_notice=told.append) as model:
        assert any(line.startswith("draft-model is skipped") for line in told)
        assert set(model.notices) <= set(told) and model.methods == ()


# -- answers ----------------------------------------------------------------------------------------


def test_it_says_what_the_command_line_says(model: specli.Model, run: Runner) -> None:
    answer = model.answer(PROMPT, seed=3, temp=1.1, max_tokens=24)
    row = run("--json", "--seed", 3, "--temp", 1.1, "--max-tokens", 24, PROMPT).rows[0]
    assert list(answer.tokens) == row["token_ids"] and answer.text == row["text"] == str(answer)
    assert (answer.seed, answer.finish) == (3, row["finish_reason"])
    stats, tokens = answer.stats, row["tokens"]
    assert (stats.prompt_tokens, stats.generated, stats.cycles) == (tokens["prompt"], 24, tokens["cycles"])
    assert (stats.drafted, stats.tested, stats.accepted) == tuple(
        tokens[k] for k in ("drafted", "tested", "accepted")
    )
    assert stats.acceptance_rate == row["acceptance"]["rate"]
    assert {name: m.accepted for name, m in stats.by_method.items()} == {
        name: m["accepted"] for name, m in row["by_method"].items()
    }
    stream = model.stream(PROMPT, seed=3, temp=1.1, max_tokens=24)
    stream.finish()
    assert list(stream.report()) == list(row)


def test_tokens_of_a_bias_may_be_numbers(model: specli.Model) -> None:
    """The numbers of tokens as JSON has them, and as Python does."""
    said = [model.answer("hi", seed=1, max_tokens=6, logit_bias=bias).tokens
            for bias in ({5: 100.0}, {"5": 100.0})]  # fmt: skip
    assert said[0] == said[1] == (5,) * 6


def test_the_guide_names_the_parameters_of_load() -> None:
    """docs/python.md, with each default; functions stand as dots."""
    shown = re.search(r"`specli\.load\((.*?)\)`", GUIDE.read_text("utf-8"), re.S)
    assert shown is not None
    real = []
    for parameter in inspect.signature(specli.load).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in real:
            real.append("*")
        default = "..." if callable(parameter.default) else repr(parameter.default)
        real.append("**options" if parameter.kind is parameter.VAR_KEYWORD else f"{parameter.name}={default}")
    assert " ".join(shown[1].split()) == ", ".join(real)


def test_pieces_add_up(model: specli.Model) -> None:
    stream = model.stream(PROMPT, seed=1)
    pieces = list(stream)
    answer = stream.finish()
    assert len(pieces) > 2 and "".join(pieces) == answer.text == model.answer(PROMPT, seed=1).text
    assert model.stats.generated == len(answer.tokens) == 16
    assert model.stats.tokens_per_second and model.stats.prompt_s


def test_before_the_first_answer_nothing_was_measured() -> None:
    with load() as model:
        assert model.stats == specli.Figures() and model.stats.acceptance_rate is None


def test_an_answer_left_early_can_go_on(model: specli.Model) -> None:
    whole = model.answer(PROMPT, seed=2)
    stream = model.stream(PROMPT, seed=2)
    for _ in stream:
        break
    assert stream.answer.finish == "interrupted" and whole.text.startswith(stream.answer.text)
    assert stream.finish().tokens == whole.tokens


def test_one_answer_at_a_time(model: specli.Model) -> None:
    first = model.stream(PROMPT)
    next(iter(first))
    model.answer("hi")
    with pytest.raises(specli.SpecliError, match="another answer of this model was begun"):
        first.finish()


def test_halt_ends_it(model: specli.Model) -> None:
    count = iter(range(1000))
    answer = model.answer(PROMPT, halt=lambda: next(count) >= 3)
    assert answer.finish == "interrupted" and 0 < len(answer.tokens) < 16
    assert model.answer("another", halt=lambda: True).tokens == ()


def test_a_stop_may_be_one_text(model: specli.Model) -> None:
    text = model.answer(PROMPT, seed=1).text
    assert model.answer(PROMPT, seed=1, stop=text[4:7]).text == text[: text.index(text[4:7])]


def test_files_are_put_before(model: specli.Model, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x = 1\n")
    with_file = model.answer("Go on", files=[tmp_path / "a.txt"], max_tokens=1)
    assert with_file.stats.prompt_tokens > model.answer("Go on", max_tokens=1).stats.prompt_tokens
    with pytest.raises(specli.SpecliError, match="none: No such file"):
        model.answer("Go on", files=[tmp_path / "none"])


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_nothing_to_answer(model: specli.Model, prompt: str) -> None:
    with pytest.raises(specli.UsageError, match="nothing to answer"):
        model.answer(prompt)


def test_a_prompt_that_does_not_fit(model: specli.Model) -> None:
    with pytest.raises(specli.SpecliError, match="the context holds 512"):
        model.answer("word " * 600)
    assert model.answer("hi").tokens


# -- what repeats -----------------------------------------------------------------------------------


def test_a_seeded_answer_does_not_depend_on_others(model: specli.Model) -> None:
    first = model.answer(PROMPT, seed=5, temp=1.2)
    model.answer("something else")
    talk = model.chat()
    talk.ask("hello")
    again = model.answer(PROMPT, seed=5, temp=1.2)
    assert first.tokens == again.tokens and first.stats.drafted == again.stats.drafted
    assert model.answer(PROMPT, seed=6, temp=1.2).tokens != first.tokens
    assert model.answer(PROMPT).seed != model.answer(PROMPT).seed


def test_exact_answers_repeat_by_their_seed() -> None:
    with load(exact=True, temp=1.2) as one:
        answers = [one.answer(PROMPT) for _ in range(2)]
        assert answers[0].seed != answers[1].seed
    with load(exact=True, temp=1.2, spec_type="none") as other:
        for answer in answers:
            assert other.answer(PROMPT, seed=answer.seed).tokens == answer.tokens


def test_draft_self_draws_on_the_conversation_alone(model: specli.Model) -> None:
    with load(spec_type="draft-self", fixed=True, temp=0) as model:
        said = model.answer(PROMPT).stats
        assert model.answer(PROMPT).stats.drafted == said.drafted  # not longer drafts from the first one
        talk = model.chat()
        first, second = talk.ask(PROMPT), talk.ask(PROMPT)
        assert first.stats.drafted == said.drafted and second.stats.drafted > 0


# -- errors in the middle ---------------------------------------------------------------------------


def test_after_an_error_the_next_answer_is_right(model: specli.Model) -> None:
    right = model.answer(PROMPT, seed=9)
    count = iter(range(1000))

    def press() -> bool:
        if next(count) == 4:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        model.answer(PROMPT, halt=press)
    after = model.answer(PROMPT)
    assert after.stats.prompt_decoded == after.stats.prompt_tokens  # nothing in the cache is trusted
    assert model.answer(PROMPT, seed=9).tokens == right.tokens


def test_a_second_answer_inside_the_first_is_an_error(model: specli.Model) -> None:
    with pytest.raises(specli.SpecliError, match="one answer at a time"):
        model.answer(PROMPT, halt=lambda: bool(model.answer("hi")))
    with pytest.raises(specli.SpecliError, match="one answer at a time"):
        model.answer(PROMPT, halt=lambda: bool(model.close()))
    assert model.answer("hi").tokens


def test_threads_get_an_error_not_a_crash(model: specli.Model) -> None:
    inside, done = threading.Event(), threading.Event()

    def wait() -> bool:
        inside.set()
        return done.wait(30)

    thread = threading.Thread(target=lambda: model.answer(PROMPT, halt=wait))
    thread.start()
    try:
        assert inside.wait(30)
        with pytest.raises(specli.SpecliError, match="one answer at a time"):
            model.answer("hi")
    finally:
        done.set()
        thread.join()
    assert model.answer("hi").tokens


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_gets_an_error_not_a_hang(model: specli.Model) -> None:
    child = os.fork()
    if child == 0:
        try:
            model.answer("hi")
        except specli.SpecliError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert model.answer("hi").tokens


def test_closed_is_closed() -> None:
    with load() as model:
        stream = model.stream(PROMPT)
        next(iter(stream))
    model.close()
    for ask in (lambda: model.answer("hi"), stream.finish, lambda: model.chat().ask("hi")):
        with pytest.raises(specli.UsageError, match="has been closed"):
            ask()
    assert stream.answer.text  # what was said stays


# -- conversations ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[specli.Model]:
    """With a chat template of ours, and exact: the same text whatever the clock makes of drafts."""
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(TEMPLATE)
    with load(chat_template_file=template, temp=0, exact=True) as model:
        yield model


def test_turns_build_on_each_other(talker: specli.Model) -> None:
    talk = talker.chat(system="Be brief.")
    first = talk.ask("One?")
    assert [(m.role, m.text) for m in talk.messages] == [("user", "One?"), ("assistant", first.text)]
    second = talk.ask("Two?")
    assert (
        second.stats.prompt_decoded < second.stats.prompt_tokens - first.stats.prompt_tokens
    )  # the rest is cached
    assert len(talk.messages) == 4
    assert talk.undo() == "Two?" and len(talk.messages) == 2
    assert talk.ask("Two?").tokens == second.tokens
    talk.clear()
    assert talk.messages == () and talk.undo() is None
    assert talk.ask("One?").tokens == first.tokens
    by_turns = talker.answer(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One?"}]
    )
    assert by_turns.tokens == first.tokens


def test_a_turn_left_early_is_what_was_said(talker: specli.Model) -> None:
    talk = talker.chat()
    stream = talk.stream("Tell me.")
    assert talk.messages == ()  # not a word yet
    for _ in stream:
        break
    assert [m.role for m in talk.messages] == ["user", "assistant"]
    said = talk.messages[-1].text
    assert said == stream.answer.text != ""
    talk.ask("More.")
    assert talk.messages[1].text == said and len(talk.messages) == 4


def test_what_was_said_outlives_the_model() -> None:
    with load() as model:
        talk = model.chat(max_tokens=6)
        answer = talk.ask("def f():")
    assert [m.text for m in talk.messages] == ["def f():", answer.text]
    assert talk.undo() == "def f():" and talk.messages == ()
    with pytest.raises(specli.UsageError, match="has been closed"):
        talk.ask("more")
    assert talk.messages == ()


def test_two_conversations_in_turns(talker: specli.Model) -> None:
    alone = talker.chat(seed=4, temp=1.0)
    expected = [alone.ask("One?").text, alone.ask("Two?").text]
    a, b = talker.chat(temp=1.0, seed=4), talker.chat(seed=5)
    said = [a.ask("One?").text]
    b.ask("Something else.")
    assert b.messages[0].text == "Something else."
    said.append(a.ask("Two?").text)
    assert said[0] == expected[0]
    assert [m.text for m in a.messages] == ["One?", said[0], "Two?", said[1]] and len(b.messages) == 2


def test_the_seed_of_any_turn_can_be_given_again(talker: specli.Model) -> None:
    talk = talker.chat(seed=7)
    first, second = talk.ask("Name a tree."), talk.ask("And another?")
    turns = [{"role": message.role, "content": message.text} for message in talk.messages[:-1]]
    assert first.seed == 7 and 0 <= second.seed < 2**32
    assert talker.answer(turns, seed=second.seed).seed == second.seed


def test_a_turn_is_a_text(talker: specli.Model) -> None:
    with pytest.raises(specli.UsageError, match="a turn is a text"):
        talker.chat().ask([{"role": "user", "content": "x"}])  # type: ignore[arg-type]


def test_a_seeded_conversation_is_that_of_chat(
    talker: specli.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import io

    from specli.cli.main import main

    (tmp_path / "template").write_text(TEMPLATE)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"One?\nTwo?\n")))
    args = [
        "chat",
        "--exact",
        "-m",
        str(TINY),
        "--no-repack",
        "--threads",
        "1",
        "--ctx-size",
        "512",
        "--max-tokens",
        "16",
    ]
    capsys.readouterr()
    assert (
        main([*args, "-q", "--seed", "4", "--temp", "1", "--chat-template-file", str(tmp_path / "template")])
        == 0
    )
    talk = talker.chat(seed=4, temp=1.0)
    texts = [talk.ask(text).text for text in ("One?", "Two?")]
    assert capsys.readouterr().out == "".join(text if text.endswith("\n") else text + "\n" for text in texts)


def test_raw_text_goes_on_without_turns() -> None:
    with load(raw=True, exact=True) as model:
        talk = model.chat(temp=0)
        first = talk.ask("def f():")
        assert first.tokens == model.answer("def f():", temp=0).tokens
        second = talk.ask("def g():")
        assert second.stats.prompt_tokens > first.stats.prompt_tokens + first.stats.generated
        turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
        for ask in (lambda: model.answer("hi", system="x"), lambda: model.answer(turns)):
            with pytest.raises(specli.UsageError, match="raw text has no turns and no system message"):
                ask()


def test_a_full_context_leaves_the_oldest_turns_out() -> None:
    with load(ctx_size=256, temp=0, max_tokens=20) as model:
        talk = model.chat()
        for number in range(8):
            answer = talk.ask(f"Question {number}: " + "word " * 20)
            assert answer.stats.prompt_tokens <= 256 - 20 and answer.finish != "context"
        assert 0 < talk.left_out < 7 and len(talk.messages) == 16
        with pytest.raises(specli.SpecliError, match="the context holds 256"):
            talk.ask("word " * 400)
        assert len(talk.messages) == 16 and talk.ask("Go on.").tokens


def test_a_schema_may_be_a_dict() -> None:
    import json

    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    with load(json_schema={**schema, "additionalProperties": False}, max_tokens=200) as model:
        assert set(json.loads(model.answer("A number?").text)) == {"n"}
