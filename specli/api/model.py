"""A loaded model that answers: `load`, and what it returns."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from specli.api import options as names
from specli.api.answer import Answer, Figures, figures_of
from specli.api.question import Files, Turns, path_of, question
from specli.api.stream import Stream
from specli.chat.conversation import Prompter
from specli.chat.dialogue import room
from specli.core.noise import entropy_seed
from specli.errors import SpecliError, UsageError
from specli.opening import Order, is_raw, open_generator
from specli.settings import Settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from specli.api.conversation import Conversation
    from specli.api.options import AnswerOptions, LoadOptions
    from specli.assembly import Generator

Halt = Callable[[], bool]
"""Asked between cycles, and between pieces of a long prompt: True ends the answer as interrupted."""


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    profile: str | os.PathLike[str] | None = None,
    chat_template_file: str | os.PathLike[str] | None = None,
    raw: bool = False,
    verbose: bool = False,
    use_tuned: bool = True,
    on_notice: Callable[[str], None] = lambda _: None,
    **options: Unpack[LoadOptions],
) -> Model:
    """Load a model; close it when done, or use it in a `with` statement.

    `model`: a path, an alias, or user/repo[:quant] on Hugging Face; None for the default one. `profile`: a
    name or a TOML file; None for what `specli tune` found for this model, or else auto. `raw`: continue texts as they are, without a chat template. `use_tuned`: False
    leaves what `specli tune` found aside. `on_notice`: gets each line worth knowing as it arises;
    `Model.notices` keeps them. `options`: the flags of `specli run` in snake case.

    Raises UsageError for options that cannot be meant, ModelFileError, MemoryShortage and other kinds of
    SpecliError where the model cannot be had.
    """
    if not callable(on_notice):
        raise UsageError(f"on_notice must be a function that takes a line, not {on_notice!r:.60}")
    asked = {"model": None if model is None else path_of("model", model), **names.given(options)}
    template = None if chat_template_file is None else Path(path_of("chat_template_file", chat_template_file))
    order = Order(
        asked,
        None if profile is None else path_of("profile", profile),
        template,
        raw,
        verbose,
        use_tuned=use_tuned,
    )
    return open_model(order, order.settings(), on_notice)


def open_model(order: Order, settings: Settings, say: Callable[[str], None]) -> Model:
    """What was ordered, loaded. `settings`: usually `order.settings()`."""
    began = time.perf_counter()
    generator = open_generator(order, settings, say)
    return Model(generator, is_raw(generator, order.raw), time.perf_counter() - began)


class Asked(Protocol):
    """What can be asked: a `Question`, or a conversation whose last question waits for its answer."""

    def tokens(self, voice: Prompter, raw: bool, system: str | None) -> list[int]:
        """The prompt, as `voice` makes it of messages; of bare text where `raw`."""
        ...


class Model:
    """A loaded model with its drafters. It says one answer at a time.

    An answer for which a seed was given, and every answer in exact mode, starts from nothing, so it does not
    depend on what was asked before. Otherwise drafters and pacing learn from answer to answer, and what
    prompts have in common at their beginning is decoded once.

    `generator`: what works below; it may change between versions.
    """

    def __init__(self, generator: Generator, raw: bool = False, load_s: float | None = None) -> None:
        self.generator = generator
        self.raw = raw
        self.load_s = load_s
        self._settings = generator.settings
        self._voice = Prompter(generator.model.vocab, None) if raw else generator.prompter
        self._current: Stream | None = None
        self._asker: object = None  # the conversation that asked last
        self._used = False
        self._disordered = False  # an error broke off an answer: what the caches hold is unknown
        self._closed = False
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<specli.Model {self.name}>"

    # -- what there is --------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.generator.model.name

    @property
    def draft(self) -> str | None:
        """The draft model's name, None without one."""
        return self.generator.draft_model.name if self.generator.draft_model else None

    @property
    def methods(self) -> tuple[str, ...]:
        """Who drafts, in order; empty for plain decoding."""
        return tuple(self.generator.methods)

    @property
    def settings(self) -> Settings:
        """What it was loaded with; each answer may have options of its own."""
        return self._settings

    @property
    def n_ctx(self) -> int:
        """Tokens of context, for prompt and answer together."""
        return self.generator.target.n_ctx

    @property
    def room(self) -> int:
        """Tokens of the context that a conversation leaves for its next answer."""
        return room(self.n_ctx, self._settings.max_tokens, self._settings.fixed_width)

    @property
    def notices(self) -> tuple[str, ...]:
        """What was worth knowing so far, a line each."""
        return tuple(self.generator.notices)

    @property
    def stats(self) -> Figures:
        """The figures of the last answer, of one under way those so far."""
        return Figures() if self._current is None else figures_of(self._current.live)

    # -- asking ---------------------------------------------------------------------------------

    def stream(
        self,
        prompt: str | Turns,
        *,
        files: Files = (),
        halt: Halt = lambda: False,
        **options: Unpack[AnswerOptions],
    ) -> Stream:
        """Start an answer; iterate over it to get the text.

        `prompt`: a text, or turns such as [{"role": "user", "content": "Hello"}]. `files`: put before it,
        named and fenced. `options`: for this answer alone. Raises UsageError for what cannot be asked,
        SpecliError where the prompt does not fit into the context.
        """
        return self.start(question(prompt, files), options, halt=halt)

    def answer(
        self,
        prompt: str | Turns,
        *,
        files: Files = (),
        halt: Halt = lambda: False,
        **options: Unpack[AnswerOptions],
    ) -> Answer:
        """The whole answer at once; everything else as for `stream`."""
        return self.start(question(prompt, files), options, halt=halt).finish()

    def chat(self, **options: Unpack[AnswerOptions]) -> Conversation:
        """A conversation: turns that build on each other. `options` hold for all its answers."""
        from specli.api.conversation import Conversation

        return Conversation(self, options)

    def start(
        self,
        asked: Asked,
        options: Mapping[str, object],
        *,
        halt: Halt = lambda: False,
        logprobs: int | None = None,
        asker: object = None,
        turn_seed: int | None = None,
    ) -> Stream:
        """As `stream`, for whatever knows its prompt. `logprobs`: how many of the likeliest tokens to report
        in each one's place. `asker`: whose turn it is, if it builds on the last one. `turn_seed`: the seed,
        unless the options have one."""
        if not callable(halt):
            raise UsageError(f"halt must be a function without arguments, not {halt!r:.60}")
        settings = names.changed(self._settings, options)
        if self.raw and options.get("system"):
            raise UsageError("raw text has no turns and no system message; put everything into one prompt")
        if options.get("seed") is None and turn_seed is not None:
            settings = replace(settings, seed=turn_seed)
        with self._engine():
            self._prepare(settings, asker)
            tokens = asked.tokens(self._voice, self.raw, settings.system)
            self._current = Stream(self, self.generator.answer(tokens, halt, logprobs))
        return self._current

    def _prepare(self, settings: Settings, asker: object) -> None:
        """Settings and seed for the next answer, and a fresh start where it must not depend on others."""
        engine = self.generator
        goes_on = asker is not None and asker is self._asker
        seeded = settings.seed is not None
        alone = engine.seeded or seeded or settings.exact
        clean = not self._used and engine.seeded == seeded  # a seed freezes pacing from the start
        self._asker, self._current = asker, None
        engine.settings, engine.seeded = settings, seeded
        engine.seed = entropy_seed() if settings.seed is None else settings.seed
        if self._disordered or (alone and not goes_on and not clean):
            engine.reset()
        elif not goes_on:
            engine.forget_texts()
        engine.reset_seed()
        self._used, self._disordered = True, False

    @contextmanager
    def turn(self, stream: Stream) -> Iterator[None]:
        """While `stream` decodes. Raises SpecliError where it may not go on."""
        with self._engine():
            if self._current is not stream:
                raise SpecliError("another answer of this model was begun, so this one cannot go on")
            try:
                yield
            except BaseException:
                self._disordered = True
                raise

    @contextmanager
    def _engine(self) -> Iterator[None]:
        """One at a time in the engine, which would not survive two, nor a fork."""
        if os.getpid() != self._process:
            raise SpecliError("this process was forked from the one that loaded the model; load it here")
        if not self._lock.acquire(blocking=False):
            raise SpecliError("the model is at work already; it says one answer at a time")
        try:
            if self._closed:
                raise UsageError("the model has been closed")
            yield
        finally:
            self._lock.release()

    def look_back(self, stream: Stream) -> None:
        """Notice what the finished `stream` says of a tuned profile, if it is the latest."""
        if stream is self._current and not self._closed:
            self.generator.look_back()

    # -- closing --------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the memory. Safe to call twice."""
        if not self._closed:
            with self._engine():
                self._closed = True
                self.generator.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
