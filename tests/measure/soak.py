"""A long life: many turns, with the conversation and its cache saved and loaded on the way.

    python tests/measure/soak.py MODEL.gguf [--tokens 50000] [--answer 160] [--draft DRAFT.gguf] [--types auto]

Every `--every` turns the conversation is written, read back and gone on with, and so is the cache; the caches
are compared with the library's account after every cycle. At the end: memory at the quarters of the run, and the
throughput of the first and the last tenth of the turns, by their median, among turns of equal context depth.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.conversation import Message
from specli.chat.dialogue import Dialogue, room
from specli.chat.sessions import Session, Shelf
from specli.engine.saved import cache_key, give, read_state, take, unsavable, write_state

QUESTIONS = (
    "Write a function that reverses a list.", "Say it again with other names.", "def parse(line):", "Why is that?",
    "Write ten lines about the sea.", "Repeat your last answer word by word.", "class Queue:\n    def __init__(self):",
)  # fmt: skip
STEP = 256  # tokens of context that count as equal depth


@dataclass(frozen=True)
class Turn:
    """One turn: tokens of context at its start, tokens emitted, seconds of processor time, bytes held after it."""

    depth: int
    tokens: int
    seconds: float
    memory: int


def soak(g: Generator, folder: Path, tokens: int, every: int) -> list[Turn]:
    """Turns until so many tokens have been emitted."""
    shelf, dialogue, turns = Shelf(folder), Dialogue("You are brief."), list[Turn]()
    fingerprint = g.model.header.fingerprint
    key = cache_key(g.target, fingerprint, g.chunk, g.settings.fixed_width)
    left = room(g.target.n_ctx, g.settings.max_tokens, g.settings.fixed_width)
    process = psutil.Process()
    while sum(turn.tokens for turn in turns) < tokens:
        dialogue.ask(QUESTIONS[len(turns) % len(QUESTIONS)])
        prompt = dialogue.prompt(g.prompter.tokens, g.target.n_ctx, left)
        answer = g.answer(prompt.tokens)
        began = time.process_time()  # of one thread: whatever else the machine does
        for _ in answer:
            pass
        spent = time.process_time() - began
        assert list(g.target.tokens) == answer.history[: len(g.target.tokens)]
        said = tuple(t for t in answer.tokens if t not in g.model.vocab.ends)
        dialogue.answer(Message("assistant", answer.text, said))
        memory = process.memory_info().rss
        turns.append(Turn(answer.prompt_length, answer.stats.generated, spent, memory))
        if len(turns) % every == 0:
            dialogue = _there_and_back(g, shelf, dialogue, fingerprint, folder / "cache", key)
    return turns


def _there_and_back(
    g: Generator, shelf: Shelf, dialogue: Dialogue, fingerprint: str, file: Path, key: dict[str, str]
) -> Dialogue:
    """The conversation and the cache as they are after they were saved and loaded."""
    shelf.write("soak", Session.of(dialogue, g.model.name, fingerprint, named=True))
    loaded = shelf.read("soak").dialogue()
    assert loaded.messages == dialogue.messages
    if unsavable(g.target) is None:
        held = list(g.target.tokens)
        write_state(file, take(g.target), key)
        g.target.clear()
        state = read_state(file, key)
        assert state is not None and give(g.target, state) and list(g.target.tokens) == held
    return loaded


def report(turns: list[Turn]) -> str:
    quarters = [turns[min(len(turns) - 1, len(turns) * q // 4)].memory >> 20 for q in range(5)]
    lines = [
        f"{len(turns)} turns, {sum(t.tokens for t in turns)} tokens",
        "memory at the quarters: " + ", ".join(f"{m} MiB" for m in quarters),
    ]
    tenth = max(1, len(turns) // 10)
    depths = {t.depth // STEP for t in turns[:tenth]} & {t.depth // STEP for t in turns[-tenth:]}
    early, late = (
        [t.tokens / t.seconds for t in part if t.depth // STEP in depths and t.tokens > 8]
        for part in (turns[:tenth], turns[-tenth:])
    )
    if early and late:
        first, last = median(early), median(late)
        change = 100 * (last / first - 1)
        lines.append(
            f"tokens a second at equal depth: {first:.1f} at the start, {last:.1f} at the end ({change:+.1f}%)"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--answer", type=int, default=160, help="most tokens of one answer")
    parser.add_argument("--every", type=int, default=5, help="turns between saving and loading")
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--types", default="auto")
    parser.add_argument("--ctx-size", type=int, default=2048)
    parser.add_argument("--exact", action="store_true")
    args = parser.parse_args()
    os.environ["SPECLI_DEBUG_CACHES"] = "1"
    flags = {
        "threads": 1, "seed": 1, "temp": 0.8, "max-tokens": args.answer, "ctx-size": args.ctx_size,
        "spec-type": args.types, "exact": args.exact or None,
    }  # fmt: skip
    settings = profiles.resolve(profiles.load("auto"), {k: v for k, v in flags.items() if v is not None})
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Generator(Request(settings, args.model, args.draft)) as g:
        turns = soak(g, Path(folder), args.tokens, args.every)
        print(report(turns))
    print(f"in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
