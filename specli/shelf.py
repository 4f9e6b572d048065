"""The models that lie on the disk: specli's, Hugging Face's, llama.cpp's and LM Studio's folders, the
demo model, `models.dirs` of the config, and the default model; and which of them could draft for which."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specli import paths
from specli.config import load_config
from specli.download import hf_cache_dir, part_names, whole_models
from specli.engine.compat import compare_vocabularies
from specli.engine.features import feature_draft, feature_problem
from specli.engine.fit import Fit, check_fit, n_params
from specli.engine.gguf import Header, read_header
from specli.engine.memory import weight_bytes
from specli.engine.nextn import file_heads
from specli.errors import ModelFileError, SpecliError
from specli.hub import default_model, embedded_model

LARGEST_DRAFT = 0.6
"""A draft with more than this part of the target's bytes is not proposed: it cannot be fast enough."""
_LOOK_AGAIN_S = 24 * 3600  # headers of many models take a while to read


@dataclass(frozen=True, slots=True)
class Folder:
    """A place where models lie. `name` says whose it is."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Shelved:
    """A model on the disk. `problem`: why its file cannot be used, None if it can; then the rest is unset.

    `n_bytes`: of its weights, all parts together. `heads`: what drafts inside it ("mtp") or, for a file of
    heads alone, what it is ("eagle3"). `quantisation`, `family`, `size_label`: as the file says."""

    path: Path
    folder: str
    header: Header | None = None
    n_bytes: int = 0
    n_params: int = 0
    heads: str = ""
    problem: str | None = None

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.name.removesuffix(".gguf")

    @property
    def family(self) -> str:
        """The family as the file names it, "" where it does not."""
        return (self.header and (self.header.basename or self.header.architecture)) or ""


def folders(more: Sequence[Path] = ()) -> list[Folder]:
    """Where models are looked for, in order; those that do not exist are left out."""
    home = Path.home()
    found = [
        Folder("specli", paths.data_dir(create=False) / "models"),
        Folder("Hugging Face", hf_cache_dir()),
        Folder("llama.cpp", _llama_cache()),
        Folder("LM Studio", home / ".lmstudio" / "models"),
        Folder("LM Studio", home / ".cache" / "lm-studio" / "models"),
        *(Folder("config", path) for path in load_config().dirs),
        *(Folder("given", path) for path in more),
    ]
    return [folder for folder in found if os.path.isdir(folder.path)]


def _llama_cache() -> Path:
    if own := os.environ.get("LLAMA_CACHE"):
        return Path(os.path.expanduser(own))
    system = platform.system()
    if system == "Windows":
        return Path(os.path.expanduser(os.environ.get("LOCALAPPDATA", "~"))) / "llama.cpp"
    if system == "Darwin":
        return Path.home() / "Library" / "Caches" / "llama.cpp"
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "llama.cpp"


def models(more: Sequence[Path] = ()) -> list[Shelved]:
    """All models in `folders(more)` and the default one, each file once, by folder and name. Broken files say what
    is wrong."""
    seen: set[Path] = set()
    out: list[Shelved] = []
    for folder, path in _files(more):
        real = Path(os.path.realpath(path))
        if real not in seen:
            seen.add(real)
            out.append(_shelved(path, folder))
    return out


def _files(more: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    with suppress(ModelFileError):  # not installed
        yield "demo", embedded_model()
    for folder in folders(more):
        for directory, subdirs, names in os.walk(folder.path, followlinks=False):
            subdirs.sort()
            here = [name for name in names if name.lower().endswith(".gguf") and not name.startswith(".")]
            for name in whole_models(sorted(here)):
                yield folder.name, Path(directory) / name
    with suppress(SpecliError):  # not there: the list is about what is
        chosen = default_model()
        if chosen is not None:
            yield "elsewhere", chosen


def _shelved(path: Path, folder: str) -> Shelved:
    missing = [name for name in part_names(path.name) if not path.with_name(name).exists()]
    if missing:
        return Shelved(path, folder, problem=f"incomplete: {missing[0]} is missing")
    try:
        header = read_header(path)
        if not header.has_weights:
            return Shelved(path, folder, problem="a vocabulary without weights")
        return Shelved(path, folder, header, weight_bytes(header), n_params(header), _heads(header))
    except ModelFileError as error:
        return Shelved(path, folder, problem=str(error).removeprefix(f"{path}: "))


def _heads(header: Header) -> str:
    if header.architecture == "gemma4-assistant":
        return header.architecture
    features = feature_draft(header)
    if features is not None:
        return features.method.removeprefix("draft-")
    found = file_heads(header)
    return "" if not found.heads else "mtp-only" if found.heads_only else "mtp"


# -- who could draft for whom ----------------------------------------------------------------------


def drafts_for(target: Shelved, candidates: Sequence[Shelved]) -> list[Shelved]:
    """Those of the candidates with the target's vocabulary that are much smaller, the smallest first.

    Read from the headers alone; `check_fit` tells more."""
    found = [each for each in candidates if _could_draft(each, target)]
    return sorted(found, key=lambda each: each.n_bytes)


def _could_draft(draft: Shelved, target: Shelved) -> bool:
    ours, theirs = target.header, draft.header
    if ours is None or theirs is None or draft.path == target.path:
        return False
    if draft.n_bytes > LARGEST_DRAFT * target.n_bytes:
        return False
    try:
        if feature_draft(theirs) is not None:
            return feature_draft(ours) is None and feature_problem(ours, theirs) is None
        if draft.heads not in ("", "mtp"):
            return False
        return compare_vocabularies(ours, theirs, show=1).problem is None
    except ModelFileError:
        return False


def rank(target: Path, more: Sequence[Path] = (), same_vocab: bool = False) -> list[Fit]:
    """Every smaller model on the disk as a draft for `target`, the best first: those that fit, then with
    notes, then not; of the same vocabulary before others, the smaller before the larger."""
    size = weight_bytes(read_header(target))
    fits = []
    for each in models(more):
        if (
            each.header is None
            or Path(os.path.realpath(each.path)) == Path(os.path.realpath(target))
            or each.n_bytes >= size
        ):
            continue
        fits.append(check_fit(target, each.path, same_vocab))
    order = {"fits": 0, "fits-with-notes": 1, "does-not-fit": 2}
    return sorted(
        fits, key=lambda f: (f.verdict == "does-not-fit", -(f.share or 0), order[f.verdict], f.size_ratio)
    )


# -- an offer, once --------------------------------------------------------------------------------


def find_draft(target: Path) -> Path | None:
    """The smallest model on the disk that has the target's vocabulary and family, None without one."""
    try:
        ours = _shelved(target, "")
        found = drafts_for(ours, models())
    except SpecliError:  # a broken config or folder is no reason not to answer
        return None
    return next((each.path for each in found if each.family == ours.family), None)


def unasked_draft(target: Path, say: Callable[[str], None], offer: bool = True) -> Path | None:
    """The draft to use though none was named: only where the config's `auto-draft` says so, and unless it
    was measured not to pay. Otherwise, with `offer`, one that fits is offered through `say`, once."""
    if not load_config().auto_draft:
        line = offer_draft(target) if offer else None
        if line is not None:
            say(line)
        return None
    draft = find_draft(target)
    if draft is None:
        return None
    from specli.pairing import recalled

    figures = recalled(target, draft)
    if figures is not None and not figures.pays:
        return None
    say(f"{draft.name} drafts, as auto-draft in config.toml says")
    return draft


def offer_draft(target: Path) -> str | None:
    """One line that offers a fitting draft on the disk for `target`, with what it is expected to bring;
    None without one, and whenever this target's draft was offered before."""
    mark = (
        paths.cache_dir()
        / f"offered-{hashlib.sha256(os.fsencode(Path(os.path.realpath(target)))).hexdigest()[:16]}.json"
    )
    if _is_fresh(mark):
        return None
    draft = find_draft(target)
    try:
        paths.write_atomic(mark, json.dumps({"target": str(target), "draft": draft and str(draft)}))
    except SpecliError:
        return None  # what cannot be remembered would be said each time
    if draft is None:
        return None
    return f"{draft.name} could draft for {target.name}: {_expectation(target, draft)}"


def _is_fresh(mark: Path) -> bool:
    """Whether a draft was offered before, or looked for in vain within the last day."""
    try:
        offered = json.loads(mark.read_text("utf-8"))["draft"] is not None
        return offered or time.time() - mark.stat().st_mtime < _LOOK_AGAIN_S
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _expectation(target: Path, draft: Path) -> str:
    from specli.pairing import recalled

    figures = recalled(target, draft)
    if figures is None:
        return (
            f"specli check-draft {target} {draft} --measure says what it brings here, --draft-model uses it"
        )
    if figures.pays:
        return f"about {figures.speedup:.2f} times plain speed expected here; --draft-model {draft} uses it"
    return "but as measured here it cannot pay, so it is left alone"
