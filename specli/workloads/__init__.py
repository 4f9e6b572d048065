"""Prompts to measure with: a small set of our own, or the user's."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from specli.errors import SpecliError, UsageError
from specli.keys import did_you_mean


@dataclass(frozen=True, slots=True)
class Workload:
    """A prompt. `id` is unique in its set; `category`: the kind of task."""

    id: str
    category: str
    prompt: str


def shipped() -> list[Workload]:
    """Our own set: two prompts each for code-edit, code-gen, rag, summary, chat and extraction."""
    text = (resources.files("specli.workloads") / "prompts.jsonl").read_text("utf-8")
    return parse(text, "the shipped workloads")


def load(path: Path) -> list[Workload]:
    """The user's: JSON lines with "prompt" and, if wanted, "category" and "id"; or one prompt a line.

    Raises UsageError naming the line, SpecliError for a file that is not there.
    """
    try:
        text = Path(os.path.expanduser(path)).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except (OSError, ValueError) as error:
        raise SpecliError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return parse(text, str(path))


def parse(text: str, place: str) -> list[Workload]:
    """A set from text as `load` reads it; `place` names it in errors."""
    found: list[Workload] = []
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    as_json = bool(lines) and all(line.lstrip().startswith("{") for _, line in lines)
    counts: dict[str, int] = {}
    for number, line in lines:
        row = _row(line, f"{place}:{number}") if as_json else {"prompt": line}
        category = row.get("category", "own")
        counts[category] = counts.get(category, 0) + 1
        found.append(Workload(row.get("id", f"{category}-{counts[category]}"), category, row["prompt"]))
        if any(each.id == found[-1].id for each in found[:-1]):
            raise UsageError(f'{place}:{number}: the id "{found[-1].id}" stands twice')
    if not found:
        raise UsageError(f"{place}: no prompts in it")
    return found


def _row(line: str, where: str) -> dict[str, str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
        raise UsageError(f'{where}: needs "prompt", a text')
    wrong = [name for name in ("category", "id") if name in row and not isinstance(row[name], str)]
    if wrong:
        raise UsageError(f'{where}: "{wrong[0]}" must be a text')
    return {name: row[name] for name in ("prompt", "category", "id") if name in row}


def chosen(
    workloads: Sequence[Workload], categories: Sequence[str] = (), per_category: int | None = None
) -> list[Workload]:
    """Those of some categories (all if none is named), at most so many of each.

    Raises UsageError for a category that is not there.
    """
    known = list(dict.fromkeys(each.category for each in workloads))
    for name in categories:
        if name not in known:
            raise UsageError(f"no category {name} among {', '.join(known)}{did_you_mean(name, known)}")
    counts: dict[str, int] = {}
    out: list[Workload] = []
    for each in workloads:
        counts[each.category] = counts.get(each.category, 0) + 1
        wanted = not categories or each.category in categories
        if wanted and (per_category is None or counts[each.category] <= per_category):
            out.append(each)
    return out


def mixed(workloads: Sequence[Workload]) -> list[Workload]:
    """The same prompts, one of each category after another, so that any beginning is a mix."""
    by_category: dict[str, list[Workload]] = {}
    for each in workloads:
        by_category.setdefault(each.category, []).append(each)
    longest = max((len(group) for group in by_category.values()), default=0)
    return [group[i] for i in range(longest) for group in by_category.values() if i < len(group)]
