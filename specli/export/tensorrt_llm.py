"""`trtllm-serve` with its configuration, by the page on speculative decoding in its documentation."""

from __future__ import annotations

import json

from specli.export.common import NGRAM, Exported, first_and_comments, ngram_comments
from specli.settings import Settings


def command(s: Settings, model: str, draft: str | None) -> Exported:
    first, comments = first_and_comments(s, model, draft, "TensorRT-LLM")
    lines: list[str] = []
    length = max(1, s.draft_n_max)
    if first == "draft-model" and draft is not None:
        lines = [
            "decoding_type: DraftTarget",
            f"max_draft_len: {length}",
            f"speculative_model: {json.dumps(draft)}",
        ]
        comments.append("draft and target must have the same tokenizer: TensorRT-LLM translates no tokens")
    elif first == "draft-mtp":
        lines = ["decoding_type: MTP", f"max_draft_len: {length}"]
    elif first == "draft-eagle3" and draft is not None:
        lines = [
            "decoding_type: Eagle3",
            f"max_draft_len: {length}",
            f"speculative_model: {json.dumps(draft)}",
        ]
    elif first == "draft-self":
        lines = ["decoding_type: SA", f"max_draft_len: {s.ngram(first).size_m}"]
        comments.append("draft-self: the suffix automaton (SA) comes nearest")
    elif first in NGRAM:
        sizes = s.ngram(first)
        lines = [
            "decoding_type: NGram",
            f"max_draft_len: {sizes.size_m}",
            f"max_matching_ngram_size: {sizes.size_n}",
        ]
        comments += ngram_comments(first, sizes.min_hits)
    text = "max_batch_size: 1\n"
    if lines:
        text += "speculative_config:\n" + "".join(f"  {line}\n" for line in lines)
        if first in ("draft-model", *NGRAM[:3]):
            text = "disable_overlap_scheduler: true\n" + text
        comments.append(
            "speculation cannot be switched off at run time there: it pays only while few requests run"
        )
    words = ["trtllm-serve", model, "--config", "specli-config.yaml"]
    if s.ctx_size is not None:
        words += ["--max_seq_len", str(s.ctx_size)]
    return Exported(tuple(comments), tuple(words), "specli-config.yaml", text)
