"""`specli chat`: a conversation in the terminal, or over pipes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from specli.cli.options import Shared, is_raw, open_generator, shared_options

if TYPE_CHECKING:
    from specli.assembly import Generator
    from specli.chat.conversation import Message
    from specli.ui.repl import Chat, Screen


@shared_options
def chat(
    shared: Shared,
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Colour the text that came from accepted drafts")
    ] = False,
) -> int:
    """Chat with a model. Piped lines are answered in turn.

    Answers go to standard output, all else to standard error. Ctrl-C stops an answer, Ctrl-D ends.
    """
    from specli.ui import terminal

    settings = shared.settings()
    with (
        _screen(shared, show_drafts) as screen,
        open_generator(shared, settings, _silent if shared.quiet else screen.say) as generator,
    ):
        if show_drafts and not terminal.can_move(screen.out):
            screen.complain("--show-drafts shows nothing here: standard output is no capable terminal")
        talk = _chat(generator, shared, screen)
        if not shared.quiet:
            _greet(generator, screen)
        return talk.run(_lines(talk))


@contextmanager
def _screen(shared: Shared, show_drafts: bool) -> Iterator[Screen]:
    from specli.ui.repl import Screen
    from specli.ui.terminal import is_terminal

    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        yield Screen(
            out=sys.stdout or nowhere,
            err=sys.stderr or nowhere,
            interactive=is_terminal(sys.stdin),
            figures=not shared.quiet,
            show_drafts=show_drafts,
        )


def _silent(_: str) -> None:
    return


class _Continuing:
    """Raw text: what was said so far, as it is, to be continued."""

    def __init__(self, generator: Generator) -> None:
        from specli.chat.conversation import Prompter

        self._prompter = Prompter(generator.model.vocab, None)

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        return self._prompter.tokens(messages)


def _chat(generator: Generator, shared: Shared, screen: Screen) -> Chat:
    from specli.ui.repl import Chat, Model

    raw = is_raw(generator, shared)
    model = Model(
        ask=generator.answer,
        voice=_Continuing(generator) if raw else generator.prompter,
        methods=generator.methods,
        n_ctx=generator.target.n_ctx,
        cached=lambda: len(generator.target.tokens),
        raw=raw,
    )
    return Chat(model, screen, system=generator.settings.system)


def _greet(generator: Generator, screen: Screen) -> None:
    """What is loaded, in a line or two."""
    from specli.ui.terminal import columns, fold, is_terminal

    drafters = ", then ".join(generator.methods)
    if generator.draft_model is not None:
        drafters += f" ({generator.draft_model.name})"
    segments = [
        generator.model.name,
        generator.placement,
        f"{drafters} drafts" if drafters else "no drafting",
        f"context {generator.target.n_ctx}",
    ]
    width = generator.settings.fixed_width
    if width is not None:
        segments.append(f"exact, width {width}")
    if screen.interactive:
        segments.append("/help")
    room = columns(screen.err) - 1 if is_terminal(screen.err) else 1000
    screen.say("\n".join(fold(segments, room)))
    if screen.interactive:
        screen.say()


def _lines(talk: Chat) -> Iterable[str]:
    if talk.screen.interactive:
        from specli.paths import data_dir
        from specli.ui.keyboard import Keyboard

        return Keyboard(data_dir() / "history", [command.name for command in talk.commands()])
    return _piped()


def _piped() -> Iterator[str]:
    if sys.stdin is None:
        return
    for line in sys.stdin.buffer:
        yield line.decode("utf-8-sig", "replace").rstrip("\r\n")
