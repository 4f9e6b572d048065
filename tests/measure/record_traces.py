"""Record answers and what a draft model would propose at each of their tokens, for pacing in simulation.

python tests/measure/record_traces.py TARGET.gguf DRAFT.gguf OUT.jsonl [--tokens 80] [--depth 8] [--per-category 1]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.conversation import Message
from specli.core.decoding import sync
from specli.engine.context import Context, ContextParams
from specli.engine.model import Model, ModelParams


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--per-category", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workloads", type=Path, default=Path(__file__).parent / "workloads.jsonl")
    args = parser.parse_args()
    flags = {"spec-type": "none", "temp": 0, "max-tokens": args.tokens, "ctx-size": 4096, "no-repack": True}
    settings = profiles.resolve(profiles.load("auto"), {**flags, "threads": args.threads})
    rows = [json.loads(line) for line in args.workloads.read_text("utf-8").splitlines()]
    seen: dict[str, int] = {}
    params = ContextParams(4096, 128, 128, 1, args.threads, args.threads)
    with (
        Generator(Request(settings, args.target)) as generator,
        Model(args.draft, ModelParams(use_extra_bufts=False)) as model,
        Context(model, params) as draft,
        args.out.open("w", encoding="utf-8") as out,
    ):
        for row in rows:
            seen[row["category"]] = seen.get(row["category"], 0) + 1
            if seen[row["category"]] > args.per_category:
                continue
            prompt = generator.prompter.tokens([Message("user", row["prompt"])])
            answer = generator.answer(prompt)
            for _ in answer:
                pass
            output = answer.tokens
            drafts = []
            for i in range(len(output)):
                context = [*prompt, *output[:i]]
                sync(draft, context[:-1], 128)
                token, chain = context[-1], []
                for _ in range(args.depth):
                    logits = draft.decode([token])[0].astype(np.float64)
                    token = int(logits.argmax())
                    chain.append([token, round(float(1 / np.exp(logits - logits[token]).sum()), 4)])
                drafts.append(chain)
            out.write(
                json.dumps({"id": row["id"], "prompt": prompt, "output": output, "drafts": drafts}) + "\n"
            )
            out.flush()
            print(row["id"], len(output), flush=True)


if __name__ == "__main__":
    main()
