"""Coupled verification: the same text whoever drafts; and how often each way of judging accepts.

    python tests/measure/coupled.py same TARGET.gguf --draft DRAFT.gguf [--tokens 150] [--seeds 5]
    python tests/measure/coupled.py acceptance TARGET.gguf [--draft DRAFT.gguf | --noise 1.0] [--tokens 150]

`same`: token ids of every method in exact mode at each of `--temps`; exit code 1 if any differs.

`acceptance`: what the target says at `--temp` is a text on which p and q, the distributions of target and
draft, are compared at every position. The chance that the draft's token is accepted is
    rejection   sum of min(p, q)      a sampled token, accepted with min(1, p/q)
    coupled     both draw with the same Gumbel noise and agree (mean over `--draws` of noise)
    match       sum of p * q          a sampled token and an independent draw of the target's agree
    greedy      p(argmax q)           the draft's likeliest token, and a draw of the target's
Intervals: 95%, bootstrap over prompts. Without a draft the target's own logits plus normal noise of deviation
`--noise` stand for one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.conversation import Message
from specli.core.decoding import sync
from specli.core.noise import Noise
from specli.core.sampling import SamplingParams, distribution
from specli.core.types import Distribution, LanguageModel

METHODS = ("none", "ngram-simple", "draft-self", "draft-model")
WAYS = ("rejection", "coupled", "match", "greedy")
Row = NDArray[np.float32]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("same", "acceptance"))
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--temp", type=float, default=1.0, help="of `acceptance`")
    parser.add_argument("--temps", type=float, nargs="+", default=(0.8, 1.2), help="of `same`")
    parser.add_argument("--plain-sampling", action="store_true", help="no top-k, top-p, min-p")
    parser.add_argument("--draws", type=int, default=32)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--workloads", type=Path, default=Path(__file__).parent / "workloads.jsonl")
    args = parser.parse_args()
    return same(args) if args.what == "same" else acceptance(args)


def opened(args: argparse.Namespace, types: Sequence[str], **more: object) -> Generator:
    flags = {
        "spec-type": ",".join(types),
        "max-tokens": args.tokens,
        "ctx-size": 4096,
        "threads": args.threads,
    }
    settings = profiles.resolve(profiles.load("auto"), {**flags, **more})
    return Generator(Request(settings, args.target, args.draft), lambda s: print(s, file=sys.stderr))


def prompts(args: argparse.Namespace, generator: Generator) -> list[list[int]]:
    rows = [json.loads(line) for line in args.workloads.read_text("utf-8").splitlines()[: args.prompts]]
    return [generator.prompter.tokens([Message("user", row["prompt"])]) for row in rows]


# -- the same text ------------------------------------------------------------------------------


def same(args: argparse.Namespace) -> int:
    methods = [m for m in METHODS if args.draft or m != "draft-model"]
    differing = 0
    for temp in args.temps:
        for seed in range(1, args.seeds + 1):
            with opened(args, methods[1:], temp=temp, seed=seed, **{"exact-width": 4, "fixed": True}) as g:
                drafters = {d.method: d for d in g.drafters}
                prompt = prompts(args, g)[(seed - 1) % args.prompts]
                plain: list[int] = []
                for method in methods:
                    g.drafters = [drafters[method]] if method in drafters else []
                    g.reset_seed()
                    answer = g.answer(prompt)
                    for _ in answer:
                        pass
                    plain = plain or answer.tokens
                    differs = answer.tokens != plain
                    differing += differs
                    print(
                        f"T {temp} seed {seed} {method:14} {'DIFFERS' if differs else 'same'} "
                        f"{len(answer.tokens)} tokens in {answer.stats.cycles} cycles, accepted "
                        f"{answer.stats.accepted} of {answer.stats.tested}",
                        flush=True,
                    )
    print(f"differing outputs: {differing}")
    return 1 if differing else 0


# -- how often accepted -------------------------------------------------------------------------


def acceptance(args: argparse.Namespace) -> int:
    params = SamplingParams(temp=args.temp)
    if args.plain_sampling:
        params = SamplingParams(temp=args.temp, top_k=0, top_p=1.0, min_p=0.0)
    off = {"top-k": params.top_k, "top-p": params.top_p, "min-p": params.min_p}
    rng = np.random.default_rng(1)
    with opened(args, ["draft-model"] if args.draft else ["draft-self"], temp=args.temp, seed=1, **off) as g:
        means, positions = [], 0
        for n, prompt in enumerate(prompts(args, g)):
            g.drafters = []
            answer = g.answer(prompt)
            for _ in answer:
                pass
            said = answer.tokens
            mine = laws(g.target, prompt, said, g.chunk, params)
            if args.draft:
                assert g.draft_cache is not None
                theirs = laws(g.draft_cache, prompt, said, g.chunk, params)
            else:
                theirs = laws(
                    g.target, prompt, said, g.chunk, params, lambda row: perturbed(row, args.noise, rng)
                )
            figures = np.array(
                [chances(p, q, n, i, args.draws) for i, (p, q) in enumerate(zip(mine, theirs))]
            )
            positions += len(figures)
            means.append(figures.mean(axis=0))
            print(n, len(figures), dict(zip(WAYS, figures.mean(axis=0).round(3).tolist())), flush=True)
    table = np.array(means)
    again = table[rng.integers(0, len(table), (4000, len(table)))].mean(axis=1)
    print(f"{positions} positions of {len(table)} prompts, temperature {args.temp}")
    for k, way in enumerate(WAYS):
        low, high = np.percentile(again[:, k], [2.5, 97.5])
        print(f"{way:10} {table[:, k].mean():.3f}  [{low:.3f}, {high:.3f}]")
    low, high = np.percentile(again[:, 0] - again[:, 3], [2.5, 97.5])
    print(f"rejection - greedy {(table[:, 0] - table[:, 3]).mean():+.3f}  [{low:+.3f}, {high:+.3f}]")
    return 0


def laws(
    model: LanguageModel,
    prompt: Sequence[int],
    said: Sequence[int],
    chunk: int,
    params: SamplingParams,
    change: Callable[[Row], Row] = lambda row: row,
) -> list[Distribution]:
    """The distribution that each token of `said` was drawn from, in the eyes of `model`."""
    sync(model, prompt[:-1], chunk)
    found: list[Distribution] = []
    tokens = [prompt[-1], *said[:-1]]
    step = min(32, model.max_rows)
    for at in range(0, len(tokens), step):
        part = tokens[at : at + step]
        rows = model.decode(part, rows=len(part))
        found += [distribution(change(row), (), params) for row in rows]
    return found


def perturbed(row: Row, deviation: float, rng: np.random.Generator) -> Row:
    return (row + rng.normal(0.0, deviation, len(row))).astype(np.float32)


def chances(p: Distribution, q: Distribution, prompt: int, position: int, draws: int) -> list[float]:
    """In the order of WAYS."""
    _, at, of = np.intersect1d(p.ids, q.ids, assume_unique=True, return_indices=True)
    both, theirs = p.probs[at], q.probs[of]
    agree = 0
    for seed in range(draws):
        noise = Noise(seed, prompt)
        agree += noise.choose(p, position) == noise.choose(q, position)
    return [
        float(np.minimum(both, theirs).sum()),
        agree / draws,
        float((both * theirs).sum()),
        p.prob(q.mode),
    ]


if __name__ == "__main__":
    sys.exit(main())
