"""What one token drags through memory: a first idea of what a draft token costs beside a target token.

Decoding one token reads every weight once, but of a table of embeddings one row, and of a layer's experts
those that are used. At one token a time memory is the bound, so time goes with bytes.
"""

from __future__ import annotations

from specli.engine.gguf import Header, present_parts

_LEAST = 0.05  # launching a decode costs something, however small the model


def step_ratio(target: Header, draft: Header, heads: bool = False) -> float:
    """Estimated time of one draft token over that of one target token. `heads`: `draft` drafts with its
    prediction heads alone, one at a time."""
    ours, theirs = token_bytes(target), token_bytes(draft, heads)
    return max(_LEAST, theirs / ours) if ours and theirs else 1.0


def token_bytes(header: Header, heads: bool = False) -> float:
    """Bytes of weights that one token is decoded with by the model without its heads, or by one of them."""
    tensors = [tensor for part in present_parts(header) for tensor in part.tensors]
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    n_heads = header.nextn_predict_layers
    trunk = (header.block_count or 0) - n_heads
    used = _used_experts(header)
    total = 0.0
    for tensor in tensors:
        block = _block(tensor.name)
        if tensor.name == "token_embd.weight" and not tied:
            continue
        if n_heads and block is not None and (block >= trunk) != heads:
            continue
        size = tensor.n_bytes * (used if "_exps." in tensor.name else 1.0)
        total += size / n_heads if heads and block is not None else size
    return total


def _block(name: str) -> int | None:
    parts = name.split(".")
    return int(parts[1]) if len(parts) > 2 and parts[0] == "blk" and parts[1].isdecimal() else None


def _used_experts(header: Header) -> float:
    """The share of a layer's experts that one token uses."""
    arch = header.architecture
    there, used = header.integer(f"{arch}.expert_count"), header.integer(f"{arch}.expert_used_count")
    return min(1.0, used / there) if there and used else 1.0
