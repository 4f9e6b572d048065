"""What a draft token will cost beside a target token, told from the files alone."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

from specli.assembly import Generator, Request
from specli.engine.gguf import Header, Tensor, read_header
from specli.engine.gguf_types import TENSOR_TYPES
from specli.engine.traffic import step_ratio, token_bytes
from specli.profiles import load, resolve

KIB = 1 << 10


def header(tensors: dict[str, int], **metadata: int) -> Header:
    """A file with tensors of so many KiB."""
    known = {"general.architecture": "a", **{f"a.{k}": v for k, v in metadata.items()}}
    made = tuple(Tensor(name, (1,), TENSOR_TYPES[0], 0, n * KIB) for name, n in tensors.items())
    return Header(Path("a.gguf"), 3, 32, MappingProxyType(known), made, 0, 0)


def test_of_an_embedding_table_one_row_is_read_unless_it_is_the_output_too() -> None:
    tied = {"token_embd.weight": 50, "blk.0.ffn_up.weight": 10}
    assert token_bytes(header(tied, block_count=1)) == 60 * KIB
    assert token_bytes(header({**tied, "output.weight": 40}, block_count=1)) == 50 * KIB


def test_of_the_experts_those_in_use_are_read() -> None:
    tensors = {"output.weight": 10, "blk.0.ffn_up_exps.weight": 80, "blk.0.ffn_up_shexp.weight": 5}
    mixture = header(tensors, block_count=1, expert_count=8, expert_used_count=2)
    assert token_bytes(mixture) == (10 + 20 + 5) * KIB


def test_heads_are_read_by_who_drafts_with_them() -> None:
    tensors = {
        "output.weight": 10,
        "blk.0.ffn_up.weight": 30,
        "blk.1.ffn_up.weight": 4,
        "blk.2.ffn_up.weight": 6,
    }
    both = header(tensors, block_count=3, nextn_predict_layers=2)
    assert token_bytes(both) == 40 * KIB
    assert token_bytes(both, heads=True) == (10 + (4 + 6) / 2) * KIB  # one head at a time
    assert step_ratio(both, both, heads=True) == pytest.approx(15 / 40)


def test_a_pacer_that_measured_nothing_yet_goes_by_the_files(tiny_target: Path, tiny_draft: Path) -> None:
    settings = resolve(load("auto"), {"threads": 1, "ctx-size": 256})
    with Generator(Request(settings, tiny_target, tiny_draft)) as generator:
        expected = step_ratio(read_header(tiny_target), read_header(tiny_draft))
        assert generator.pacer._expected_steps["draft-model"] == expected  # type: ignore[union-attr]
        assert 0.1 < expected < 0.5
