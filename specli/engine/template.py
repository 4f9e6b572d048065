"""Chat templates, rendered in a process of their own (`rendering`), within bounds of time, memory and length."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from specli.engine.probe import child_environment
from specli.errors import SpecliError

_PATIENCE_S = 60.0  # by the clock, on a machine that has other things to do as well
_SWITCHES = ("enable_thinking", "thinking")  # what templates call it
_LENGTH = 1 << 20  # characters a template may write, beside four times those of the messages


class TemplateRefusal(SpecliError):
    """The template itself refused these messages, is not valid, or asks for too much; the text says how."""


class ChatTemplate:
    """A compiled template. `bos`, `eos`: the texts that it may write as such tokens. `given`: variables of its own
    that it is given."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        self.source = source
        self.given: Mapping[str, object] = {}
        self._compile = {"source": source, "bos": bos, "eos": eos}
        self._asks_for: frozenset[str] = frozenset()
        self._child: _Child | None = None
        self._lock = threading.Lock()
        self._started()

    def render(self, messages: Sequence[Mapping[str, str]], generation_prompt: bool = True) -> str:
        """The text of `messages` (each with "role" and "content"), ready for an answer if
        `generation_prompt`. Raises TemplateRefusal."""
        most = _LENGTH + 4 * sum(len(text) for m in messages for text in m.values())
        asked = {
            "messages": [dict(m) for m in messages],
            "generation_prompt": generation_prompt,
            "given": dict(self.given),
            "most": most,
        }
        with self._lock:
            return str(self._answer(self._started(), asked)["text"])

    @property
    def reasoning_switch(self) -> str | None:
        """The variable by which it lets one choose whether the model reasons first, None where it has none."""
        return next((name for name in _SWITCHES if name in self._asks_for), None)

    def close(self) -> None:
        """End the process. It is started again where it is needed again."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _started(self) -> _Child:
        if self._child is None or self._child.midway:
            self.close()
            child = _waiting.pop() if _waiting else _Child()
            try:
                compiled = self._answer(child, self._compile)
            except TemplateRefusal as refusal:
                child.end()
                raise TemplateRefusal(
                    str(refusal).replace(": ", ": not a valid template: ", 1)
                ) from refusal.__cause__
            self._asks_for = frozenset(compiled["asks_for"])
            self._child = child
        return self._child

    def _answer(self, child: _Child, asked: Mapping[str, Any]) -> dict[str, Any]:
        answer = child.ask(asked)
        if answer is None:
            child.end()
            raise TemplateRefusal("chat template: it does not come to an end in time; use another template")
        if "error" in answer:
            raise TemplateRefusal(f"chat template: {_one_line(str(answer['error']))}")
        return answer


_waiting: list[_Child] = []


def prepare() -> None:
    """Start a process for the next template, which takes a moment, while there is other work to do."""
    if not _waiting:
        with suppress(TemplateRefusal):  # whoever needs it says so
            _waiting.append(_Child())


class _Child:
    """The process; ends with this object, or with its parent. `midway`: it was asked, and its answer has not been
    taken: an interrupt came between, or it has ended. Then it is good for nothing more."""

    def __init__(self) -> None:
        root, env = child_environment()
        command = [sys.executable, "-m", "specli.engine.rendering"]
        try:
            self._process = subprocess.Popen(
                command,
                cwd=root,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the answer, not for this
            )
        except OSError as error:
            raise TemplateRefusal(
                f"no process for the chat template can be started: {error.strerror or error}"
            ) from error
        self.end = weakref.finalize(self, _end, self._process)
        self._ready = False
        self.midway = False

    def ask(self, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """Its answer; None if it ended, or had to be ended."""
        assert self._process.stdin is not None
        if not self._ready and self._read() is None:
            self.end()
            raise TemplateRefusal("the process for the chat template does not start; reinstall jinja2")
        self._ready = True
        line = json.dumps(asked).encode() + b"\n"
        self.midway = True
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            answer = self._read()
        except OSError:
            answer = None
        self.midway = answer is None
        return answer

    def _read(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        clock = threading.Timer(_PATIENCE_S, self._process.kill)
        clock.daemon = True
        clock.start()
        try:
            line = self._process.stdout.readline()
        finally:
            clock.cancel()
        answer: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
        return answer


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    process.wait()


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:199] + "…"
