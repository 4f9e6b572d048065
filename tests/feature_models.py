"""Drafts that read a target's layers, made with random weights: lossless whatever they propose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

from specli.engine.gguf import ArrayInfo, Header, read_header


@dataclass(frozen=True)
class RandomDraft:
    """An EAGLE-3 head or a block draft for `target`. `keys`: metadata over what it would have; None leaves a
    key out. `own`: whether it has embeddings and an output layer of its own. `vocabulary`: the ids of a
    reduced one, `rows` of the output layer if not as many."""

    target: Path
    architecture: str = "eagle3"
    layers: Sequence[int] = (1, 2, 3)
    keys: Mapping[str, object] = field(default_factory=dict)
    own: bool = False
    vocabulary: Sequence[int] | None = None
    rows: int | None = None
    markov: bool = False
    seed: int = 0

    def write(self, path: Path) -> Path:
        header = read_header(self.target)
        width = header.integer(f"{header.architecture}.embedding_length")
        assert width is not None and header.n_vocab is not None
        w = gguf.GGUFWriter(str(path), self.architecture)
        self._metadata(w, header, width)
        self._weights(w, width, header.n_vocab)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        return path

    def _metadata(self, w: gguf.GGUFWriter, header: Header, width: int) -> None:
        arch = self.architecture
        keys: dict[str, object] = {
            "context_length": 2048, "embedding_length": width, "block_count": 1, "feed_forward_length": width,
            "attention.head_count": 2, "attention.head_count_kv": 2, "attention.key_length": 32,
            "attention.value_length": 32, "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": 32,
            "target_layers": list(self.layers),
        }  # fmt: skip
        if arch == "eagle3":
            keys["target_hidden_size"] = width
        else:
            keys["block_size"] = 4
        keys = {f"{arch}.{name}": value for name, value in keys.items()}
        for name, value in header.metadata.items():
            if name.startswith("tokenizer."):
                keys[name] = list(header.array(name)) if isinstance(value, ArrayInfo) else value
        if arch == "dflash":
            keys["tokenizer.ggml.mask_token_id"] = 1
        for name, value in {**keys, **self.keys}.items():
            _put(w, name, value)

    def _weights(self, w: gguf.GGUFWriter, width: int, n_vocab: int) -> None:
        rng = np.random.default_rng(self.seed)

        def put(name: str, *shape: int) -> None:
            w.add_tensor(f"{name}.weight", rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32))

        eagle = self.architecture == "eagle3"
        inner, n_out = 2 * width if eagle else width, n_vocab
        for norm in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
            w.add_tensor(f"{norm}.weight", np.ones(width, np.float32))
        put("fc", width, width * len(self.layers))
        if self.vocabulary is not None:
            n_out = self.rows or len(self.vocabulary)
            w.add_tensor("d2t", np.array(self.vocabulary, np.int64))
        if self.own:
            put("token_embd", n_vocab, width)
        if self.own or self.vocabulary is not None:
            put("output", n_out, width)
        for name in ("attn_q", "attn_k", "attn_v"):
            put(f"blk.0.{name}", 64, inner)
        put("blk.0.attn_output", width, 64)
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            put(f"blk.0.{name}", width, width)
        if eagle:
            w.add_tensor("blk.0.attn_norm_2.weight", np.ones(width, np.float32))
            return
        w.add_tensor("enc.output_norm.weight", np.ones(width, np.float32))
        for name in ("attn_q_norm", "attn_k_norm"):
            w.add_tensor(f"blk.0.{name}.weight", np.ones(32, np.float32))
        if self.markov:
            put("markov_w1", n_vocab, 32)
            put("markov_w2", n_out, 32)


def _put(w: gguf.GGUFWriter, name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, (list, tuple)):
        w.add_array(name, list(value))
    elif isinstance(value, bool):
        w.add_bool(name, value)
    elif isinstance(value, int):
        w.add_uint32(name, value)
    elif isinstance(value, float):
        w.add_float32(name, value)
    else:
        w.add_string(name, str(value))
