"""`--exact` on a real model: one text, whoever drafts, greedy and sampled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.conversation import Message
from specli.engine.exact import DEPTHS, self_test

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
