"""Mutated model files by the thousand: none may take more than a fork of this process with it.

    nice -n 19 python tests/fuzz/model_files.py --count 20000

Each file is checked, loaded, given a context and decoded at one row and at four, in a fork with a limit on
address space and time. What is counted: refused by the check, refused by the library, decoded; and
what should not be: signals (the check let a file pass that ends the process), hangs, memory, errors that
are not of specli's. With --beside TARGET the files are heads that draft for that model.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
sys.path[:] = [entry for entry in sys.path if entry]

from forks import Ended, forked  # noqa: E402
from mutate import Mutation, mutation  # noqa: E402

from specli.engine import backend, blocks, context, eagle3, mtp, nextn  # noqa: E402  (before any fork, not in each)
from specli.engine.features import feature_draft, feature_problem  # noqa: E402
from specli.engine.gguf import Header, read_header  # noqa: E402
from specli.engine.gguf_model import check_model  # noqa: E402
from specli.engine.nextn import file_heads  # noqa: E402
from specli.engine.probe import NoNumbers, TrialSettings, exercise, exercise_head  # noqa: E402
from specli.errors import ModelFileError, SpecliError  # noqa: E402

IMPORTED = (blocks, context, eagle3, mtp, nextn)
SECONDS = 10.0
ALLOWANCE = 256 << 20
DECODED, CHECKED, REFUSED, MEMORY = 0, 10, 11, 12
NAMES = {
    DECODED: "decoded",
    CHECKED: "refused by the check",
    REFUSED: "refused by the library",
    MEMORY: "memory refused",
}


@dataclass(frozen=True)
class Case:
    """One mutated file and what became of it."""

    model: Path
    seed: int
    mutation: Mutation
    outcome: str
    ended: Ended

    @property
    def bad(self) -> bool:
        return self.outcome not in NAMES.values()


def run_file(path: Path, settings: TrialSettings | None = None, beside: Path | None = None) -> int:
    """Check, load and decode one file, or draft with it `beside` a model; in a fork."""
    settings = settings or TrialSettings(threads=1)
    try:
        header = read_header(path)
        check_model(header)
    except ModelFileError as error:
        assert str(error).isprintable()
        return CHECKED
    if beside is not None and _unfit(header, beside):
        return CHECKED
    try:
        if beside is not None:
            exercise_head(beside, path, settings, extra=False)
        else:
            exercise(path, settings, extra=False, widths=(1, 4))
    except MemoryError:
        return MEMORY
    except NoNumbers:
        return REFUSED
    except SpecliError as error:
        if "\n" in str(error):
            raise
        return REFUSED
    return DECODED


def _unfit(head: Header, beside: Path) -> str | None:
    """Why specli would not draft with it."""
    if feature_draft(head) is None:
        found = file_heads(head)
        return found.problem if found.heads_only else "no head"
    return feature_problem(read_header(beside), head)


def outcome(ended: Ended) -> str:
    if ended.hung:
        return "hang"
    return ended.signal or NAMES.get(ended.code, "traceback")


def cases(models: Sequence[Path], seeds: range, folder: Path, beside: Path | None = None) -> Iterator[Case]:
    """Every seed's mutation of the models in turn, tried."""
    backend.load_library()
    path = folder / "mutated.gguf"
    for seed in seeds:
        model = models[seed % len(models)]
        made = mutation(model, seed)
        path.write_bytes(made.data)
        settings = TrialSettings(threads=1, load_mtp="mtp" in model.name and seed % 2 == 0)
        ended = forked(lambda s=settings: run_file(path, s, beside), SECONDS, 2 * len(made.data) + ALLOWANCE)
        yield Case(model, seed, made, outcome(ended), ended)


def report(found: Sequence[tuple[str, str]], peak: int, seconds: float) -> str:
    """A table: kinds of mutation against outcomes."""
    kinds = sorted({kind for kind, _ in found})
    outcomes = [*NAMES.values(), *sorted({out for _, out in found} - set(NAMES.values()))]
    counts = Counter(found)
    lines = ["".join(f"{name:>24}" for name in ("", *outcomes))]
    lines += ["".join([f"{kind:>24}", *(f"{counts[kind, out]:>24}" for out in outcomes)]) for kind in kinds]
    total = Counter(out for _, out in found)
    lines.append("".join([f"{'all':>24}", *(f"{total[out]:>24}" for out in outcomes)]))
    return "\n".join(
        [*lines, f"{len(found)} files in {seconds:.0f} s, at most {peak >> 20} MiB more than at the start"]
    )


def _until_ctrl_c(found: Iterator[Case]) -> Iterator[Case]:
    """What was found so far counts, too."""
    try:
        yield from found
    except KeyboardInterrupt:
        print("interrupted")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--folder", type=Path, required=True, help="for the file under test, and what went wrong"
    )
    parser.add_argument(
        "models", type=Path, nargs="*", default=sorted((HERE.parent / "models").glob("*.gguf"))
    )
    parser.add_argument("--beside", type=Path, help="the model that the files draft for")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells take it from jobs in the background
    args.folder.mkdir(parents=True, exist_ok=True)
    os.environ["FUZZ_DIR"] = str(args.folder)
    os.environ["GGML_NO_BACKTRACE"] = "1"
    backend.load_library()
    base = forked(lambda: 0, SECONDS).peak
    began, peak = time.monotonic(), 0
    found: list[tuple[str, str]] = []
    tried = cases(args.models, range(args.start, args.start + args.count), args.folder, args.beside)
    for case in _until_ctrl_c(tried):
        found.append((case.mutation.kind, case.outcome))
        peak = max(peak, case.ended.peak - base)
        if case.bad:
            last = " / ".join(case.ended.said.strip().splitlines()[-3:])
            print(
                f"{case.outcome}: {case.model.name} seed {case.seed}: {case.mutation.what[:150]} :: {last[:300]}",
                flush=True,
            )
    print(report(found, peak, time.monotonic() - began))
    return int(any(out not in NAMES.values() for _, out in found))


if __name__ == "__main__":
    sys.exit(main())
