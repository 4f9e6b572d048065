"""SGLang's server, by the page on speculative decoding in its documentation."""

from __future__ import annotations

from specli.export.common import NGRAM, Exported, first_and_comments, ngram_comments
from specli.settings import Settings


def command(s: Settings, model: str, draft: str | None) -> Exported:
    first, comments = first_and_comments(s, model, draft, "SGLang")
    words = ["python3", "-m", "sglang.launch_server", "--model-path", model, "--max-running-requests", "1"]
    if s.ctx_size is not None:
        words += ["--context-length", str(s.ctx_size)]
    steps = max(1, s.draft_n_max)
    chain = [
        "--speculative-num-steps",
        str(steps),
        "--speculative-eagle-topk",
        "1",
        "--speculative-num-draft-tokens",
        str(steps + 1),
    ]
    if first == "draft-model" and draft is not None:
        words += ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", draft, *chain]
        comments.append("--speculative-num-draft-tokens counts the verified width: draft + 1")
    elif first == "draft-mtp":
        words += ["--speculative-algorithm", "EAGLE", *chain]
        comments.append("SGLang runs prediction heads (MTP) under the name EAGLE")
    elif first == "draft-eagle3" and draft is not None:
        words += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", draft, *chain]
    elif first in NGRAM:
        sizes = s.ngram(first)
        words += ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(sizes.size_m)]
        comments += ngram_comments(first, sizes.min_hits)
        comments.append("NGRAM needs CUDA; its match lengths are SGLang's own")
    return Exported(tuple(comments), tuple(words))
