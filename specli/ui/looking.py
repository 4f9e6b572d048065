"""The commands of a chat that look at the last answer: how it was thought, how it was drafted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast, get_args

from specli.ui import terminal
from specli.ui.command import Command
from specli.ui.think import Think

if TYPE_CHECKING:
    from specli.ui.repl import Chat

_LATEST = 30  # cycles that /trace shows unless told otherwise


def _think(chat: Chat, argument: str) -> None:
    if argument in get_args(Think):
        chat.think = cast("Think", argument)
        chat.screen.say(f"reasoning: {argument}, from the next answer on")
    elif argument:
        chat.screen.complain(
            f"/think {argument}: one of {', '.join(get_args(Think))}, or nothing for the last one"
        )
    else:
        reasoning = chat.last.reasoning if chat.last is not None else None
        chat.screen.say(reasoning if reasoning is not None else "there is no reasoning to show")


def _trace(chat: Chat, argument: str) -> None:
    from specli.ui.trace import trace

    answer = chat.last
    if answer is None or not answer.record.total:
        chat.screen.complain("no answer to look at yet")
        return
    if argument and argument != "all" and not (argument.isdecimal() and int(argument)):
        chat.screen.complain(f"/trace {argument}: how many of the latest cycles, or all")
        return
    cycles = list(answer.record.cycles)
    wanted = len(cycles) if argument == "all" else int(argument or _LATEST)
    err, shown = chat.screen.err, cycles[-wanted:]
    if len(shown) < answer.record.total:
        kept = "" if argument != "all" else ", the latest that are kept"
        every = "" if argument == "all" else "; /trace all shows every one"
        chat.screen.say(f"{len(shown)} of {answer.record.total} cycles{kept}{every}")
    width = terminal.columns(err) - 1 if terminal.is_terminal(err) else 100
    lines = trace(
        shown, answer.words, max(20, width), terminal.has_colour(err),
        lambda symbol: terminal.with_fallbacks(symbol, err),
    )  # fmt: skip
    err.write("\n".join(lines) + "\n")
    err.flush()


def _think_choices(chat: Chat, typed: str) -> Iterable[str]:
    return get_args(Think)


COMMANDS: tuple[Command, ...] = (
    Command("trace", "[N|all]", "what was drafted and accepted in the last answer, cycle by cycle", _trace),
    Command(
        "think",
        "[WORD]",
        "the last reasoning; or show, fold or hide it from now on",
        _think,
        _think_choices,
    ),
)
