"""Prediction heads (NextN, MTP): what a model file holds of them, and whether specli can run them.

A model trained with heads carries them as its last blocks. A file may hold the whole, the model
without its heads ("trunk"), or the heads alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from specli.engine.gguf import Header, present_parts

# Architectures whose heads llama.cpp can run in a context of their own; for any other it would abort.
RUNNABLE = frozenset(
    {
        "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe", "glm5-next",
        "hy_v3", "mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "step35",
    }
)  # fmt: skip
# ... and those that it runs several heads of, one for each draft token
CHAINED = frozenset({"step35", "mimo2", "hy_v3"})
SHARED = "gemma4-assistant"  # attends to the target's own cache; specli does not run it

_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class FileHeads:
    """What a file says and holds: `declared` heads in its metadata, `heads` whose weights are there,
    and whether the model itself (`trunk`) is."""

    name: str
    architecture: str
    declared: int
    heads: int
    trunk: bool

    @property
    def heads_only(self) -> bool:
        """Whether this is no model but the heads of one."""
        return self.architecture == SHARED or (self.heads > 0 and not self.trunk)

    @property
    def problem(self) -> str | None:
        """Why its heads cannot draft; None if they can."""
        if self.architecture == SHARED:
            return f"{self.name} attends to its target's cache, which specli cannot share; use another draft"
        if not self.declared:
            return f"{self.name} has no prediction heads (no nextn_predict_layers in its metadata)"
        if not self.heads:
            return (
                f"{self.name} was trained with prediction heads but this file lacks their weights "
                "(no nextn.eh_proj tensors); take a file that has them, or give the heads' own file as --draft-model"
            )
        if self.heads < self.declared:
            return f"{self.name} names {self.declared} prediction heads and holds {self.heads}"
        if self.architecture not in RUNNABLE:
            return f"llama.cpp does not run the prediction heads of {self.architecture} models ({self.name})"
        if self.heads > 1 and self.architecture not in CHAINED:
            return f"llama.cpp runs one prediction head of {self.architecture} models, {self.name} has {self.heads}"
        return None


def file_heads(header: Header) -> FileHeads:
    """What the file (all its parts) holds of heads and trunk. Reads headers only."""
    declared = header.nextn_predict_layers
    trunk_blocks = (header.block_count or 0) - declared
    parts = present_parts(header)
    heads: set[int] = set()
    trunk = False
    for tensor in (t for part in parts for t in part.tensors):
        match = _BLOCK.match(tensor.name)
        if match is None:
            continue
        block = int(match[1])
        trunk = trunk or block < trunk_blocks
        if block >= trunk_blocks and tensor.name.endswith(".nextn.eh_proj.weight"):
            heads.add(block)
    name = header.path.name.removesuffix(".gguf")
    return FileHeads(
        name, header.architecture, declared, len(heads) if declared else 0, trunk or not declared
    )
