"""Greedy output of every method against plain decoding, both in exact mode, on real models.

    python tests/measure/exact_methods.py TARGET.gguf [--draft DRAFT.gguf] [--tokens 120] [--width 4]

One line per prompt and method; ends with the totals. Exit code 1 if any output differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.conversation import Message

METHODS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "draft-self", "draft-model")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--first", type=int, default=1000, help="only so many prompts")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many prompts")
    parser.add_argument("--methods", default="")
    parser.add_argument("--workloads", type=Path, default=Path(__file__).parent / "workloads.jsonl")
    args = parser.parse_args()
    methods = (
        args.methods.split(",") if args.methods else [m for m in METHODS if args.draft or m != "draft-model"]
    )
    flags = {
        "spec-type": ",".join(methods),
        "exact-width": args.width,
        "temp": args.temp,
        "seed": 1,
        "max-tokens": args.tokens,
        "ctx-size": 4096,
        "threads": args.threads,
    }
    settings = profiles.resolve(profiles.load("auto"), flags)
    accepted: Counter[str] = Counter()
    differing = 0
    with Generator(
        Request(settings, args.target, args.draft), lambda s: print(s, file=sys.stderr)
    ) as generator:
        drafters = {d.method: d for d in generator.drafters}
        for line in args.workloads.read_text("utf-8").splitlines()[args.skip : args.first]:
            row = json.loads(line)
            prompt = generator.prompter.tokens([Message("user", row["prompt"])])
            plain: list[int] = []
            for method in ("none", *methods):
                generator.drafters = [drafters[method]] if method in drafters else []
                generator.reset_seed()
                answer = generator.answer(prompt)
                for _ in answer:
                    pass
                if method == "none":
                    plain = answer.tokens
                same = answer.tokens == plain
                differing += not same
                accepted[method] += answer.stats.accepted
                print(
                    f"{row['id']:16} {method:14} {'same' if same else 'DIFFERS'} {len(answer.tokens)} tokens "
                    f"in {answer.stats.cycles} cycles, accepted {answer.stats.accepted} of {answer.stats.tested}",
                    flush=True,
                )
    print(f"differing outputs: {differing}; accepted: {dict(accepted)}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
