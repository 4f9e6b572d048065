"""Target and draft side by side: can what the one proposes be judged by the other?"""

from __future__ import annotations

from dataclasses import dataclass

from specli.engine.vocab import Vocab
from specli.errors import DraftMismatch

# llama.cpp's own limits: sizes may differ by padding at the end, the first ids may be special
MAX_SIZE_DIFFERENCE = 128


@dataclass(frozen=True, slots=True)
class VocabularyCheck:
    """How two vocabularies compare. `differing`: the first ids whose texts differ. `shared`: ids from
    0 up to it are in both vocabularies; only they may be drafted. `problem`: why they do not fit."""

    shared: int
    differing: tuple[int, ...] = ()
    problem: str | None = None
    note: str | None = None


def compare_vocabularies(target: Vocab, draft: Vocab, show: int = 5) -> VocabularyCheck:
    """Compare token by token. `show`: how many differing ids to list."""
    shared = min(target.n_tokens, draft.n_tokens)
    if target.type != draft.type:
        return VocabularyCheck(shared, (), "they use tokenizers of different kinds")
    if abs(target.n_tokens - draft.n_tokens) > MAX_SIZE_DIFFERENCE:
        return VocabularyCheck(shared, (), f"{target.n_tokens} tokens against {draft.n_tokens}")
    differing = tuple(_differing(target, draft, shared, show))
    if differing:
        first = differing[0]
        said = f"token {first} is {_text(target, first)} here and {_text(draft, first)} there"
        more = f" (also {', '.join(map(str, differing[1:]))})" if differing[1:] else ""
        return VocabularyCheck(shared, differing, said + more)
    for name in ("bos", "eos"):
        a, b = getattr(target, name), getattr(draft, name)
        if a != b and (name != "bos" or target.add_bos or draft.add_bos):
            return VocabularyCheck(shared, (), f"{name.upper()} is token {a} here and {b} there")
    note = None
    if target.n_tokens != draft.n_tokens:
        note = f"{target.n_tokens} tokens against {draft.n_tokens}: the first {shared} are the same and only they are drafted"
    return VocabularyCheck(shared, note=note)


def _differing(target: Vocab, draft: Vocab, shared: int, show: int) -> list[int]:
    found: list[int] = []
    for token in range(shared):
        if target.raw(token) != draft.raw(token):
            found.append(token)
            if len(found) == show:
                break
    return found


def _text(vocab: Vocab, token: int) -> str:
    return repr(vocab.raw(token).decode("utf-8", "replace"))


def require_fit(target: Vocab, draft: Vocab, target_name: str, draft_name: str) -> VocabularyCheck:
    """The check, or DraftMismatch with the first differences."""
    check = compare_vocabularies(target, draft)
    if check.problem:
        raise DraftMismatch(
            f"{draft_name} cannot draft for {target_name}: {check.problem}; choose a draft of the target's family"
        )
    return check
