"""Drafts that read the inputs of the target's layers: what their files hold, and whether they fit a target.

EAGLE-3 heads predict token by token, DFlash and DSpark drafts a block at a time. They are trained for one
target, and llama.cpp aborts on most of what does not fit, so everything is asked here first, of headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specli.engine.compat import compare_vocabularies
from specli.engine.gguf import ArrayInfo, Header, Tensor, present_parts
from specli.engine.layers import HIDDEN_AT_END, READABLE, READABLE_AT_END

ARCHITECTURES = ("eagle3", "dflash")
KINDS: Mapping[str, str] = {
    "draft-eagle3": "an EAGLE-3 head",
    "draft-dflash": "a DFlash block draft",
    "draft-dspark": "a DSpark block draft",
}
"""What each method drafts with, in words."""
_BLOCK, _LARGEST_BLOCK = 16, 256  # tokens of a block where the file does not say; most that are believed
MASK = "tokenizer.ggml.mask_token_id"


@dataclass(frozen=True, slots=True)
class FeatureDraft:
    """What a file says of itself. `method`: as in `--spec-type`. `layers`: of the target, whose inputs it
    reads. `block`: tokens computed in one pass, 1 for EAGLE-3. `anchored`: the first place of a block
    predicts too. `causal`: a place sees only those before it. `problem`: why specli cannot run it at all."""

    name: str
    method: str
    layers: tuple[int, ...]
    block: int = 1
    anchored: bool = False
    causal: bool = False
    problem: str | None = None

    @property
    def what(self) -> str:
        """What it is, in words."""
        return KINDS[self.method]

    @property
    def most(self) -> int | None:
        """Most tokens of a draft, None for any number."""
        return None if self.block == 1 else self.block - (0 if self.anchored else 1)


def feature_draft(header: Header) -> FeatureDraft | None:
    """What the file is, None if no draft of this kind. Reads headers only."""
    arch = header.architecture
    if arch not in ARCHITECTURES:
        return None
    name = header.path.name.removesuffix(".gguf")
    tensors = all_tensors(header)
    layers = _layers(header)
    if arch == "eagle3":
        return FeatureDraft(name, "draft-eagle3", layers, problem=_eagle3_problem(header, tensors, layers))
    dspark = "markov_w1.weight" in tensors
    return FeatureDraft(
        name,
        "draft-dspark" if dspark else "draft-dflash",
        layers,
        header.integer("dflash.block_size") or _BLOCK,
        dspark and header.metadata.get("dflash.sample_from_anchor", True) is not False,
        header.metadata.get("dflash.attention.causal") is True,
        _block_problem(header, tensors, layers),
    )


def all_tensors(header: Header) -> dict[str, Tensor]:
    """The tensors of all parts that are there, by name."""
    return {tensor.name: tensor for part in present_parts(header) for tensor in part.tensors}


def _layers(header: Header) -> tuple[int, ...]:
    key = f"{header.architecture}.target_layers"
    if not isinstance(header.metadata.get(key), ArrayInfo):
        return ()
    return tuple(int(layer) for layer in header.array(key) if isinstance(layer, int))


# -- the file alone --------------------------------------------------------------------------------


def _eagle3_problem(header: Header, tensors: Mapping[str, Tensor], layers: tuple[int, ...]) -> str | None:
    name = header.path.name
    if len(layers) != 3:
        return f"{name} names {len(layers)} layers of its target (eagle3.target_layers), EAGLE-3 reads three"
    if header.block_count != 1:
        return f"{name} has {header.block_count} blocks; llama.cpp runs EAGLE-3 heads of one"
    sizes = [header.integer(f"eagle3.attention.{size}_length") for size in ("key", "value")]
    if sizes[0] != sizes[1]:
        return f"{name} has keys of {sizes[0]} and values of {sizes[1]}; llama.cpp runs equal ones only"
    return _table_problem(header, tensors) or _tokenizer_problem(header)


def _block_problem(header: Header, tensors: Mapping[str, Tensor], layers: tuple[int, ...]) -> str | None:
    name = header.path.name
    if not layers:
        return f"{name} does not say which layers of its target it reads (dflash.target_layers)"
    if header.integer("dflash.hyper_connection_count"):
        return f"{name} is a draft of DeepSeek-V4's own kind, which specli does not run"
    if "selector_hidden.weight" in tensors:
        return f"{name} is a DFlash 2 draft with a selector, which specli does not run"
    block = header.integer("dflash.block_size")
    if block is not None and not 2 <= block <= _LARGEST_BLOCK:
        return f"{name} has blocks of {block} tokens; those of 2 to {_LARGEST_BLOCK} can be run"
    mask, n_vocab = header.integer(MASK), header.n_vocab or 0
    if mask is None or not 0 <= mask < n_vocab:
        return f"{name} names no mask token ({MASK}), which a block is made of; take a complete file"
    return _table_problem(header, tensors) or _tokenizer_problem(header)


def _tokenizer_problem(header: Header) -> str | None:
    if not header.n_vocab:
        return f"{header.path.name} carries no tokenizer; take one converted together with its target"
    return None


def _table_problem(header: Header, tensors: Mapping[str, Tensor]) -> str | None:
    """The reduced vocabulary: each row of the output layer with the target's id for it."""
    table, output, n_vocab = tensors.get("d2t"), tensors.get("output.weight"), header.n_vocab or 0
    embeddings = tensors.get("token_embd.weight")
    if embeddings is not None and len(embeddings.dims) == 2 and embeddings.dims[1] < n_vocab:
        return f"{header.path.name} embeds {embeddings.dims[1]} tokens of a vocabulary of {n_vocab}"
    if table is None:
        return None
    if output is None and not (header.architecture == "dflash" and embeddings is not None):
        return f"{header.path.name} has a reduced vocabulary (d2t) and no output layer of its own"
    if table.type.name != "I64" or header.is_split:
        return f"{header.path.name} has a reduced vocabulary (d2t) of type {table.type.name}, not I64 in one file"
    if len(table.dims) != 1 or (output is not None and output.dims[1:] != table.dims):
        return f"{header.path.name} maps {table.dims} tokens (d2t) and has an output layer of {output and output.dims}"
    ids = np.fromfile(header.path, "<i8", table.dims[0], offset=header.data_offset + table.offset)
    if len(ids) and not 0 <= ids.min() <= ids.max() < n_vocab:
        return f"{header.path.name} maps tokens (d2t) beyond the vocabulary of {n_vocab}; take another file"
    return None


# -- the file and its target -----------------------------------------------------------------------


def feature_problem(target: Header, draft: Header) -> str | None:
    """Why `draft`, for which `feature_draft` gives something, cannot draft for `target`; None if it can."""
    own = feature_draft(draft)
    assert own is not None
    return own.problem or _layer_problem(target, own) or _width_problem(target, draft)


def _layer_problem(target: Header, draft: FeatureDraft) -> str | None:
    arch, name = target.architecture, target.path.name
    if arch not in READABLE:
        return f"llama.cpp does not hand out the layers of {arch} models, which {draft.name} reads ({name})"
    n_layer = (target.block_count or 0) - target.nextn_predict_layers
    if not all(0 <= layer <= n_layer for layer in draft.layers):
        shown = ", ".join(map(str, draft.layers))
        return f"{draft.name} reads layers {shown} of its target, and {name} has {n_layer}: it is for another model"
    at_end = READABLE_AT_END if draft.block > 1 else READABLE_AT_END | HIDDEN_AT_END
    if n_layer in draft.layers and arch not in at_end:
        return f"{draft.name} reads what leaves the last layer, which llama.cpp does not hand out of {arch} models"
    return None


def _width_problem(target: Header, draft: Header) -> str | None:
    arch, name = draft.architecture, draft.path.name
    width = target.integer(f"{target.architecture}.embedding_length")
    own = draft.integer(f"{arch}.embedding_length")
    reads = draft.integer("eagle3.target_hidden_size") if arch == "eagle3" else own
    if reads != width:
        return f"{name} reads rows of {reads} values, those of {target.path.name} have {width}: it is for another model"
    tensors = all_tensors(draft)
    for tensor, what in (("token_embd.weight", "embeddings"), ("output.weight", "output layer")):
        if tensor in tensors:
            continue
        if own != width:
            return f"{name} has no {what} of its own, and those of {target.path.name} are not {own} wide"
    if draft.n_vocab != target.n_vocab:
        return (
            f"{name} has {draft.n_vocab} tokens, {target.path.name} {target.n_vocab}: it is for another model"
        )
    problem = compare_vocabularies(target, draft).problem
    return f"{problem}: {name} is for another model" if problem else None
