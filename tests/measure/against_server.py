"""specli beside llama.cpp's own server: the same prompts, model and threads, paired in one run.

    python tests/measure/against_server.py MODEL.gguf --peer PEER_PYTHON --peer-script peer_llama_server.py \
        --ours none --ours code --theirs plain --theirs ngram-simple [--category code-edit] [--tokens 200]

PEER_PYTHON has xllamacpp installed; the script is the one whose `params` sets up its server. `--ours`
names "none" or a profile, with "+draft" to lend it the draft model; each run starts from nothing learned. For each prompt all settings run in turn, `--repeats` times, so that drift of
the machine hits all alike. Prints decode speed (tokens/s, prompt left out) and ratios of medians.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

WORKER = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("peer", sys.argv[1]); peer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peer)
servers = {}
for line in sys.stdin:
    job = json.loads(line)
    key = job["config"]
    if key not in servers:
        servers[key] = peer.xlc.Server(peer.params(key, job["model"], job["draft"], job["threads"], 4096))
    r = servers[key].handle_chat_completions({"messages": [{"role": "user", "content": job["prompt"]}],
        "temperature": 0.0, "seed": 1, "max_tokens": job["tokens"], "cache_prompt": False, "ignore_eos": job["ignore"]})
    r = json.loads(r) if isinstance(r, (str, bytes)) else r
    t = r["timings"]
    print("@@" + json.dumps({"n": t["predicted_n"], "tps": t["predicted_per_second"], "drafted": t.get("draft_n", 0),
        "accepted": t.get("draft_n_accepted", 0)}), flush=True)
"""


OURS = """
import json, sys
from pathlib import Path
from specli import profiles
from specli.assembly import Generator, Request
from specli.chat.conversation import Message
generators = {}
for line in sys.stdin:
    job = json.loads(line)
    key = job["config"]
    if key not in generators:
        flags = {"temp": 0, "max-tokens": job["tokens"], "ctx-size": 4096, "threads": job["threads"], "no-repack": True}
        name, _, more = key.partition("+")
        if name == "none":
            name, flags["spec-type"] = "auto", "none"
        draft = Path(job["draft"]) if more == "draft" else None
        settings = profiles.resolve(profiles.load(name), flags)
        generators[key] = Generator(Request(settings, Path(job["model"]), draft, ignore_end=job["ignore"]))
    g = generators[key]
    g.reset()
    a = g.answer(g.prompter.tokens([Message("user", job["prompt"])]))
    for _ in a:
        pass
    s = a.stats
    print("@@" + json.dumps({"n": s.generated, "tps": s.tokens_per_second, "drafted": s.drafted,
        "accepted": s.accepted}), flush=True)
"""


def ask(process: subprocess.Popen[str], job: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("@@"):
            answer: dict[str, Any] = json.loads(line[2:])
            return answer
    raise SystemExit("a worker ended early")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--draft", default="")
    parser.add_argument("--peer", required=True)
    parser.add_argument("--peer-script", required=True)
    parser.add_argument("--ours", action="append", default=[])
    parser.add_argument("--theirs", action="append", default=[])
    parser.add_argument("--category", action="append")
    parser.add_argument("--prompt", action="append", help="prompts of your own instead of the workloads")
    parser.add_argument("--per-category", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--ignore-end", action="store_true", help="go on after the end token: equal lengths for all"
    )
    parser.add_argument("--workloads", type=Path, default=Path(__file__).parent / "workloads.jsonl")
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.workloads.read_text("utf-8").splitlines()]
    if args.prompt:
        rows = [{"id": f"prompt-{i}", "category": "own", "prompt": p} for i, p in enumerate(args.prompt)]
    seen: dict[str, int] = {}
    kept = []
    for row in rows:
        seen[row["category"]] = seen.get(row["category"], 0) + 1
        if (not args.category or row["category"] in args.category) and seen[
            row["category"]
        ] <= args.per_category:
            kept.append(row)
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "stderr": subprocess.DEVNULL}
    ours = subprocess.Popen([sys.executable, "-c", OURS], **pipe)  # type: ignore[call-overload]
    theirs = subprocess.Popen([args.peer, "-c", WORKER, args.peer_script], **pipe)  # type: ignore[call-overload]
    configs = [("specli", c) for c in args.ours] + [("server", c) for c in args.theirs]
    medians: dict[tuple[str, str, str], float] = {}
    for row in kept:
        speeds: dict[tuple[str, str], list[float]] = {c: [] for c in configs}
        last: dict[tuple[str, str], dict[str, Any]] = {}
        for repeat in range(args.repeats):
            for config in configs if repeat % 2 == 0 else reversed(configs):
                job = {"config": config[1], "model": args.model, "draft": args.draft, "threads": args.threads,
                       "prompt": row["prompt"], "tokens": args.tokens, "ignore": args.ignore_end}  # fmt: skip
                last[config] = ask(ours if config[0] == "specli" else theirs, job)
                speeds[config].append(last[config]["tps"] or 0.0)
        base = median(speeds[configs[0]])
        for config in configs:
            m = median(speeds[config])
            medians[(*config, row["id"])] = m
            spread = f"{min(speeds[config]):.2f}..{max(speeds[config]):.2f}"
            print(
                f"{row['id']:16} {config[0]:6} {config[1]:18} {m:7.2f} tokens/s ({spread}) x{m / base:.3f} of "
                f"{configs[0][0]} {configs[0][1]}; {last[config]['n']} tokens, accepted {last[config]['accepted']} of "
                f"{last[config]['drafted']}",
                flush=True,
            )
    print()
    for config in configs:
        ratios = [medians[(*config, r["id"])] / medians[(*configs[0], r["id"])] for r in kept]
        print(
            f"{config[0]:6} {config[1]:18} geometric mean x{geometric_mean(ratios):.3f} of {configs[0][0]} {configs[0][1]}"
        )
    for process in (ours, theirs):
        process.terminate()


if __name__ == "__main__":
    main()
