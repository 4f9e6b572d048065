"""What speculation did to an answer, cycle by cycle, for people to learn from.

Cycles that drafted nothing, for one and the same reason, stand together as one entry: what is left are the
drafts, and what became of them. Where there are no colours, marks say what colours would, as those of
`git diff --word-diff` do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from specli.chat.record import Offer, Recorded
from specli.chat.text import safe_for_terminal
from specli.settings import NEURAL
from specli.ui import terminal
from specli.ui.layout import Layout, Margin, Run

Words = Callable[[Sequence[int]], str]
"""What tokens say."""
_UNREAD = 8  # tokens shown of what was drafted in vain


@dataclass(frozen=True, slots=True)
class Entry:
    """One draft with what became of it, or a stretch of cycles without a draft. `why`: in words, what was
    proposed and decided."""

    first: int
    last: int
    why: str
    figures: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Marks:
    """How the parts of a cycle are told apart. Each is what stands before and behind, and a style."""

    accepted: tuple[str, str, str]
    rejected: tuple[str, str, str]
    unread: tuple[str, str, str]
    newline: str

    def run(self, text: str, mark: tuple[str, str, str]) -> list[Run]:
        """`text` marked; nothing for none."""
        before, behind, style = mark
        return [Run(f"{before}{text}{behind}", style, hard=True)] if text else []


def marks(colour: bool, symbol: Callable[[str], str]) -> Marks:
    """With colours, or with marks instead."""
    newline = symbol("⏎")
    if colour:
        return Marks(
            ("", "", terminal.GREEN),
            ("", "", f"{terminal.RED};{terminal.STRUCK}"),
            ("", "", f"{terminal.DIM};{terminal.STRUCK}"),
            newline,
        )
    return Marks(("{+", "+}", ""), ("[-", "-]", ""), ("(-", "-)", ""), newline)


def legend(colour: bool) -> list[Run]:
    """What the styles or marks mean."""
    m = marks(colour, lambda s: s)
    told = (
        ("accepted draft", m.accepted),
        ("rejected", m.rejected),
        ("behind a rejection, so never judged", m.unread),
    )
    runs: list[Run] = []
    for words, (before, behind, style) in told:
        runs += [Run(f"{before}{words}{behind}", style), Run("; ")]
    return [*runs, Run("the model's own token unmarked")]


def entries(cycles: Sequence[Recorded], words: Words, marked: Marks) -> Iterator[Entry]:
    """The cycles told, those without a draft in one where they say the same."""
    for key, group in groupby(cycles, lambda r: (bool(r.cycle.draft.tokens), _why(r))):
        some = list(group)
        if not key[0]:
            yield _plain_entry(some, words, marked)
        else:
            for each in some:
                yield _draft_entry(each, words, marked)


def _plain_entry(some: Sequence[Recorded], words: Words, marked: Marks) -> Entry:
    tokens = [token for each in some for token in each.cycle.tokens]
    seconds = sum(each.cycle.total_s for each in some)
    each_s = "" if len(some) == 1 else " each"
    width = some[0].cycle.width
    return Entry(
        some[0].number, some[-1].number, _why(some[0]),
        f"width {width}, {1e3 * seconds / len(some):.1f} ms{each_s}",
        (Run(_shown(words(tokens), marked), hard=True),),
    )  # fmt: skip


def _draft_entry(each: Recorded, words: Words, marked: Marks) -> Entry:
    cycle, accepted = each.cycle, each.cycle.verdict.accepted
    own = cycle.tokens[accepted:]
    if cycle.draft.tree is None:
        rejected, unread = cycle.draft.tokens[accepted : accepted + 1], cycle.draft.tokens[accepted + 1 :]
        if accepted == len(cycle.draft) or not own:  # nothing was rejected: all accepted, or the answer ended
            rejected, unread = (), cycle.draft.tokens[accepted:]
    else:
        taken = set(cycle.verdict.path)
        rejected, unread = (), tuple(t for i, t in enumerate(cycle.draft.tokens) if i not in taken)

    def show(tokens: Sequence[int]) -> str:
        return _shown(words(tokens), marked)

    runs = [
        *marked.run(show(cycle.tokens[:accepted]), marked.accepted),
        *marked.run(show(rejected), marked.rejected),
        *marked.run(show(unread[:_UNREAD]), marked.unread),
        *([Run(f" +{len(unread) - _UNREAD} ", marked.unread[2])] if len(unread) > _UNREAD else []),
        *([Run(show(own), terminal.BOLD if not marked.accepted[0] else "", hard=True)] if own else []),
    ]
    drafted = f", drafted in {1e3 * cycle.draft_s:.1f} ms" if cycle.draft_s >= 5e-5 else ""
    figures = f"{accepted} accepted, width {cycle.width}, {1e3 * cycle.total_s:.1f} ms{drafted}"
    return Entry(each.number, each.number, _why(each), figures, tuple(runs))


def _shown(text: str, marked: Marks) -> str:
    """On one line, safe to print."""
    return safe_for_terminal(text.replace("\r\n", "\n")).replace("\n", marked.newline).replace("\t", "  ")


def _why(each: Recorded) -> str:
    """Who proposed what, and what the pacer made of it."""
    draft = each.cycle.draft
    if not each.offers:
        return "nobody was asked for a draft" if not draft.tokens else f"{draft.method} drafted {len(draft)}"
    told = [
        _offer(offer, each.cycle.width)
        for offer in each.offers
        if offer.method != draft.method or not draft.tokens
    ]
    if draft.tokens:
        best = next((o for o in each.offers if o.method == draft.method), Offer(draft.method, len(draft), 0))
        shape = " as a tree" if draft.tree is not None else ""
        cut = "" if best.proposed <= len(draft) else f" of {best.proposed} it had: more would not pay"
        told.insert(0, f"{draft.method} drafted {len(draft)}{shape}{cut}")
        told = told[:1] + [t for t in told[1:] if "had nothing" not in t]
    return "; ".join(told) or "no draft"


def _offer(offer: Offer, width: int) -> str:
    """What became of one drafter's turn that drafted nothing in the end."""
    if offer.proposed == 0:
        if offer.method in NEURAL:
            return f"{offer.method} drafted nothing: it would not pay"
        return f"{offer.method} had nothing to propose"
    if offer.kept == 0 and offer.measuring and width == 1:
        return f"{offer.method} had {offer.proposed} to propose, but first it is measured what plain decoding takes"
    if offer.kept == 0:
        return f"{offer.method} had {offer.proposed} to propose, but no draft would pay"
    return f"{offer.method} had {offer.kept} that were worth less"


def trace(
    cycles: Sequence[Recorded], words: Words, width: int, colour: bool, symbol: Callable[[str], str]
) -> list[str]:
    """Lines of at most `width` cells."""
    marked = marks(colour, symbol)
    lines = _rows([*legend(colour)], width, "")
    for entry in entries(cycles, words, marked):
        span = f"{entry.first}" if entry.first == entry.last else f"{entry.first}-{entry.last}"
        head = f"{span}  {entry.why} {symbol('·')} {entry.figures}"
        style = terminal.DIM if colour else ""
        lines += _rows([Run(head, style)], width, "    ")
        lines += _rows([Run("    ", hard=True), *entry.runs], width, "    ")
    return lines


def _rows(runs: Sequence[Run], width: int, margin: str) -> list[str]:
    layout = Layout(width)
    return (layout.feed([Margin(margin), *runs]) + layout.flush()).split("\n")
