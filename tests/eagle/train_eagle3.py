#!/usr/bin/env python3
"""Train and write tests/models/tiny-eagle3.gguf: an EAGLE-3 head for the trunk of tiny-target-mtp.gguf.

    OMP_NUM_THREADS=1 python tests/eagle/train_eagle3.py --out tests/models/tiny-eagle3.gguf
    ... --smoke             a few steps only
    ... --work head.pt      also keep the PyTorch weights; --export-only: write the file from them

The trunk is a dense hy_v3 model, which computes what llama.cpp's qwen3 does; as qwen3 it hands out the
inputs of its layers, which hy_v3 does not (tests/model_edits.py renames it). The head sees the inputs of
blocks 1, 2 and 3, borrows the target's token embeddings, and speaks a reduced vocabulary.

After EAGLE-3 (Li et al. 2025, arXiv 2503.01840): low, middle and high features fused by one matrix, one
decoder block over (token embedding, fused feature), and training on the head's own states for the later
steps. It starts from the file's own prediction head, so minutes are enough. Labels are the target's own distributions. The PyTorch graph mirrors llama.cpp's
src/models/eagle3.cpp:

    g_p = fc [l1_p; l2_p; l3_p]
    block at p: [norm(embed(x_{p+1})); norm2(g_p)] -> attention (NORM rope) + g_p -> SwiGLU -> h_p
    logits of x_{p+2} = output norm(h_p);  the next step's g_{p+1} is h_p

Corpus, batches and schedule are those of tests/models/train_tiny_models.py. Needs torch, numpy,
tokenizers, gguf. Seeded, but bytes depend on torch, the thread count and the processor.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
MODELS = Path(__file__).parents[1] / "models"
sys.path.insert(0, str(MODELS))

import gguf  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import train_tiny_models as tiny  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from torch import nn  # noqa: E402

SEED = 20243
LAYERS = (1, 2, 3)  # of the target: whose inputs the head sees
N_DRAFT = 640  # tokens that the head can propose, of the target's 1280
WEIGHTS = (1.0, 0.8, 0.6)  # of the losses of chained steps 1, 2, 3
FIRST = 0.75  # part of the training that is on step 1 alone, at a third of the cost
C = tiny.TARGET
Pair = tuple[torch.Tensor, torch.Tensor]


class Eagle(nn.Module):
    """The head. `forward(embeddings, g, past)` gives (h, (k, v)), shapes (batch, time, n_embd)."""

    def __init__(self, ids: torch.Tensor) -> None:
        super().__init__()
        E, q, kv = C.n_embd, C.n_head * C.head_dim, C.n_kv * C.head_dim
        self.ids = ids
        self.fc = nn.Linear(len(LAYERS) * E, E, bias=False)
        self.attn_norm, self.attn_norm_2 = tiny.RMSNorm(E), tiny.RMSNorm(E)
        self.wq, self.wk, self.wv = (nn.Linear(2 * E, n, bias=False) for n in (q, kv, kv))
        self.wo = nn.Linear(q, E, bias=False)
        self.ffn_norm = tiny.RMSNorm(E)
        self.wgu = nn.Linear(E, 2 * C.n_ff, bias=False)
        self.wd = nn.Linear(C.n_ff, E, bias=False)
        self.output_norm = tiny.RMSNorm(E)
        self.output = nn.Linear(E, len(ids), bias=False)
        self.cs = tiny.rope_table(tiny.CTX_LEN, C.head_dim)

    def forward(self, emb: torch.Tensor, g: torch.Tensor, past: Sequence[Pair]) -> tuple[torch.Tensor, Pair]:
        B, T, _ = emb.shape
        x = torch.cat((self.attn_norm(emb), self.attn_norm_2(g)), -1)
        q, k, v = (m(x).view(B, T, -1, C.head_dim).transpose(1, 2) for m in (self.wq, self.wk, self.wv))
        q, k = (tiny.rope(t, *self.cs, neox=False) for t in (q, k))
        k, v = (t.repeat_interleave(C.n_head // C.n_kv, 1) for t in (k, v))
        h = g + self.wo(attend(q, k, v, past).transpose(1, 2).reshape(B, T, -1))
        gate, up = self.wgu(self.ffn_norm(h)).chunk(2, -1)
        return h + self.wd(F.silu(gate) * up), (k, v)

    def logits(self, h: torch.Tensor) -> torch.Tensor:
        return self.output(self.output_norm(h))  # type: ignore[no-any-return]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: Sequence[Pair]) -> torch.Tensor:
    """Causal attention of one chained step. `past`: keys and values of the earlier steps, step 1 first.

    In the cache step s at position p sees step-1 rows up to p-s+1, then one row of each later step, its
    own at p: so the last s-1 diagonals of the step-1 scores are replaced.
    """
    if not past:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    T, scale = q.shape[-2], 1.0 / math.sqrt(q.shape[-1])
    k1, v1 = past[0]
    diagonals = [(k, v), *reversed(past[1:])]  # offset 0: the own row, 1: the previous step's, ...
    scores = q @ k1.transpose(-1, -2) * scale + torch.full((T, T), -math.inf).triu(1)
    for d, (kd, _) in enumerate(diagonals):
        own = (q[:, :, d:] * kd[:, :, : T - d]).sum(-1) * scale
        scores = torch.diagonal_scatter(scores, own, offset=-d, dim1=-2, dim2=-1)
    p = scores.softmax(-1)
    out = p @ v1
    for d, (_, vd) in enumerate(diagonals):
        part = p.diagonal(-d, -2, -1)[..., None]
        out = out + F.pad(part * (vd - v1)[:, :, : T - d], (0, 0, d, 0))
    return out


@torch.no_grad()
def warm_start(head: Eagle, trunk: Any, mtp: dict[str, torch.Tensor], x: torch.Tensor) -> None:
    """Begin where the model's own prediction head ended: it was trained for the same task, from the
    token and what leaves the last block. `fc` starts as the best linear guess at that."""
    E, D = C.n_embd, C.head_dim
    fused = mtp["attn_norm"][:, None] * mtp["nextn.eh_proj"]
    for m, name in ((head.wq, "attn_q"), (head.wk, "attn_k"), (head.wv, "attn_v")):
        w = mtp[name] @ fused
        if name != "attn_v":  # EAGLE-3 has no norm of queries and keys, and turns neighbouring pairs
            gain = mtp[f"{name}_norm"]
            w = w.view(-1, D, 2 * E) * gain[:, None]
            w = w * (gain.mean() / w.square().sum(-1).mean(-1).sqrt())[:, None, None]
            w = w.view(-1, 2, D // 2, 2 * E).transpose(1, 2).reshape(-1, 2 * E)
        m.weight.copy_(w)
    head.wgu.weight.copy_(torch.cat([mtp["ffn_gate"], mtp["ffn_up"]]))
    for m, name in (
        (head.wo, "attn_output"), (head.wd, "ffn_down"), (head.ffn_norm, "ffn_norm"),
        (head.attn_norm, "nextn.enorm"), (head.attn_norm_2, "nextn.hnorm"),
        (head.output_norm, "nextn.shared_head_norm"),
    ):  # fmt: skip
        m.weight.copy_(mtp[name])
    head.output.weight.copy_(trunk.embd.weight[head.ids])
    seen, _ = features(trunk, x)
    leaves = trunk.hidden(x).reshape(-1, E)
    head.fc.weight.copy_(torch.linalg.lstsq(seen.reshape(len(leaves), -1), leaves).solution.T)


# -- the target ------------------------------------------------------------------------------------


def load_trunk(path: Path) -> tuple[Any, dict[str, torch.Tensor], Tokenizer]:
    """The trunk in PyTorch, the weights of its prediction head and its tokenizer, from the model file."""
    reader = gguf.GGUFReader(str(path))
    w = {t.name: torch.tensor(gguf.quants.dequantize(t.data, t.tensor_type)) for t in reader.tensors}
    trunk = tiny.LM(C)
    with torch.no_grad():
        trunk.embd.weight.copy_(w["token_embd.weight"])
        trunk.out_norm.weight.copy_(w["output_norm.weight"])
        for i, block in enumerate(trunk.blocks):
            part = {n.split(".")[2]: t for n, t in w.items() if n.startswith(f"blk.{i}.")}
            block.wqkv.weight.copy_(torch.cat([part["attn_q"], part["attn_k"], part["attn_v"]]))
            block.wgu.weight.copy_(torch.cat([part["ffn_gate"], part["ffn_up"]]))
            for name, of in (("attn_norm", "attn_norm"), ("ffn_norm", "ffn_norm"), ("q_norm", "attn_q_norm"),
                             ("k_norm", "attn_k_norm"), ("wo", "attn_output"), ("wd", "ffn_down")):  # fmt: skip
                getattr(block, name).weight.copy_(part[of])
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(tiny.SPECIALS)
    mtp = {n[6:-7]: t for n, t in w.items() if n.startswith(f"blk.{C.n_layer}.")}
    return trunk.requires_grad_(False), mtp, tok


def features(trunk: Any, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The fused layers' inputs, side by side, and the logits."""
    x, seen = trunk.embd(ids), []
    for i, block in enumerate(trunk.blocks):
        if i in LAYERS:
            seen.append(x)
        x = block(x, trunk.cs)
    return torch.cat(seen, -1), F.linear(trunk.out_norm(x), trunk.embd.weight)


# -- training --------------------------------------------------------------------------------------


def chain(
    head: Eagle, trunk: Any, x: torch.Tensor, seen: torch.Tensor, steps: int = len(WEIGHTS)
) -> list[torch.Tensor]:
    """Logits of the chained steps; row j of each is about what follows x[j + 1]."""
    emb, g, past, out = trunk.embd(x[:, 1:]), head.fc(seen[:, :-1]), [], []
    for _ in range(steps):
        h, kv = head(emb, g, past)
        out.append(head.logits(h))
        past, g = [*past, kv], tiny.shift(h)
    return out


def train(
    trunk: Any, mtp: dict[str, torch.Tensor], data: torch.Tensor, held: torch.Tensor, steps: int
) -> Eagle:
    torch.manual_seed(SEED)
    ids = torch.bincount(data, minlength=tiny.VOCAB).argsort(descending=True, stable=True)[:N_DRAFT]
    ids = torch.unique(torch.cat((torch.arange(3), ids[: N_DRAFT - 3], ids)))[:N_DRAFT]
    share = float(torch.isin(data, ids).float().mean())
    head = Eagle(ids)
    warm_start(head, trunk, mtp, next(tiny.batches(data, 16, 256, SEED + 1))[0])
    print(f"head: {sum(p.numel() for p in head.parameters())} parameters, {len(ids)} tokens that make up "
          f"{share:.3f} of the text", flush=True)  # fmt: skip
    opt, batches, began = (
        tiny.optimizer(head.parameters(), 2e-3),
        tiny.batches(data, 16, 256, SEED),
        time.time(),
    )
    for s in range(steps):
        x, _ = next(batches)
        tiny.set_lr(opt, 2e-3, s, steps, warm=15)
        with torch.no_grad():
            seen, logits = features(trunk, x)
            soft = logits.softmax(-1)[:, 1:, head.ids]
        total, chained = torch.zeros(()), 1 if s < FIRST * steps else len(WEIGHTS)
        for i, (weight, out) in enumerate(zip(WEIGHTS, chain(head, trunk, x, seen, chained))):
            loss = -(soft * out.log_softmax(-1)).sum(-1)[:, i:].mean()  # earlier rows have no step before
            total = total + weight * loss
        opt.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        opt.step()
        if (s + 1) % 25 == 0 or s + 1 == steps:
            print(f"{s + 1}/{steps} loss {float(total.detach()):.3f} held-out agreement by step "
                  f"{agreement(head, trunk, held)} {time.time() - began:.0f}s", flush=True)  # fmt: skip
    return tiny.round_f16(head)  # type: ignore[no-any-return]


@torch.no_grad()
def agreement(head: Eagle, trunk: Any, data: torch.Tensor, T: int = 256, n: int = 16) -> list[float]:
    """Part of the positions of held-out text where a step's likeliest token is the target's."""
    x = torch.stack([data[i * T : i * T + T] for i in range(min(n, len(data) // T))])
    seen, logits = features(trunk, x)
    likeliest = logits.argmax(-1)[:, 1:]
    return [
        round(float((head.ids[out.argmax(-1)] == likeliest)[:, 4:].float().mean()), 3)
        for out in chain(head, trunk, x, seen)
    ]


# -- the file --------------------------------------------------------------------------------------


def export(path: str, head: Eagle, tok: Tokenizer) -> None:
    w = tiny.gguf_common(path, "eagle3", "tiny-eagle3", tiny.NOTE, tok, q8=True)
    tiny.put_hparams(w, C, 1)
    w.add_array("eagle3.target_layers", list(LAYERS))
    w.add_uint32("eagle3.target_hidden_size", C.n_embd)
    gate, up = head.wgu.weight.chunk(2, 0)
    parts = {
        "fc": head.fc, "output_norm": head.output_norm, "output": head.output,
        "blk.0.attn_norm": head.attn_norm, "blk.0.attn_norm_2": head.attn_norm_2,
        "blk.0.attn_q": head.wq, "blk.0.attn_k": head.wk, "blk.0.attn_v": head.wv,
        "blk.0.attn_output": head.wo, "blk.0.ffn_norm": head.ffn_norm, "blk.0.ffn_down": head.wd,
    }  # fmt: skip
    for name, module in parts.items():
        tiny.put(w, f"{name}.weight", module.weight)
    tiny.put(w, "blk.0.ffn_gate.weight", gate)
    tiny.put(w, "blk.0.ffn_up.weight", up)
    w.add_tensor("d2t", head.ids.numpy().astype(np.int64))
    tiny.finish(w)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="tiny-eagle3.gguf")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--smoke", action="store_true", help="a few steps only")
    parser.add_argument("--work", help="file for the PyTorch weights")
    parser.add_argument("--export-only", action="store_true", help="no training: the weights of --work")
    a = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.use_deterministic_algorithms(True)
    trunk, mtp, tok = load_trunk(MODELS / "tiny-target-mtp.gguf")
    if a.export_only:
        kept = torch.load(a.work)
        head = Eagle(kept.pop("ids"))
        head.load_state_dict(kept)
    else:
        docs, held_docs, _ = tiny.build_corpus()
        data, held = tiny.encode_docs(tok, docs), tiny.encode_docs(tok, held_docs)
        print(f"tokens: train {len(data)} held-out {len(held)}; loss of the trunk on held-out text "
              f"{tiny.val_loss(trunk, held):.3f}", flush=True)  # fmt: skip
        head = train(trunk, mtp, data, held, 6 if a.smoke else a.steps)
        if a.work:
            torch.save({**head.state_dict(), "ids": head.ids}, a.work)
    export(a.out, head, tok)
    raw = Path(a.out).read_bytes()
    print(f"{hashlib.sha256(raw).hexdigest()}  {a.out}  {len(raw)} bytes", flush=True)


if __name__ == "__main__":
    main()
