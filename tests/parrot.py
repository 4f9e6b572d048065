"""A model that says what a test wants it to say: a chain of tokens, each the only one that may follow the
one before, whatever was asked. So a test of the whole program can be sure of every byte of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from made_models import CONTROL, NORMAL, SPECIAL, Made, byte_tokens

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = (
    "{% for m in messages %}{% set c = m.content.split('</think>')[-1] %}<|im_start|>{{ m.role }}\n"
    "{{ c.lstrip('\n') if m.role == 'assistant' else m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Leaves the reasoning of earlier answers out."""
OPENED = THINKING.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
"""Opens the block itself."""


SWITCHED = THINKING.replace(
    "assistant\n{% endif %}",
    "assistant\n<think>\n{% if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}",
)
"""Opens the block, and closes it again where it is told not to reason."""


@dataclass(frozen=True)
class Parrot(Made):
    """`says`: the pieces of the answer, at most 120. `control`: which of them are control tokens. It starts
    over after whatever the prompt ends with, and ends with the end token."""

    says: Sequence[bytes | str] = ()
    endless: bool = False
    control: Sequence[str] = ()

    def _weights(self, w: Any) -> None:
        n, e = len(self.tokens), self.width
        first = n - len(self.says)
        embedding, output = np.zeros((n, e), np.float32), np.zeros((n, e), np.float32)
        embedding[:first, 0] = 1  # all that may end a prompt starts the chain
        for i in range(len(self.says)):
            embedding[first + i, i + 1] = 1
            output[first + i, i] = 50
        output[first if self.endless else self.eos, len(self.says)] = 50
        w.add_tensor("token_embd.weight", embedding)
        w.add_tensor("output.weight", output)
        w.add_tensor("output_norm.weight", np.ones(e, np.float32))
        for name in ("attn_norm", "ffn_norm"):
            w.add_tensor(f"blk.0.{name}.weight", np.ones(e, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            w.add_tensor(f"blk.0.{name}.weight", np.zeros((e, e), np.float32))
        for name in ("ffn_gate", "ffn_up"):
            w.add_tensor(f"blk.0.{name}.weight", np.zeros((2 * e, e), np.float32))
        w.add_tensor("blk.0.ffn_down.weight", np.zeros((e, 2 * e), np.float32))


def parrot(
    path: Path,
    says: Sequence[bytes | str],
    template: str | None = TEMPLATE,
    control: Sequence[str] = (),
    context: int = 2048,
    endless: bool = False,
) -> Path:
    """Write a model that says `says`, piece by piece, over and over if `endless`."""
    assert len(says) < 127 and len(set(says)) == len(says), "every piece once"
    spelled = dict(zip(_order(), byte_tokens()))
    pieces = [p if p in control else "".join(spelled[b] for b in _bytes(p)) for p in says]
    tokens = [*SPECIAL, *byte_tokens(), *(p if isinstance(p, str) else p.decode() for p in pieces)]
    assert len(set(tokens)) == len(tokens), "no single bytes, no control tokens of the template"
    types = [CONTROL if t in SPECIAL or t in control else NORMAL for t in tokens]
    made = Parrot(
        tokens,
        types=types,
        template=template,
        width=128,
        context=context,
        says=pieces,
        control=control,
        endless=endless,
    )
    return made.write(path)


def pieces(text: str, size: int = 3) -> list[str]:
    """`text` cut into pieces of about `size` characters, none of them twice and none of one byte."""
    out: list[str] = []
    at = 0
    while at < len(text):
        n = size
        while at + n < len(text) and (
            text[at : at + n] in out or len(text[at : at + n].encode()) < 2 or len(text) - at - n == 1
        ):
            n += 1
        out.append(text[at : at + n])
        at += n
    return out


def _bytes(piece: bytes | str) -> bytes:
    return piece if isinstance(piece, bytes) else piece.encode()


def _order() -> list[int]:
    """The bytes in the order in which `byte_tokens` spells them."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return visible + [byte for byte in range(256) if byte not in visible]
