"""`specli sessions`: the conversations that were saved, what they say, and their removal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from specli.cli import complete
from specli.cli.help import Groups, Sections
from specli.errors import SessionError, UsageError
from specli.ui.terminal import announcer, echo, is_terminal, json_text, prose, with_fallbacks

if TYPE_CHECKING:
    from specli.chat.conversation import Message
    from specli.chat.sessions import Listed, Session, Shelf

app = typer.Typer(cls=Groups, rich_markup_mode=None)
_Json = Annotated[bool, typer.Option("--json", help="Print JSON")]
_AROUND = 30  # characters shown before what was searched for


def shelf() -> Shelf:
    """Where `specli chat` keeps conversations."""
    from specli.chat.sessions import Shelf
    from specli.paths import data_dir

    return Shelf(data_dir() / "sessions")


@app.callback(invoke_without_command=True)
def list_sessions(ctx: typer.Context, as_json: _Json = False) -> None:
    """List, print, search and delete the saved conversations.

    Without a command they are listed, the latest first. `specli chat --resume NAME` goes on with one, `specli chat --continue` with the latest.
    """
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise UsageError(f"--json before {ctx.invoked_subcommand} belongs to the list; put it at the end")
        return
    from specli.ui.listing import row

    place = shelf()
    found = place.listing()
    if as_json:
        typer.echo(json_text([_as_json(each) for each in found], indent=2))
        return
    if not found:
        announcer()(f"no conversation is saved in {place.folder}")
    for each in found:
        echo(row(each, sys.stdout))


@app.command(cls=Sections)
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="As the list shows it", show_default=False, autocompletion=complete.sessions
        ),
    ],
    as_json: _Json = False,
) -> None:
    """Print a saved conversation as Markdown.

    Questions stand as quotes, answers as they are.
    """
    session = shelf().read(name)
    if as_json:
        typer.echo(json_text(_whole(name, session), indent=2))
        return
    text = "\n\n".join(_paragraphs(session)) + "\n"
    sys.stdout.write(with_fallbacks(text, sys.stdout) if is_terminal(sys.stdout) else text)


@app.command(cls=Sections)
def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="In any case", show_default=False)],
    as_json: _Json = False,
) -> None:
    """Find the conversations that say TEXT.

    The latest first, each with the first line that says it.
    """
    wanted = text.casefold()
    if not wanted.strip():
        raise UsageError("TEXT is empty: give a word that the conversation says")
    place = shelf()
    rows = []
    for each in place.listing():
        said = [line for line in _lines(each.session) if wanted in line.casefold()]
        if said:
            rows.append({**_as_json(each), "matches": len(said), "line": said[0]})
            if not as_json:
                more = f" · {len(said)} lines" if len(said) > 1 else ""
                prose(f"{each.name} · {each.when}{more} · {_around(said[0], wanted)}")
    if as_json:
        typer.echo(json_text(rows, indent=2))
    elif not rows:
        announcer()(f"no conversation in {place.folder} says {text}")


@app.command(cls=Sections)
def delete(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="As the list shows them", show_default=False,
            autocompletion=complete.sessions,
        ),
    ],
) -> None:  # fmt: skip
    """Delete saved conversations, and what is kept of their caches. There is no way back.

    All of them stay if one is not there, or open in a chat.
    """
    from specli.chat.sessions import cache_of

    place = shelf()
    locks = []
    try:
        for name in dict.fromkeys(names):
            try:
                locks.append(place.lock_present(name))
            except BlockingIOError:
                raise SessionError(f"the session {name} is open in another specli; end that first") from None
        for name in dict.fromkeys(names):
            place.delete(name)
            with suppress(OSError):  # there is none, as a rule
                cache_of(name).unlink()
            announcer()(f"deleted {name}")
    finally:
        for lock in locks:
            lock.release()


def _paragraphs(session: Session) -> Iterator[str]:
    """The conversation as Markdown."""
    if session.system:
        yield f"System: {session.system}"
    for message in session.messages:
        files = [f"({file.name}, {len(file.text)} characters)" for file in message.files]
        if message.role == "user":
            yield "\n".join(f"> {line}".rstrip() for line in (*files, *message.text.split("\n")))
        else:
            yield message.text


def _lines(session: Session | None) -> Iterator[str]:
    """All that was said, and the names of files."""
    if session is not None:
        yield from (session.system or "").splitlines()
        for message in session.messages:
            yield from (file.name for file in message.files)
            yield from message.text.splitlines()


def _around(line: str, wanted: str) -> str:
    """As much of `line` as a list has room for, what was searched for in it."""
    at = max(0, line.casefold().find(wanted) - _AROUND)
    end = at + len(wanted) + 2 * _AROUND
    return ("…" if at else "") + " ".join(line[at:end].split()) + ("…" if end < len(line) else "")


def _whole(name: str, session: Session) -> dict[str, object]:
    def told(message: Message) -> dict[str, object]:
        files = [{"name": file.name, "text": file.text} for file in message.files]
        return {"role": message.role, "text": message.text, **({"files": files} if files else {})}

    return {
        "name": name,
        "model": session.model,
        "system": session.system,
        "messages": [told(message) for message in session.messages],
    }


def _as_json(each: Listed) -> dict[str, object]:
    session = each.session
    return {
        "name": each.name,
        "changed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(each.changed)),
        "turns": None if session is None else session.turns,
        "title": None if session is None else session.title[:60],
        "model": None if session is None else session.model,
        "problem": each.problem or None,
    }
