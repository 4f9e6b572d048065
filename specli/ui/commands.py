"""What can be typed after a slash: the list, and the commands that act on the conversation."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specli.chat.attached import read_attached
from specli.chat.sessions import checked_name
from specli.errors import SessionError, SpecliError
from specli.ui import clipboard, looking, setting
from specli.ui.command import Command
from specli.ui.editor import edited
from specli.ui.listing import row
from specli.ui.recap import shortened
from specli.ui.report import report

if TYPE_CHECKING:
    from specli.ui.repl import Chat

_COMMAND = re.compile(r"/([A-Za-z?]\w*)(?:\s+(.*))?", re.DOTALL)
_ALIASES = {"quit": "exit", "bye": "exit", "?": "help", "retry": "regen"}
_LISTED = 20
_KEYS = (
    ("Ctrl-C", "stop an answer, or clear the line"),
    ("Ctrl-G", "edit the line in your editor"),
    ("Tab", "complete commands, files and names"),
    ("Alt-Enter", "start a new line; so does Enter between " + '"""' + " and " + '"""'),
)


@dataclass(frozen=True, slots=True)
class Call:
    """A command as typed."""

    name: str
    argument: str


def parsed(line: str) -> Call | None:
    """The command that `line` calls; None if it is a message."""
    match = _COMMAND.fullmatch(line.strip())
    return None if match is None else Call(match[1].lower(), (match[2] or "").strip())


def execute(chat: Chat, call: Call) -> bool:
    """Run a command. False: the chat is to end. What cannot be done is said, and nothing is lost."""
    found = _find(call.name)
    if found is None:
        names = [*(command.name for command in COMMANDS), *_ALIASES]
        near = difflib.get_close_matches(call.name, names, 1, 0.4)
        near = near or [name for name in names if name.startswith(call.name)][:1]
        hint = f"did you mean /{near[0]}?" if near else "/help lists them all"
        chat.screen.complain(f"no command /{call.name}; {hint}")
        return True
    if call.argument and not found.argument:
        chat.screen.complain(f"/{found.name} takes nothing after it")
        return True
    try:
        return found.run(chat, call.argument) is not False
    except SpecliError as error:
        chat.screen.complain(str(error))
        return True


def _find(name: str) -> Command | None:
    name = _ALIASES.get(name, name)
    return next((command for command in COMMANDS if command.name == name), None)


# -- the program --------------------------------------------------------------------------------


def _help(chat: Chat, _: str) -> None:
    rows = [(f"/{command.name} {command.argument}", command.help) for command in COMMANDS]
    for name, what in (*rows, *(_KEYS if chat.screen.interactive else ())):
        chat.screen.say(name.ljust(18) + what, indent=18)


def _exit(chat: Chat, _: str) -> bool:
    return False


def _stats(chat: Chat, _: str) -> None:
    for line in report(chat.last, chat.totals, chat.model.cached(), chat.model.n_ctx):
        chat.screen.say(line)


# -- turns --------------------------------------------------------------------------------------


def _regen(chat: Chat, _: str) -> None:
    if chat.model.settings.temp == 0 and chat.dialogue.last_answer is not None:
        chat.screen.say("at temperature 0 the answer is the same each time; /set temp 0.8 varies it")
    chat.answer_again()


def _undo(chat: Chat, _: str) -> None:
    question = chat.undo()
    if question is None:
        chat.screen.complain("nothing to take back")
        return
    words = " ".join(question.text.split())
    files = "".join(f", with {file.name}" for file in question.files)
    chat.screen.say(f"taken back: {words if len(words) <= 60 else words[:59] + '…'}{files}")


def _edit(chat: Chat, _: str) -> None:
    question = chat.dialogue.last_question
    if not chat.screen.interactive:
        chat.screen.complain("/edit needs a terminal")
    elif question is None:
        chat.screen.complain("nothing was asked yet")
    else:
        text = edited(question.text)
        if not text.strip() or text == question.text:
            chat.screen.say("nothing was changed")
            return
        chat.ask_instead(text)


def _read(chat: Chat, name: str) -> None:
    files, screen = chat.dialogue.files, chat.screen
    if not name:
        screen.complain("/read FILE: which file?")
        return
    if name == "-":
        dropped = ", ".join(file.name for file in files)
        files.clear()
        screen.say(f"no longer with the next question: {dropped}" if dropped else "no file waits")
        return
    if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
        name = name[1:-1]
    file = read_attached(Path(name))
    if not file.text.strip() or "\0" in file.text:
        screen.complain(
            f"{file.name} {'is empty' if not file.text.strip() else 'is no text: it has NUL bytes'}"
        )
        return
    again = any(other.name == file.name for other in files)
    files[:] = [*(other for other in files if other.name != file.name), file]
    size, most = chat.model.count(file.text), chat.model.n_ctx - chat.model.room
    screen.say(f"{file.name} ({size} tokens) goes with the next question{', as it is now' if again else ''}")
    if size > most:
        screen.complain(
            f"that is more than the context of {chat.model.n_ctx} tokens has room for; --ctx-size N makes it larger, "
            "/read - drops it"
        )


def _copy(chat: Chat, _: str) -> None:
    answer = chat.dialogue.last_answer
    if answer is None:
        chat.screen.complain("there is no answer to copy yet")
        return
    text = chat.last.text if chat.last is not None else answer.text
    done = clipboard.copy(text, (chat.screen.out, chat.screen.err))
    if done is None:
        chat.screen.complain("/copy hands the answer to the terminal's clipboard; there is no terminal here")
        return
    chat.screen.say(f"{done}: {len(text)} character{'s' if len(text) != 1 else ''}")


# -- the conversation ---------------------------------------------------------------------------


def _clear(chat: Chat, _: str) -> None:
    name = chat.keeper.name
    chat.begin_anew()
    stays = "; the system message stays" if chat.dialogue.system else ""
    back = f"; the old one is kept: /load {name}" if name is not None else ""
    chat.screen.say(f"a new conversation{stays}{back}")


def _system(chat: Chat, text: str) -> None:
    dialogue, screen = chat.dialogue, chat.screen
    if chat.model.raw:
        screen.complain("raw text has no turns, so there is no system message")
    elif not text:
        screen.say(
            f"system: {dialogue.system}" if dialogue.system else "no system message; /system TEXT sets one"
        )
    else:
        dialogue.system = None if text == "-" else text
        chat.save()
        screen.say("system message removed" if text == "-" else "system message set, from the next answer on")


def _save(chat: Chat, name: str) -> None:
    before, named = chat.keeper.name, chat.keeper.named
    if not chat.dialogue.messages:
        chat.screen.complain("nothing was said yet, so there is nothing to save")
        return
    if name:
        chat.keeper.save_as(checked_name(name), chat.session)
    chat.keeper.saving = True
    chat.keeper.save(chat.session)
    name = chat.keeper.name or name
    if before is not None and before != name and not named:
        chat.model.forget_cache(before)
    renamed = f", no longer as {before}" if before is not None and before != name and not named else ""
    chat.screen.say(f"saved as {name}{renamed} in {chat.keeper.shelf.folder}")
    chat.keep_cache(name, asked=True)


def _load(chat: Chat, name: str) -> None:
    if not name:
        chat.screen.complain("/load NAME: which one? /sessions lists them")
        return
    try:
        chat.resume(name)
    except SessionError as error:
        raise SessionError(str(error).replace("`specli sessions`", "/sessions")) from error


def _sessions(chat: Chat, _: str) -> None:
    found = chat.keeper.shelf.listing(_LISTED)
    if not found:
        chat.screen.say("no conversation is saved yet")
    for each in found:
        here = " (this one)" if each.name == chat.keeper.name else ""
        if each.session is None:
            chat.screen.complain(each.problem)
            continue
        chat.screen.say(row(each, chat.screen.err, here))
    more = len(chat.keeper.shelf.names()) - len(found)
    if more > 0:
        chat.screen.say(f"and {more} older ones in {chat.keeper.shelf.folder}")


def _session_names(chat: Chat, _: str) -> Iterable[str]:
    return chat.keeper.shelf.names()


def _session_about(chat: Chat, name: str) -> str:
    return shortened(chat.keeper.shelf.listed(name).about, 60)


COMMANDS: tuple[Command, ...] = (
    Command("help", "", "this list", _help),
    Command("system", "[TEXT]", "show or set the system message; /system - removes it", _system),
    Command("read", "FILE", "put a file before the next question; /read - takes all back", _read, files=True),
    Command("regen", "", "answer the last question again, with the next seed", _regen),
    Command("undo", "", "take back the last question and its answer", _undo),
    Command("edit", "", "edit the last question in your editor, and answer it again", _edit),
    Command("copy", "", "copy the last answer to the clipboard", _copy),
    Command("clear", "", "begin a new conversation", _clear),
    Command("save", "[NAME]", "save now, under a name if given", _save, _session_names),
    Command("load", "NAME", "go on with a saved conversation", _load, _session_names, about=_session_about),
    Command("sessions", "", "the saved conversations, the latest first", _sessions),
    *setting.COMMANDS,
    Command("stats", "", "figures of the last answer and of all", _stats),
    *looking.COMMANDS,
    Command("exit", "", "end (also Ctrl-D)", _exit),
)
"""All commands, in the order in which help lists them."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What may stand in place of the last `typed` of a line. `files`: names of files may, too. `about`: says what
    one of the words means."""

    typed: str
    words: tuple[str, ...] = ()
    files: bool = False
    about: Callable[[str], str] | None = None


def completion(chat: Chat, line: str) -> Completion:
    """What Tab offers behind `line`."""
    name, space, argument = line.partition(" ")
    if not line.startswith("/"):
        return Completion("")
    if not space:
        helps = {f"/{command.name}": command.help for command in COMMANDS}
        return Completion(name, tuple(helps), about=helps.__getitem__)
    found = _find(name[1:].lower())
    if found is None:
        return Completion("")
    words = found.choices(chat, argument) if found.choices is not None else ()
    about = None if found.about is None else partial(found.about, chat)
    return Completion(argument, tuple(words), found.files, about)
