"""What showing an answer costs: processor time in the readout, Markdown rendered, as a share of that in decode.

    python tests/measure/reading.py MODEL.gguf [--tokens 300] [--columns 80]

The answer goes to a stand-in for a terminal, so what the terminal itself takes is not counted.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from pathlib import Path
from typing import Any

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.conversation import Message
from specli.engine import backend
from specli.ui import terminal
from specli.ui.readout import Readout

PROMPT = "Explain how to sort a list in Python, with a heading, a numbered list, bold words, a code block and a table."


class Screen(io.StringIO):
    """Claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--columns", type=int, default=80)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    os.environ["TERM"] = "xterm-256color"
    terminal.columns = lambda stream: args.columns
    flags = {
        "spec-type": "none",
        "temp": 0.0,
        "max-tokens": args.tokens,
        "ctx-size": 2048,
        "threads": args.threads,
    }
    settings = profiles.resolve(profiles.load("auto"), {k: v for k, v in flags.items() if v is not None})
    library = backend.load_library()
    original = library.llama_decode
    decoding = 0.0

    def timed(*arguments: Any) -> int:
        nonlocal decoding
        began = time.thread_time()
        code: int = original(*arguments)
        decoding += time.thread_time() - began
        return code

    library.llama_decode = timed
    out = Screen()
    with Generator(Request(settings, args.model), lambda s: print(s, file=sys.stderr)) as generator:
        answer = generator.answer(generator.prompter.tokens([Message("user", PROMPT)]))
        readout = Readout(out, out, generator.methods, page=True, markdown=True)
        reading = worst = 0.0
        with readout.showing(answer):
            for n, step in enumerate(answer):
                began = time.thread_time()
                readout.step(step)
                took = time.thread_time() - began
                if n == 0:
                    decoding = 0.0  # of the prompt
                    continue
                reading += took
                worst = max(worst, took)
    cycles = answer.stats.cycles - 1
    print(answer.text, file=sys.stderr)
    print(
        f"{cycles} cycles: readout {1e6 * reading / cycles:.0f} µs each (at most {1e3 * worst:.1f} ms), "
        f"decode {1e3 * decoding / cycles:.2f} ms each: {100 * reading / decoding:.2f}%; "
        f"{len(out.getvalue()) / cycles:.0f} characters a cycle"
    )


if __name__ == "__main__":
    main()
