"""draft-mtp on the tiny trained model: acceptance, chains, and a soak over many turns.

    python tests/measure/mtp.py figures           # tokens per target decode, acceptance by position
    python tests/measure/mtp.py chain             # ngram-simple and draft-mtp, alone and in a chain
    python tests/measure/mtp.py soak [--tokens N] # memory, and caches checked after every cycle

Exit code 1 if a promise is broken: figures off the reference by more than 0.03, outputs that differ,
memory that grows, caches out of step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path

import psutil

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.conversation import Message

MODELS = Path(__file__).parent.parent / "models"
TARGET = MODELS / "tiny-target-mtp.gguf"
REFERENCE = {1: (1.73, [0.74]), 3: (2.64, [0.73, 0.75, 0.76])}  # tests/models/README.md, set `wide`
SETTLED = 2000  # tokens after which memory must stay where it is
GROWTH = 8 << 20  # bytes that the allocator may still move by


def generator(**flags: object) -> Generator:
    given: dict[str, object] = {"temp": 0.0, "seed": 1, "ctx-size": 1024, "threads": 1}
    given |= {name.replace("_", "-"): flag for name, flag in flags.items()}
    return Generator(Request(profiles.resolve(profiles.load("auto"), given), TARGET))


def prompts(name: str) -> list[list[int]]:
    rows = [json.loads(line) for line in (MODELS / "held-out-prompts.jsonl").read_text("utf-8").splitlines()]
    return [row["tokens"] for row in rows if row["set"] == name]


def figures() -> bool:
    good = True
    for n_max, (per_decode, acceptance) in REFERENCE.items():
        tokens, cycles, tested, accepted = 0, 0, Counter[int](), Counter[int]()
        with generator(
            spec_type="draft-mtp", fixed=True, spec_draft_n_max=n_max, max_tokens=64,
            flash_attn="off", cache_type_k="f32", cache_type_v="f32",
        ) as g:  # fmt: skip
            for prompt in prompts("wide"):
                for step in g.answer(prompt):
                    if step.cycle is None:
                        continue
                    cycles += 1
                    tokens += len(step.cycle.tokens)
                    tested.update(range(step.cycle.verdict.tested))
                    accepted.update(range(step.cycle.verdict.accepted))
        found = [accepted[i] / tested[i] for i in range(n_max)]
        off = max(abs(a - b) for a, b in zip([tokens / cycles, *found], [per_decode, *acceptance]))
        good &= off <= 0.03
        shown = " ".join(f"{rate:.3f}" for rate in found)
        print(
            f"n-max {n_max}: {tokens / cycles:.3f} tokens per target decode, accepted {shown}; off by {off:.3f}"
        )
    return good


def chain() -> bool:
    """On the held-out prompts, each asked twice in one text: what was said before comes again."""
    outputs = []
    for types in ("none", "ngram-simple", "draft-mtp", "ngram-simple,draft-mtp", "draft-mtp,ngram-simple"):
        said, tokens, cycles, accepted = [], 0, 0, Counter[str]()
        with generator(
            spec_type=types,
            exact_width=4,
            fixed=True,
            spec_draft_n_max=3,
            spec_ngram_simple_size_n=4,
            max_tokens=120,
        ) as g:
            for prompt in prompts("five") + prompts("wide")[:6]:
                answer = g.answer(prompt)
                for _ in answer:
                    pass
                said.append(answer.tokens)
                tokens += len(answer.tokens)
                cycles += answer.stats.cycles
                accepted.update({m: s.accepted for m, s in answer.stats.by_method.items()})
        outputs.append(said)
        print(
            f"{types:24} {tokens / cycles:.3f} tokens per cycle, accepted {dict(accepted)}, same {said == outputs[0]}"
        )
    return all(said == outputs[0] for said in outputs)


def soak(n: int) -> bool:
    os.environ["SPECLI_DEBUG_CACHES"] = "1"  # positions are compared after every cycle
    process = psutil.Process()
    tokens, turns, cycles = 0, 0, 0
    settled = 0
    messages: list[Message] = []
    with generator(
        spec_type="ngram-simple,draft-mtp", temp=0.8, max_tokens=100, spec_draft_n_max=3, fixed=True
    ) as g:
        while tokens < n:
            messages.append(Message("user", f"Write a Python function f{turns}(self, key)."))
            prompt = g.prompter.tokens(messages)
            if len(prompt) > g.target.n_ctx - 120:  # as /clear does
                messages = messages[-1:]
                prompt = g.prompter.tokens(messages)
            answer = g.answer(prompt)
            for _ in answer:
                pass
            messages.append(Message("assistant", answer.text, answer.said))
            tokens += max(1, len(answer.tokens))
            cycles += answer.stats.cycles
            turns += 1
            used = process.memory_info().rss
            if tokens >= SETTLED and not settled:
                settled = used
            if turns % 20 == 0:
                print(f"{tokens:6} tokens, {turns} turns, {used / 2**20:.1f} MiB", flush=True)
    grown = used - settled
    print(
        f"{tokens} tokens in {cycles} cycles and {turns} turns; since {SETTLED} tokens {grown / 2**20:+.2f} MiB"
    )
    return grown <= GROWTH


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("figures", "chain", "soak"))
    parser.add_argument("--tokens", type=int, default=20_000)
    args = parser.parse_args()
    good = {"figures": figures, "chain": chain, "soak": lambda: soak(args.tokens)}[args.what]()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
