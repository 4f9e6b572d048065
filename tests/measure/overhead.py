"""Time spent outside the library's decode calls, as a share of the time inside them.

    python tests/measure/overhead.py MODEL.gguf [--tokens 300] [--types none] [--temp 0]

Runs the same generator that `specli run` uses and counts every call of llama_decode.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.conversation import Message
from specli.engine import backend


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--types", default="none")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--prompt", default="Write a long story about a lighthouse keeper and the sea.")
    args = parser.parse_args()
    flags = {
        "spec-type": args.types,
        "temp": args.temp,
        "seed": 1,
        "max-tokens": args.tokens,
        "ctx-size": 4096,
    }
    settings = profiles.resolve(profiles.load("auto"), flags)
    library = backend.load_library()
    inside = inside_cpu = 0.0
    original = library.llama_decode

    def timed(*arguments: Any) -> int:
        nonlocal inside, inside_cpu
        began, began_cpu = time.perf_counter(), time.thread_time()
        code: int = original(*arguments)
        inside += time.perf_counter() - began
        inside_cpu += time.thread_time() - began_cpu
        return code

    library.llama_decode = timed
    with Generator(Request(settings, args.model), lambda s: print(s, file=sys.stderr)) as generator:
        answer = generator.answer(generator.prompter.tokens([Message("user", args.prompt)]))
        steps = iter(answer)
        next(steps)
        inside, inside_cpu, began, began_cpu = 0.0, 0.0, time.perf_counter(), time.thread_time()
        for step in steps:
            sys.stdout.write("".join(span.text for span in step.spans))
            sys.stdout.flush()
        total, cpu = time.perf_counter() - began, time.thread_time() - began_cpu - inside_cpu
    tokens = answer.stats.generated - answer.stats.first_tokens
    print(f"\nprocessor time of this thread outside decode: {1e6 * cpu / answer.stats.cycles:.0f} µs a cycle")
    print(
        f"{tokens} tokens, {tokens / total:.1f} tokens/s; inside decode {inside:.3f} s, outside {total - inside:.3f} s "
        f"= {100 * (total - inside) / inside:.2f}% of it, {1e6 * (total - inside) / answer.stats.cycles:.0f} µs a cycle"
    )


if __name__ == "__main__":
    main()
