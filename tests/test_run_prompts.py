"""`specli run --prompts`: many prompts, one loaded model."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from running import ENDLESS, Runner, run, start

__all__ = ["run"]

A = "def add(a, b):\n    return a + b\n"
B = "class Point:\n    pass\n"


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write(path: Path, *rows: object) -> Path:
    path.write_text(lines(*rows))
    return path


def test_a_line_for_a_line_in_order(run: Runner, tmp_path: Path) -> None:
    file = write(
        tmp_path / "p.jsonl", A, {"prompt": B, "id": "second"}, {"prompt": A, "id": 3, "max_tokens": 4}
    )
    file.write_text(file.read_text().replace("\n", "\n\n", 1))  # blank lines do not count
    result = run("--seed", 1, "--prompts", file)
    assert result.code == 0 and result.err == ""
    assert [(row["index"], row["id"]) for row in result.rows] == [(0, None), (1, "second"), (2, 3)]
    alone = run("--json", "--seed", 1, A).rows[0]
    assert list(result.rows[0]) == ["index", "id", *alone]
    assert result.rows[0]["text"] == alone["text"] and len(result.rows[2]["token_ids"]) == 4
    assert result.rows[0]["token_ids"][:4] == result.rows[2]["token_ids"]


def test_standard_input_is_the_file(run: Runner) -> None:
    result = run(
        "--prompts", "-", stdin="\ufeff" + lines(A) + json.dumps("x\u2028y")
    )  # no new line at the end
    assert [row["index"] for row in result.rows] == [0, 1] and result.code == 0


def test_a_seeded_answer_does_not_depend_on_its_place(run: Runner) -> None:
    rows = run(
        "--seed", 7, "--temp", 1.2, "--prompts", "-", stdin=lines(A, B, A, {"prompt": A, "seed": 8})
    ).rows
    alone = run("--seed", 7, "--temp", 1.2, "--json", A).rows[0]
    assert rows[0]["token_ids"] == rows[2]["token_ids"] == alone["token_ids"]
    assert [row["seed"] for row in rows] == [7, 7, 7, 8]
    assert rows[3]["token_ids"] != rows[0]["token_ids"]
    assert rows[0]["tokens"] == rows[2]["tokens"] == alone["tokens"]  # the same drafts, too


def test_without_a_seed_each_line_has_its_own_and_exact_repeats_it(run: Runner) -> None:
    rows = run("--exact", "--temp", 1.2, "--prompts", "-", stdin=lines(A, A, B)).rows
    assert len({row["seed"] for row in rows}) == 3
    again = run("--exact", "--temp", 1.2, "--seed", rows[1]["seed"], "--json", "--spec-type", "none", A).rows[
        0
    ]
    assert again["token_ids"] == rows[1]["token_ids"]


def test_what_prompts_share_is_decoded_once_unless_seeded(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "shared.txt").write_text("word " * 60)
    args = ("--raw", "-f", tmp_path / "shared.txt", "--prompts", "-")
    for more in ((), ("--seed", 1)):
        first, second = run(*args, *more, stdin=lines("one", "two")).rows
        decoded = [row["prompt_tokens_per_second"] * row["timing"]["prompt_s"] for row in (first, second)]
        assert decoded[0] == pytest.approx(first["tokens"]["prompt"])
        assert second["tokens"]["prompt"] > 100
        if more:
            assert decoded[1] == pytest.approx(second["tokens"]["prompt"])
        else:
            assert decoded[1] < 10


def test_options_of_a_line_are_those_of_the_flags(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(B)
    text = run("--json", "--seed", 1, A).rows[0]["text"]
    rows = run(
        "--seed",
        1,
        "--prompts",
        "-",
        stdin=lines(
            {"prompt": A, "stop": text[5:8]},
            {"prompt": A, "stop": [text[5:8]]},
            {"prompt": A, "temp": 1.3, "top-k": 5, "seed": 3, "max-tokens": 9},
            {"prompt": A, "files": [str(tmp_path / "a.txt")]},
            {"prompt": A, "id": None, "files": None, "messages": None, "temp": None, "system": None},
        ),
    ).rows
    assert rows[0]["text"] == rows[1]["text"] == text[: text.index(text[5:8])]
    alone = run("--json", "--temp", 1.3, "--top-k", 5, "--seed", 3, "--max-tokens", 9, A).rows[0]
    assert rows[2]["token_ids"] == alone["token_ids"] and rows[2]["seed"] == 3
    attached = run("--json", "-f", tmp_path / "a.txt", A).rows[0]
    assert rows[3]["tokens"]["prompt"] == attached["tokens"]["prompt"]
    assert rows[4]["text"] == text  # what another line asked for does not stay


TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "


def test_messages_are_turns(run: Runner, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    turns = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Yes?"), ("user", "Go on")]
    messages = [{"role": role, "content": text} for role, text in turns]
    args = ("--chat-template-file", template, "--prompts", "-")
    rows = run(
        *args,
        stdin=lines(
            {"messages": messages},
            {"messages": messages[1:], "system": "Be brief."},
            {"messages": messages[1:]},
            {"prompt": "Go on", "system": "Be brief."},
            {"messages": [messages[0], messages[3]]},
        ),
    ).rows
    lengths = [row["tokens"]["prompt"] for row in rows]
    assert lengths[0] == lengths[1] > lengths[2] > lengths[4] == lengths[3]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{not json", "not valid JSON"),
        ("7", "must be a text in quotes, or an object"),
        ('{"prompt": 7}', "prompt must be a text"),
        ('{"prompt": " "}', "nothing to answer"),
        ("{}", "nothing to answer"),
        ('{"promt": "hi"}', "unknown key promt; did you mean prompt?"),
        ('{"prompt": "hi", "max-token": 3}', "unknown key max-token; did you mean max_tokens?"),
        ('{"prompt": "hi", "exact": true}', "unknown key exact"),
        ('{"prompt": "hi", "tmp": null}', "unknown key tmp"),
        ('{"prompt": "hi", "temp": "hot"}', "temp must be a number"),
        ('{"prompt": "hi", "temp": -1}', "temp must be 0 to 1000"),
        ('{"prompt": "hi", "seed": 1.5}', "seed must be a whole number"),
        ('{"prompt": "hi", "stop": [""]}', "stop must not hold an empty text"),
        ('{"prompt": "hi", "id": true}', "id must be a text or a whole number"),
        ('{"prompt": "hi", "messages": []}', "both given"),
        ('{"messages": []}', "messages must be"),
        ('{"messages": [{"role": "user"}]}', "message 1 must have a content"),
        ('{"messages": [{"role": "human", "content": "hi"}]}', "message 1 must have a role"),
        ('{"messages": [{"role": "user", "content": "hi", "nme": 1}]}', "unknown key nme"),
        ('{"messages": [{"role": "assistant", "content": "hi"}]}', "must end with the user's turn"),
        ('{"system": "a", "messages": [{"role": "system", "content": "b"}, {"role": "user", "content": "c"}]}', "twice"),
        ('{"prompt": "hi", "files": "a.txt"}', "files must be a list of paths"),
        ("[" * 100_000, "not valid JSON"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_found_before_the_model(run: Runner, tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(f'"good"\n\n{line}\n')
    result = run("--prompts", file, "-m", "no-such-model.gguf")
    assert result.code == 2 and result.out == ""
    assert f"{file}:3: " in result.line and says in result.line


def test_a_file_that_is_not_one(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n")
    (tmp_path / "bytes").write_bytes(b'"a"\n"\xff"\n')
    assert run("--prompts", tmp_path / "empty").code == 2
    broken = run("--prompts", tmp_path / "bytes")
    assert broken.code == 2 and f"{tmp_path / 'bytes'}:2: not UTF-8" in broken.line
    missing = run("--prompts", tmp_path / "none")
    assert missing.code == 1 and "No such file" in missing.line
    line = run("--prompts", write(tmp_path / "p", {"prompt": "x", "files": ["no-such-file"]}))
    assert line.code == 1 and "p:1: no-such-file: No such file" in line.line


def test_what_cannot_be_meant_together(run: Runner, tmp_path: Path) -> None:
    file = write(tmp_path / "p", A)
    assert "twice, as PROMPT and with --prompts" in run("--prompts", file, "hi").line
    assert "twice, with -p and with --prompts" in run("--prompts", file, "-p", "hi").line
    assert run("--prompts", "-", "--no-stdin", stdin=lines(A)).code == 2
    contradiction = run("--prompts", file, "--stream", "text")
    assert contradiction.code == 2 and "--stream text contradicts --prompts" in contradiction.line


def test_one_that_cannot_be_answered_leaves_the_others(run: Runner) -> None:
    stdin = lines({"prompt": "word " * 600, "id": "long"}, A)
    result = run("--raw", "--prompts", "-", stdin=stdin)
    assert result.code == 1 and result.err == ""  # -q; the lines say it
    failed, answered = result.rows
    assert list(failed) == ["index", "id", "error"] and failed["id"] == "long"
    assert "the context holds 512" in failed["error"] and answered["text"]
    events = run("--raw", "--stream", "json", "--prompts", "-", stdin=stdin).rows
    assert events[0] == {"event": "error", "index": 0, "id": "long", "error": failed["error"]}
    assert {row["index"] for row in events[1:]} == {1} and events[-1]["event"] == "end"


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")
def test_interrupted_what_is_answered_is_out(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", {"prompt": "a", "max_tokens": 2}, "b", "c")
    process = start(*ENDLESS, "--stream", "json", "--prompts", file)
    assert process.stdout is not None
    rows = []
    while not rows or (rows[-1]["index"], rows[-1]["event"]) != (1, "text"):  # each at once, not at the end
        rows.append(json.loads(process.stdout.readline()))
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and b"Traceback" not in errors
    rows += [json.loads(line) for line in rest.splitlines()]
    ends = [(row["index"], row["finish_reason"]) for row in rows if row["event"] == "end"]
    assert ends == [(0, "length"), (1, "interrupted")] and rows[-1]["event"] == "end"


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")
def test_every_line_is_out_at_once(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", {"prompt": "a", "max_tokens": 2}, "b", "c")
    process = start(*ENDLESS, "--prompts", file)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["finish_reason"] == "length"
    process.terminate()
    rest, errors = process.communicate(timeout=300)
    assert process.returncode == 143 and b"Traceback" not in errors
    assert [json.loads(line)["finish_reason"] for line in rest.splitlines()] in ([], ["interrupted"])
