"""Random sets of options for `specli run` and `specli chat`: wrong usage or an answer, nothing else.

    python tests/fuzz/options.py --count 5000 --folder /somewhere

Every option there is takes part, with values within, at and beyond its bounds. Each set runs in a fork that
has everything imported. Allowed are the exit codes 0, 1, 2, 3 and 130, and no traceback on standard error.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import random
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import typer.main  # noqa: E402
from forks import Ended, forked  # noqa: E402
from mutate import mutation  # noqa: E402

import specli  # noqa: E402
from specli.cli.main import app  # noqa: E402
from specli.cli.main import main as specli_main  # noqa: E402
from specli.engine import backend  # noqa: E402
from specli.keys import Key  # noqa: E402
from specli.settings import KEYS  # noqa: E402

CODES = (0, 1, 2, 3, 130)
SECONDS = 120.0  # a self-test of --exact-width 63 with the demo model takes half of that on a slow core
ROOM = 8 << 30
MODELS = HERE.parent / "models"
TEXTS = ("", " ", "Hello", "def f(x):\n", "é中🎉", "<|im_start|>", "<|im_end|>\n<|im_start|>system", "a" * 3000, "\x1b[2J\x07",
         "-1", "--", "nan", "1e999", "\udcff", "0", "none", "{", "root ::= \"a\"", "root ::= root", '{"type": "object"}',
         '{"type": 5}', "[" * 500, "5+1.5", "x-1", "%s", "../../x")  # fmt: skip
NUMBERS = ("0", "1", "2", "-1", "-2", "3.5", "x", "", "nan", "inf", "-inf", "1e400", "0x10", "9" * 30, "٣", "1_0",
           "2147483647", "2147483648", "4294967296", "-9223372036854775809")  # fmt: skip
LINES = ("Hello\n", "/help\n", "/retry\n", "/undo\n", "/system x\n", "/set temp 0\n", "/set\n", "/stats\n", "/save x\n",
         "/save ../x\n", "/load none\n", "/nonsense\n", "/\n", "\n", "\x1b[A\n", "é中🎉\n", "a" * 5000 + "\n", "/file x\n",
         "/quit\n", '"""\nmany\nlines\n"""\n', "/trace\n", "/clear\n", "/profile code\n", "\xff\xfe\n", "\0\n")  # fmt: skip


@dataclass(frozen=True)
class OptionSet:
    """One call of specli: its arguments, and what it is given on standard input."""

    args: tuple[str, ...]
    stdin: bytes

    def __str__(self) -> str:
        return f"specli {shlex.join(self.args)} <<< {self.stdin[:80]!r}"


def option_set(seed: int, folder: Path) -> OptionSet:
    """The call that `seed` stands for. `folder`: where the files lie that `files` made."""
    rng = random.Random(seed)
    command = rng.choice(("run", "run", "chat"))
    found: Any = typer.main.get_command(app)
    options = [
        p for p in found.commands[command].params if p.param_type_name == "option" and p.name != "help"
    ]
    args = [command]
    if rng.random() < 0.97:
        args += ["-m", _model(rng, folder)]
    if rng.random() < 0.9:
        args += ["--threads", rng.choice(("1", "1", "1", "2"))]
    bounded = rng.random() < 0.93
    if bounded:
        args += ["--max-tokens", rng.choice(("1", "2", "8", "8", "20"))]
    if rng.random() < 0.5 or not bounded:
        args += ["--ctx-size", rng.choice(("8", "64", "256", "300", "512"))]
    if rng.random() < 0.3:
        args.append("--raw")
    for option in rng.sample(options, min(len(options), rng.choice((0, 1, 1, 2, 3, 5, 8)))):
        args += _given(option, rng, folder)
    if command == "run" and rng.random() < 0.9:
        args.append(rng.choice(TEXTS))
    lines = rng.choices(LINES, k=rng.choice((0, 1, 2, 4))) if command == "chat" or rng.random() < 0.2 else []
    return OptionSet(tuple(args), "".join(lines).encode("utf-8", "surrogatepass"))


_KEYS = {key.attribute: key for key in KEYS}
_FILES = ("files", "template_file", "grammar_file", "json_schema_file", "prompts", "output")


def _given(option: Any, rng: random.Random, folder: Path) -> list[str]:
    """One option as one would write it, with a value or without."""
    names = [*option.opts, *option.secondary_opts]
    name = rng.choice(names)
    if option.is_flag:
        return [name]
    many = rng.choice((1, 1, 2)) if option.multiple else 1
    return [part for _ in range(many) for part in _written(name, _value(option.name, rng, folder), rng)]


def _written(name: str, value: str, rng: random.Random) -> list[str]:
    return [f"{name}={value}"] if name.startswith("--") and rng.random() < 0.2 else [name, value]


def _value(name: str, rng: random.Random, folder: Path) -> str:
    key = _KEYS.get(name)
    if name in ("model", "draft_model"):
        return _model(rng, folder)
    if name in _FILES:
        return str(
            folder / rng.choice(("text", "grammar", "schema", "template", "bytes", "none", "", "new/out"))
        )
    if name == "profile":
        return rng.choice(("auto", "code", "chat", "none", "exact", str(folder / "profile.toml"), *TEXTS[:6]))
    if name == "threads" or name == "threads_batch":
        return rng.choice(("1", "2", "3", "0", "-1", "x", "4097"))  # thousands of threads take too long here
    if key is None or rng.random() < 0.1:
        return rng.choice((*TEXTS, *NUMBERS))
    if key.choices:
        return rng.choice((*key.choices, *key.choices, *TEXTS[:4], ",".join(rng.sample(key.choices, 2))))
    if key.kind in ("int", "float"):
        return _number(key, rng)
    if key.kind == "table":
        token = rng.choice(("5", "0", "1279", "99999", "-1", "Hello", "<|im_end|>", ""))
        return token + rng.choice(("+1.5", "-2", "+1000", "-1000", "+1001", "", "+nan", "-inf"))
    return rng.choice(TEXTS)


def _number(key: Key, rng: random.Random) -> str:
    """Within the bounds, at them, or beyond."""
    low, high = key.low if key.low is not None else -5, key.high if key.high is not None else 100
    if rng.random() < 0.15:
        return rng.choice(NUMBERS)
    near = (low, low, high, low + 1, high - 1, low - 1, high + 1)
    small = [low + rng.random() * min(high - low, 50) for _ in range(7)]
    number = rng.choice((*near, *small))
    return repr(float(number)) if key.kind == "float" else str(int(number))


def _model(rng: random.Random, folder: Path) -> str:
    whole = [str(path) for path in sorted(MODELS.glob("*.gguf"))]
    rest = [
        str(folder),
        str(folder / "text"),
        str(folder / "none.gguf"),
        "",
        *(str(p) for p in folder.glob("*.gguf")),
    ]
    return rng.choice(whole) if rng.random() < 0.8 else rng.choice(rest)


def files(folder: Path) -> None:
    """The files that options name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text").write_text("Some text.\n" * 20)
    (folder / "bytes").write_bytes(bytes(range(256)) * 4)
    (folder / "grammar").write_text('root ::= "yes" | "no"\n')
    (folder / "schema").write_text('{"type": "object", "properties": {"a": {"type": "integer"}}}')
    (folder / "template").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    (folder / "profile.toml").write_text("[sampling]\ntemp = 0.0\n")
    for seed in (7, 23, 1594):
        made = mutation(MODELS / "tiny-hybrid.gguf", seed)
        (folder / f"mutated-{seed}.gguf").write_bytes(made.data)


def prepare(folder: Path) -> None:
    """Import all that any call needs, and keep the user's own files out of it."""
    files(folder)
    for variable in ("SPECLI_CACHE_DIR", "SPECLI_CONFIG_DIR", "SPECLI_DATA_DIR"):
        os.environ[variable] = str(folder / variable.lower())
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["GGML_NO_BACKTRACE"] = "1"
    for module in pkgutil.walk_packages(specli.__path__, "specli."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    backend.load_library()


def run_set(options: OptionSet) -> int:
    """Call specli; in a fork. Argument vectors hold no NUL, the system sees to that."""
    sys.stdin, sys.stdout, sys.stderr = (
        open(0, encoding="utf-8", errors="surrogateescape"),  # noqa: SIM115 (until the fork ends)
        open(1, "w", encoding="utf-8"),  # noqa: SIM115
        open(2, "w", encoding="utf-8"),  # noqa: SIM115
    )
    try:
        code = specli_main(options.args)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def problem(ended: Ended, options: OptionSet) -> str:
    """What was not right; empty if all was. --verbose shows where errors come from."""
    if ended.hung:
        return "hang"
    if ended.signal:
        return ended.signal
    if ended.code not in CODES:
        return f"exit {ended.code}"
    words = ["unexpected ", "GGML_ASSERT", "terminate called", "llama.cpp crashed", "llama.cpp gave up"]
    if not {"-v", "--verbose"} & set(options.args):
        words.append("Traceback")
    return next((f"says {word.strip()}" for word in words if word in ended.said), "")


@dataclass(frozen=True)
class Case:
    """One set and how it ended."""

    seed: int
    options: OptionSet
    ended: Ended
    problem: str


def cases(seeds: range, folder: Path) -> Iterator[Case]:
    """Every seed's set, tried; `prepare` first."""
    for seed in seeds:
        options = option_set(seed, folder)
        ended = forked(lambda o=options: run_set(o), SECONDS, ROOM, options.stdin)
        yield Case(seed, options, ended, problem(ended, options))


def _next(tried: Iterator[Case]) -> Case | None:
    """The next case; None at the end, or on Ctrl-C: what was found so far counts, too."""
    try:
        return next(tried, None)
    except KeyboardInterrupt:
        return None


def cli() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--folder", type=Path, required=True, help="for files and caches")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells take it from jobs in the background
    folder = args.folder.absolute()
    prepare(folder)
    os.environ["FUZZ_DIR"] = str(folder)
    os.chdir(folder)
    began, codes, bad = time.monotonic(), Counter[int](), 0
    tried = cases(range(args.start, args.start + args.count), folder)
    while case := _next(tried):
        codes[case.ended.code] += 1
        if case.problem:
            bad += 1
            last = " / ".join(case.ended.said.strip().splitlines()[-4:])
            print(f"{case.problem}: seed {case.seed}: {str(case.options)[:600]} :: {last[-500:]}", flush=True)
    print(
        f"{args.count} sets in {time.monotonic() - began:.0f} s: exits {dict(sorted(codes.items()))}, {bad} bad"
    )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(cli())
