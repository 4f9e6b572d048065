"""What a manual page says beyond the options: examples, environment, files, exit status.

Printed behind every `--help`, and once for all commands in docs/options.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A name, or a whole command line, and what it is for."""

    name: str
    said: str


@dataclass(frozen=True, slots=True)
class Manual:
    """What stands behind the options of one command. `topics`: pages of `specli explain` that say more."""

    examples: tuple[Row, ...]
    environment: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    exits: tuple[int, ...] = (0, 1, 2)
    topics: tuple[str, ...] = ()


EXITS: Mapping[int, str] = {
    0: "done, also where a limit cut the answer or a pipe was closed",
    1: "it could not be done; one line on standard error says why",
    2: "wrong usage, or a profile that cannot be used",
    3: "the draft does not fit, or the scan found none that does",
    129: "the terminal hung up (SIGHUP); the answer so far was printed",
    130: "interrupted (Ctrl-C); the answer so far was printed",
    143: "terminated (SIGTERM); the answer so far was printed",
}

ENVIRONMENT: Mapping[str, str] = {
    "SPECLI_CONFIG_DIR": "directory of config.toml and of your own profiles",
    "SPECLI_CACHE_DIR": "directory of what can be measured again",
    "SPECLI_DATA_DIR": "directory of histories, conversations and own models",
    "SPECLI_DEBUG": "1 prints where an error came from",
    "NO_COLOR": "set to anything, no colours are used",
    "TERM": "dumb: no colours, and the cursor is never moved",
    "VISUAL, EDITOR": "the editor that Ctrl-G and /edit open",
    "HF_TOKEN": "access token for gated models on Hugging Face",
    "HF_HOME, HF_HUB_CACHE": "where Hugging Face keeps what it fetched",
    "HF_HUB_OFFLINE": "1 forbids the network: only what is on the disk",
    "HF_ENDPOINT": "another server than Hugging Face's",
    "LLAMA_CACHE": "llama.cpp's folder of models, listed and scanned too",
    "CUDA_VISIBLE_DEVICES": "which NVIDIA cards may be used; empty for none",
}

FILES: Mapping[str, str] = {
    "CONFIG/config.toml": "default model, aliases, folders of models",
    "CONFIG/profiles/*.toml": "your own profiles, and those that tune wrote",
    "CONFIG/layers/*.json": "what `specli layers` found",
    "CACHE": "what can be measured or made again",
    "DATA/history": "the lines typed in chats",
    "DATA/sessions/*.json": "conversations, one file each",
    "DATA/models": "your models, found by `specli models`",
}

PLACES = "CONFIG, CACHE and DATA are the platform's usual directories; `specli doctor` shows them."

_DIRS = ("SPECLI_CONFIG_DIR", "SPECLI_CACHE_DIR", "SPECLI_DATA_DIR", "SPECLI_DEBUG")
_HUB = ("HF_TOKEN", "HF_HOME, HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT")
_GPU = ("CUDA_VISIBLE_DEVICES",)
_SCREEN = ("NO_COLOR", "TERM")
_SETTINGS = ("CONFIG/config.toml", "CONFIG/profiles/*.toml")
_STOPPED = (0, 1, 2, 129, 130, 143)

MANUALS: Mapping[str, Manual] = {
    "": Manual(
        (
            Row(
                'specli run "Explain in two sentences why the sky is blue."',
                "one answer, from the default model (none set: the demo's)",
            ),
            Row("specli chat -m MODEL.gguf", "a conversation"),
            Row("specli tune -m MODEL.gguf", "find what is fastest here; used from then on"),
            Row("specli explain", "the methods, and what to do when something is wrong"),
            Row("specli chat --help", "all options of one command"),
            Row("specli --install-completion", "let the shell complete commands, options, models"),
        ),
        _DIRS + _SCREEN + _HUB + ("LLAMA_CACHE",) + _GPU,
        tuple(FILES),
        tuple(EXITS),
    ),
    "chat": Manual(
        (
            Row("specli chat -m MODEL.gguf", "draft-self drafts, and what else the model has"),
            Row("specli chat -m user/repo:Q4_K_M", "fetched from Hugging Face when first used"),
            Row("specli chat -m BIG.gguf --draft-model SMALL.gguf", "a small model drafts"),
            Row("specli chat -m MODEL.gguf --profile code", "for code: low temperature, long copies"),
            Row("specli chat --continue", "go on with the latest conversation, and its model"),
            Row("specli chat --resume NAME", "go on with a saved one"),
            Row("specli chat -m MODEL.gguf --show-drafts", "colour what came from drafts"),
            Row("specli chat -m MODEL.gguf --spec-type none", "plain decoding"),
        ),
        _DIRS + _SCREEN + ("VISUAL, EDITOR",) + _HUB + _GPU,
        (*_SETTINGS, "CACHE", "DATA/history", "DATA/sessions/*.json"),
        _STOPPED,
        ("chat", "families", "auto", "troubleshooting"),
    ),
    "run": Manual(
        (
            Row('specli run -m MODEL.gguf "Why is the sky blue?"', "one answer"),
            Row('git diff | specli run "Write a commit message."', "standard input first, then the prompt"),
            Row('specli run -f a.py -f b.py "Compare these."', "files by name, then the prompt"),
            Row('specli run --json "Hello" | jq .tokens', "text and figures as one object"),
            Row('specli run --stream json "Hello"', "events as they happen, a line of JSON each"),
            Row("specli run --prompts in.jsonl -o out.jsonl", "many prompts, one loaded model"),
            Row('specli run --temp 0 --exact "Hello"', "the same tokens whoever drafts"),
            Row('specli run --json-schema-file s.json "Invent a person."', "answers that fit a schema"),
            Row('while read -r l; do specli run --no-stdin "Fix: $l"; done < f', "in a loop"),
        ),
        _DIRS + _HUB + _GPU,
        (*_SETTINGS, "CACHE"),
        _STOPPED,
        ("exact", "sampling", "troubleshooting"),
    ),
    "bench": Manual(
        (
            Row("specli bench -m MODEL.gguf", "your settings against plain decoding"),
            Row("specli bench --against draft-self --against none", "a method, and plain as a control"),
            Row("specli bench --against draft-model,n-max=3,fixed -md SMALL.gguf", "with keys of [spec]"),
            Row("specli bench --against @code --category code-edit", "a profile, on one kind of prompt"),
            Row("specli bench --workloads mine.jsonl --svg speed.svg", "your prompts, and a picture"),
        ),
        _DIRS + _GPU,
        (*_SETTINGS, "CACHE"),
        _STOPPED,
        ("auto", "families", "troubleshooting"),
    ),
    "tune": Manual(
        (
            Row("specli tune -m MODEL.gguf", "all that can draft here, five minutes"),
            Row("specli tune -m BIG.gguf --draft-model SMALL.gguf", "with a draft model among them"),
            Row("specli tune --budget 900 --like mine.jsonl", "15 minutes, your own prompts"),
            Row("specli tune --spec-type draft-self,ngram-simple", "only these"),
        ),
        _DIRS + _GPU,
        (*_SETTINGS, "CACHE"),
        _STOPPED,
        ("auto", "families"),
    ),
    "check-draft": Manual(
        (
            Row("specli check-draft BIG.gguf SMALL.gguf", "does it fit, and why (not)"),
            Row("specli check-draft BIG.gguf SMALL.gguf --measure", "what it brings on this machine"),
            Row("specli check-draft BIG.gguf --scan", "rank the models on the disk"),
            Row("specli check-draft BIG.gguf --scan-dir ~/models", "and those in a folder of yours"),
        ),
        _DIRS + _HUB + ("LLAMA_CACHE",),
        ("CONFIG/config.toml", "CACHE", "DATA/models"),
        (0, 1, 2, 3),
        ("draft-model", "families"),
    ),
    "layers": Manual(
        (
            Row("specli layers MODEL.gguf", "find them, five minutes, and write the copy"),
            Row("specli layers MODEL.gguf --drop 8", "leave out eight"),
            Row("specli layers MODEL.gguf --budget 60 --like mine.jsonl", "on your own prompts"),
            Row("specli layers MODEL.gguf --forget", "drop the copy again"),
            Row("specli chat -m MODEL.gguf --self-method layers", "draft with it"),
        ),
        _DIRS + _GPU,
        ("CONFIG/config.toml", "CONFIG/layers/*.json", "CACHE"),
        _STOPPED,
        ("layers", "families"),
    ),
    "doctor": Manual(
        (
            Row("specli doctor", "look at everything"),
            Row("specli doctor -m MODEL.gguf", "and try things with this model"),
            Row("specli doctor --json", "for a report of a fault"),
        ),
        _DIRS + _GPU,
        (*_SETTINGS, "CACHE"),
        topics=("troubleshooting",),
    ),
    "export": Manual(
        (
            Row("specli export llama-server", "the default model; the tuned profile, else auto"),
            Row("specli export llama-server -m MODEL.gguf --profile code", "another profile"),
            Row("specli export vllm -m BIG --draft-model SMALL > serve.sh", "into a file"),
        ),
        ("SPECLI_CONFIG_DIR", "SPECLI_DEBUG"),
        _SETTINGS,
    ),
    "explain": Manual(
        (
            Row("specli explain", "what there are pages about"),
            Row("specli explain families", "all ways to draft, side by side"),
            Row("specli explain draft-model", "one method"),
            Row("specli explain troubleshooting | less", "by symptom"),
        ),
        (*_SCREEN, "SPECLI_DEBUG"),
    ),
    "sessions": Manual(
        (
            Row("specli sessions", "list them, the latest first"),
            Row("specli chat --resume NAME", "go on with one"),
            Row("specli sessions show NAME", "print one"),
            Row("specli sessions search WORD", "find those that say it"),
            Row("specli sessions delete NAME", "delete one, and its cache"),
        ),
        ("SPECLI_DATA_DIR", "SPECLI_CACHE_DIR"),
        ("DATA/sessions/*.json",),
    ),
    "sessions show": Manual(
        (
            Row("specli sessions show NAME > talk.md", "keep one as Markdown"),
            Row("specli sessions show NAME --json", "with the files that were given"),
        ),
        ("SPECLI_DATA_DIR",),
        ("DATA/sessions/*.json",),
    ),
    "sessions search": Manual(
        (Row("specli sessions search 'two words'", "in questions, answers and names of files"),),
        ("SPECLI_DATA_DIR",),
        ("DATA/sessions/*.json",),
    ),
    "sessions delete": Manual(
        (Row("specli sessions delete NAME NAME", "none of them, if one is open or not there"),),
        ("SPECLI_DATA_DIR", "SPECLI_CACHE_DIR"),
        ("DATA/sessions/*.json",),
    ),
    "models": Manual(
        (
            Row("specli models", "what lies on the disk, and what could draft for what"),
            Row("specli models --dir ~/models", "look there too"),
            Row("specli models pull user/repo:Q4_K_M", "fetch one"),
            Row("specli models default MODEL.gguf", "what -m means when it is left out"),
        ),
        _DIRS + _HUB + ("LLAMA_CACHE",),
        ("CONFIG/config.toml", "CACHE", "DATA/models"),
        topics=("families",),
    ),
    "models pull": Manual(
        (
            Row("specli models pull user/repo", "the usual quantisation, Q4_K_M if there is one"),
            Row("specli models pull user/repo:Q8_0", "another one"),
        ),
        _HUB,
    ),
    "models default": Manual(
        (
            Row("specli models default", "print it"),
            Row("specli models default MODEL.gguf", "choose it"),
            Row("specli models default --clear", "have none"),
        ),
        ("SPECLI_CONFIG_DIR",),
        ("CONFIG/config.toml",),
    ),
    "profiles": Manual(
        (
            Row("specli profiles list", "what --profile knows by name"),
            Row("specli profiles show code", "every setting, and where it comes from"),
            Row('mkdir -p "$(specli profiles path)"', "begin your own: the folder,"),
            Row(
                'cp "$(specli profiles path code)" "$(specli profiles path)"/mine.toml',
                "and what to change in it",
            ),
        ),
        ("SPECLI_CONFIG_DIR",),
        ("CONFIG/profiles/*.toml",),
        topics=("profiles",),
    ),
    "profiles list": Manual((Row("specli profiles list --json", "for scripts"),)),
    "profiles show": Manual(
        (
            Row("specli profiles show", "the profile auto"),
            Row("specli profiles show ./mine.toml", "a file"),
        ),
        ("SPECLI_CONFIG_DIR",),
        ("CONFIG/profiles/*.toml",),
    ),
    "profiles path": Manual(
        (
            Row("specli profiles path", "the directory for your own"),
            Row("specli profiles path code", "the file of one"),
        ),
        ("SPECLI_CONFIG_DIR",),
        ("CONFIG/profiles/*.toml",),
    ),
}
"""By the words of the command line; "" is specli itself."""
