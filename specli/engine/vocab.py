"""Tokens and text, as the model's own tokenizer has them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from typing import Any

from specli.engine.backend import load_library
from specli.errors import EngineError, SpecliError

_BPE = 2  # LLAMA_VOCAB_TYPE_BPE
_SHORT = 1000  # characters
_LONG = 4000
# A word that is too long ends where one class of characters follows another, as words do there anyway
# (before a mark behind a letter), or else where it must.
_CUT = re.compile(rf"\S{{{_SHORT},{_LONG}}}?(?<=\w)(?=[^\w\s])|\S{{{_LONG}}}|\s{{{_LONG}}}")


class Vocab:
    """A loaded model's vocabulary. Lives no longer than its model.

    `most`: tokens that a text may have, None for any number; one that must have more is refused without
    being taken apart first.
    """

    def __init__(self, handle: Any) -> None:
        self._lib = load_library()
        self._pointer = handle
        self.n_tokens: int = self._lib.llama_vocab_n_tokens(handle)
        self.type: int = self._lib.llama_vocab_type(handle)
        self.bos: int = self._lib.llama_vocab_bos(handle)
        self.eos: int = self._lib.llama_vocab_eos(handle)
        self.eot: int = self._lib.llama_vocab_eot(handle)
        self.add_bos: bool = self._lib.llama_vocab_get_add_bos(handle)
        self.add_eos: bool = self._lib.llama_vocab_get_add_eos(handle)
        self.ends = EndTokens(self)
        self.most: int | None = None
        self._longest = 0
        self._buffer = ctypes.create_string_buffer(256)
        self._pieces: dict[tuple[int, bool], bytes] = {}

    @property
    def handle(self) -> Any:
        """The library's pointer; an error once the model was closed."""
        if self._pointer is None:
            raise EngineError("the model of this vocabulary has been closed")
        return self._pointer

    def close(self) -> None:
        """The model is freed. Pieces that were read before can still be had."""
        self._pointer = None

    def attributes(self, token: int) -> int:
        """What kind of token it is, as the library's bits (1 unknown, 8 control, 32 byte and so on)."""
        return int(self._lib.llama_vocab_get_attr(self.handle, token))

    def tokenize(self, text: str | bytes, special: bool = False) -> list[int]:
        """Token ids of `text`, with nothing added. `special`: control tokens written out in the text
        are recognised; leave it off for what users wrote.

        Raises SpecliError for a text that has more than `most` tokens however it is taken apart.
        """
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self._check_length(len(data))
        if self.type != _BPE or len(data) <= _LONG:
            return self._tokenize(data, special)
        plain = data.decode("utf-8", "replace") if isinstance(text, bytes) else text
        pieces = list(_cut(plain))
        if len(pieces) == 1:
            return self._tokenize(data, special)
        if special:  # a cut could go through a control token
            raise EngineError(f"the tokenizer cannot take a word of more than {_LONG} characters there")
        return [t for piece in pieces for t in self._tokenize(piece.encode("utf-8", "surrogatepass"), False)]

    def _check_length(self, size: int) -> None:
        if self.most is None or size <= self.most:
            return
        if not self._longest:
            self._longest = max(1, *(len(self.raw(t)) for t in range(self.n_tokens)))
        least = size // self._longest
        if least > self.most:
            raise SpecliError(
                f"a text of {size} bytes has at least {least} tokens and the context holds {self.most}; "
                "shorten it or raise --ctx-size"
            )

    def _tokenize(self, data: bytes, special: bool) -> list[int]:
        if not data:
            return []
        size = len(data) + 8
        while True:
            out = (self._lib.llama_token * size)()
            n = self._lib.llama_tokenize(self.handle, data, len(data), out, size, False, special)
            if n >= 0:
                return list(out[:n])
            if n == -(2**31) or -n <= size:
                raise EngineError(f"the tokenizer cannot take a text of {len(data)} bytes")
            size = -n

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes a token stands for; nothing for control tokens unless `special`."""
        key = (token, special)
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = self._read_piece(token, special)
        return piece

    def _read_piece(self, token: int, special: bool) -> bytes:
        if not 0 <= token < self.n_tokens:
            raise EngineError(f"token {token} is outside the vocabulary of {self.n_tokens}")
        n = self._lib.llama_token_to_piece(self.handle, token, self._buffer, len(self._buffer), 0, special)
        if n < 0:
            self._buffer = ctypes.create_string_buffer(-n)
            n = self._lib.llama_token_to_piece(self.handle, token, self._buffer, -n, 0, special)
        return bytes(self._buffer.raw[: max(0, n)])

    def text(self, tokens: Sequence[int], special: bool = False) -> bytes:
        """The bytes of several tokens."""
        return b"".join(self.piece(t, special) for t in tokens)

    def raw(self, token: int) -> bytes:
        """The token as it stands in the file, byte-level escapes and all."""
        raw: bytes | None = self._lib.llama_vocab_get_text(self.handle, token)
        return raw or b""

    def is_end(self, token: int) -> bool:
        """Whether the model ends its answer with this token."""
        return bool(0 <= token < self.n_tokens and self._lib.llama_vocab_is_eog(self.handle, token))

    def is_control(self, token: int) -> bool:
        """Whether the token is a control token rather than text."""
        return bool(0 <= token < self.n_tokens and self._lib.llama_vocab_is_control(self.handle, token))


def _cut(text: str) -> Iterator[str]:
    """`text` in pieces, so that no word of it is longer than _LONG characters: for many vocabularies the
    library finds words by a regular expression that takes stack for every character, until there is none."""
    at = 0
    for match in _CUT.finditer(text):
        if match.end() < len(text):
            yield text[at : match.end()]
            at = match.end()
    yield text[at:]


class EndTokens:
    """The vocabulary's end-of-generation tokens, as a container that is never listed in full. What was asked
    once can be asked again when the model is closed: what was said then can still be read."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._known: dict[int, bool] = {}

    def __contains__(self, token: object) -> bool:
        if not isinstance(token, int):
            return False
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._vocab.is_end(token)
        return known
