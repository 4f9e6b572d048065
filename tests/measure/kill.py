"""Kill a chat at random moments, and see what its session file then holds.

python tests/measure/kill.py [MODEL] --times 200

Each time a conversation with autosave is begun or taken up again, and ended by SIGKILL somewhere between its
first question and the writing of its cache. Every session file must load, and hold all answers that were
finished; every cache file must be whole or not there. The chats are forks of one loaded model, so that the
kills, not the loading, take the time.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

TINY = Path(__file__).parent.parent / "models" / "tiny-draft.gguf"
TURNS = 6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, default=TINY)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="specli-kill-") as home:
        for name in ("CACHE", "CONFIG", "DATA"):
            os.environ[f"SPECLI_{name}_DIR"] = str(Path(home) / name.lower())
        return measure(given.model, given.times, random.Random(given.seed))


def measure(path: Path, times: int, rng: random.Random) -> int:
    from specli.chat.sessions import Shelf
    from specli.cli.loaded import Loaded
    from specli.opening import Order
    from specli.paths import cache_dir, data_dir

    given = {"model": str(path), "no_repack": True, "threads": 1, "temp": 0.0, "max_tokens": 12}
    # bare text: the forks would share the process that renders templates
    order = Order({**given, "exact": True, "types": ("draft-self",)}, raw=True)
    model = Loaded(order, order.settings(), lambda _: None)
    shelf = Shelf(data_dir() / "sessions")
    whole = _one(model, shelf, None, 3600.0, rng)  # how long one takes, unkilled
    span = whole.seconds
    found: Counter[str] = Counter()
    for _ in range(times):
        before = rng.choice(shelf.names()) if rng.random() < 0.5 else None
        chat = _one(model, shelf, before, rng.uniform(0.0, 1.1 * span), rng)
        found["killed" if chat.killed else "ended by itself"] += 1
        if chat.name:
            answers = len(shelf.read(chat.name).messages) // 2
            found["answers finished"] += chat.finished
            found["answers lost"] += max(0, chat.finished - answers)
            found["killed in the midst of an answer"] += chat.killed and answers == chat.finished
    broken = [each.name for each in shelf.listing(10**6) if each.session is None]
    caches = _caches(cache_dir() / "sessions", model)
    print(f"{path.name}: a whole conversation takes {span:.2f} s")
    for what, count in found.items():
        print(f"  {what}: {count}")
    print(f"  session files: {len(shelf.names())}, broken: {len(broken)}; caches: {caches['whole']} whole, "
          f"{caches['broken']} broken")  # fmt: skip
    return 1 if broken or caches["broken"] or found["answers lost"] else 0


def _caches(folder: Path, model: object) -> Counter[str]:
    from specli.engine.saved import read_state
    from specli.errors import SessionError

    found: Counter[str] = Counter(whole=0, broken=0)
    for path in folder.glob("*.cache"):
        try:
            read_state(path, model._key())  # type: ignore[attr-defined]
            found["whole"] += 1
        except SessionError:
            found["broken"] += 1
    return found


class _Chat:
    """What became of one: its session, how many answers it said were finished, how it ended."""

    def __init__(self) -> None:
        self.name = ""
        self.finished = 0
        self.killed = False
        self.seconds = 0.0


def _one(model: object, shelf: object, before: str | None, until: float, rng: random.Random) -> _Chat:
    reading, writing = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _talk(model, shelf, before, writing)
        os._exit(0)
    os.close(writing)
    while time.monotonic() - began < until:
        done, _ = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.001)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    chat = _Chat()
    chat.seconds = time.monotonic() - began
    chat.killed = chat.seconds >= until
    with os.fdopen(reading, "r") as said:
        lines = said.read().splitlines()
    for line in lines:
        if line.startswith("finished "):
            _, count, name = line.split()
            chat.finished, chat.name = int(count), name
    return chat


def _talk(model: object, shelf: object, before: str | None, writing: int) -> None:
    """In the child: a conversation that says after each answer that it is saved."""
    from specli.chat.keeper import Keeper
    from specli.ui.repl import Chat, Screen

    screen = Screen(io.StringIO(), io.StringIO(), interactive=False, figures=False)
    chat = Chat(model, screen, Keeper(shelf))  # type: ignore[arg-type]
    if before is not None:
        chat.resume(before)

    def questions():  # type: ignore[no-untyped-def]
        for i in range(TURNS):
            yield f"def question_{os.getpid()}_{i}(alpha, beta):\n    return alpha"
            os.write(writing, f"finished {len(chat.dialogue.messages) // 2} {chat.keeper.name}\n".encode())

    chat.run(questions())


if __name__ == "__main__":
    sys.exit(main())
