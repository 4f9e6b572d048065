"""`vllm serve`, by the page on speculative decoding in its documentation."""

from __future__ import annotations

import json

from specli.export.common import NGRAM, Exported, first_and_comments, ngram_comments
from specli.settings import Settings


def command(s: Settings, model: str, draft: str | None) -> Exported:
    first, comments = first_and_comments(s, model, draft, "vLLM")
    config: dict[str, object] = {}
    if first == "draft-model":
        config = {"method": "draft_model", "model": draft, "num_speculative_tokens": max(1, s.draft_n_max)}
        comments.append('a draft of another vocabulary needs "use_heterogeneous_vocab": true as well')
    elif first == "draft-mtp":
        config = {"method": "mtp", "num_speculative_tokens": max(1, s.draft_n_max)}
    elif first == "draft-eagle3" and draft is not None:
        config = {"method": "eagle3", "model": draft, "num_speculative_tokens": max(1, s.draft_n_max)}
    elif first == "draft-self":
        sizes = s.ngram(first)
        config = {"method": "suffix", "num_speculative_tokens": sizes.size_m}
        comments.append("draft-self: suffix decoding comes nearest (it needs the package arctic-inference)")
    elif first in NGRAM:
        sizes = s.ngram(first)
        config = {
            "method": "ngram",
            "num_speculative_tokens": sizes.size_m,
            "prompt_lookup_max": sizes.size_n,
            "prompt_lookup_min": sizes.size_n,
        }
        comments += ngram_comments(first, sizes.min_hits)
    words = ["vllm", "serve", model, "--max-num-seqs", "1"]
    comments.append(
        "--max-num-seqs 1: as specli, for the shortest answers; raise it to serve several at once"
    )
    if s.ctx_size is not None:
        words += ["--max-model-len", str(s.ctx_size)]
    if config:
        words += ["--speculative-config", json.dumps(config)]
    return Exported(tuple(comments), tuple(words))
