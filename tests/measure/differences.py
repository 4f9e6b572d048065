"""Where ordinary mode leaves plain decoding, and why: every first difference, replayed.

    python tests/measure/differences.py TARGET.gguf [--draft DRAFT.gguf] [--tokens 120]

Without --exact a row's logits depend, in the last bits, on the width of its decode. For each prompt and
method the greedy output is compared with plain's. At a first difference both runs are replayed from the
prompt, each with its own widths, and must give their own token again; printed is how far apart the two
tokens' logits lie in each. Exit code 1 if a difference is not reproduced.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.conversation import Message
from specli.core.decoding import sync
from specli.core.types import Cycle

METHODS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "draft-self", "draft-model")


@dataclass(frozen=True, slots=True)
class Run:
    tokens: list[int]
    cycles: list[Cycle]


def run(generator: Generator, prompt: Sequence[int]) -> Run:
    generator.reset_seed()
    generator.target.rewind(0)  # a prefix kept from another prompt was decoded in other pieces
    answer = generator.answer(prompt)
    cycles = [step.cycle for step in answer if step.cycle is not None]
    return Run(answer.tokens, cycles)


def replay(generator: Generator, prompt: Sequence[int], cycles: Sequence[Cycle], index: int) -> np.ndarray:
    """The logits that chose output token `index`, with every decode as wide as it was."""
    target = generator.target
    target.rewind(0)
    sync(target, prompt[:-1], generator.chunk)
    pending, done = prompt[-1], 0
    for cycle in cycles:
        rows = target.decode([pending, *cycle.draft.tokens], rows=cycle.width)
        if done + len(cycle.tokens) > index:
            return rows[index - done].copy()
        done += len(cycle.tokens)
        pending = cycle.tokens[-1]
        target.rewind(len(prompt) - 1 + done)
    raise AssertionError("the run did not get that far")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--methods", default="")
    parser.add_argument("--first", type=int, default=1000, help="only so many prompts")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--workloads", type=Path, default=Path(__file__).parent / "workloads.jsonl")
    args = parser.parse_args()
    methods = (
        args.methods.split(",") if args.methods else [m for m in METHODS if args.draft or m != "draft-model"]
    )
    flags = {
        "spec-type": ",".join(methods),
        "temp": 0,
        "max-tokens": args.tokens,
        "ctx-size": 4096,
        "seed": 1,
    }
    settings = profiles.resolve(profiles.load("auto"), {**flags, "threads": args.threads})
    total = different = failed = 0
    with Generator(
        Request(settings, args.target, args.draft), lambda s: print(s, file=sys.stderr)
    ) as generator:
        drafters = {d.method: d for d in generator.drafters}
        for line in args.workloads.read_text("utf-8").splitlines()[: args.first]:
            row = json.loads(line)
            prompt = generator.prompter.tokens([Message("user", row["prompt"])])
            generator.drafters = []
            plain = run(generator, prompt)
            for method in methods:
                generator.drafters = [drafters[method]]
                other = run(generator, prompt)
                total += 1
                if other.tokens == plain.tokens:
                    print(f"{row['id']:16} {method:14} same", flush=True)
                    continue
                different += 1
                at = next(i for i, (a, b) in enumerate(zip(plain.tokens, other.tokens)) if a != b)
                a, b = plain.tokens[at], other.tokens[at]
                mine, theirs = (replay(generator, prompt, r.cycles, at) for r in (plain, other))
                again = int(mine.argmax()) == a and int(theirs.argmax()) == b
                failed += not again
                print(
                    f"{row['id']:16} {method:14} differs at {at}: {a} leads {b} by {mine[a] - mine[b]:.3f} in plain, "
                    f"{b} leads {a} by {theirs[b] - theirs[a]:.3f}; logits moved up to {np.abs(mine - theirs).max():.3f}; "
                    f"{'both reproduced' if again else 'NOT REPRODUCED'}",
                    flush=True,
                )
    print(f"{different} of {total} outputs differ from plain; {failed} not reproduced")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
