"""`specli chat`: a conversation in the terminal, or over pipes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from specli.cli import complete
from specli.cli.options import Shared, shared_options
from specli.cli.sessions import shelf
from specli.errors import SessionError, UsageError
from specli.ui.think import Think

if TYPE_CHECKING:
    from specli.chat.sessions import Session
    from specli.cli.loaded import Loaded
    from specli.ui.repl import Chat, Screen


@shared_options
def chat(
    shared: Shared,
    go_on: Annotated[
        bool, typer.Option("--continue", help="Go on with the latest conversation, and its model")
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="NAME",
            help="Go on with the conversation saved under this name",
            autocompletion=complete.sessions,
        ),
    ] = None,
    no_save: Annotated[
        bool, typer.Option("--no-save", help="Do not save the conversation (/save still does)")
    ] = False,
    show_drafts: Annotated[
        bool,
        typer.Option(
            "--show-drafts", help="Colour what came from accepted drafts, by method; the text is not rendered"
        ),
    ] = False,
    think: Annotated[
        Think,
        typer.Option(
            "--think",
            metavar="show|fold|hide",
            help="Reasoning: shown, folded to one line when it is done, or hidden [fold]",
            show_default=False,
        ),
    ] = "fold",
) -> int:
    """Chat with a model. Piped lines are answered in turn.

    Answers go to standard output, all else to standard error. Ctrl-C stops an answer, Ctrl-D ends.
    Conversations are saved as they go on; --continue takes up the latest.
    """
    from specli.chat.keeper import Keeper
    from specli.cli.loaded import Loaded
    from specli.ui import terminal
    from specli.ui.repl import Chat

    earlier = _earlier(go_on, resume)
    if earlier is not None:
        shared = _as_then(shared, earlier.session)
    settings = shared.settings()
    with _screen(shared, show_drafts) as screen:
        say: Callable[[str], None] = _silent if shared.quiet else screen.say
        with closing(Loaded(shared.order(), settings, say)) as model:
            if show_drafts and not terminal.can_move(screen.out):
                screen.complain("--show-drafts shows nothing here: standard output is no capable terminal")
            talk = Chat(model, screen, Keeper(shelf(), saving=not no_save), think=think)
            talk.dialogue.system, talk.dialogue.raw = settings.system, model.raw
            if not shared.quiet:
                _greet(model, screen)
            if earlier is not None:
                talk.resume(earlier.name, quiet=shared.quiet)
                if settings.origin("system") == "flag":
                    talk.dialogue.system = settings.system
            return talk.run(_lines(talk))


# -- earlier conversations ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Earlier:
    name: str
    session: Session


def _earlier(go_on: bool, resume: str | None) -> _Earlier | None:
    """The conversation to go on with, read before a model is loaded for it."""
    if go_on and resume is not None:
        raise UsageError("--continue and --resume are both given; leave one of them out")
    if not go_on and resume is None:
        return None
    place = shelf()
    name = place.newest() if resume is None else resume
    if name is None:
        raise SessionError("no conversation is saved yet, so there is none to go on with")
    return _Earlier(name, place.read(name))


def _as_then(shared: Shared, session: Session) -> Shared:
    """With the model of then, where no other is asked for."""
    flags = dict(shared.flags)
    if flags.get("model") is None:
        if not os.path.exists(session.model):
            raise SessionError(f"the model of that conversation is gone: {session.model}; give one with -m")
        flags["model"] = session.model
    return replace(shared, flags=flags, raw=shared.raw or session.raw)


# -- what is seen -------------------------------------------------------------------------------


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
            markdown=True,
        )


def _silent(_: str) -> None:
    return


def _greet(model: Loaded, screen: Screen) -> None:
    """What is loaded, in a line or two."""
    from specli.ui import terminal
    from specli.ui.methods import legend
    from specli.ui.terminal import columns, fold, is_terminal

    generator = model.generator
    drafters = ", then ".join(generator.methods)
    if generator.draft_model is not None:
        drafters += f" ({generator.draft_model.name})"
    segments = [
        generator.model.name,
        generator.placement,
        f"{drafters} drafts" if drafters else "no drafting",
        f"context {model.n_ctx}",
    ]
    width = generator.settings.fixed_width
    if width is not None:
        segments.append(f"exact, width {width}")
    if screen.interactive:
        segments.append("/help")
    room = columns(screen.err) - 1 if is_terminal(screen.err) else 1000
    screen.say("\n".join(fold(segments, room)))
    if screen.show_drafts and generator.methods and terminal.can_move(screen.out):
        screen.out.write(legend(generator.methods, terminal.has_colour(screen.out)) + "\n")
    if screen.interactive:
        screen.say()


def _lines(talk: Chat) -> Iterable[str]:
    if talk.screen.interactive:
        from specli.paths import data_dir
        from specli.ui.commands import completion
        from specli.ui.keyboard import Keyboard
        from specli.ui.plainkeys import PlainKeys
        from specli.ui.terminal import can_move, is_terminal

        if not can_move(sys.stdout if is_terminal(sys.stdout) else sys.stderr):
            return PlainKeys()
        return Keyboard(data_dir() / "history", lambda line: completion(talk, line))
    return _piped()


def _piped() -> Iterator[str]:
    if sys.stdin is None:
        return
    for line in sys.stdin.buffer:
        yield line.decode("utf-8-sig", "replace").rstrip("\r\n")
