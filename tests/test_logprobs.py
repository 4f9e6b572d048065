"""Log-probabilities of emitted tokens: the model's own, and the same with speculation as without."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scripted import ScriptedDrafter
from test_engine_cases import CODE, finished, generator

from specli.core.decoding import Rules, decode
from specli.core.logprobs import token_logprobs
from specli.core.sampling import SamplingParams
from specli.core.table_model import TableModel
from specli.core.types import TokenLogprobs

MODEL = Path(__file__).parent / "models" / "tiny-target-mtp.gguf"


def answer(rules: Rules, script: list[int]) -> tuple[list[int], list[TokenLogprobs]]:
    history = [1]
    cycles = list(
        decode(TableModel.random(12, 1, seed=2), history, [ScriptedDrafter(lambda _: script)], rules)
    )
    return history[1:], [each for cycle in cycles for each in cycle.logprobs]


@pytest.mark.parametrize("script", [[], [3, 3, 3], [5, 1, 2, 9, 4]])
@pytest.mark.parametrize("coupled", [False, True])
def test_they_are_the_models_whatever_the_samplers_do(script: list[int], coupled: bool) -> None:
    params = SamplingParams(temp=2.0, top_k=4, logit_bias={3: 2.0}, presence_penalty=1.0)
    tokens, found = answer(Rules(params, 3, 60, coupled=coupled, logprobs=3), script)
    model = TableModel.random(12, 1, seed=2)
    assert [each.token for each in found] == tokens
    for before, each in zip([1, *tokens], found):
        row = model.row([before]).astype(np.float64)
        logprobs = row - math.log(np.exp(row).sum())
        assert each.logprob == pytest.approx(logprobs[each.token], abs=1e-12)
        assert [one.token for one in each.top] == list(np.argsort(-logprobs)[:3])
        assert [one.logprob for one in each.top] == pytest.approx(sorted(logprobs)[:-4:-1], abs=1e-12)


def test_nothing_is_computed_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specli.core.decoding.token_logprobs", None)
    assert answer(Rules(max_tokens=5), [1, 2])[1] == []


def test_none_of_the_likeliest_and_all_of_them() -> None:
    rows = np.array([[0.0, 1.0, -np.inf, 3.0]], np.float32)
    assert token_logprobs(rows, [1], 0)[0].top == ()
    (each,) = token_logprobs(rows, [1], 99)
    assert [one.token for one in each.top] == [3, 1, 0]
    assert sum(math.exp(one.logprob) for one in each.top) == pytest.approx(1.0)


@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_speculation_reports_what_plain_decoding_does(
    tiny_target: Path, tiny_draft: Path, temp: float
) -> None:
    """Exact mode, so to the bit."""
    said = []
    for types in ("none", "draft-self", "draft-model", "draft-mtp"):
        with generator(tiny_target, tiny_draft, spec_type=types, exact_width=4, temp=temp, fixed=True) as g:
            got = g.answer(g.prompter.raw(CODE), logprobs=2)
            for _ in got:
                pass
            assert got.logprobs is not None and [each.token for each in got.logprobs] == got.tokens
            said.append(got.logprobs)
            assert finished(g, g.prompter.raw(CODE)).logprobs is None
    assert all(logprobs == said[0] for logprobs in said)


def test_a_stop_string_cuts_them_too(tiny_target: Path) -> None:
    with generator(tiny_target, temp=0.0, fixed=True) as g:
        prompt = g.prompter.raw(CODE)
        text = finished(g, prompt).text
    with generator(tiny_target, temp=0.0, fixed=True, stop=[text[len(text) // 2 :][:5]]) as g:
        got = g.answer(prompt, logprobs=0)
        for _ in got:
            pass
        assert got.finish == "stop" and got.logprobs is not None
        assert [each.token for each in got.logprobs] == got.tokens


def specli(*args: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "specli",
        "run",
        "--no-stdin",
        "--no-repack",
        "--threads",
        "1",
        "-m",
        str(MODEL),
    ]
    return subprocess.run(
        [*command, "hi", "--max-tokens", "12", "--temp", "0", *args],
        capture_output=True, text=True, encoding="utf-8", timeout=120,
    )  # fmt: skip


def test_command_line() -> None:
    shown = json.loads(specli("--json", "--logprobs", "2").stdout)
    assert [each["id"] for each in shown["logprobs"]] == shown["token_ids"]
    assert "".join(each["text"] for each in shown["logprobs"]).startswith(shown["text"])
    for each in shown["logprobs"]:
        assert set(each) == {"id", "text", "logprob", "top"} and len(each["top"]) == 2
        assert each["logprob"] == each["top"][0]["logprob"] <= 0.0  # greedy
    assert json.loads(specli("--json").stdout)["logprobs"] is None
    assert [each["top"] for each in json.loads(specli("--json", "--logprobs", "0").stdout)["logprobs"]] == [
        []
    ] * 12


@pytest.mark.parametrize("args", [("--logprobs", "3"), ("--json", "--logprobs", "-1")])
def test_wrong_usage(args: tuple[str, ...]) -> None:
    done = specli(*args)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "--logprobs must be at least 0, and needs --json" in line
