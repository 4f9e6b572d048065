"""The pages of `specli explain`: what each way to draft is, and what to do when something is wrong.

They are files of docs/, shipped inside the wheel as they stand there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from specli.errors import SpecliError, UsageError
from specli.keys import TYPE_ALIASES, did_you_mean

_ORDER = (
    "families", "auto", "draft-self", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "draft-model", "draft-mtp",
    "draft-eagle3", "draft-block", "layers", "trees", "grammar", "exact", "sampling", "chat", "profiles",
    "options", "recipes", "python", "compare", "cases", "troubleshooting",
)  # fmt: skip
"""The order in which topics are listed; what is not here comes last, by name."""

_OTHERS = ("chat", "profiles", "options", "recipes", "python", "compare", "cases", "troubleshooting")
"""Pages that are about no method: they stand in docs/ itself. pyproject.toml names them for the wheel."""

ALIASES: Mapping[str, str] = {
    **TYPE_ALIASES,
    "none": "auto",
    "pacing": "auto",
    "methods": "families",
    "medusa": "families",
    "ssd": "families",
    "specsa": "families",
    "lookahead": "draft-self",
    "suffix": "draft-self",
    "self": "draft-self",
    "model": "draft-model",
    "vocabulary": "draft-model",
    "mtp": "draft-mtp",
    "nextn": "draft-mtp",
    "eagle": "draft-eagle3",
    "eagle3": "draft-eagle3",
    "dflash": "draft-block",
    "dspark": "draft-block",
    "draft-dflash": "draft-block",
    "draft-dspark": "draft-block",
    "p-eagle": "draft-block",
    "draft-self-layers": "layers",
    "layerskip": "layers",
    "tree": "trees",
    "spec-tree": "trees",
    "specinfer": "trees",
    "sequoia": "trees",
    "swift": "layers",
    "json-schema": "grammar",
    "verification": "sampling",
    "verify": "sampling",
    "seed": "sampling",
    "profile": "profiles",
    "config": "profiles",
    "tune": "auto",
    "commands": "chat",
    "sessions": "chat",
    "trace": "chat",
    "help": "troubleshooting",
}
"""Other words for a topic."""


@dataclass(frozen=True, slots=True)
class Page:
    """`topic`: its name. `about`: what it is, in a few words. `text`: Markdown."""

    topic: str
    about: str
    text: str


def pages() -> list[Page]:
    """All pages, in the order in which one would read them. Raises SpecliError where they are not there."""
    found = {path.stem: path for path in _files()}
    if not found:
        raise SpecliError(
            "the pages of this program are not installed; install it again, or read docs/ of its source"
        )
    known = [topic for topic in _ORDER if topic in found]
    return [_read(found[topic]) for topic in (*known, *sorted(found.keys() - set(known)))]


def page(word: str) -> Page:
    """The page that `word` means. Raises UsageError, with the nearest topic, where there is none."""
    topic = word.strip().lower().lstrip("-")
    found = {each.topic: each for each in pages()}
    topic = topic if topic in found else ALIASES.get(topic, topic)
    if topic in found:
        return found[topic]
    words = [*found, *(alias for alias, meant in ALIASES.items() if meant in found)]
    raise UsageError(f"no page about {word}; there are {', '.join(found)}{did_you_mean(topic, words)}")


def _files() -> list[Path]:
    """In an installed wheel the pages lie inside the package, in a checkout beside it."""
    packaged = Path(str(resources.files("specli"))) / "_explain"
    if packaged.is_dir():
        return sorted(packaged.glob("*.md"))
    docs = Path(__file__).resolve().parent.parent / "docs"
    others = [docs / f"{name}.md" for name in _OTHERS]
    return [*sorted((docs / "methods").glob("*.md")), *(path for path in others if path.is_file())]


def _read(path: Path) -> Page:
    text = path.read_text("utf-8")
    heading = text.split("\n", 1)[0].lstrip("# ")
    _, _, about = heading.partition(": ")
    return Page(path.stem, about or heading, text)
