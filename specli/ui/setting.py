"""The commands of a chat that change how it answers: settings, profile, who drafts, which model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from specli import profiles
from specli.errors import UsageError
from specli.keys import Key, did_you_mean
from specli.settings import GRAMMARS, KEYS, TYPES, find
from specli.ui.command import Command

if TYPE_CHECKING:
    from specli.ui.repl import Chat

_TRUE, _FALSE = ("true", "on", "yes"), ("false", "off", "no")
_DEFAULT = "default"
_SPLIT = re.compile(r"([^\s=]*)\s*=?\s*(.*)", re.DOTALL)  # as it is typed, or as it is shown: with =
_AMOUNT = re.compile(r"(.+)=([+-]?)([\d.]+)")
_WRITTEN = {"texts": ', as in END or ["a", "b"]', "table": ", as in 15+2.5 or 15=2.5"}
_AT_LOAD = ("types", "exact", "exact-width", "same-vocab", "tree", "self-method")
"""Of who drafts and how: these decide what is loaded, and how a context is laid out."""


def _changes(key: Key) -> bool:
    """Whether a key can be changed while the model stays loaded."""
    if key.section == "sampling":
        return key.name not in GRAMMARS
    return key.name == "reasoning" or (key.section == "spec" and key.name not in _AT_LOAD)


CHANGEABLE: tuple[Key, ...] = tuple(key for key in KEYS if _changes(key))
_ELSEWHERE = {"system": "/system", "types": "/spec", "model": "/model"}


def value_of(key: Key, text: str) -> object:
    """What a typed value stands for, before it is checked: None for the profile's own."""
    if text == _DEFAULT:
        return None
    if key.kind == "bool":
        return True if text.lower() in _TRUE else False if text.lower() in _FALSE else text
    if key.kind in ("int", "float"):
        for number in (int, float):
            try:
                return number(text)
            except ValueError:
                continue
    if key.kind == "texts":
        return _list(text)
    if key.kind == "table":
        return [_AMOUNT.sub(lambda m: m[1] + (m[2] or "+") + m[3], each) for each in text.split()]
    return text


def _list(text: str) -> object:
    """A list or a text as JSON writes it, or one text as it is."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    return found if isinstance(found, list) else [found] if isinstance(found, str) else [text]


def _set(chat: Chat, argument: str) -> None:
    name, text = _SPLIT.fullmatch(argument).groups()  # type: ignore[union-attr]  # it matches everything
    if not name:
        chat.screen.say("what can be set now (/set KEY VALUE; the value default takes it back):")
        for each in CHANGEABLE:
            chat.screen.say(f"{_now(chat, each):30}  {each.help}")
        return
    key = find(name)
    if key is None:
        known = [each.name for each in CHANGEABLE]
        raise UsageError(
            f"nothing is called {name}; /set alone lists all keys{did_you_mean(name, known, '{}')}"
        )
    if key.name in _ELSEWHERE:
        raise UsageError(f"{key.name} is changed by {_ELSEWHERE[key.name]}")
    if key not in CHANGEABLE:
        flag = " ".join((key.flag, "" if key.kind == "bool" else text.strip() or "…")).strip()
        raise UsageError(
            f"{key.name} counts when a model is loaded: leave, and go on with specli chat --continue {flag}"
        )
    text = text.strip()
    if not text:
        chat.screen.say(f"{_now(chat, key)}  {key.help}: {key.bounds}{_WRITTEN.get(key.kind, '')}")
        return
    try:
        chat.model.set(key, value_of(key, text))
    except UsageError as error:
        raise UsageError(str(error).replace(key.flag, key.name)) from error
    chat.screen.say(_now(chat, key))


def _now(chat: Chat, key: Key) -> str:
    return f"{key.name} = {key.show(getattr(chat.model.settings, key.attribute))}"


def _whence(key: Key) -> str:
    """What may have set a key, the profile aside."""
    command = "/set" if key in CHANGEABLE else _ELSEWHERE.get(key.name)
    return "flag" if command is None else f"flag or {command}"


def _set_choices(chat: Chat, typed: str) -> Iterable[str]:
    name, space, _ = typed.partition(" ")
    if not space:
        return [key.name for key in CHANGEABLE]
    key = find(name)
    if key is None:
        return []
    values = key.choices or (("true", "false") if key.kind == "bool" else ())
    return [f"{name} {value}" for value in (*values, _DEFAULT)]


def _show(chat: Chat, _: str) -> None:
    say, dialogue, settings = chat.screen.say, chat.dialogue, chat.model.settings
    for line in chat.model.about():
        say(line)
    say(f"profile: {settings.profile}")
    given = [key for key in KEYS if key.section and settings.origin(key.name) != "default"]
    for key in given:
        say(
            f"  {_now(chat, key)} (from {_whence(key) if settings.origin(key.name) == 'flag' else 'profile'})"
        )
    say(f"system: {dialogue.system}" if dialogue.system and not chat.model.raw else "no system message")
    out = sum(m.role == "user" for m in dialogue.messages[: dialogue.first])
    left_out = f", the {out} oldest left out of the context" if out else ""
    name = f"saved as {chat.keeper.name}" if chat.keeper.name else "not saved"
    say(f"conversation: {dialogue.turns} turn{'s' if dialogue.turns != 1 else ''}{left_out}, {name}")
    say(f"context: {chat.model.cached()} of {chat.model.n_ctx} tokens")
    for file in dialogue.files:
        say(f"with the next question: {file.name}")


def _profile(chat: Chat, name: str) -> None:
    before = chat.model.settings.system
    lines = chat.model.use_profile(name) if name else []
    if chat.dialogue.system == before:  # else it was chosen for this conversation
        chat.dialogue.system = chat.model.settings.system
    chat.screen.say(f"profile: {chat.model.settings.profile}")
    for line in lines:
        chat.screen.say(line)


def _profiles(chat: Chat, _: str) -> Iterable[str]:
    return [entry.name for entry in profiles.available() if entry.problem is None]


def _spec(chat: Chat, types: str) -> None:
    if types:
        chat.model.draft_with(None if types == _DEFAULT else types)
    methods = ", then ".join(chat.model.methods)
    chat.screen.say(f"{methods} drafts" if methods else "nothing drafts: plain decoding")


def _types(chat: Chat, typed: str) -> Iterable[str]:
    before = typed.rpartition(",")[0]
    return [f"{before},{name}" for name in TYPES] if before else [*TYPES, _DEFAULT]


def _model(chat: Chat, reference: str) -> None:
    if reference:
        before = chat.model.fingerprint
        lines = chat.model.use_model(reference)
        chat.changed_model(chat.model.fingerprint == before)
        for line in lines:
            chat.screen.say(line)
    for line in chat.model.about():
        chat.screen.say(line)


COMMANDS: tuple[Command, ...] = (
    Command("model", "[MODEL]", "show the model, or load another in its place", _model, files=True),
    Command("spec", "[TYPE]", "show or change who drafts (several: TYPE,TYPE)", _spec, _types),
    Command("profile", "[NAME]", "show or change the profile", _profile, _profiles),
    Command("set", "[KEY VALUE]", "list what can be set, or set it", _set, _set_choices),
    Command("show", "", "model, settings and conversation", _show),
)
