"""How large drafts may be, where one number does not say it."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_NODES = 63
"""Of a tree: one decode has 64 rows, one of them for the token before it."""
LARGEST_TREE = f"{MOST_NODES}x1"
"""What is loaded for this can draft every other size too."""
_TREE = re.compile(r"([1-9]\d?)x([1-9]\d?)")


SIZE_STEMS = {
    "ngram-simple": "ngram-simple",
    "ngram-map-k": "ngram-map-k",
    "ngram-map-k4v": "ngram-map-k4v",
    "draft-self": "self",
}
"""The n-gram methods, and what the names of their sizes begin with: ngram-simple-size-n, self-size-n."""


@dataclass(frozen=True, slots=True)
class NgramSizes:
    """`size_n` tokens must match, at most `size_m` are drafted, after `min_hits` earlier occurrences."""

    size_n: int
    size_m: int
    min_hits: int


@dataclass(frozen=True, slots=True)
class TreeSize:
    """The bounds of token trees: at most `width` children of a node on `depth` levels, and as many nodes as
    `width` drafts of `depth` tokens would have."""

    width: int
    depth: int

    @property
    def nodes(self) -> int:
        """Most nodes of a tree."""
        return self.width * self.depth

    @classmethod
    def read(cls, text: str) -> TreeSize | None:
        """From "3x4"; None for what is no size."""
        match = _TREE.fullmatch(text)
        size = cls(int(match[1]), int(match[2])) if match is not None else None
        return size if size is not None and size.nodes <= MOST_NODES else None

    def __str__(self) -> str:
        return f"{self.width}x{self.depth}"
