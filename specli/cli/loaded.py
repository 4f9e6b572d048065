"""The loaded model of a chat, and what can be changed about it while the conversation goes on."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from specli import profiles
from specli.assembly import Generator
from specli.casting import CastList
from specli.chat.answer import Answer
from specli.chat.conversation import Message
from specli.chat.dialogue import room
from specli.chat.sessions import cache_of
from specli.core.decoding import common_prefix
from specli.engine.memory import available_bytes
from specli.engine.saved import (
    CacheState,
    cache_key,
    give,
    prune,
    read_state,
    size_of,
    take,
    unsavable,
    write_state,
)
from specli.errors import SessionError, SpecliError, UsageError
from specli.opening import Order, check, find, is_raw, load, open_generator
from specli.profiles import Key, Settings
from specli.rules import sampling_params
from specli.ui.setting import CHANGEABLE

MOST_KEPT = 2 << 30
"""Bytes of caches that are kept for later; the oldest go first."""
_WORTH = 64  # tokens: fewer are decoded again in no time
_SLOW = 256 << 20  # bytes that take a moment to write


class Loaded:
    """Implements `ui.repl.LoadedModel` over a `Generator`. `say` gets the notices of what is loaded later."""

    def __init__(self, order: Order, settings: Settings, say: Callable[[str], None]) -> None:
        self._order = order
        self._say = say
        self.loads = 0
        self._adopt(open_generator(order, settings, say))
        self._kept: tuple[str, tuple[int, ...]] | None = None  # the last cache written or read, by session

    def _adopt(self, generator: Generator) -> None:
        self._generator = generator
        self.loads += 1
        self._fingerprint = generator.model.header.fingerprint  # read now: the file may go while it is in use

    def close(self) -> None:
        """Free everything."""
        self._generator.close()

    # -- what there is --------------------------------------------------------------------------

    @property
    def generator(self) -> Generator:
        return self._generator

    @property
    def name(self) -> str:
        return self._generator.model.name

    @property
    def reference(self) -> str:
        return str(self._generator.model.path.absolute())

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def settings(self) -> Settings:
        return self._generator.settings

    @property
    def methods(self) -> Sequence[str]:
        return self._generator.methods

    @property
    def n_ctx(self) -> int:
        return self._generator.target.n_ctx

    @property
    def room(self) -> int:
        return room(self.n_ctx, self.settings.max_tokens, self.settings.fixed_width)

    @property
    def raw(self) -> bool:
        return is_raw(self._generator, self._order.raw)

    def cached(self) -> int:
        return len(self._generator.target.tokens)

    def about(self) -> list[str]:
        g = self._generator
        draft = f" ({g.draft_model.name})" if g.draft_model is not None else ""
        drafters = ", then ".join(g.methods)
        width = self.settings.fixed_width
        return [
            f"model: {self.reference}",
            f"  {g.placement}, context {self.n_ctx}" + (f", exact, width {width}" if width else ""),
            f"  {drafters}{draft} drafts" if drafters else "  no drafting",
        ]

    # -- answering ------------------------------------------------------------------------------

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        prompter = self._generator.prompter
        if self.raw:
            return prompter.plain(messages)
        return prompter.tokens(messages)

    def count(self, text: str) -> int:
        return len(self._generator.model.vocab.tokenize(text))

    def owns(self, message: Message) -> bool:
        n = self._generator.model.vocab.n_tokens
        return all(0 <= token < n for token in message.tokens or ())

    def ask(self, tokens: Sequence[int], stop: Callable[[], bool], answers: int) -> Answer:
        self._generator.reset_seed(answers)
        return self._generator.answer(tokens, stop)

    # -- changing -------------------------------------------------------------------------------

    def set(self, key: Key, value: object) -> None:
        order = replace(self._order, given={**self._order.given, key.attribute: value})
        self._change(self._resolved(order))
        self._order = order

    def draft_with(self, types: str | None) -> None:
        given = None if types is None else [types]
        order = replace(self._order, given={**self._order.given, "types": given})
        settings = self._resolved(order)
        try:
            self._change(settings)
        except _NotLoaded:
            self._say(f"loading {self.name} again for that")
            self._load(order, settings)
        self._order = order

    def use_profile(self, name: str) -> list[str]:
        order = replace(self._order, profile=name)
        wanted = self._resolved(order)
        fixed = [key for key in profiles.KEYS if _at_load(key)]
        different = [k.name for k in fixed if _value(wanted, k) != _value(self.settings, k)]
        now: dict[str, Any] = {k.attribute: _value(self.settings, k) for k in fixed}
        settings = replace(wanted, **now)
        try:
            self._change(settings)
        except _NotLoaded:
            self._say(f"loading {self.name} again for that")
            self._load(order, settings)
        self._order = order
        later = ", ".join(different)
        return [f"{later}: as before, the profile's own from the next start on"] if later else []

    def use_model(self, reference: str) -> list[str]:
        order = replace(self._order, given={**self._order.given, "model": reference, "draft_model": None})
        settings = replace(order.settings(), draft_model=None)
        dropped = self._generator.draft_model
        self._load(order, settings)
        self._order = order
        return (
            [] if dropped is None else [f"{dropped.name} no longer drafts: it was chosen for another model"]
        )

    def _resolved(self, order: Order) -> Settings:
        """What `order` comes to with this model, as tuned where that holds."""
        profile = profiles.load(order.profile)
        tuned = self._generator.request.tuned
        if tuned is not None and order.profile == self._order.profile:
            profile = tuned.over(profile)
        return profiles.resolve(profile, order.given)

    def _change(self, settings: Settings) -> None:
        """Change what can be changed in place. Raises _NotLoaded for a drafter that is not there."""
        g, before = self._generator, self._generator.settings
        sampling_params(settings, g.model.vocab)  # raises for a bias on what is no token
        CastList(g.request).methods(settings, lambda _: None)  # and for who lacks what it needs
        g.choose_reasoning(settings)  # and where the template does not know how
        seeded = settings.seed is not None
        same = all(_value(settings, k) == _value(before, k) for k in profiles.KEYS if k.section == "spec")
        if seeded and settings.seed != before.seed:
            g.seed = int(settings.seed or 0)
        if same and seeded == g.seeded:
            g.settings = settings
            return
        g.seeded = seeded
        try:
            g.reset(settings, keep=g.target.tokens)
        except UsageError as error:
            g.choose_reasoning(before)
            g.reset(before, keep=g.target.tokens)
            raise _NotLoaded(str(error)) from error

    def _load(self, order: Order, settings: Settings) -> None:
        """Load as `order` says. What can be seen wrong before leaves all as it was; if loading fails, what was
        loaded before is loaded again."""
        found = find(order, settings, self._say)
        check(found)
        before, model = self._generator.settings, self._generator.request.model
        state, key = (self._state(), self._key()) if self._generator.is_open else (None, None)
        self._generator.close()
        try:
            self._adopt(load(found, self._say))
        except BaseException:
            self._reload(replace(before, model=str(model)), state)
            raise
        if state is not None and self._key() == key:
            give(self._generator.target, state)

    def _reload(self, settings: Settings, state: CacheState | None) -> None:
        """What was loaded before, after another could not be."""
        try:
            self._adopt(open_generator(self._order, settings, lambda _: None))
        except SpecliError as error:
            self._say(
                f"nothing is loaded now: {self.name} cannot be loaded again either ({error}); /model MODEL"
            )
            return
        if state is not None:
            give(self._generator.target, state)

    # -- caches on the disk ---------------------------------------------------------------------

    def keep_cache(self, name: str, among: Container[str], *, asked: bool) -> list[str]:
        tokens = tuple(self._generator.target.tokens)
        exact = self.settings.fixed_width is not None
        if not tokens or self._kept == (name, tokens) or not (asked or exact or len(tokens) >= _WORTH):
            return []
        problem = self._unkeepable()
        if problem is not None:
            return [f"what was decoded is not kept: {problem}"] if asked else []
        size = size_of(self._generator.target)
        if size > _SLOW:
            self._say(f"keeping what was decoded, {size >> 20} MiB…")
        path = cache_of(name)
        try:
            write_state(path, take(self._generator.target), self._key())
        except SpecliError as error:
            return [f"what was decoded is not kept: {error}"]
        prune(path.parent, among, MOST_KEPT)
        self._kept = (name, tokens)
        return []

    def _unkeepable(self) -> str | None:
        """Why the state of the cache cannot be had here."""
        target = self._generator.target
        problem = unsavable(target)
        if problem is not None:
            return problem
        size = size_of(target)
        if size > MOST_KEPT:
            return f"it takes {size >> 20} MiB; {MOST_KEPT >> 30} GiB is the most for all conversations"
        return "memory is short" if size > available_bytes() // 2 else None

    def forget_cache(self, name: str) -> None:
        with suppress(OSError):
            cache_of(name).unlink()

    def recall_cache(self, name: str, said: Sequence[int]) -> list[str]:
        target = self._generator.target
        try:
            problem = unsavable(target)
            if problem:
                raise SessionError(problem)
            state = read_state(cache_of(name), self._key())
            if state is None:
                return self._differs("no cache was kept") if self.settings.fixed_width else []
            if not give(target, state):
                raise SessionError("the library does not take it back")
        except SessionError as error:
            return self._differs(str(error))
        self._kept = (name, state.tokens)
        if self.settings.fixed_width and common_prefix(state.tokens, said) < len(said) - 1:
            return self._differs("what was kept ends before the last answer")
        return []

    def _differs(self, reason: str) -> list[str]:
        """What it means that a conversation must be decoded anew."""
        exact = ", so even in exact mode it may go on in other words" if self.settings.fixed_width else ""
        return [f"the conversation is read again with the next question{exact}: {reason}"]

    def _state(self) -> CacheState | None:
        target = self._generator.target
        return take(target) if target.tokens and self._unkeepable() is None else None

    def _key(self) -> dict[str, str]:
        g = self._generator
        return cache_key(g.target, self._fingerprint, g.chunk, g.settings.fixed_width)


class _NotLoaded(UsageError):
    """A drafter that has to be loaded first."""


def _at_load(key: Key) -> bool:
    """Whether a key counts only when a model is loaded."""
    if key.name in ("description", "system", "types"):
        return False
    return key not in CHANGEABLE


def _value(settings: Settings, key: Key) -> object:
    return getattr(settings, key.attribute)
