"""The model the other tests stand on."""

from __future__ import annotations

import numpy as np
import pytest

from specli.core.sampling import SamplingParams, distribution
from specli.core.table_model import TableModel
from specli.core.types import LanguageModel


def test_it_is_a_language_model() -> None:
    model: LanguageModel = TableModel.random(5, 2, n_ctx=9)
    assert isinstance(model, LanguageModel)
    assert (model.n_vocab, model.n_ctx, model.max_rows) == (5, 9, 64)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_rows_follow_the_last_tokens_at_every_width(order: int) -> None:
    table = np.arange(3**order * 3, dtype=np.float32).reshape(-1, 3)
    text = [1, 2, 0, 2, 2, 1]
    padded = [0] * order + text
    wanted = []
    for i in range(order, len(padded)):
        digits = padded[i - order + 1 : i + 1]
        wanted.append(table[sum(d * 3**k for k, d in enumerate(reversed(digits)))].tolist())
    for width in range(1, 7):
        model = TableModel(table, order)
        rows = [
            row.tolist()
            for at in range(0, 6, width)
            for row in model.decode(text[at : at + width], len(text[at : at + width]))
        ]
        assert rows == wanted
        assert model.decoded == 6
    model = TableModel(table, order)
    assert model.decode(text, rows=2).tolist() == wanted[-2:]


def test_rows_die_with_the_next_decode() -> None:
    """A caller that reads them too late must notice; a distribution made in time lives on."""
    model = TableModel.random(4)
    rows = model.decode([1, 2], rows=2)
    kept = rows.copy()
    p = distribution(rows[1], (), SamplingParams(temp=1.0, top_k=0, top_p=1.0, min_p=0.0))
    before = p.probs.copy()
    model.decode([3])
    assert np.isnan(rows[1]).all()
    assert not (rows[0] == kept[0]).any()
    assert (p.probs == before).all()


def test_rewind() -> None:
    model = TableModel.random(4, 2)
    model.decode([1, 2, 3])
    assert model.rewind(7) == 3
    assert model.rewind(1) == 1
    assert list(model.tokens) == [1]
    assert (model.decode([2])[0] == TableModel.random(4, 2).decode([1, 2])[0]).all()
    assert model.rewind(0) == model.rewind(-1) == 0
    assert model.decoded == 4


def test_misuse_is_refused() -> None:
    model = TableModel.random(4, n_ctx=3)
    with pytest.raises(ValueError, match="4 tokens do not fit behind 0 of 3"):
        model.decode([0] * 4)
    with pytest.raises(ValueError, match="2 rows of 1 tokens"):
        model.decode([0], rows=2)
    for token in (-1, 4):
        with pytest.raises(ValueError, match="is not one of the 4 known"):
            model.decode([0, token])
    assert list(model.tokens) == []
    with pytest.raises(ValueError, match="has 16 rows, not 4"):
        TableModel(np.zeros((4, 4), np.float32), order=2)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        TableModel(np.zeros((1, 4), np.float32), order=0)
