"""specli: local GGUF models, faster by speculative decoding, without changing what they say.

    import specli

    with specli.load("model.gguf", profile="code") as model:
        for piece in model.stream("Write a haiku."):
            print(piece, end="", flush=True)
        print(model.stats.tokens_per_second, model.stats.acceptance_rate)

Importing this loads neither numpy nor the library below; `load` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from specli.api.answer import Answer, Figures, MethodFigures
    from specli.api.conversation import Conversation
    from specli.api.model import Model, load
    from specli.api.stream import Stream
    from specli.chat.conversation import Message
    from specli.errors import (
        DraftMismatch,
        EngineError,
        HubError,
        MemoryShortage,
        ModelFileError,
        ProfileError,
        SpecliError,
        UsageError,
    )

_PLACES = {
    "Answer": "specli.api.answer", "Figures": "specli.api.answer", "MethodFigures": "specli.api.answer",
    "Conversation": "specli.api.conversation", "Model": "specli.api.model", "load": "specli.api.model",
    "Stream": "specli.api.stream", "Message": "specli.chat.conversation",
}  # fmt: skip

__all__ = [
    "Answer", "Conversation", "DraftMismatch", "EngineError", "Figures", "HubError", "MemoryShortage", "Message",
    "MethodFigures", "Model", "ModelFileError", "ProfileError", "SpecliError", "Stream", "UsageError",
    "__version__", "load",
]  # fmt: skip


if not TYPE_CHECKING:  # a type checker is to know what there is not

    def __getattr__(name: str) -> object:
        """Import what was asked for only now."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        value: object = getattr(importlib.import_module(_PLACES.get(name, "specli.errors")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
