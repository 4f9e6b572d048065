"""Conversations on the disk: one JSON file each, written whole or not at all, by one program at a time."""

from __future__ import annotations

import json
import os
import stat
import time
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specli.chat.attached import Attached
from specli.chat.conversation import Message
from specli.chat.dialogue import Dialogue
from specli.chat.locks import Lock
from specli.errors import SessionError
from specli.paths import cache_dir, write_atomic

FORMAT = 1
_LARGEST = 64 << 20  # bytes; a session is text
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation as it is kept. `model`: what to call for the same one; `fingerprint`: tells it from
    others, so whether the tokens of answers still mean the same. `named`: somebody chose the name. `first`,
    `answers`: see `Dialogue`."""

    messages: tuple[Message, ...]
    model: str
    fingerprint: str
    system: str | None = None
    raw: bool = False
    named: bool = False
    first: int = 0
    answers: int = 0

    @classmethod
    def of(cls, dialogue: Dialogue, model: str, fingerprint: str, named: bool) -> Session:
        """`dialogue` as it stands."""
        return cls(
            tuple(dialogue.messages), model, fingerprint, dialogue.system, dialogue.raw, named,
            dialogue.first, dialogue.answers,
        )  # fmt: skip

    def dialogue(self) -> Dialogue:
        """A conversation to go on with."""
        return Dialogue(self.system, self.raw, list(self.messages), self.first, self.answers)

    @property
    def turns(self) -> int:
        """Questions asked."""
        return sum(message.role == "user" for message in self.messages)

    @property
    def title(self) -> str:
        """The first question's first line."""
        words = next((m.text for m in self.messages if m.role == "user"), "")
        return " ".join(words.strip().split("\n")[0].split())


@dataclass(frozen=True, slots=True)
class Listed:
    """A session by name, changed at `changed` (seconds since the epoch); `problem` says why there is no
    `session` in the file."""

    name: str
    changed: float
    session: Session | None = None
    problem: str = ""

    @property
    def when(self) -> str:
        """When it was changed, in local time."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.changed))

    @property
    def about(self) -> str:
        """How long it is and how it began, or why it cannot be read."""
        if self.session is None:
            return self.problem
        return f"{self.session.turns} turn{'s' if self.session.turns != 1 else ''} · {self.session.title}"


def checked_name(name: str) -> str:
    """`name`, normalised, if it can be a file's everywhere. Raises SessionError that says what can."""
    name = unicodedata.normalize("NFC", name)
    plain = name.replace("-", "").replace("_", "")
    long = len(name) > 64 or len(name.encode("utf-8", "replace")) > 200
    if not plain.isalnum() or not name[0].isalnum() or long or name.lower() in _RESERVED:
        raise SessionError(
            f"{json.dumps(name[:80], ensure_ascii=False)} cannot name a session: take letters, digits, - and _, "
            "at most 64, and begin with a letter or digit"
        )
    return name


class Shelf:
    """The sessions of one folder, which is made (mode 0700) when the first is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """All there are, the latest first."""
        found: list[tuple[float, str]] = []
        with suppress(OSError):
            for entry in os.scandir(self.folder):
                if entry.name.endswith(".json") and not entry.name.startswith("."):
                    with suppress(OSError):
                        found.append((entry.stat().st_mtime, entry.name.removesuffix(".json")))
        return [name for _, name in sorted(found, reverse=True)]

    def listing(self, most: int | None = None) -> list[Listed]:
        """The `most` latest ones, or all, broken ones too."""
        return [self.listed(name) for name in self.names()[:most]]

    def newest(self) -> str | None:
        """The latest that can be read and in which something was said."""
        return next((name for name in self.names() if (s := self.listed(name).session) and s.turns), None)

    def listed(self, name: str) -> Listed:
        """One of them, broken or not."""
        changed = 0.0
        try:
            changed = (self.folder / f"{name}.json").stat().st_mtime
            return Listed(name, changed, self.read(name))
        except SessionError as error:
            return Listed(name, changed, problem=str(error))
        except OSError as error:
            return Listed(name, changed, problem=error.strerror or "it is gone")

    def read(self, name: str) -> Session:
        """Raises SessionError: no such session (and the nearest there is), or what is wrong with it."""
        path = self.folder / f"{checked_name(name)}.json"
        try:
            with open(path, "rb", opener=_regular) as file:
                data = file.read(_LARGEST + 1)
            if len(data) > _LARGEST:
                raise ValueError(f"larger than {_LARGEST >> 20} MiB")
            return _parse(json.loads(data.decode("utf-8-sig")))
        except FileNotFoundError as error:
            raise SessionError(f"no session {name}{self._near(name)}") from error
        except RecursionError as error:
            raise SessionError(f"{path}: no session in it: nested too deeply") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SessionError(f"{path}: no session in it: {reason}") from error

    def _near(self, name: str) -> str:
        from difflib import get_close_matches

        names = self.names()
        near = get_close_matches(name, names, 1, 0.5) or [each for each in names if each.startswith(name)][:1]
        if near:
            return f"; did you mean {near[0]}?"
        return "; `specli sessions` lists them" if names else "; none is saved yet"

    def exists(self, name: str) -> bool:
        """Whether there is such a file, readable or not."""
        return os.path.lexists(self.folder / f"{name}.json")

    def write(self, name: str, session: Session) -> None:
        """Raises SpecliError where it cannot be written; the old file then stands."""
        write_atomic(self.folder / f"{checked_name(name)}.json", _to_json(session))

    def lock(self, name: str) -> Lock:
        """Be its one writer. Raises BlockingIOError if another is, SessionError where nothing can be kept."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return Lock(self.folder / f"{checked_name(name)}.lock")
        except BlockingIOError:
            raise
        except OSError as error:
            raise SessionError(f"{self.folder}: {error.strerror or error}") from error

    def lock_fresh(self) -> tuple[str, Lock]:
        """A name of its own for a new conversation: the time it began."""
        stem = time.strftime("%Y-%m-%d-%H%M%S")
        for n in range(1, 1000):
            name = stem if n == 1 else f"{stem}-{n}"
            if self.exists(name):
                continue
            try:
                lock = self.lock(name)
            except BlockingIOError:
                continue
            if not self.exists(name):  # not made between the two
                return name, lock
            lock.release()
        raise SessionError(f"{self.folder}: no name is left for a new session")

    def lock_present(self, name: str) -> Lock:
        """As `lock`, of one that there is. Raises SessionError, too, where there is none."""
        if not self.exists(checked_name(name)):
            raise SessionError(f"no session {name}{self._near(name)}")
        return self.lock(name)

    def delete(self, name: str) -> None:
        """Raises SessionError where it cannot be."""
        path = self.folder / f"{checked_name(name)}.json"
        try:
            os.unlink(path)
        except OSError as error:
            raise SessionError(f"{path}: {error.strerror or error}") from error

    def remove(self, name: str) -> None:
        """Remove one that goes by another name now."""
        with suppress(SessionError):
            self.delete(name)


def cache_of(name: str) -> Path:
    """Where the state of the caches after the session `name` is kept, if it is."""
    return cache_dir() / "sessions" / f"{name}.cache"


def _regular(path: str, flags: int) -> int:
    """Open a file that is one: a pipe of that name would wait for ever."""
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("it is no file")
    return handle


# -- the format ---------------------------------------------------------------------------------


def _to_json(session: Session) -> bytes:
    """One message a line, so that people can read and compare it."""
    document = asdict(replace(session, messages=()))
    del document["messages"]
    lines = [json.dumps(_message(message), ensure_ascii=False) for message in session.messages]
    head = json.dumps({"specli-session": FORMAT, **document}, ensure_ascii=False)
    text = head[:-1] + ', "messages": [\n' + ",\n".join(lines) + "\n]}\n"
    return text.encode("utf-8", "replace")


def _message(message: Message) -> dict[str, object]:
    kept = {name: value for name, value in asdict(message).items() if value or name in ("role", "text")}
    if message.tokens is not None:  # none said is not the same as none known
        kept["tokens"] = message.tokens
    return kept


def _parse(document: Any) -> Session:
    """Raises ValueError that says what is not as it should be."""
    if not isinstance(document, dict) or type(document.get("specli-session")) is not int:
        raise ValueError("it is another kind of file")
    if document["specli-session"] != FORMAT:
        raise ValueError(f"it is in format {document['specli-session']}; this specli reads {FORMAT}")
    messages = _get(document, "messages", list)
    session = Session(
        tuple(_read_message(each) for each in messages),
        _get(document, "model", str),
        _get(document, "fingerprint", str),
        None if document.get("system") is None else _get(document, "system", str),
        _get(document, "raw", bool),
        _get(document, "named", bool),
        _get(document, "first", int),
        _get(document, "answers", int),
    )
    _check_turns(session)
    return session


def _read_message(raw: object) -> Message:
    if not isinstance(raw, dict):
        raise ValueError("a message is no object")
    tokens = None if raw.get("tokens") is None else tuple(_get(raw, "tokens", list))
    if tokens is not None and any(type(token) is not int for token in tokens):
        raise ValueError("a token is no whole number")
    files = [
        Attached(_get(file, "name", str), _get(file, "text", str))
        for file in (_get(raw, "files", list) if "files" in raw else ())
    ]
    return Message(_get(raw, "role", str), _get(raw, "text", str), tokens, tuple(files))


def _check_turns(session: Session) -> None:
    for i, message in enumerate(session.messages):
        if message.role != ("assistant" if i % 2 else "user"):
            raise ValueError("its questions and answers do not take turns")
        if message.role == "user" and message.tokens is not None:
            raise ValueError("a question has tokens")
    first = session.first
    if first < 0 or first % 2 or (first and first >= len(session.messages)) or session.answers < 0:
        raise ValueError("it begins with a message that it does not have")


def _get(document: Mapping[str, object], name: str, kind: type[Any]) -> Any:
    value = document.get(name) if isinstance(document, Mapping) else None
    if type(value) is not kind:
        raise ValueError(f"{name} is missing or not what it should be")
    return value
