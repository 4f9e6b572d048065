"""An answer as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specli.api.answer import Answer, answer_of
from specli.api.record import json_object

if TYPE_CHECKING:
    from specli.api.model import Model
    from specli.chat.answer import Answer as Live
    from specli.chat.answer import Step


class Stream:
    """Iterate for the answer's text, piece by piece, reasoning left out; leave whenever you like.

    The model says one answer at a time: once another has begun, this one raises SpecliError where it would
    go on. `live` is the answer with the figures so far, `model` who says it.
    """

    def __init__(self, model: Model, live: Live) -> None:
        self.model = model
        self.live = live
        self._steps = self._run()

    def __iter__(self) -> Iterator[str]:
        for step in self._steps:
            text = "".join(span.text for span in step.spans if not span.reasoning)
            if text:
                yield text

    def steps(self) -> Iterator[Step]:
        """The same cycle by cycle, with figures, and with each span of text who drafted it."""
        return self._steps

    def _run(self) -> Iterator[Step]:
        steps = iter(self.live)
        while True:
            with self.model.turn(self):
                step = next(steps, None)
            if step is None:
                return
            yield step

    def finish(self) -> Answer:
        """Say the rest, and return the whole answer."""
        for _ in self._steps:
            pass
        return self.answer

    @property
    def answer(self) -> Answer:
        """What has been said so far; all of it once the iteration is over."""
        return answer_of(self.live)

    def report(self) -> dict[str, object]:
        """The object that `specli run --json` prints, for what has been said so far."""
        self.model.look_back(self)
        return json_object(self.model.generator, self.live, self.model.load_s)
