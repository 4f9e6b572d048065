"""What the settings say of how an answer is drawn, in the words of `core` and `engine`."""

from __future__ import annotations

import os
from collections.abc import Callable, Container
from pathlib import Path

from specli.core.sampling import SamplingParams
from specli.engine.grammar import Grammar
from specli.engine.schema import schema_grammar
from specli.engine.vocab import Vocab
from specli.errors import ModelFileError, UsageError
from specli.settings import GRAMMARS, Settings, key


def sampling_params(s: Settings, vocab: Vocab) -> SamplingParams:
    """The samplers. Raises UsageError for a bias on what is not one token."""
    return SamplingParams(
        s.temp, s.top_k, s.top_p, s.min_p, s.typical_p, s.repeat_penalty, s.repeat_last_n,
        s.frequency_penalty, s.presence_penalty, _logit_bias(s, vocab),
    )  # fmt: skip


def _logit_bias(s: Settings, vocab: Vocab) -> dict[int, float]:
    out: dict[int, float] = {}
    for name, bias in s.logit_bias.items():
        tokens = [int(name)] if name.isdecimal() else vocab.tokenize(name, special=True)
        if len(tokens) != 1 or not 0 <= tokens[0] < vocab.n_tokens:
            raise UsageError(
                f"--logit-bias {name}: not one of the {vocab.n_tokens} tokens of this model; give a token's "
                "number or text"
            )
        out[tokens[0]] = bias
    return out


def open_grammar(
    s: Settings, vocab: Vocab, ends: Container[int], notice: Callable[[str], None]
) -> Grammar | None:
    """What answers must be, None where anything goes. `ends`: the tokens that may end an answer.

    Raises UsageError, in one line, for what is no grammar or no schema, ModelFileError for a file that cannot
    be read.
    """
    name = next((name for name in GRAMMARS if getattr(s, key(name).attribute) is not None), None)
    if name is None:
        return None
    given = str(getattr(s, key(name).attribute))
    text = _read(given, _shown(s, name)) if name.endswith("-file") else given
    place = f"{_shown(s, name)} {given}" if name.endswith("-file") else _shown(s, name)
    try:
        if name.startswith("json-schema"):
            schema = schema_grammar(text)
            if schema.unkept:
                notice(f"{place}: a grammar cannot enforce {', '.join(schema.unkept)}: answers may break it")
            text = schema.text
        return Grammar(vocab, text, ends)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error


def _shown(s: Settings, name: str) -> str:
    return key(name).flag if s.origin(name) == "flag" else f"profile {s.profile}: {key(name).written}"


def _read(path: str, flag: str) -> str:
    try:
        return Path(os.path.expanduser(path)).read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise ModelFileError(f"{flag} {path}: {reason}") from error
