"""How soon a long conversation answers again: with its cache from the disk, and by decoding it.

python tests/measure/resume.py MODEL.gguf [--tokens 3000] [--threads 1] [--not-exact]

A conversation of so many tokens is held, saved with its cache, and goes on with one more question: at once, after
a restart that finds the cache, and after one that does not. Prints the seconds to the first token of the three and
whether they say the same. In exact mode the first two must; exit code 1 if they do not.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

LAST = "Repeat the first sentence of this conversation, then say in one sentence what it was about."


@dataclass(frozen=True, slots=True)
class Went:
    """One way to go on: seconds for taking the cache back and to the first token, tokens decoded before
    that, tokens said."""

    recall_s: float
    first_token_s: float
    decoded: int
    said: tuple[int, ...]

    def line(self, name: str) -> str:
        total = self.recall_s + self.first_token_s
        return (
            f"{name:16} first token after {total:7.2f} s ({self.recall_s:.2f} s for the cache, {self.decoded} tokens "
            f"decoded), {len(self.said)} said"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--answer", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--not-exact", action="store_true", help="without --exact, nothing drafted")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="specli-resume-") as home:
        for name in ("CONFIG", "DATA"):
            os.environ[f"SPECLI_{name}_DIR"] = str(Path(home) / name.lower())
        os.environ["SPECLI_CACHE_DIR"] = str(Path(home) / "cache")
        return measure(given)


def measure(given: argparse.Namespace) -> int:
    from specli.chat.keeper import Keeper
    from specli.chat.sessions import Shelf
    from specli.cli.loaded import Loaded
    from specli.opening import Order
    from specli.paths import cache_dir, data_dir
    from specli.ui.repl import Chat, Screen

    shelf = Shelf(data_dir() / "sessions")
    order = Order(
        {"model": str(given.model), "threads": given.threads, "temp": 0.0, "max_tokens": given.answer, "no_repack": True,
         "ctx_size": given.tokens + 1024, "exact": not given.not_exact,
         "types": ("none",) if given.not_exact else ("draft-self",)}
    )  # fmt: skip

    def opened() -> Loaded:
        return Loaded(order, order.settings(), lambda line: print(line, file=sys.stderr))

    def chat_with(model: Loaded) -> Chat:
        return Chat(
            model, Screen(io.StringIO(), io.StringIO(), interactive=False, figures=False), Keeper(shelf)
        )

    def went(chat: Chat, recall_s: float = 0.0) -> Went:
        chat.ask(LAST)
        last = chat.last
        assert last is not None
        timing = last.timing
        return Went(recall_s, timing.first_token_s or 0.0, timing.prompt_tokens, last.said)

    def resumed(name: str) -> Went:
        with closing(opened()) as model:
            chat = chat_with(model)
            began = time.perf_counter()
            chat.resume(name)
            recall_s = time.perf_counter() - began
            chat.keeper.leave()  # what is said now is not kept
            chat.keeper.saving = False
            return went(chat, recall_s)

    with closing(opened()) as model:
        chat = chat_with(model)
        for text in _texts():
            if model.cached() >= given.tokens:
                break
            chat.ask(text)
            print(f"{model.cached()} tokens", file=sys.stderr)
        name = chat.keeper.name or ""
        began = time.perf_counter()
        model.keep_cache(name, [name], asked=True)
        write_s = time.perf_counter() - began
        held = model.cached()
        chat.keeper.leave()
        chat.keeper.saving = False
        at_once = went(chat)
    cache = cache_dir() / "sessions" / f"{name}.cache"
    size = cache.stat().st_size
    from_cache = resumed(name)
    cache.unlink()
    decoded = resumed(name)
    print(
        f"{given.model.name}: {held} tokens in the cache, {size / 2**20:.1f} MiB on the disk, written in {write_s:.2f} s"
    )
    print(at_once.line("never interrupted"))
    print(from_cache.line("from the cache"))
    print(decoded.line("by decoding"))
    gain = (decoded.recall_s + decoded.first_token_s) / (from_cache.recall_s + from_cache.first_token_s)
    same = from_cache.said == at_once.said
    print(f"{gain:.1f} times sooner; the same text as never interrupted: {'yes' if same else 'NO'}"
          f" (by decoding: {'yes' if decoded.said == at_once.said else 'no'})")  # fmt: skip
    return 0 if same else 1


def _texts() -> Iterator[str]:
    """Questions with much to read in them."""
    lines = (Path(__file__).parent / "workloads.jsonl").read_text("utf-8").splitlines()
    held = ""
    for line in lines:
        held += str(json.loads(line)["prompt"]) + "\n\n"
        if len(held) > 2400:
            yield held
            held = ""


if __name__ == "__main__":
    sys.exit(main())
