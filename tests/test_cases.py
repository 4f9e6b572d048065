"""Faults that other tools had, those rows of docs/cases.md that no other file holds; and that the table is true."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_models import Made, words

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.conversation import Message, Prompter
from specli.engine.model import Model, ModelParams
from specli.engine.template import ChatTemplate

TESTS = Path(__file__).parent
TABLE = TESTS.parent / "docs" / "cases.md"


def generator(model: Path, draft: Path | None = None, **flags: object) -> Generator:
    given: dict[str, object] = {"temp": 0.0, "seed": 1, "max-tokens": 40, "ctx-size": 512, "threads": 1}
    given |= {name.replace("_", "-"): flag for name, flag in flags.items()}
    return Generator(Request(profiles.resolve(profiles.load("auto"), given), model, draft))


# -- the table ---------------------------------------------------------------------------------------


def test_every_row_of_the_table_is_a_test_that_exists() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]*) \|$", TABLE.read_text("utf-8"), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 48, 2))
    for number, cell in rows:
        names = re.findall(r"`(\w+\.py)::(\w+)`", cell)
        assert names, f"row {number} names no test"
        for file, name in names:
            tree = ast.parse((TESTS / file).read_text("utf-8"))
            found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert name in found and name.startswith("test_"), f"row {number}: {file} has no {name}"


# -- 9: nothing after the first end token ------------------------------------------------------------


@pytest.mark.parametrize("types", ["draft-model", "draft-self", "ngram-simple"])
def test_case_9_nothing_behind_the_end(tiny_draft: Path, types: str) -> None:
    """The end token, made likely, comes inside of drafts too; earlier turns are in the history."""
    _ends(tiny_draft, tiny_draft if types == "draft-model" else None, types, ["2+12"])


@pytest.mark.large
def test_case_9_large(qwen_draft: Path) -> None:
    _ends(qwen_draft, qwen_draft, "draft-model", [])


def _ends(model: Path, draft: Path | None, types: str, bias: list[str]) -> None:
    sizes = {"spec_ngram_simple_size_n": 2, "spec_self_size_n": 2}
    flags = {"spec_type": types, "spec_draft_n_max": 16, "fixed": True, "logit_bias": bias, "max_tokens": 200}
    with generator(model, draft, **flags, **sizes, ctx_size=1024) as g:
        history: list[Message] = []
        for _ in range(3):
            history.append(Message("user", "Answer in one word: is water wet?"))
            answer = g.answer(g.prompter.tokens(history))
            text = "".join(span.text for step in answer for span in step.spans)
            assert answer.finish == "stop"
            ends = [token in g.model.vocab.ends for token in answer.tokens]
            assert ends[-1] and not any(ends[:-1])
            assert answer.stats.generated == len(answer.tokens)
            assert text == answer.text and "<|" not in text
            history.append(Message("assistant", answer.text, tuple(answer.tokens[:-1])))


# -- 19: exactly one BOS -----------------------------------------------------------------------------

TURNS = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    "template", ["{{ bos_token }}" + TURNS, TURNS, "{{ bos_token }}{{ bos_token }}" + TURNS]
)
def test_case_19_one_bos(tmp_path: Path, template: str) -> None:
    path = Made(words(300), add_bos=True, bos=0, template=template).write(tmp_path / "m.gguf")
    with Model(path, ModelParams(vocab_only=True)) as model:
        bos = model.vocab.piece(0, special=True).decode()
        prompter = Prompter(model.vocab, ChatTemplate(template, bos, ""))
        tokens = prompter.tokens([Message("user", "tok1")])
    assert tokens[0] == 0 and tokens.count(0) == 1


def test_case_19_gemma(gemma: Path) -> None:
    with Model(gemma, ModelParams(vocab_only=True)) as model:
        bos = model.vocab.bos
        template = "{{ bos_token }}" + TURNS
        piece = model.vocab.piece(bos, special=True).decode()
        tokens = Prompter(model.vocab, ChatTemplate(template, piece, "")).tokens([Message("user", "Hello")])
    assert tokens[0] == bos and tokens.count(bos) == 1


# -- 21: a template without a system role ------------------------------------------------------------

NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)


def test_case_21_the_system_text_goes_into_the_first_turn(tiny_draft: Path) -> None:
    with Model(tiny_draft, ModelParams(vocab_only=True)) as model:
        prompter = Prompter(model.vocab, ChatTemplate(NO_SYSTEM, "", ""))
        tokens = prompter.tokens([Message("system", "Be brief."), Message("user", "Hello")])
        assert model.vocab.text(tokens).decode() == "<user>Be brief.\n\nHello"


def test_case_21_a_chat_goes_on(tiny_draft: Path, tmp_path: Path) -> None:
    (tmp_path / "template").write_text(NO_SYSTEM)
    options = [
        "--no-repack",
        "--threads",
        "1",
        "-n",
        "3",
        "--temp",
        "0",
        "--chat-template-file",
        str(tmp_path / "template"),
    ]
    command = [
        sys.executable,
        "-m",
        "specli",
        "chat",
        "-m",
        str(tiny_draft),
        "--no-save",
        "--system",
        "Be brief.",
        *options,
    ]
    done = subprocess.run(command, input="Hello\n", capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout and "Traceback" not in done.stderr


# -- 25: characters of several tokens ----------------------------------------------------------------


@pytest.mark.smol
def test_case_25_emoji_and_chinese_smol(smol: Path) -> None:
    _repeats(smol)


@pytest.mark.large
def test_case_25_large(qwen_draft: Path) -> None:
    _repeats(qwen_draft)


def _repeats(model: Path) -> None:
    line = "🎉 你好,世界 🐍🚀 中文\n"
    with generator(model, model, spec_type="draft-model", spec_draft_n_max=8, fixed=True, max_tokens=24) as g:
        answer = g.answer(g.prompter.raw(line * 4))
        streamed = [span.text for step in answer for span in step.spans]
    text = "".join(streamed)
    assert text == answer.text and text.encode("utf-8").decode("utf-8") == text
    assert "\ufffd" not in text[:-1]  # the token limit may cut the last character
    assert any(ord(c) > 0x1F000 for c in text) and answer.stats.accepted > 0


# -- 29: Ctrl-C while a long prompt is read ----------------------------------------------------------


@pytest.mark.large
@pytest.mark.parametrize("seconds", [1, 8])  # about when the model is loaded, and when the prompt is read
def test_case_29_large(qwen_target: Path, tmp_path: Path, seconds: float) -> None:
    command = [
        sys.executable,
        "-m",
        "specli",
        "run",
        "-m",
        str(qwen_target),
        "--ctx-size",
        "9216",
        "--threads",
        "2",
    ]
    running = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "SPECLI_CACHE_DIR": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert running.stdin is not None and running.stderr is not None
    running.stdin.write(b"one two three four five six seven eight nine ten.\n" * 730)
    running.stdin.close()
    running.stdin = None
    assert b"trying this library" in running.stderr.readline()  # new here: then it loads
    time.sleep(seconds)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=300)
    assert running.returncode == 130 and b"Traceback" not in errors
