"""What the engines share: the command as text, who drafts, and what is said of what they lack."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specli.errors import ModelFileError
from specli.settings import Settings

LLAMA_TYPES = {
    "draft-model": "draft-simple",
    "ngram-simple": "ngram-simple",
    "ngram-map-k": "ngram-map-k",
    "ngram-map-k4v": "ngram-map-k4v",
    "draft-mtp": "draft-mtp",
    "draft-eagle3": "draft-eagle3",
    "draft-dflash": "draft-dflash",
    "draft-dspark": "draft-dspark",
    "draft-self": "ngram-map-k",
    "none": "none",
}
NGRAM = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "draft-self")
_BLOCKS = ("draft-dflash", "draft-dspark")
FROM_FILE = frozenset({"draft-model", "draft-eagle3", *_BLOCKS})


@dataclass(frozen=True, slots=True)
class Exported:
    """A command (its words; empty where there is none) with comments before it, and a config file's text
    (with its name) where the engine wants one."""

    comments: tuple[str, ...]
    command: tuple[str, ...]
    file_name: str = ""
    file_text: str = ""

    def text(self) -> str:
        """What to put into a shell script: comments, the file as a here-document, the command."""
        out = [f"# {line}" for line in self.comments]
        if self.file_text:
            out.append(f"cat > {self.file_name} <<'EOF'\n{self.file_text}EOF")
        out.append(_wrapped(self.command))
        return "\n".join(out) + "\n"


def _wrapped(words: Sequence[str]) -> str:
    """One flag with its value a line, quoted for the shell."""
    lines: list[str] = []
    for word in words:
        if lines and (word.startswith("-") and not _is_number(word)):
            lines.append(_quoted(word))
        else:
            lines[-1:] = [f"{lines[-1]} {_quoted(word)}" if lines else _quoted(word)]
    return " \\\n  ".join(lines)


def _quoted(word: str) -> str:
    """For the shell; what does not print as escapes, which cannot steer a terminal that shows the line."""
    if word.isprintable():
        return shlex.quote(word)
    shown = "".join(c if c.isprintable() and c not in "'\\" else _escaped(c) for c in word)
    return f"$'{shown}'"


def _escaped(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def methods(settings: Settings, draft: str | None, model: str | None = None) -> list[str]:
    """The types in force, `auto` spelled out, those without what they need left out. `model`: the target, for the
    prediction heads that its file may hold."""
    out: list[str] = []
    for method in settings.types:
        own = ["draft-mtp"] if draft is None and has_heads(model) else []
        out += ["draft-self", *own, *([_kind(draft)] if draft else [])] if method == "auto" else [method]
    usable = (m for m in out if m != "none" and m in LLAMA_TYPES and (m not in FROM_FILE or draft))
    return list(dict.fromkeys(usable))


def has_heads(model: str | None) -> bool:
    """Whether the target's file, if it is one, holds prediction heads that can draft."""
    from specli.engine.gguf import read_header
    from specli.engine.nextn import file_heads

    path = None if model is None else os.path.expanduser(model)
    try:
        return (
            path is not None and os.path.isfile(path) and file_heads(read_header(Path(path))).problem is None
        )
    except ModelFileError:
        return False


def _kind(draft: str) -> str:
    """The type that a draft is for: what its file says where it is one, else a model."""
    from specli.casting import draft_method

    try:
        return draft_method(Path(draft)) if os.path.isfile(draft) else "draft-model"
    except ModelFileError:
        return "draft-model"


def common(settings: Settings, engine: str, model: str, draft: str | None) -> list[str]:
    """Comments on what no other engine has."""
    out = [f"specli profile {settings.profile}, as {engine} has it"]
    out += [
        f"{method} has no counterpart here, left out"
        for method in settings.types
        if method not in (*LLAMA_TYPES, "auto")
    ]
    if draft is not None and "auto" in settings.types and has_heads(model):
        out.append(
            "draft-mtp is left out: the model's own prediction heads are not tried beside a draft here"
        )
    if settings.exact:
        out.append(
            "--exact has no counterpart: only specli keeps the width of decodes fixed, so greedy output"
        )
        out.append("  may differ here in near-ties between speculation on and off")
    if settings.tree_size is not None:
        out.append(
            f"--spec-tree {settings.tree} is left out: here drafts are written as chains, without branches"
        )
    if not settings.fixed:
        out.append(
            "specli sets the draft length by measured profit in each cycle; here it is fixed, so measure anew"
        )
    return out


def first_and_comments(s: Settings, model: str, draft: str | None, engine: str) -> tuple[str, list[str]]:
    """For an engine that runs one method, on other weights: the first one in force, "none" where there is none,
    and what is to be said."""
    chosen = methods(s, draft, model)
    comments = [
        *common(s, engine, model, draft),
        *_weights_comment(model, draft, engine),
        _SAMPLING_COMMENT,
        *_one_of(chosen, engine),
    ]
    return (chosen[0] if chosen else "none"), comments


_SAMPLING_COMMENT = (
    "temperature, top-k, penalties, stop, seed, grammar and schema are sent with each request, not set here"
)


def _weights_comment(model: str, draft: str | None, engine: str) -> list[str]:
    if ".gguf" not in (model + (draft or "")).lower() and ":" not in model:
        return []
    how = (
        "needs the package vllm-gguf-plugin for GGUF files"
        if engine == "vLLM"
        else "is made for other weights"
    )
    return [
        f"{engine} {how}; better put the model's original weights (safetensors) in their place,",
        "  and measure acceptance and the best draft length again",
    ]


def _one_of(chosen: list[str], engine: str) -> list[str]:
    if chosen and chosen[0] in _BLOCKS:
        return [
            f"{chosen[0]} is left out: which drafts of this kind {engine} takes, its own documentation says"
        ]
    if len(chosen) < 2:
        return []
    return [f"{engine} runs {chosen[0]} alone: it has no counterpart for trying {', '.join(chosen[1:])} next"]


def ngram_comments(method: str, min_hits: int) -> list[str]:
    out = (
        []
        if method == "ngram-simple"
        else [f"{method} keeps a table of n-grams; here the prompt is searched instead"]
    )
    return out + ([f"min-hits {min_hits} has no counterpart"] if min_hits > 1 else [])
