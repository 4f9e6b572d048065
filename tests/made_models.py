"""Model files that tests make themselves, with the `gguf` package: tiny llamas over any vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from specli.engine.gguf import ArrayInfo, Header, read_header

NORMAL, CONTROL = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_tokens() -> list[str]:
    """One token for each byte, in the spelling of byte-level tokenizers."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(b) for b in visible] + [chr(256 + i) for i in range(len(hidden))]


def words(n: int, stem: str = "tok") -> list[str]:
    """A vocabulary of `n`: three control tokens, all bytes where there is room, made-up words."""
    tokens = [*SPECIAL, *(byte_tokens() if n >= 259 + 1 else [])]
    return tokens + [f"{stem}{i}" for i in range(n - len(tokens))]


@dataclass(frozen=True)
class Made:
    """A tiny llama. `favoured`: tokens that its output layer makes likeliest."""

    tokens: Sequence[str]
    kind: str = "gpt2"
    pre: str = "gpt-2"
    bos: int = 0
    eos: int = 2
    add_bos: bool = False
    types: Sequence[int] | None = None
    template: str | None = None
    width: int = 32
    layers: int = 1
    seed: int = 0
    favoured: Sequence[int] = ()
    context: int = 512
    more: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        w = gguf.GGUFWriter(str(path), "llama")
        w.add_name(path.stem)
        for key, value in self.more.items():
            w.add_string(key, value)
        w.add_file_type(gguf.LlamaFileType.ALL_F32)
        w.add_context_length(self.context)
        w.add_embedding_length(self.width)
        w.add_block_count(self.layers)
        w.add_feed_forward_length(2 * self.width)
        w.add_head_count(2)
        w.add_head_count_kv(2)
        w.add_rope_dimension_count(self.width // 2)
        w.add_layer_norm_rms_eps(1e-5)
        self._tokenizer(w)
        self._weights(w)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        return path

    def _tokenizer(self, w: Any) -> None:
        w.add_tokenizer_model(self.kind)
        w.add_tokenizer_pre(self.pre)
        w.add_token_list(list(self.tokens))
        types = self.types or [
            CONTROL if t in SPECIAL or t in ("<s>", "</s>") else NORMAL for t in self.tokens
        ]
        w.add_token_types(types)
        if self.kind == "gpt2":
            w.add_token_merges(["a b"])
        else:
            w.add_token_scores([-float(i) for i in range(len(self.tokens))])
        w.add_bos_token_id(self.bos)
        w.add_eos_token_id(self.eos)
        w.add_add_bos_token(self.add_bos)
        if self.template is not None:
            w.add_chat_template(self.template)

    def _weights(self, w: Any) -> None:
        rng = np.random.default_rng(self.seed)
        n, e = len(self.tokens), self.width

        def put(name: str, *shape: int) -> None:
            w.add_tensor(name, rng.normal(0, 0.1, shape).astype(np.float32))

        # a constant first feature lets the output layer favour tokens in every context
        embedding = rng.normal(0, 1, (n, e)).astype(np.float32)
        embedding[:, 0] = 8
        w.add_tensor("token_embd.weight", embedding)
        output = rng.normal(0, 0.3, (n, e)).astype(np.float32)
        output[:, 0] = 0
        output[list(self.favoured), 0] = 5
        w.add_tensor("output.weight", output)
        w.add_tensor("output_norm.weight", np.ones(e, np.float32))
        for i in range(self.layers):
            for name in ("attn_norm", "ffn_norm"):
                w.add_tensor(f"blk.{i}.{name}.weight", np.ones(e, np.float32))
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                put(f"blk.{i}.{name}.weight", e, e)
            for name in ("ffn_gate", "ffn_up"):
                put(f"blk.{i}.{name}.weight", 2 * e, e)
            put(f"blk.{i}.ffn_down.weight", e, 2 * e)


def changed_copy(source: Path, path: Path, tokens: dict[int, str] | None = None, **keys: object) -> Path:
    """The metadata of `source` with some token texts and keys changed, and one small tensor for weights:
    what compares vocabularies never reads more."""
    header = read_header(source)
    w = gguf.GGUFWriter(str(path), header.architecture)
    for key, value in header.metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, ArrayInfo):
            w.add_array(key, _items(header, key, tokens or {}))
        else:
            _put(w, key, keys.pop(key, value))
    for key, value in keys.items():
        _put(w, key, value)
    w.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def _items(header: Header, key: str, tokens: dict[int, str]) -> list[object]:
    items: list[object] = list(header.array(key))
    if key == "tokenizer.ggml.tokens":
        for at, text in tokens.items():
            items[at] = text
    return items


def _put(w: Any, key: str, value: object) -> None:
    if isinstance(value, bool):
        w.add_bool(key, value)
    elif isinstance(value, int):
        w.add_uint32(key, value)
    elif isinstance(value, float):
        w.add_float32(key, value)
    else:
        w.add_string(key, str(value))
