"""A long life: many turns, with the conversation and its cache saved and loaded on the way.

    python tests/measure/soak.py MODEL.gguf [--tokens 50000] [--answer 160] [--draft DRAFT.gguf] [--types auto]

Every `--every` turns the conversation is written, read back and gone on with, and so is the cache; the caches
are compared with the library's account after every cycle. At the end: memory at the eighths of the run; the throughput
of its first and last tenth at equal context depth; and, since a machine is not equally fast for so long, that of
the generator that has lived so long beside a new one's, in turns, on the same prompts, in time of cycles of
equal depth and width.
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
from specli.chat.answer import Answer
from specli.chat.conversation import Message
from specli.chat.dialogue import Dialogue, room
from specli.chat.sessions import Session, Shelf
from specli.engine.saved import cache_key, give, read_state, take, unsavable, write_state

QUESTIONS = (
    "Write a function that reverses a list.", "Say it again with other names.", "def parse(line):", "Why is that?",
    "Write ten lines about the sea.", "Repeat your last answer word by word.", "class Queue:\n    def __init__(self):",
)  # fmt: skip
_ENOUGH = 20  # cycles of a kind at either end
STEP = 128  # tokens of context that count as equal depth


@dataclass(frozen=True)
class Turn:
    """One turn: tokens of context at its start, tokens emitted, seconds of processor time, bytes held after it. Of each
    cycle depth, width, and its processor time."""

    depth: int
    tokens: int
    seconds: float
    memory: int
    cycles: tuple[tuple[int, int, float], ...]


def soak(g: Generator, folder: Path, tokens: int, every: int) -> tuple[list[Turn], Dialogue]:
    """Turns until so many tokens have been emitted; and the conversation."""
    shelf, dialogue, turns = Shelf(folder), Dialogue("You are brief."), list[Turn]()
    fingerprint = g.model.header.fingerprint
    key = cache_key(g.target, fingerprint, g.chunk, g.settings.fixed_width)
    left = room(g.target.n_ctx, g.settings.max_tokens, g.settings.fixed_width)
    while sum(turn.tokens for turn in turns) < tokens:
        dialogue.ask(QUESTIONS[len(turns) % len(QUESTIONS)])
        prompt = dialogue.prompt(g.prompter.tokens, g.target.n_ctx, left)
        answer, turn = _turn(g, prompt.tokens)
        said = tuple(t for t in answer.tokens if t not in g.model.vocab.ends)
        dialogue.answer(Message("assistant", answer.text, said))
        turns.append(turn)
        if len(turns) % every == 0:
            dialogue = _there_and_back(g, shelf, dialogue, fingerprint, folder / "cache", key)
    return turns, dialogue


def _turn(g: Generator, prompt: list[int]) -> tuple[Answer, Turn]:
    """One answer, and what it took."""
    answer = g.answer(prompt)
    began = at = time.process_time()  # of one thread: whatever else the machine does
    cycles: list[tuple[int, int, float]] = []
    for step in answer:
        now = time.process_time()
        if step.cycle is not None:
            cycles.append((step.cycle.depth, step.cycle.width, now - at))
        at = now
    spent = time.process_time() - began
    assert list(g.target.tokens) == answer.history[: len(g.target.tokens)]
    memory = psutil.Process().memory_info().rss
    return answer, Turn(answer.prompt_length, answer.stats.generated, spent, memory, tuple(cycles[1:]))


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
    eighths = [turns[min(len(turns) - 1, len(turns) * q // 8)].memory >> 20 for q in range(9)]
    lines = [
        f"{len(turns)} turns, {sum(t.tokens for t in turns)} tokens",
        "memory at the eighths: " + ", ".join(f"{m} MiB" for m in eighths),
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


def beside(old: Generator, new: Generator, dialogue: Dialogue, left: int, rounds: int) -> str:
    """Both answer the same prompts in turns."""
    taken: dict[bool, list[Turn]] = {True: [], False: []}
    for i in range(rounds):
        dialogue.ask(QUESTIONS[i % len(QUESTIONS)])
        prompt = dialogue.prompt(old.prompter.tokens, old.target.n_ctx, left)
        for is_old in ((True, False), (False, True))[i % 2]:
            taken[is_old].append(_turn(old if is_old else new, prompt.tokens)[1])
        dialogue.take_back_question()
    times = {is_old: _by_work(turns) for is_old, turns in taken.items()}
    shared = [
        key for key, many in times[True].items() if min(len(many), len(times[False].get(key, ()))) >= _ENOUGH
    ]
    weights = [min(len(times[True][key]), len(times[False][key])) for key in shared]
    ratios = [median(times[True][key]) / median(times[False][key]) for key in shared]
    if not shared:
        return "no cycles of equal work to compare with a new generator's"
    change = sum(w * r for w, r in zip(weights, ratios)) / sum(weights) - 1
    return (
        f"a cycle takes {100 * change:+.1f}% of a new generator's time at equal depth and width "
        f"({sum(weights)} cycles of {len(shared)} kinds)"
    )


def _by_work(turns: list[Turn]) -> dict[tuple[int, int], list[float]]:
    """Times of cycles by depth and width."""
    found: dict[tuple[int, int], list[float]] = {}
    for turn in turns:
        for depth, width, seconds in turn.cycles:
            found.setdefault((depth // STEP, width), []).append(seconds)
    return found


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
    parser.add_argument(
        "--rounds", type=int, default=28, help="prompts that both generators answer at the end"
    )
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
        turns, dialogue = soak(g, Path(folder), args.tokens, args.every)
        print(report(turns), flush=True)
        left = room(g.target.n_ctx, settings.max_tokens, settings.fixed_width)
        with Generator(Request(settings, args.model, args.draft)) as new:
            print(beside(g, new, dialogue, left, args.rounds))
    print(f"in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
