"""Trees of sampled drafts keep the target's law, by G-tests; and these tests can fail."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from lossless import drafters, trees
from lossless.gtest import g_test, holm
from lossless.harness import CUTS, PENALTIES, PROMPT, Setting, target
from lossless.reference import joint
from lossless.trees import Answers, TreeSilent, faulty_tree

from specli.core.costs import Costs
from specli.core.pacing import FixedPacer, ProfitPacer
from specli.core.table_model import TableModel
from specli.core.trees import Shape
from specli.core.types import Distribution
from specli.core.verification import residual
from specli.drafters.neural import Voice
from specli.drafters.ngram import NgramSimple
from specli.drafters.tree import TreeDrafter

ALPHA = 0.01
DRAWS, DEEP_DRAWS = 1_200, 6_000
KINDS = {
    "likeliest": trees.Likeliest,
    "independent": trees.Independent,
    "distinct": trees.Distinct,
    "mixed": trees.Mixed,
}
"""Ways to fill a tree."""
SETTINGS = [
    Setting("near", 1.0),
    Setting("hostile", 1.0),
    Setting("near", 0.5, "top-k", "repeat"),
    Setting("hostile", 2.0, "min-p", "frequency"),
    Setting("near", 1.0, "top-p", "bias", coupled=True),
]
FAMILY_SIZE = len(KINDS) * (len(SETTINGS) + 1)


def drafter(kind: type[TreeSilent], shape: trees.Shape, setting: Setting) -> TreeSilent:
    model = target(8)
    other = drafters.near(model) if setting.draft == "near" else drafters.opposite(model)
    return kind(drafters.laws(other, setting.params), shape)


def p_value(kind: type[TreeSilent], shape: trees.Shape, setting: Setting, draws: int, **how: object) -> float:
    answers = Answers(setting.params, setting.coupled, **how)  # type: ignore[arg-type]
    counts = answers.count(drafter(kind, shape, setting), f"{kind.__name__} {shape} {setting.name}", draws)
    return g_test(counts, joint(target(8), PROMPT, setting.params, 2))


def test_the_law_is_the_targets() -> None:
    """Every way to fill a tree in every setting, and every shape with every way."""
    p_values: dict[str, float] = {}
    for i, ((name, kind), setting) in enumerate(product(KINDS.items(), SETTINGS)):
        shape = trees.SHAPES[i % len(trees.SHAPES)]
        p_values[f"{name} {shape} {setting.name}"] = p_value(kind, shape, setting, DRAWS)
    for name, kind in KINDS.items():
        p_values[f"deep {name}"] = p_value(kind, (3, 2), SETTINGS[0], DEEP_DRAWS)
    assert len(p_values) == FAMILY_SIZE
    assert {s.cut for s in SETTINGS} <= set(CUTS) and {s.penalty for s in SETTINGS} <= set(PENALTIES)
    assert holm(p_values, ALPHA) == []


def _real(setting: Setting, fixed: bool, n_gram: bool) -> tuple[TreeDrafter, Answers]:
    model = target(8)
    pacer = (
        FixedPacer()
        if fixed
        else ProfitPacer(Costs({1: 1.0, 64: 2.0}, frozen=True), steps={"draft-model": 0.01})
    )
    others = [_Talkative()] if n_gram else []
    draft = TreeDrafter(
        "draft-model", TableModel(drafters.near(model).table, 2), pacer, 8, Shape(3, 3), others
    )

    def speak(seed: int) -> None:
        draft.speak(Voice(setting.params, seed, setting.coupled))
        draft._sampled.accepted = 5.0  # the likeliest are not drawn, which other tests do

    return draft, Answers(setting.params, setting.coupled, pacer=pacer, speak=speak)


class _Talkative(NgramSimple):
    """Has something to say from the first cycle on."""

    def __init__(self) -> None:
        super().__init__(1, 3, 1)


@pytest.mark.parametrize(
    ("fixed", "n_gram", "coupled"),
    [(True, True, False), (False, False, False), (False, True, False), (True, True, True)],
)
def test_the_law_is_the_targets_with_the_real_drafter(fixed: bool, n_gram: bool, coupled: bool) -> None:
    setting = Setting("near", 1.0, coupled=coupled)
    draft, answers = _real(setting, fixed, n_gram)
    counts = answers.count(draft, f"real {fixed} {n_gram} {coupled}", DRAWS)
    assert g_test(counts, joint(target(8), PROMPT, setting.params, 2)) > ALPHA / 4


def _not_renormalised(p: Distribution, q: Distribution, i: int) -> Distribution:
    left = residual(p, q)
    mass = float(np.maximum(0.0, p.probs - np.array([q.prob(int(t)) for t in p.ids])).sum())
    return Distribution(left.ids, left.probs * max(mass, 1e-9))


FAULTS: dict[str, tuple[type[TreeSilent], Callable[..., object]]] = {
    "residual not updated between siblings": (
        trees.Distinct, faulty_tree(left=lambda p, q, i: residual(p, q) if i == 2 else p)),
    "recovers from the first p": (trees.Distinct, faulty_tree(recover=lambda first, left: first)),
    "judges by a sibling's row": (trees.Distinct, faulty_tree(row=lambda row, siblings: siblings[0])),
    "q not renormalised": (trees.Forgetful, faulty_tree()),
    "p not renormalised": (trees.Distinct, faulty_tree(left=_not_renormalised)),
    "drops drafts for what was drawn": (trees.Choosy, faulty_tree()),
}  # fmt: skip
"""Wrong verifiers, and drafters that say another q than they drew from."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught(name: str) -> None:
    kind, verifier = FAULTS[name]
    settings = [Setting(how, 1.0) for how in ("near", "hostile")]
    assert any(
        p_value(kind, (3, 2), s, DEEP_DRAWS, verifier=verifier) < ALPHA / FAMILY_SIZE for s in settings
    )


@pytest.mark.parametrize("kind", [trees.Independent, trees.Distinct, trees.Mixed])
def test_the_mutants_differ_from_the_real_one_only_where_they_say(kind: type[TreeSilent]) -> None:
    """…or a slip in writing it once more could be what is caught."""
    setting = SETTINGS[0]
    real = Answers(setting.params).count(drafter(kind, (3, 2), setting), "same", 500)
    again = Answers(setting.params, verifier=faulty_tree()).count(drafter(kind, (3, 2), setting), "same", 500)
    assert (real == again).all()
