"""Wrong usage in our words: which option, what was given, what it takes, what may have been meant."""

from __future__ import annotations

import os
import re
from typing import Any

from specli.cli.help import argument_name
from specli.keys import did_you_mean

_WORDS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"Input should be a valid number.*|.*is not a valid float.*", "must be a number"),
        (r"Input should be a valid integer.*|.*is not a valid int.*", "must be a whole number"),
        (r"Input should be greater than or equal to (\S+)", r"must be at least \1"),
        (r"Input should be less than or equal to (\S+)", r"must be at most \1"),
        (r"(?:Value error, )?'(?:.*)' is not one of (.*?)\.?", r"must be one of \1"),
    )
)
_WHOLE = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"\.? Did you mean '(.+?)'\?", r'; did you mean "\1"?'),
        (r"Option '(.+)' requires an argument", r"\1 needs a value"),
        (r"Option '(.+)' does not take a value", r"\1 takes no value"),
    )
)
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)")


def usage_line(error: Any) -> str:
    """What a UsageError of Typer's parser says, without the dot; ready to stand behind the program's name."""
    command = getattr(getattr(error, "ctx", None), "command_path", None) or "specli"
    said, hint, meant = _said(error).partition("; did you mean")
    return f"{said}; see {command} --help{hint}{meant}"


def _said(error: Any) -> str:
    message = str(error.format_message()).strip()
    param = getattr(error, "param", None)
    name = getattr(error, "option_name", None)
    reason = getattr(error, "message", "") or ""
    if name is not None and hasattr(error, "possibilities"):
        return f"no option {name}{did_you_mean(name, _options(error), '{}')}"
    if param is not None and reason and param.param_type_name == "option":
        return f"{param.opts[-1]}{_given(error)}: {_in_words(reason)}"
    if type(error).__name__ == "MissingParameter" and param is not None:
        return f"{argument_name(param) if param.param_type_name == 'argument' else param.opts[-1]} is missing"
    if extra := _EXTRA.fullmatch(message):
        return f"too much is given: {extra[1]} ({_instead(extra[1].split(), error)})"
    for pattern, words in _WHOLE:
        message = pattern.sub(words, message)
    return f"{message[:1].lower()}{message[1:].rstrip('.')}"


def _instead(words: list[str], error: Any) -> str:
    """What may have been meant by words that are too many: a file has an option of its own."""
    for word in words:
        is_model = word.lower().endswith(".gguf")
        for flag, what in (("-m", "model"),) if is_model else (("-f", "file"), ("-m", "model")):
            if (is_model or os.path.isfile(word)) and flag in _names(error):
                return f"a {what} is given by {flag} {word}"
    return "words with spaces need quotes"


def _options(error: Any) -> list[str]:
    return [name for name in _names(error) if name.startswith("--")]


def _names(error: Any) -> list[str]:
    command = getattr(getattr(error, "ctx", None), "command", None)
    return [name for param in getattr(command, "params", ()) for name in (*param.opts, *param.secondary_opts)]


def _given(error: Any) -> str:
    """What the option was given, where the check of its kind knows it."""
    checked = getattr(error.__cause__, "errors", None)
    values = [each.get("input") for each in checked()] if checked is not None else []
    return f" {values[0]}" if values and isinstance(values[0], (str, int, float)) else ""


def _in_words(reason: str) -> str:
    for pattern, words in _WORDS:
        found = pattern.fullmatch(reason.strip())
        if found:
            return found.expand(words).replace("'", "")
    return f"{reason[:1].lower()}{reason[1:].rstrip('.')}"
