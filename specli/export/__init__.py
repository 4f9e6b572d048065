"""A profile in other engines' words, for those who outgrow one machine.

Only what the engine has too is passed on; what it lacks, or means otherwise, is said in comments.
"""

from __future__ import annotations

from specli.export import llama_server, sglang, tensorrt_llm, vllm
from specli.export.common import Exported, methods
from specli.settings import Settings

__all__ = ["ENGINES", "Exported", "export", "methods"]

_COMMANDS = {
    "llama-server": llama_server.command,
    "vllm": vllm.command,
    "sglang": sglang.command,
    "tensorrt-llm": tensorrt_llm.command,
}
ENGINES = tuple(_COMMANDS)


def export(engine: str, settings: Settings, model: str, draft: str | None) -> Exported:
    """The settings as `engine` (of ENGINES) would be started with them. `model`, `draft`: as the user names
    them, a file or user/repo[:quant]."""
    return _COMMANDS[engine](settings, model, draft)
