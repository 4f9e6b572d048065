"""Chat templates: Jinja in a sandbox, as llama-cpp-python brings it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from specli.engine.backend import load_library
from specli.errors import SpecliError


class TemplateRefusal(SpecliError):
    """The template itself refused these messages, or is not valid; the text says how."""


class ChatTemplate:
    """A compiled template. `bos`, `eos`: the texts that it may write as such tokens."""

    def __init__(self, source: str, bos: str, eos: str, name: str = "chat template") -> None:
        load_library()
        formats = importlib.import_module("llama_cpp.llama_chat_format")
        self.source = source
        self._name = name
        try:
            self._formatter: Any = formats.Jinja2ChatFormatter(source, eos_token=eos, bos_token=bos)
        except Exception as error:  # Jinja reports a broken template in many ways
            raise TemplateRefusal(f"{name}: not a valid template: {_one_line(error)}") from error

    def render(self, messages: Sequence[Mapping[str, str]], generation_prompt: bool = True) -> str:
        """The text of `messages` (each with "role" and "content"), ready for an answer if
        `generation_prompt`. Raises TemplateRefusal."""
        self._formatter.add_generation_prompt = generation_prompt
        try:
            return str(self._formatter(messages=[dict(m) for m in messages]).prompt)
        except Exception as error:  # a template is a program of its own
            raise TemplateRefusal(f"{self._name}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"
