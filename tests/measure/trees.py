"""Token trees beside drafts without branches, at equal width: how long what is accepted gets, and what it costs.

    python tests/measure/trees.py TARGET.gguf DRAFT.gguf [--tree 3x8] [--nodes 8,16] [--temps 0,1] [--tokens 48]

A tree of so many nodes is compared with a chain of as many tokens, so that verify decodes hold as many rows;
both always draft in full. Then plain decoding, and the tree under pacing, which is to leave out what loses.
Speed is in tokens per second of processor time, which other work on the machine does not bend. Exit code 1 if a
tree's mean accepted length is not above its chain's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specli import profiles, workloads
from specli.assembly import Generator, Request
from specli.chat.conversation import Message
from specli.settings import Settings


@dataclass(frozen=True, slots=True)
class Figures:
    """Over all prompts. `rows`: of a cycle on average."""

    tokens: int
    cycles: int
    rows: float
    drafted: int
    seconds: float

    @property
    def length(self) -> float:
        return self.tokens / self.cycles

    @property
    def text(self) -> str:
        return (
            f"{self.length:.2f} tokens a cycle, {self.rows:.1f} rows, {self.drafted / self.cycles:.1f} drafted, "
            f"{self.tokens / self.seconds:.2f} tokens/s"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--tree", default="3x8")
    parser.add_argument("--nodes", default="8,16")
    parser.add_argument("--temps", default="0,1")
    parser.add_argument("--categories", default="code-gen,chat,summary")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    good = True
    with opened(args, settings(args, 0.0, spec_tree=args.tree)) as generator:
        rows = [row for row in workloads.shipped() if row.category in args.categories.split(",")]
        prompts = [generator.prompter.tokens([Message("user", row.prompt)]) for row in rows[: args.prompts]]
        for temp in map(float, args.temps.split(",")):
            for n in map(int, args.nodes.split(",")):
                full = {"spec_draft_n_max": n, "fixed": True}
                tree = measure(generator, prompts, settings(args, temp, spec_tree=args.tree, **full))
                print(f"T {temp:g}, {n} nodes of a tree {args.tree}: {tree.text}", flush=True)
                chain = measure(generator, prompts, settings(args, temp, **full))
                print(f"T {temp:g}, chain of {n}: {chain.text}", flush=True)
                good &= tree.length > chain.length
            paced = measure(generator, prompts, settings(args, temp, spec_tree=args.tree))
            print(f"T {temp:g}, tree {args.tree}, paced: {paced.text}", flush=True)
            plain = measure(generator, prompts, settings(args, temp, spec_type="none"))
            print(f"T {temp:g}, plain: {plain.text}", flush=True)
    return 0 if good else 1


def settings(args: argparse.Namespace, temp: float, **flags: object) -> Settings:
    given: dict[str, object] = {
        "spec-type": "draft-model", "max-tokens": args.tokens, "ctx-size": 2048, "threads": args.threads, "temp": temp,
    }  # fmt: skip
    given |= {name.replace("_", "-"): flag for name, flag in flags.items()}
    return profiles.resolve(profiles.load("auto"), given)


def opened(args: argparse.Namespace, wanted: Settings) -> Generator:
    return Generator(Request(wanted, args.target, args.draft), lambda line: print(line, file=sys.stderr))


def measure(generator: Generator, prompts: Sequence[Sequence[int]], wanted: Settings) -> Figures:
    tokens = cycles = rows = drafted = 0
    seconds = 0.0
    for seed, prompt in enumerate(prompts):
        generator.reset(wanted, keep=prompt)
        generator.seed = seed
        began = None
        for step in generator.answer(prompt):
            if step.cycle is None:
                continue
            if began is None:  # the first cycle has the prompt to read
                began = time.process_time()
                continue
            tokens += len(step.cycle.tokens)
            cycles += 1
            rows += step.cycle.width
            drafted += len(step.cycle.draft)
        seconds += time.process_time() - (began or 0.0)
    return Figures(tokens, cycles, rows / cycles, drafted, seconds)


if __name__ == "__main__":
    sys.exit(main())
