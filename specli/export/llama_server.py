"""Flags of llama-server, as in common/arg.cpp of the llama.cpp of llama-cpp-python 0.3.36."""

from __future__ import annotations

from specli.export.common import FROM_FILE, LLAMA_TYPES, NGRAM, Exported, common, methods
from specli.settings import Settings


def command(s: Settings, model: str, draft: str | None) -> Exported:
    chosen = methods(s, draft, model)
    comments = [*common(s, "llama-server", model, draft), *_llama_comments(s, chosen)]
    words = ["llama-server", *_source(model, "--model", "--hf-repo"), "--parallel", "1"]
    words += ["--spec-type", ",".join(dict.fromkeys(LLAMA_TYPES[m] for m in chosen)) or "none"]
    if FROM_FILE & set(chosen) and draft is not None:
        words += [*_source(draft, "--spec-draft-model", "--spec-draft-hf")]
        words += ["--spec-draft-n-max", str(s.draft_n_max), "--spec-draft-n-min", str(s.draft_n_min)]
        words += ["--spec-draft-p-min", _number(s.draft_p_min)]
        if s.spec_draft_ngl is not None:
            words += ["--spec-draft-ngl", str(s.spec_draft_ngl)]
    elif "draft-mtp" in chosen:
        words += ["--spec-draft-n-max", str(s.draft_n_max)]
    for name in dict.fromkeys(LLAMA_TYPES[m] for m in chosen if m in NGRAM):
        sizes = s.ngram("draft-self" if name not in chosen else name)
        for size, value in (("size-n", sizes.size_n), ("size-m", sizes.size_m), ("min-hits", sizes.min_hits)):
            words += [f"--spec-{name}-{size}", str(value)]
    return Exported(tuple(comments), tuple(words + _llama_engine(s) + _llama_sampling(s)))


def _llama_comments(s: Settings, chosen: list[str]) -> list[str]:
    out = [
        "--parallel 1: one slot, so one conversation has the whole context and the draft's cache",
        "--spec-type is needed: a draft model that is given without it is ignored in silence",
    ]
    if "draft-self" in chosen:
        out.append("draft-self has no counterpart; ngram-map-k comes nearest (fixed match length)")
    if "draft-model" in chosen:
        out.append(
            "the draft must have the target's vocabulary: llama-server translates no tokens, and goes on"
        )
        out.append("  without a draft that does not fit")
    if s.temp > 0:
        out.append(
            "llama-server samples and compares; specli's rejection step accepts more from a sampled draft"
        )
    named = [name for name in s.logit_bias if not name.isdigit()]
    if named:
        out.append(f"logit bias by text has no counterpart, left out: {', '.join(map(repr, named))}")
    if s.max_tokens is not None or s.seed is not None or s.stop:
        out.append(
            "stop strings are sent with each request, not set here"
            if s.stop
            else "requests may override these"
        )
    return out


def _source(model: str, path_flag: str, repo_flag: str) -> list[str]:
    from specli.hub import split_reference

    return [repo_flag if split_reference(model) else path_flag, model]


def _llama_engine(s: Settings) -> list[str]:
    words = ["--flash-attn", s.flash_attn, "--cache-type-k", s.cache_type_k, "--cache-type-v", s.cache_type_v]
    words += ["--batch-size", str(s.batch_size)]
    for flag, value in (
        ("--ctx-size", s.ctx_size),
        ("--threads", s.threads),
        ("--threads-batch", s.threads_batch),
        ("--gpu-layers", s.gpu_layers),
    ):
        if value is not None:
            words += [flag, str(value)]
    return words + (["--swa-full"] if s.swa_full else []) + (["--no-repack"] if s.no_repack else [])


def _llama_sampling(s: Settings) -> list[str]:
    words: list[str] = []
    for flag, value in (
        ("--temp", s.temp),
        ("--top-k", s.top_k),
        ("--top-p", s.top_p),
        ("--min-p", s.min_p),
        ("--typical-p", s.typical_p),
        ("--repeat-penalty", s.repeat_penalty),
        ("--repeat-last-n", s.repeat_last_n),
        ("--frequency-penalty", s.frequency_penalty),
        ("--presence-penalty", s.presence_penalty),
        ("--seed", s.seed),
        ("--predict", s.max_tokens),
    ):
        if value is not None:
            words += [flag, _number(value)]
    for token, bias in s.logit_bias.items():
        if token.isdigit():
            words += ["--logit-bias", f"{token}{bias:+g}"]
    for flag, text in (
        ("--grammar", s.grammar),
        ("--grammar-file", s.grammar_file),
        ("--json-schema", s.json_schema),
        ("--json-schema-file", s.json_schema_file),
    ):
        if text is not None:
            words += [flag, text]
    return words


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
