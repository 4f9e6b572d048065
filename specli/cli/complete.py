"""What the shell may complete: models, profiles, methods, and words of a closed list.

Asked for at every press of the key, so nothing here reads a model, and what is not needed is not imported.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from specli.errors import SpecliError
from specli.keys import Key
from specli.settings import KEYS

MOST = 200
"""Names offered at once: a longer list helps nobody."""
_TITLED = 50  # conversations whose first question is read
_HEAD = 1 << 20  # characters of a line that are read


def models(incomplete: str) -> list[str]:
    """Aliases of the config, repositories that Hugging Face's cache holds, GGUF files and folders."""
    if incomplete.startswith("-"):
        return []
    return _or_the_shell(incomplete, [*_aliases(), *_repositories(), *_files(incomplete, ".gguf")])


def profiles(incomplete: str) -> list[str]:
    """Names of profiles, and .toml files where a path is begun."""
    from specli.profiles import available

    names = [entry.name for entry in available()]
    return _or_the_shell(incomplete, [*names, *(_files(incomplete, ".toml") if _is_path(incomplete) else ())])


def spec_types(incomplete: str) -> list[str]:
    """Methods; after a comma, those that are not yet named."""
    begun, comma, _ = incomplete.rpartition(",")
    named = begun.split(",")
    types = next(key for key in KEYS if key.name == "types").choices
    return _beginning(incomplete, [f"{begun}{comma}{each}" for each in types if each not in named])


def topics(incomplete: str) -> list[str]:
    """Pages of `specli explain`."""
    from specli.explain import pages

    with suppress(SpecliError):
        return _beginning(incomplete, [page.topic for page in pages()])
    return []


def of_key(key: Key) -> Callable[[str], list[str]] | None:
    """The completer of a setting's flag; None where anything may stand, or a file."""
    if key.name in ("model", "draft-model"):
        return models
    if key.kind == "types":
        return spec_types
    if not key.choices:
        return None

    def choices(incomplete: str) -> list[str]:
        return _beginning(incomplete, key.choices)

    return choices


def sessions(incomplete: str) -> list[tuple[str, str]]:
    """Saved conversations, the latest first, with what they began with, for shells that show it."""
    from specli.paths import data_dir

    files: list[Path] = []
    with suppress(OSError):
        files = list((data_dir(create=False) / "sessions").glob(f"{glob.escape(incomplete)}*.json"))
    files = sorted(files, key=_changed, reverse=True)[:MOST]
    return [(file.stem, _title(file) if n < _TITLED else "") for n, file in enumerate(files)]


def _title(path: Path) -> str:
    """How the first question begins. It stands on the second line of the file, and only that is read. Shells
    evaluate what they are given, so it is letters, digits and harmless marks."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            file.readline(_HEAD)
            words = json.loads(file.readline(_HEAD).rstrip().rstrip(","))["text"].split()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ""
    plain = (char if char.isalnum() or char in ".,:;?!-+" else " " for char in " ".join(words[:60]))
    return " ".join("".join(plain).split())[:60]


def _changed(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def engines(incomplete: str) -> list[str]:
    """What `specli export` knows."""
    from specli.export import ENGINES

    return _beginning(incomplete, ENGINES)


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(word for word in words if word.startswith(incomplete)))[:MOST]


def _or_the_shell(incomplete: str, words: Iterable[str]) -> list[str]:
    """Those that fit; nothing where only folders do, which the shell itself completes better: no space behind."""
    found = _beginning(incomplete, words)
    return [] if all(word.endswith("/") for word in found) else found


def _aliases() -> list[str]:
    from specli.config import load_config

    with suppress(SpecliError):
        return list(load_config().aliases)
    return []


def _repositories() -> Iterator[str]:
    """user/repo of what Hugging Face's cache holds, as far as there are GGUF files."""
    from specli.download import hf_cache_dir

    with suppress(OSError):
        for entry in sorted(hf_cache_dir().glob("models--*--*")):
            if next(entry.glob("snapshots/*/*.[gG][gG][uU][fF]"), None) is not None:
                yield "/".join(entry.name.split("--")[1:3])


def _is_path(text: str) -> bool:
    return text.startswith((".", "~")) or "/" in text or os.sep in text


def _files(incomplete: str, ending: str) -> Iterator[str]:
    """Files of this ending and folders that may hold some, written as they were begun."""
    begun = incomplete.rpartition("/")[2]
    lead = incomplete[: len(incomplete) - len(begun)]
    with suppress(OSError, ValueError, RuntimeError):
        folder = Path(os.path.expanduser(lead or "."))
        for entry in sorted(folder.iterdir()):
            if not entry.name.startswith(begun) or (entry.name.startswith(".") and not begun):
                continue
            if entry.is_dir():
                yield f"{lead}{entry.name}/"
            elif entry.name.lower().endswith(ending):
                yield f"{lead}{entry.name}"
