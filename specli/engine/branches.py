"""A tree of tokens behind the cache of one conversation, held apart by the library's sequence ids.

A token may belong to several sequences, and sees the tokens that all of its own hold. So every leaf of a
batch gets a sequence, every inner node those of the leaves below it, and the committed tokens are shared by
all, as cells, not copies. Sequence 0 is the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specli.engine.rollback import Memory
from specli.errors import EngineError


@dataclass(frozen=True, slots=True)
class _Node:
    """`depth`: 1 for those that follow the committed tokens. `sequence`: one of those that hold it."""

    token: int
    parent: int
    depth: int
    sequence: int


class Branches:
    """The open tree of one context. `sequences`: of the context, the conversation's included; `rows`: most
    nodes of one decode."""

    def __init__(self, lib: Any, memory: Memory, sequences: int, rows: int) -> None:
        self._lib, self._memory = lib, memory
        self._sequences = sequences
        self._batch = lib.llama_batch_init(rows, 0, sequences)
        self._nodes: list[_Node] = []
        self._tips = [-1]  # by sequence in use: its last node

    @property
    def size(self) -> int:
        """Nodes of the open tree."""
        return len(self._nodes)

    def decode(self, handle: Any, base: int, tokens: Sequence[int], parents: Sequence[int]) -> int:
        """Decode nodes behind `base` committed tokens, all with logits; see `TreeModel.branch`. Returns the
        library's code; unless it is 0 the whole tree is to be dropped."""
        first = len(self._nodes)
        for i, parent in enumerate(parents):
            if not -1 <= parent < first + i:
                raise EngineError(f"node {first + i} of a tree cannot follow node {parent}")
        leaves = set(range(first, first + len(tokens))) - set(parents)
        held: list[list[int]] = [[] for _ in tokens]  # the sequences of each node
        for leaf in sorted(leaves):
            path, node = [], leaf
            while node >= first:
                path.append(node)
                node = parents[node - first]
            sequence = self._sequence_from(base, node, leaf)
            for node in path:
                held[node - first].append(sequence)
        batch = self._batch
        for i, (token, parent) in enumerate(zip(tokens, parents)):
            depth = (self._nodes[parent].depth if parent >= 0 else 0) + 1
            self._nodes.append(_Node(token, parent, depth, held[i][0]))
            batch.token[i], batch.pos[i], batch.logits[i] = token, base + depth - 1, True
            batch.n_seq_id[i] = len(held[i])
            for k, sequence in enumerate(held[i]):
                batch.seq_id[i][k] = sequence
        batch.n_tokens = len(tokens)
        return int(self._lib.llama_decode(handle, batch))

    def _sequence_from(self, base: int, node: int, leaf: int) -> int:
        """A sequence that holds the committed tokens and the tree down to `node`, for `leaf` to go on."""
        at = self._nodes[node].sequence if node >= 0 else 0
        if self._tips[at] == node:
            self._tips[at] = leaf
            return at
        new = len(self._tips)
        if new >= self._sequences:
            raise EngineError(f"a tree of more than {self._sequences} branches")
        self._tips.append(leaf)
        self._memory.share(new, base)
        if node >= 0:
            self._memory.copy(at, new, base, base + self._nodes[node].depth)
        return new

    def keep(self, base: int, path: Sequence[int]) -> list[int]:
        """Make the nodes of `path` part of the conversation, drop all others; returns their tokens."""
        parents = [-1, *path]
        if any(self._nodes[node].parent != parent for node, parent in zip(path, parents)):
            raise EngineError(f"{list(path)} is no path of the tree")
        kept = [self._nodes[node].token for node in path]
        sequence = self._nodes[path[-1]].sequence if path else 0
        self._memory.keep(base, sequence, base + len(path), len(self._tips))
        self.forget()
        return kept

    def forget(self) -> None:
        """The tree is gone from the cache."""
        self._nodes.clear()
        self._tips = [-1]

    def close(self) -> None:
        """Free what is held."""
        self._lib.llama_batch_free(self._batch)
