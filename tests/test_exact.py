"""`--exact` on a real model: one text, whoever drafts, greedy and sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.conversation import Message
from specli.engine.context import Context, ContextParams
from specli.engine.exact import DEPTHS, self_test
from specli.engine.model import Model, ModelParams

METHODS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "draft-self", "draft-model")
ASK = (
    "Here is a list:\n- red apples and green pears\n- green pears and blue plums\n- blue plums and red apples\n"
    "Repeat the list exactly, twice, and nothing else."
)


@pytest.fixture(scope="module", params=[0.0, 0.8], ids=["greedy", "sampled"])
def generator(request: pytest.FixtureRequest, smol: Path) -> Iterator[Generator]:
    flags = {
        "spec-type": ",".join(METHODS), "ngram-simple-size-n": 4, "ngram-map-k-size-n": 4, "ngram-map-k-size-m": 8,
        "ngram-map-k4v-size-n": 4, "ngram-map-k4v-size-m": 4, "exact": True, "temp": request.param, "seed": 7,
        "max-tokens": 36, "ctx-size": 1024, "threads": 1, "fixed": True,
    }  # fmt: skip
    settings = profiles.resolve(profiles.load("auto"), flags)
    with Generator(Request(settings, smol, smol)) as generator:
        yield generator


@pytest.mark.smol
def test_the_same_text_whoever_drafts(generator: Generator) -> None:
    prompt = generator.prompter.tokens([Message("user", ASK)])
    drafters = {d.method: d for d in generator.drafters}
    said: dict[str, list[int]] = {}
    accepted: dict[str, int] = {}
    for method in ("none", *METHODS):
        generator.drafters = [drafters[method]] if method in drafters else []
        generator.reset_seed()
        answer = generator.answer(prompt)
        assert all(step.cycle is None or step.cycle.width == 4 for step in answer)
        said[method], accepted[method] = answer.tokens, answer.stats.accepted
    generator.drafters = list(drafters.values())
    assert all(tokens == said["none"] for tokens in said.values())
    assert accepted.pop("none") == 0
    assert accepted["draft-model"] > 0
    if generator.settings.temp == 0.0:
        assert all(accepted.values()), accepted


@pytest.mark.smol
def test_the_self_test_crosses_the_steps_of_the_cache(generator: Generator) -> None:
    assert any(depth < 256 < depth + 2 * 4 for depth in DEPTHS)
    assert any(depth < 512 < depth + 2 * 4 for depth in DEPTHS)
    assert self_test(generator.target, 4, generator.chunk) is None


def test_the_self_test_of_a_large_width_takes_few_decodes(
    tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs as many tokens as the width has rows."""
    params = ModelParams(use_extra_bufts=False)
    with (
        Model(tiny_target, params) as model,
        Context(model, ContextParams(n_ctx=1024, max_rows=48)) as context,
    ):
        decoded: list[int] = []
        decode = context.decode

        def counted(tokens: Sequence[int], *rest: Any, **named: Any) -> Any:
            decoded.append(len(tokens))
            return decode(tokens, *rest, **named)

        monkeypatch.setattr(context, "decode", counted)
        assert self_test(context, 48, 128) is None
        assert any(depth < 512 < depth + 8 for depth in DEPTHS) and len(DEPTHS) == 3
        assert 3 * 8 < decoded.count(48) < 3 * 37
