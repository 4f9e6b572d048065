"""A profile in other engines' words, for those who outgrow one machine.

Only what the engine has too is passed on; what it lacks, or means otherwise, is said in comments.
Flags are those of common/arg.cpp in the llama.cpp of llama-cpp-python 0.3.36 for llama-server, and of the
speculative decoding pages in their documentation for vLLM, SGLang and TensorRT-LLM.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specli.errors import ModelFileError
from specli.settings import Settings

ENGINES = ("llama-server", "vllm", "sglang", "tensorrt-llm")
_LLAMA_TYPES = {
    "draft-model": "draft-simple",
    "ngram-simple": "ngram-simple",
    "ngram-map-k": "ngram-map-k",
    "ngram-map-k4v": "ngram-map-k4v",
    "draft-mtp": "draft-mtp",
    "draft-eagle3": "draft-eagle3",
    "draft-dflash": "draft-dflash",
    "draft-dspark": "draft-dspark",
    "draft-self": "ngram-map-k",
    "none": "none",
}
_NGRAM = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "draft-self")
_BLOCKS = ("draft-dflash", "draft-dspark")
_FROM_FILE = frozenset({"draft-model", "draft-eagle3", *_BLOCKS})


@dataclass(frozen=True, slots=True)
class Exported:
    """A command (its words; empty where there is none) with comments before it, and a config file's text
    (with its name) where the engine wants one."""

    comments: tuple[str, ...]
    command: tuple[str, ...]
    file_name: str = ""
    file_text: str = ""

    def text(self) -> str:
        """What to put into a shell script: comments, the file as a here-document, the command."""
        out = [f"# {line}" for line in self.comments]
        if self.file_text:
            out.append(f"cat > {self.file_name} <<'EOF'\n{self.file_text}EOF")
        out.append(_wrapped(self.command))
        return "\n".join(out) + "\n"


def _wrapped(words: Sequence[str]) -> str:
    """One flag with its value a line, quoted for the shell."""
    lines: list[str] = []
    for word in words:
        if lines and (word.startswith("-") and not _is_number(word)):
            lines.append(_quoted(word))
        else:
            lines[-1:] = [f"{lines[-1]} {_quoted(word)}" if lines else _quoted(word)]
    return " \\\n  ".join(lines)


def _quoted(word: str) -> str:
    """For the shell; what does not print as escapes, which cannot steer a terminal that shows the line."""
    if word.isprintable():
        return shlex.quote(word)
    shown = "".join(c if c.isprintable() and c not in "'\\" else _escaped(c) for c in word)
    return f"$'{shown}'"


def _escaped(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def export(engine: str, settings: Settings, model: str, draft: str | None) -> Exported:
    """The settings as `engine` (of ENGINES) would be started with them. `model`, `draft`: as the user names
    them, a file or user/repo[:quant]."""
    makers = {"llama-server": _llama_server, "vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt}
    return makers[engine](settings, model, draft)


def methods(settings: Settings, draft: str | None) -> list[str]:
    """The types in force, `auto` spelled out, those without what they need left out."""
    out: list[str] = []
    for method in settings.types:
        out += ["draft-self", *([_kind(draft)] if draft else [])] if method == "auto" else [method]
    usable = (m for m in out if m != "none" and m in _LLAMA_TYPES and (m not in _FROM_FILE or draft))
    return list(dict.fromkeys(usable))


def _kind(draft: str) -> str:
    """The type that a draft is for: what its file says where it is one, else a model."""
    from specli.casting import draft_method

    try:
        return draft_method(Path(draft)) if os.path.isfile(draft) else "draft-model"
    except ModelFileError:
        return "draft-model"


def _common(settings: Settings, engine: str) -> list[str]:
    """Comments on what no other engine has."""
    out = [f"specli profile {settings.profile}, as {engine} has it"]
    out += [
        f"{method} has no counterpart here, left out"
        for method in settings.types
        if method not in (*_LLAMA_TYPES, "auto")
    ]
    if settings.exact:
        out.append(
            "--exact has no counterpart: only specli keeps the width of decodes fixed, so greedy output"
        )
        out.append("  may differ here in near-ties between speculation on and off")
    if settings.tree_size is not None:
        out.append(
            f"--spec-tree {settings.tree} is left out: here drafts are written as chains, without branches"
        )
    if not settings.fixed:
        out.append(
            "specli sets the draft length by measured profit in each cycle; here it is fixed, so measure anew"
        )
    return out


# -- llama-server ----------------------------------------------------------------------------------


def _llama_server(s: Settings, model: str, draft: str | None) -> Exported:
    chosen = methods(s, draft)
    comments = [*_common(s, "llama-server"), *_llama_comments(s, chosen)]
    words = ["llama-server", *_source(model, "--model", "--hf-repo"), "--parallel", "1"]
    words += ["--spec-type", ",".join(dict.fromkeys(_LLAMA_TYPES[m] for m in chosen)) or "none"]
    if _FROM_FILE & set(chosen) and draft is not None:
        words += [*_source(draft, "--spec-draft-model", "--spec-draft-hf")]
        words += ["--spec-draft-n-max", str(s.draft_n_max), "--spec-draft-n-min", str(s.draft_n_min)]
        words += ["--spec-draft-p-min", _number(s.draft_p_min)]
        if s.spec_draft_ngl is not None:
            words += ["--spec-draft-ngl", str(s.spec_draft_ngl)]
    elif "draft-mtp" in chosen:
        words += ["--spec-draft-n-max", str(s.draft_n_max)]
    for name in dict.fromkeys(_LLAMA_TYPES[m] for m in chosen if m in _NGRAM):
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


# -- vLLM ------------------------------------------------------------------------------------------


def _vllm(s: Settings, model: str, draft: str | None) -> Exported:
    chosen = methods(s, draft)
    comments = [
        *_common(s, "vLLM"),
        *_weights_comment(model, draft, "vLLM"),
        _SAMPLING_COMMENT,
        *_one_of(chosen, "vLLM"),
    ]
    config: dict[str, object] = {}
    first = chosen[0] if chosen else "none"
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
    elif first in _NGRAM:
        sizes = s.ngram(first)
        config = {
            "method": "ngram",
            "num_speculative_tokens": sizes.size_m,
            "prompt_lookup_max": sizes.size_n,
            "prompt_lookup_min": sizes.size_n,
        }
        comments += _ngram_comments(first, sizes.min_hits)
    words = ["vllm", "serve", model, "--max-num-seqs", "1"]
    comments.append(
        "--max-num-seqs 1: as specli, for the shortest answers; raise it to serve several at once"
    )
    if s.ctx_size is not None:
        words += ["--max-model-len", str(s.ctx_size)]
    if config:
        words += ["--speculative-config", json.dumps(config)]
    return Exported(tuple(comments), tuple(words))


_SAMPLING_COMMENT = (
    "temperature, top-k, penalties, stop, seed, grammar and schema are sent with each request, not set here"
)


def _weights_comment(model: str, draft: str | None, engine: str) -> list[str]:
    if ".gguf" not in (model + (draft or "")).lower() and ":" not in model:
        return []
    how = (
        "needs the package vllm-gguf-plugin for GGUF files"
        if engine == "vLLM"
        else "is made for other weights"
    )
    return [
        f"{engine} {how}; better put the model's original weights (safetensors) in their place,",
        "  and measure acceptance and the best draft length again",
    ]


def _one_of(chosen: list[str], engine: str) -> list[str]:
    if chosen and chosen[0] in _BLOCKS:
        return [
            f"{chosen[0]} is left out: which drafts of this kind {engine} takes, its own documentation says"
        ]
    if len(chosen) < 2:
        return []
    return [f"{engine} runs {chosen[0]} alone: it has no counterpart for trying {', '.join(chosen[1:])} next"]


def _ngram_comments(method: str, min_hits: int) -> list[str]:
    out = (
        []
        if method == "ngram-simple"
        else [f"{method} keeps a table of n-grams; here the prompt is searched instead"]
    )
    return out + ([f"min-hits {min_hits} has no counterpart"] if min_hits > 1 else [])


# -- SGLang ----------------------------------------------------------------------------------------


def _sglang(s: Settings, model: str, draft: str | None) -> Exported:
    chosen = methods(s, draft)
    comments = [
        *_common(s, "SGLang"),
        *_weights_comment(model, draft, "SGLang"),
        _SAMPLING_COMMENT,
        *_one_of(chosen, "SGLang"),
    ]
    words = ["python3", "-m", "sglang.launch_server", "--model-path", model, "--max-running-requests", "1"]
    if s.ctx_size is not None:
        words += ["--context-length", str(s.ctx_size)]
    first = chosen[0] if chosen else "none"
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
    elif first in _NGRAM:
        sizes = s.ngram(first)
        words += ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(sizes.size_m)]
        comments += _ngram_comments(first, sizes.min_hits)
        comments.append("NGRAM needs CUDA; its match lengths are SGLang's own")
    return Exported(tuple(comments), tuple(words))


# -- TensorRT-LLM ----------------------------------------------------------------------------------


def _tensorrt(s: Settings, model: str, draft: str | None) -> Exported:
    chosen = methods(s, draft)
    comments = [
        *_common(s, "TensorRT-LLM"),
        *_weights_comment(model, draft, "TensorRT-LLM"),
        _SAMPLING_COMMENT,
        *_one_of(chosen, "TensorRT-LLM"),
    ]
    lines: list[str] = []
    first = chosen[0] if chosen else "none"
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
    elif first in _NGRAM:
        sizes = s.ngram(first)
        lines = [
            "decoding_type: NGram",
            f"max_draft_len: {sizes.size_m}",
            f"max_matching_ngram_size: {sizes.size_n}",
        ]
        comments += _ngram_comments(first, sizes.min_hits)
    text = "max_batch_size: 1\n"
    if lines:
        text += "speculative_config:\n" + "".join(f"  {line}\n" for line in lines)
        if first in ("draft-model", *_NGRAM[:3]):
            text = "disable_overlap_scheduler: true\n" + text
        comments.append(
            "speculation cannot be switched off at run time there: it pays only while few requests run"
        )
    words = ["trtllm-serve", model, "--config", "specli-config.yaml"]
    if s.ctx_size is not None:
        words += ["--max_seq_len", str(s.ctx_size)]
    return Exported(tuple(comments), tuple(words), "specli-config.yaml", text)
