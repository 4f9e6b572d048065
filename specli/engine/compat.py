"""Two vocabularies side by side: can what the draft proposes be judged by the target?

All of it is read from the files' headers, so nothing need be loaded: first the raw bytes of the
tokenizers, which are equal in most pairs that fit, and token by token only where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specli.engine.gguf import ArrayInfo, Header
from specli.engine.gguf_cursor import WINDOW, opened, shown
from specli.engine.model import Model
from specli.engine.vocab import Vocab
from specli.errors import DraftMismatch

MAX_SIZE_DIFFERENCE = 128
"""Tokens by which sizes may differ: padding at the end, up to what llama.cpp allows too."""
MIN_SHARE = 0.1
"""Least part of a draft's tokens that the target must have too: below it next to nothing is drafted."""

TOKENS = "tokenizer.ggml.tokens"
TOKEN_TYPES = "tokenizer.ggml.token_type"
KIND = "tokenizer.ggml.model"
_STRING = 8


@dataclass(frozen=True, slots=True)
class VocabularyCheck:
    """How two vocabularies compare, id by id.

    `shared`: ids from 0 up to it may be drafted. `differing`: the first ids whose texts differ.
    `problem`: why ids cannot be exchanged as they are; None where they can.
    """

    shared: int
    differing: tuple[int, ...] = ()
    problem: str | None = None
    note: str | None = None


def compare_vocabularies(target: Header, draft: Header, show: int = 5) -> VocabularyCheck:
    """Compare token by token. `show`: how many differing ids to list."""
    sizes = target.n_vocab or 0, draft.n_vocab or 0
    shared = min(sizes)
    for header, n in zip((target, draft), sizes):
        if not n:
            return VocabularyCheck(0, problem=f"{header.path.name} carries no tokenizer")
    kinds = target.text(KIND), draft.text(KIND)
    if kinds[0] != kinds[1]:
        return VocabularyCheck(
            shared, problem=f"their tokenizers are of different kinds, {kinds[0]} and {kinds[1]}"
        )
    if same_array(target, draft, TOKENS):
        return VocabularyCheck(shared)
    if abs(sizes[0] - sizes[1]) > MAX_SIZE_DIFFERENCE:
        return VocabularyCheck(shared, problem=f"{sizes[0]} tokens against {sizes[1]}")
    ours, theirs = target.array(TOKENS), draft.array(TOKENS)
    differing = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b]
    if differing:
        listed = tuple(differing[:show])
        said = "; ".join(
            f"token {i} is {_quoted(ours[i])} here and {_quoted(theirs[i])} there" for i in listed
        )
        more = f" (and {len(differing) - len(listed)} more)" if len(differing) > len(listed) else ""
        return VocabularyCheck(shared, listed, said + more)
    note = f"{sizes[0]} tokens against {sizes[1]}: the first {shared} are the same and only they are drafted"
    return VocabularyCheck(shared, note=note)


def same_array(a: Header, b: Header, key: str) -> bool:
    """Whether the array `key` is the same in both files, byte for byte; two missing ones are."""
    ours, theirs = a.metadata.get(key), b.metadata.get(key)
    if not isinstance(ours, ArrayInfo) or not isinstance(theirs, ArrayInfo):
        return ours == theirs
    if (ours.kind, ours.count) != (theirs.kind, theirs.count):
        return False
    return all(x == y for x, y in zip(_blocks(a, ours), _blocks(b, theirs), strict=True))


def _blocks(header: Header, info: ArrayInfo) -> Iterator[bytes]:
    """An array's raw bytes; of two equal arrays the blocks are equal."""
    with opened(header.path) as cursor:
        cursor.seek(info.offset)
        if info.kind == _STRING:
            cursor.skip_strings(info.count)
            end = cursor.position
        else:
            end = info.offset + info.count * _item_bytes(info.kind)
        cursor.seek(info.offset)
        yield (end - info.offset).to_bytes(8, "little")
        for at in range(info.offset, end, WINDOW):
            yield cursor.take(min(WINDOW, end - at))


def _item_bytes(kind: int) -> int:
    from specli.engine.gguf_cursor import NUMBERS

    return NUMBERS[kind].size


def _quoted(text: object) -> str:
    said = shown(repr(text))
    return said if len(said) <= 40 else said[:39] + "…"


def require_fit(target: Model, draft: Model) -> VocabularyCheck:
    """The check, or DraftMismatch with the first differences."""
    check = compare_vocabularies(target.header, draft.header)
    if check.problem:
        raise DraftMismatch(
            f"{draft.name} cannot draft for {target.name}: {check.problem}; choose a draft of the target's "
            "family (`specli check-draft TARGET --scan` lists those on the disk)"
        )
    return check


# -- different vocabularies: what they have in common ----------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class TokenMap:
    """What two vocabularies share, whatever the ids: tokens that stand for the same bytes.

    `to_target` (n_draft,) int32: for each id of the draft the target's id, or -1. It is one to one.
    `to_draft` (n_target,) int32: the same, the other way round.
    """

    to_target: NDArray[np.int32]
    to_draft: NDArray[np.int32]

    @property
    def n_shared(self) -> int:
        """Tokens in common."""
        return int((self.to_target >= 0).sum())

    @property
    def share(self) -> float:
        """Part of the draft's tokens that the target has too, 0 to 1: what it may propose."""
        return self.n_shared / max(1, len(self.to_target))


def shared_tokens(target: Vocab, draft: Vocab) -> TokenMap:
    """Match the tokens of two loaded vocabularies (with `vocab_only` too) by the bytes they stand for.

    Control tokens match by their name, and the tokens that end a turn or a text match each other.
    The intersection of token-level drafting over different vocabularies: Timor et al. 2025.
    """
    to_target = np.full(draft.n_tokens, -1, np.int32)
    to_draft = np.full(target.n_tokens, -1, np.int32)
    known: dict[tuple[bool, bytes], int] = {}
    for token in range(target.n_tokens):
        known.setdefault(_meaning(target, token), token)
    for token in range(draft.n_tokens):
        meaning = _meaning(draft, token)
        match = known.get(meaning, -1) if meaning[1] else -1
        if match >= 0 and to_draft[match] < 0:
            to_target[token], to_draft[match] = match, token
    for ours, theirs in ((target.eot, draft.eot), (target.eos, draft.eos)):
        if ours >= 0 and theirs >= 0 and to_target[theirs] < 0 and to_draft[ours] < 0:
            to_target[theirs], to_draft[ours] = ours, theirs
    return TokenMap(to_target, to_draft)


def _meaning(vocab: Vocab, token: int) -> tuple[bool, bytes]:
    control = vocab.is_control(token)
    return control, vocab.raw(token) if control else vocab.piece(token)
