"""The forms in which `specli run` gives an answer: text as it comes, one JSON object, or events."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol, TextIO

from specli.errors import SpecliError
from specli.ui.terminal import json_text
from specli.ui.think import Think

if TYPE_CHECKING:
    from specli.api.model import Model
    from specli.api.stream import Stream
    from specli.chat.answer import Step
    from specli.ui.readout import Readout

Tags = Mapping[str, object]
"""Put in front of every object of an answer: which of several prompts it is for."""
_NO_TAGS: Tags = {}


class Teller(Protocol):
    """Gives answers in one form."""

    def halt(self) -> bool:
        """Whether to stop now; asked between cycles."""
        ...

    def tell(self, stream: Stream, tags: Tags = _NO_TAGS) -> None:
        """The answer, to its end."""
        ...

    def fail(self, error: SpecliError, tags: Tags = _NO_TAGS) -> None:
        """There is no answer; whoever reads the output is told why."""
        ...


class Text:
    """The text as it comes, with live figures on stderr."""

    def __init__(
        self,
        out: TextIO | None,
        err: TextIO | None,
        stop: Callable[[], bool],
        figures: bool,
        think: Think = "hide",
    ) -> None:
        self._out, self._err, self._stop, self._figures, self._think = out, err, stop, figures, think
        self._readout: Readout | None = None
        self._model: Model | None = None
        self._length = 0

    def halt(self) -> bool:
        if self._readout is not None and self._model is not None:
            self._readout.reading(len(self._model.generator.target.tokens), self._length)
        return self._stop()

    def tell(self, stream: Stream, tags: Tags = _NO_TAGS) -> None:
        from specli.ui.readout import Readout
        from specli.ui.terminal import no_echo

        with ExitStack() as stack:
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            readout = Readout(
                self._out or nowhere, self._err or nowhere, stream.model.methods,
                figures=self._figures, think=self._think,
            )  # fmt: skip
            self._readout, self._model, self._length = readout, stream.model, stream.live.prompt_length
            stack.enter_context(no_echo())
            stack.enter_context(readout.showing(stream.live))
            for step in stream.steps():
                readout.step(step)

    def fail(self, error: SpecliError, tags: Tags = _NO_TAGS) -> None:
        return


class Json:
    """One object for each answer, when it is whole. `think`: whether its text holds the reasoning, too."""

    def __init__(self, out: TextIO | None, stop: Callable[[], bool], think: Think = "hide") -> None:
        self._out, self.halt, self._think = out, stop, think

    def tell(self, stream: Stream, tags: Tags = _NO_TAGS) -> None:
        stream.finish()
        whole = {"text": stream.live.whole_text} if self._think == "show" else {}
        put(self._out, {**tags, **stream.report(), **whole})

    def fail(self, error: SpecliError, tags: Tags = _NO_TAGS) -> None:
        if tags:  # one answer alone has an exit code that says so
            put(self._out, {**tags, "error": str(error)})


class Events:
    """Objects as things happen: start, then text and cycles, end with all that `Json` gives."""

    def __init__(self, out: TextIO | None, stop: Callable[[], bool]) -> None:
        self._out, self.halt = out, stop

    def tell(self, stream: Stream, tags: Tags = _NO_TAGS) -> None:
        model, live = stream.model, stream.live
        self._put(
            "start", tags, model=model.name, draft=model.draft, methods=list(model.methods),
            prompt_tokens=live.prompt_length, seed=live.seed,
        )  # fmt: skip
        for step in stream.steps():
            self._step(step, tags)
        self._put("end", tags, **stream.report())

    def _step(self, step: Step, tags: Tags) -> None:
        for span in step.spans:
            self._put(
                "reasoning" if span.reasoning else "text", tags, text=span.text, method=span.method or None
            )
        cycle = step.cycle
        if cycle is not None:
            self._put(
                "cycle", tags, method=cycle.draft.method or None, drafted=len(cycle.draft),
                tested=cycle.verdict.tested, accepted=cycle.verdict.accepted, emitted=len(cycle.tokens),
                width=cycle.width, draft_s=cycle.draft_s, verify_s=cycle.verify_s,
            )  # fmt: skip

    def fail(self, error: SpecliError, tags: Tags = _NO_TAGS) -> None:
        self._put("error", tags, error=str(error))

    def _put(self, event: str, tags: Tags, **rest: object) -> None:
        put(self._out, {"event": event, **tags, **rest})


def put(out: TextIO | None, row: Mapping[str, object]) -> None:
    """One JSON line, at once."""
    if out is None:
        return
    # Escaped where the encoding would otherwise replace characters.
    ascii_only = "utf" not in (out.encoding or "").lower()
    out.write(json_text(row, ascii_only=ascii_only) + "\n")
    out.flush()
