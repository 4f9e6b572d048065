"""Layer skipping on a large model: the set that the search finds, beside contiguous blocks of layers.

    python tests/measure/layers.py TARGET [--drop 8] [--budget CPU-SECONDS] [--threads 1] [--keep]

The search sees answers to one half of the shipped prompts, all sets are judged on answers to the other
half. Exit code 1 if the found set agrees less with the whole model, there, than the middle block or than
the contiguous block that is best there. The budget is counted in seconds of processor time, so that the figures do not
hang on what else runs. `--keep` stores the set as `specli layers` does, for `specli tune`.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
from pathlib import Path

from specli import profiles, pruned
from specli.assembly import Generator, Request
from specli.engine.gguf import read_header
from specli.engine.prune import pruned_header
from specli.engine.silence import Silencer
from specli.engine.traffic import token_bytes
from specli.layers.agreement import Jury, Passage
from specli.layers.search import Agreement, Search, Step
from specli.layers.session import answered, search_params
from specli.workloads import shipped


def passages(target: Path, threads: int, tokens: int, halves: dict[str, int]) -> dict[str, list[Passage]]:
    """Answers of the whole model to both halves of the prompts, so many of each."""
    flags = {"spec-type": "draft-self", "temp": 0.0, "max-tokens": tokens, "ctx-size": 1024}
    flags |= {"threads": threads}
    found: dict[str, list[Passage]] = {name: [] for name in halves}
    with Generator(Request(profiles.resolve(profiles.load(), flags), target)) as generator:
        for name, most in halves.items():
            short_first = sorted(shipped(), key=lambda w: len(w.prompt))
            for workload in (w for w in short_first if w.id.endswith(name)):
                passage = answered(generator, workload) if len(found[name]) < most else None
                found[name] += [passage] if passage else []
    return found


def shown(name: str, dropped: tuple[int, ...], found: Agreement) -> None:
    layers = pruned.as_text(dropped)
    print(f"{name:24} {found.top1:.3f}  {found.shared:.3f}  {found.positions:4}  {layers}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("--drop", type=int, default=8)
    parser.add_argument("--budget", type=float, default=600.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--answers", type=int, default=4, help="to search on, and as many to judge on")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    texts = passages(args.target, args.threads, args.tokens, {"-1": args.answers, "-2": args.answers})
    header = read_header(args.target)
    with (
        tempfile.TemporaryDirectory() as folder,
        Silencer(args.target, Path(folder), search_params(args.threads)) as silencer,
    ):
        jury, began = Jury(silencer, texts["-1"]), time.process_time()
        search = Search(
            silencer.n_blocks, jury, lambda dropped, value: value,
            lambda: (time.process_time() - began) / args.budget, tell=lambda what: print(what, flush=True),
        )  # fmt: skip
        block = search.block(args.drop)
        assert block is not None
        shown("best contiguous block", block.dropped, block.agreement)
        steps = search.run(args.drop)
        print(f"searched for {time.process_time() - began:.0f} s on {jury.positions} positions")
        print("\non the answers it was searched on:")
        shown("found", steps[-1].dropped, steps[-1].agreement)
        print("\non other answers:")
        good = compare(Jury(silencer, texts["-2"]), steps[-1], silencer.n_blocks)
    share = token_bytes(pruned_header(header, steps[-1].dropped)) / token_bytes(header)
    print(f"\nthe draft reads {share:.2f} of the target's bytes for a token")
    if args.keep:
        keep(args.target, steps[-1], header.fingerprint, silencer.n_blocks)
    return 0 if good else 1


def compare(jury: Jury, found: Step, n: int) -> bool:
    """The found set, the middle block of as many layers, and the contiguous block that is best right here."""
    size = len(found.dropped)
    mine = jury.judge_all(frozenset(found.dropped))
    shown("found", found.dropped, mine)
    middle = tuple(range((n - size) // 2, (n + size) // 2))
    in_middle = jury.judge_all(frozenset(middle))
    shown("middle block", middle, in_middle)
    best = Search(n, jury, lambda dropped, value: value).block(size)
    assert best is not None
    shown("best contiguous block", best.dropped, best.agreement)
    return mine.value > max(in_middle.value, best.agreement.value)


def keep(target: Path, step: Step, fingerprint: str, blocks: int) -> None:
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    found = step.agreement
    chosen = pruned.LayerSet(
        fingerprint, blocks, step.dropped, found.top1, found.shared, found.positions, "measured", now
    )
    print(f"kept in {pruned.remember(target, chosen)}")


if __name__ == "__main__":
    sys.exit(main())
