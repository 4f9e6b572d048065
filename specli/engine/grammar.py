"""What an answer may be: a grammar in llama.cpp's notation (GBNF), kept by its grammar sampler.

The sampler ends the process when it is fed what it does not allow, so each token is tested on the very
state that it is then fed to. Rules that name tokens instead of characters are refused: with them the
library's test and its step disagree.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import tempfile
from collections.abc import Container, Iterator
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specli.engine.backend import library_reason, load_library
from specli.engine.vocab import Vocab
from specli.errors import EngineError, UsageError

_CANDIDATE = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
_HIDDEN = 1 | 8  # attributes "unknown" and "control": their text is not shown, so it must not count
_BYTE = 32
_DEEPEST = 200  # the library's parser calls itself for each parenthesis


class Grammar:
    """The answer's language, and how far into it the answer is (a `core.types.Constraint`).

    `ends`: the tokens that may end the answer; other end tokens of the vocabulary are never legal. Lives no
    longer than the model of `vocab`. Raises UsageError, in one line, for a text that is no grammar.
    """

    def __init__(self, vocab: Vocab, text: str, ends: Container[int]) -> None:
        _refuse_what_the_library_cannot_take(text)
        self._lib = load_library()
        self._vocab = vocab
        self._ends = ends
        self._start = self._open(text)
        self._state = self._lib.llama_sampler_clone(self._start)
        self._end = next((t for t in (vocab.eot, vocab.eos) if t >= 0 and t in ends), None)
        self._barred = np.zeros(vocab.n_tokens, np.bool_)
        self._bytes = self._look_through()
        self._ahead = bytearray()  # what must follow, as far as it was looked for
        self._scout: Any = None  # the state behind it
        self._behind: tuple[int | None, bool] = (None, False)  # what `_only` says there

    def _look_through(self) -> NDArray[np.int64]:
        """Bar what must never be said; return the tokens of one byte, one for each, ascending by byte."""
        bytes_: dict[bytes, int] = {}
        for token in range(self._vocab.n_tokens):
            attributes = self._vocab.attributes(token)
            if attributes & _HIDDEN or (self._end is None and self._vocab.is_end(token)):
                self._barred[token] = token not in self._ends
            elif attributes & _BYTE or len(self._vocab.raw(token)) <= 2:  # a byte stands there as a character
                piece = self._vocab.piece(token)
                if len(piece) == 1:
                    bytes_.setdefault(piece, token)
        return np.array([bytes_[piece] for piece in sorted(bytes_)], np.int64)

    def _open(self, text: str) -> Any:
        with _captured_stderr() as said:
            handle = self._lib.llama_sampler_init_grammar(self._vocab.handle, text.encode(), b"root")
        if not handle:
            raise UsageError(_reason(said))
        return handle

    # -- the constraint -------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        if self._end is not None:  # then the answer ends with it
            return False
        return not (
            self._passes(self._state, self._bytes).any()
            or self.legal(np.arange(self._vocab.n_tokens, dtype=np.int64)).any()
        )

    def begin(self) -> None:
        self._free_state()
        self._state = self._lib.llama_sampler_clone(self._start)

    def legal(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self._passes(self._state, ids) & ~self._barred[ids]

    def advance(self, token: int) -> None:
        if not self._vocab.is_end(token):
            self._step(self._state, token)
            said = self._vocab.piece(token)
            if self._ahead.startswith(said):
                del self._ahead[: len(said)]
            else:
                self._forget_ahead()

    def _passes(self, state: Any, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """What the library says of `ids`. State and tokens stay as they are."""
        if len(ids) == 0:
            return np.zeros(0, np.bool_)
        found = np.zeros(len(ids), _CANDIDATE)
        found["id"] = ids
        data = found.ctypes.data_as(ctypes.POINTER(self._lib.llama_token_data))
        array = self._lib.llama_token_data_array(data, len(ids), -1, False)
        self._lib.llama_sampler_apply(state, ctypes.byref(array))
        return found["logit"] > -1.0

    def _step(self, state: Any, token: int) -> None:
        if not self._passes(state, np.array([token]))[0]:
            raise EngineError(f"token {token} was said against the grammar")
        self._lib.llama_sampler_accept(state, token)

    # -- what must follow -----------------------------------------------------------------------

    def forced(self, limit: int) -> list[int]:
        """Up to `limit` tokens that must follow: the text to which the grammar leaves no choice, as the
        tokenizer writes it, and an end token where only that is left. Empty where there is a choice."""
        most = 8 * limit
        self._look_ahead(most)
        tokens = self._spelt(self._ahead[:most].decode("utf-8", "ignore"))  # whole characters only
        byte, may_end = self._behind
        if len(self._ahead) > most:
            pass  # more is known to follow
        elif may_end and self._end is not None:
            tokens.append(self._end)
        elif byte is None and len(tokens) > 1:  # what is free behind it may grow into its last token
            tokens.pop()
        return tokens[:limit]

    def _look_ahead(self, most: int) -> None:
        """Know what must follow, up to `most` bytes. It costs a step for each, so what is known is kept."""
        if self._scout is None:
            self._behind = self._only(self._state)
            if self._behind[0] is None:
                return
            self._scout = self._lib.llama_sampler_clone(self._state)
        while self._behind[0] is not None and len(self._ahead) < most:
            byte = self._behind[0]
            self._step(self._scout, byte)
            self._ahead += self._vocab.piece(byte)
            self._behind = self._only(self._scout)

    def _forget_ahead(self) -> None:
        self._ahead.clear()
        if self._scout is not None:
            self._lib.llama_sampler_free(self._scout)
            self._scout = None

    def _only(self, state: Any) -> tuple[int | None, bool]:
        """The token of the one byte that may come next, if it is one and nothing else may; and whether an
        end token alone may."""
        ends = np.array([] if self._end is None else [self._end], np.int64)
        passes = self._passes(state, np.concatenate([self._bytes, ends]))
        may_end = bool(passes[len(self._bytes) :].any())
        bytes_ = self._bytes[passes[: len(self._bytes)]]
        if len(bytes_) == 1 and not may_end:
            return int(bytes_[0]), False
        return None, may_end and len(bytes_) == 0

    def _spelt(self, text: str) -> list[int]:
        """Tokens that together are exactly `text`, empty if the tokenizer has none: some put a space before
        what they are given, so it is also tried behind a line end."""
        wanted = text.encode()
        if not wanted:
            return []
        for before in (b"", b"\n"):
            tokens = self._vocab.tokenize(before + wanted)
            for start in range(min(4, len(tokens))):
                if self._vocab.text(tokens[start:]) == wanted:
                    return tokens[start:]
        return []

    # -- closing --------------------------------------------------------------------------------

    def _free_state(self) -> None:
        self._forget_ahead()
        if self._state is not None:
            self._lib.llama_sampler_free(self._state)
            self._state = None

    def close(self) -> None:
        """Free the grammar. Safe to call twice."""
        self._free_state()
        if self._start is not None:
            self._lib.llama_sampler_free(self._start)
            self._start = None

    def __enter__(self) -> Grammar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_PARTS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|.', re.DOTALL)


def _refuse_what_the_library_cannot_take(text: str) -> None:
    """UsageError for what it would take and then die of."""
    if "\0" in text:
        raise UsageError("it holds a NUL character")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError("it holds half a surrogate pair or a byte that is no UTF-8, which no answer can say")
    depth = 0
    for part in _PARTS.findall(text):
        depth += (part == "(") - (part == ")")
        if part in ("<", "!"):
            raise UsageError("rules that name tokens (<…>) are not supported; name their text instead")
        if depth > _DEEPEST:
            raise UsageError(f"parentheses are nested more than {_DEEPEST} deep")


def _reason(said: list[str]) -> str:
    """Why the library did not take a grammar, in one line."""
    match = re.search(r"error parsing grammar: ([^\n]*)", "".join(said))
    reason = match[1].strip() if match else library_reason()
    if not reason or reason == "failed to parse grammar":
        reason = "it holds no rule"
    reason = "".join(c if c.isprintable() else " " for c in reason)
    return reason if len(reason) <= 120 else reason[:117] + "..."


@contextlib.contextmanager
def _captured_stderr() -> Iterator[list[str]]:
    """What the library prints past its own log; the list is filled at the end."""
    said: list[str] = []
    with contextlib.ExitStack() as stack:
        try:
            kept = os.dup(2)
        except OSError:  # there is no stderr to protect
            yield said
            return
        stack.callback(os.close, kept)
        file = stack.enter_context(tempfile.TemporaryFile())
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(kept, 2)
            file.seek(0)
            said.append(file.read().decode("utf-8", "replace"))
