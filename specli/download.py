"""From a repository on Hugging Face to a whole file in its cache, which other programs share.

The server is Hugging Face's, or HF_ENDPOINT. What was begun and not ended is gone on with.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specli.errors import HubError, SpecliError

DEFAULT_QUANT = "Q4_K_M"
SPARE = 256 << 20
"""Bytes that are left free on the disk."""
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)


def hf_cache_dir() -> Path:
    """Where Hugging Face's own tools keep what they fetched: HF_HUB_CACHE, HF_HOME, or the usual place."""
    if cache := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(os.path.expanduser(os.path.expandvars(cache)))
    home = os.environ.get("HF_HOME")
    if home is None:
        home = os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    return Path(os.path.expanduser(os.path.expandvars(home))) / "hub"


def fetch(repo: str, quant: str | None = None) -> Path:
    """The model's file (of a split model the first part, all parts being there) in Hugging Face's cache;
    fetched, with progress on stderr, if it is not there yet.

    Raises HubError in one line: no such repository, no access, no network, no room, no such quantisation.
    """
    cached = find_cached(repo, quant)
    if cached is not None:
        return cached
    if is_offline():
        raise HubError(
            f"{repo}: not on this disk, and HF_HUB_OFFLINE forbids to fetch it; unset it or give a file"
        )
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when its library is imported, below
    with _explained(repo):
        files, revision = _listing(repo)
        parts = _parts_of(choose_quant(repo, [f.name for f in files], quant), files)
        _require_room(repo, parts)
        paths = [_download(repo, part, revision) for part in parts]
    return paths[0]


def is_offline() -> bool:
    """Whether the user forbade the network to Hugging Face's tools."""
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.strip().upper() in ("1", "ON", "YES", "TRUE")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A GGUF file of a repository; `size` in bytes, 0 where the server does not say."""

    name: str
    size: int


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


def _listing(repo: str) -> tuple[list[RemoteFile], str | None]:
    import huggingface_hub

    info: Any = huggingface_hub.HfApi(endpoint=_endpoint()).model_info(repo, files_metadata=True, timeout=30)
    files = [RemoteFile(s.rfilename, int(s.size or 0)) for s in info.siblings or () if _is_gguf(s.rfilename)]
    return sorted(files, key=lambda f: f.name), info.sha


def _is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf")


def _parts_of(name: str, files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """The file itself, or all parts of the split model that it begins. Raises HubError if one is missing."""
    sizes = {f.name: f for f in files}
    match = _PART.search(name)
    if match is None:
        return [sizes[name]]
    stem, count = name[: match.start()], int(match[2])
    names = [f"{stem}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]
    missing = [each for each in names if each not in sizes]
    if missing:
        raise HubError(f"{name}: the repository lacks {missing[0]}, so this model cannot be put together")
    return [sizes[each] for each in names]


def _require_room(repo: str, parts: Sequence[RemoteFile]) -> None:
    place = hf_cache_dir()
    while not place.exists() and place != place.parent:
        place = place.parent
    needed = sum(part.size for part in parts)
    free = shutil.disk_usage(place).free
    if needed + SPARE > free:
        raise HubError(
            f"{repo}: {needed / 1e9:.1f} GB to fetch and {free / 1e9:.1f} GB free in {place}; make room, take "
            "a smaller quantisation, or set HF_HUB_CACHE to another disk"
        )


def _download(repo: str, part: RemoteFile, revision: str | None) -> Path:
    """One file, whole: resumed where it was left, its size compared with what the server said."""
    import huggingface_hub

    utils: Any = importlib.import_module("huggingface_hub.utils")
    watched = sys.stderr is not None and sys.stderr.isatty()
    (utils.enable_progress_bars if watched else utils.disable_progress_bars)()
    utils.logging.set_verbosity_error()  # it tells of each retry; what counts in the end is said here
    path = Path(
        huggingface_hub.hf_hub_download(
            repo, part.name, revision=revision, cache_dir=hf_cache_dir(), endpoint=_endpoint()
        )
    )
    size = path.stat().st_size
    if part.size and size != part.size:
        Path(os.path.realpath(path)).unlink(missing_ok=True)  # it would be taken for whole the next time
        path.unlink(missing_ok=True)
        raise HubError(f"{part.name}: {size} bytes came, {part.size} should have; try again")
    return path


@contextmanager
def _explained(repo: str) -> Iterator[None]:
    """What goes wrong below, as one line that says what to do."""
    from huggingface_hub import errors

    try:
        yield
    except SpecliError:
        raise
    except errors.GatedRepoError as error:
        raise HubError(
            f"{repo}: its owners grant access one by one; ask for it on huggingface.co/{repo}, then run "
            "`hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"{repo}: no such file here, and no such model on Hugging Face that you may see (a private one "
            "needs `hf auth login` or HF_TOKEN)"
        ) from error
    except errors.HFValidationError as error:
        raise HubError(f"{repo}: no such file here, and not a name that Hugging Face could have") from error
    except Exception as error:  # every HTTP library below reports in classes of its own
        raise HubError(f"{repo}: {_why(error)}") from error


def _why(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"the server answered {status}: the token is not valid; run `hf auth login` or set HF_TOKEN"
    if status is not None:
        return f"the server answered {status}; try again later"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return "the disk is full; what came is kept, so make room and run the same command again"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, PermissionError):
        return f"cannot write to {hf_cache_dir()}: {error.strerror}; set HF_HUB_CACHE to another place"
    name = type(error).__name__
    if isinstance(error, (ConnectionError, TimeoutError)) or re.search(
        "Connect|Timeout|LocalEntry|Protocol", name
    ):
        return "the server cannot be reached; what came is kept, so run the same command again with a network"
    text = " ".join(str(error).split()) or name
    return f"cannot be fetched: {text if len(text) <= 160 else text[:159] + '…'}"


# -- which file is meant ---------------------------------------------------------------------------


def find_cached(repo: str, quant: str | None) -> Path | None:
    """The file that was fetched before, if all its parts were: that needs no network."""
    snapshots = hf_cache_dir() / f"models--{repo.replace('/', '--')}" / "snapshots"
    try:
        newest = sorted((d for d in snapshots.iterdir() if d.is_dir()), key=lambda d: d.stat().st_mtime)
    except OSError:
        return None
    for directory in reversed(newest):
        files = sorted(f.relative_to(directory).as_posix() for f in directory.rglob("*.gguf") if f.is_file())
        models = whole_models(files)
        # a lone file may be all there is on the server too, and was taken without naming it
        found = _matching(models, quant or DEFAULT_QUANT) or (
            models if quant is None and len(models) == 1 else []
        )
        for name in found:
            if all((directory / part).is_file() for part in part_names(name)):
                return directory / name
    return None


def part_names(name: str) -> list[str]:
    """The names of all parts of the split model that `name` belongs to; itself if it is whole."""
    match = _PART.search(name)
    if match is None:
        return [name]
    return [f"{name[: match.start()]}-{i:05d}-of-{match[2]}.gguf" for i in range(1, int(match[2]) + 1)]


def whole_models(names: Sequence[str]) -> list[str]:
    """The GGUF files among `names` without vision projectors, and of a split model the first part alone (it
    leads to the others)."""
    models: list[str] = []
    for name in filter(_is_gguf, names):
        part = _PART.search(name)
        if "mmproj" not in name.lower() and (part is None or part[1] == "00001"):
            models.append(name)
    return models


def choose_quant(repo: str, names: Sequence[str], quant: str | None) -> str:
    """The one file of a repository's GGUF `names` to take: of the quantisation asked for; else
    Q4_K_M, or the only one there is. Raises HubError naming what there is."""
    models = whole_models(names)
    if not models:
        raise HubError(f"{repo}: this repository has no GGUF file; look for one whose name ends in GGUF")
    found = _matching(models, quant or DEFAULT_QUANT)
    if found:
        return found[0]
    if quant is None and len(models) == 1:
        return models[0]
    shown = ", ".join(models[:8]) + (f" and {len(models) - 8} more" if len(models) > 8 else "")
    raise HubError(f"{repo}: no {quant or DEFAULT_QUANT} among {shown}; choose one as {repo}:QUANT")


def _matching(names: Sequence[str], quant: str) -> list[str]:
    """Names that carry `quant` as a word of its own (Q4_K is not Q4_K_M), shortest first."""
    word = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(quant)}(?![A-Za-z0-9_])", re.IGNORECASE)
    return sorted((name for name in names if word.search(name)), key=lambda name: (len(name), name))
