"""Tokens and text, as the model's own tokenizer has them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from specli.engine.backend import load_library
from specli.errors import EngineError


class Vocab:
    """A loaded model's vocabulary. Lives no longer than its model."""

    def __init__(self, handle: Any) -> None:
        self._lib = load_library()
        self._handle = handle
        self.n_tokens: int = self._lib.llama_vocab_n_tokens(handle)
        self.type: int = self._lib.llama_vocab_type(handle)
        self.bos: int = self._lib.llama_vocab_bos(handle)
        self.eos: int = self._lib.llama_vocab_eos(handle)
        self.eot: int = self._lib.llama_vocab_eot(handle)
        self.add_bos: bool = self._lib.llama_vocab_get_add_bos(handle)
        self.add_eos: bool = self._lib.llama_vocab_get_add_eos(handle)
        self.ends = EndTokens(self)
        self._buffer = ctypes.create_string_buffer(256)
        self._pieces: dict[tuple[int, bool], bytes] = {}

    @property
    def handle(self) -> Any:
        """The library's pointer."""
        return self._handle

    def attributes(self, token: int) -> int:
        """What kind of token it is, as the library's bits (1 unknown, 8 control, 32 byte and so on)."""
        return int(self._lib.llama_vocab_get_attr(self._handle, token))

    def tokenize(self, text: str | bytes, special: bool = False) -> list[int]:
        """Token ids of `text`, with nothing added. `special`: control tokens written out in the text
        are recognised; leave it off for what users wrote."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        if not data:
            return []
        size = len(data) + 8
        while True:
            out = (self._lib.llama_token * size)()
            n = self._lib.llama_tokenize(self._handle, data, len(data), out, size, False, special)
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
        n = self._lib.llama_token_to_piece(self._handle, token, self._buffer, len(self._buffer), 0, special)
        if n < 0:
            self._buffer = ctypes.create_string_buffer(-n)
            n = self._lib.llama_token_to_piece(self._handle, token, self._buffer, -n, 0, special)
        return bytes(self._buffer.raw[: max(0, n)])

    def text(self, tokens: Sequence[int], special: bool = False) -> bytes:
        """The bytes of several tokens."""
        return b"".join(self.piece(t, special) for t in tokens)

    def raw(self, token: int) -> bytes:
        """The token as it stands in the file, byte-level escapes and all."""
        raw: bytes | None = self._lib.llama_vocab_get_text(self._handle, token)
        return raw or b""

    def is_end(self, token: int) -> bool:
        """Whether the model ends its answer with this token."""
        return bool(0 <= token < self.n_tokens and self._lib.llama_vocab_is_eog(self._handle, token))

    def is_control(self, token: int) -> bool:
        """Whether the token is a control token rather than text."""
        return bool(0 <= token < self.n_tokens and self._lib.llama_vocab_is_control(self._handle, token))


class EndTokens:
    """The vocabulary's end-of-generation tokens, as a container that is never listed in full."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab

    def __contains__(self, token: object) -> bool:
        return isinstance(token, int) and self._vocab.is_end(token)
