"""`specli sessions`: the conversations that were saved, and their removal."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from specli.cli import complete
from specli.cli.help import Groups, Sections
from specli.errors import SessionError, UsageError
from specli.ui.terminal import announcer, json_text, prose

if TYPE_CHECKING:
    from specli.chat.sessions import Listed, Shelf

app = typer.Typer(cls=Groups, rich_markup_mode=None)


def shelf() -> Shelf:
    """Where `specli chat` keeps conversations."""
    from specli.chat.sessions import Shelf
    from specli.paths import data_dir

    return Shelf(data_dir() / "sessions")


@app.callback(invoke_without_command=True)
def list_sessions(
    ctx: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False
) -> None:
    """List the saved conversations, the latest first; delete them.

    `specli chat --resume NAME` goes on with one, `specli chat --continue` with the latest.
    """
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise UsageError(f"--json belongs to the list, not to `specli sessions {ctx.invoked_subcommand}`")
        return
    place = shelf()
    found = place.listing()
    if as_json:
        typer.echo(json_text([_as_json(each) for each in found], indent=2))
        return
    if not found:
        announcer()(f"no conversation is saved in {place.folder}")
    for each in found:
        prose(f"{each.name} · {each.when} · {each.about}")


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


def _as_json(each: Listed) -> dict[str, object]:
    session = each.session
    return {
        "name": each.name,
        "changed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(each.changed)),
        "turns": None if session is None else session.turns,
        "title": None if session is None else session.title,
        "model": None if session is None else session.model,
        "problem": each.problem or None,
    }
