"""The user's own settings, `config.toml` in the config directory: models, aliases, where to look.

[models]
default = "user/repo:Q4_K_M"       # what -m means when it is left out
dirs = ["~/models"]                # searched by `specli models` and for drafts
auto-draft = false                 # true: a fitting draft on the disk is used without being named
[models.aliases]
coder = "~/models/coder-1.5b.gguf"
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from specli.errors import SpecliError, UsageError
from specli.keys import did_you_mean
from specli.paths import config_dir, write_atomic

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEYS = ("default", "dirs", "auto-draft", "aliases")


@dataclass(frozen=True, slots=True)
class Config:
    """What config.toml says; the defaults where there is none."""

    default: str | None = None
    dirs: tuple[Path, ...] = ()
    auto_draft: bool = False
    aliases: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def config_path() -> Path:
    """Where the file is, or would be."""
    return config_dir(create=False) / "config.toml"


def load_config() -> Config:
    """Read and check config.toml. Raises UsageError: the file, the key, what it must be; SpecliError
    where it cannot be read."""
    path = config_path()
    try:
        text = path.read_text("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return Config()
    except (OSError, ValueError) as error:
        raise SpecliError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return parse_config(text, str(path))


def parse_config(text: str, place: str) -> Config:
    """A Config from TOML text; `place` names it in errors."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place}: not valid TOML: {error}") from error
    for name in document:
        if name != "models":
            raise UsageError(f"{place}: unknown section or key {name}; there is only [models]")
    models = document.get("models", {})
    if not isinstance(models, dict):
        raise UsageError(f"{place}: models must be a section, [models]")
    for name in models:
        if name not in _KEYS:
            raise UsageError(f"{place}: [models] unknown key {name}{did_you_mean(name, _KEYS)}")
    default, dirs = models.get("default"), models.get("dirs", [])
    auto, aliases = models.get("auto-draft", False), models.get("aliases", {})
    if default is not None and not (isinstance(default, str) and default):
        raise UsageError(f"{place}: [models] default must be a text, a model as -m takes it")
    if not isinstance(dirs, list) or not all(isinstance(d, str) and d for d in dirs):
        raise UsageError(f'{place}: [models] dirs must be a list of directories, such as ["~/models"]')
    if not isinstance(auto, bool):
        raise UsageError(f"{place}: [models] auto-draft must be true or false")
    if not isinstance(aliases, dict) or not all(isinstance(v, str) and v for v in aliases.values()):
        raise UsageError(f'{place}: [models.aliases] must be names with models, such as coder = "user/repo"')
    return Config(
        default, tuple(Path(os.path.expanduser(d)) for d in dirs), auto, MappingProxyType(dict(aliases))
    )


def set_default(reference: str | None) -> Path:
    """Make `reference` the default model, None for none; comments in the file stay. Returns the file."""
    load_config()  # a broken file is not built upon
    path = config_path()
    text = path.read_text("utf-8-sig") if os.path.exists(path) else ""
    changed = _with_default(text, reference)
    try:
        found = parse_config(changed, str(path)).default
    except UsageError:
        found = None if reference is not None else ""
    if found != reference:
        raise SpecliError(
            f"{path}: the default model is written there in a way that is not edited from here; change it by hand"
        )
    write_atomic(path, changed)
    return path


def _with_default(text: str, reference: str | None) -> str:
    line = "" if reference is None else f"default = {json.dumps(reference, ensure_ascii=False)}\n"
    lines = text.splitlines(keepends=True)
    header = re.compile(r"\s*\[\s*models\s*\]")
    start = next((i for i, each in enumerate(lines) if header.match(each)), None)
    if start is None:
        gap = "\n" if lines else ""
        body = text if not text or text.endswith("\n") else text + "\n"
        return body + (f"{gap}[models]\n{line}" if line else "")
    end = next((i for i in range(start + 1, len(lines)) if lines[i].lstrip().startswith("[")), len(lines))
    kept = [each for each in lines[start + 1 : end] if not re.match(r"\s*default\s*=", each)]
    if not lines[start].endswith("\n"):
        lines[start] += "\n"
    return "".join([*lines[: start + 1], line, *kept, *lines[end:]])
