"""`specli run`: answers for scripts."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from specli.chat.attached import Attached, read_attached
from specli.chat.given import Given
from specli.cli.options import Shared, shared_options
from specli.cli.sink import Sink
from specli.cli.tell import Events, Json, Teller, Text
from specli.errors import SpecliError, UsageError
from specli.interrupts import Interrupts
from specli.ui.terminal import announcer, is_terminal
from specli.ui.think import Think

if TYPE_CHECKING:
    from specli.api.lines import Line
    from specli.api.model import Model

_WAIT_S = 3.0  # silence on stdin after which it is said what we wait for
Form = Literal["text", "json"]
Say = Callable[[str], None]


@shared_options
def run(
    shared: Shared,
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="What to answer", show_default=False)
    ] = None,
    prompt_option: Annotated[
        str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The same as PROMPT")
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "-f",
            "--file",
            readable=False,
            metavar="FILE",
            help="Put a file before the prompt (may be repeated)",
        ),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help='Answer every line of FILE, "text" or {"prompt": "text", ...}, by a line of JSON; - reads '
            "standard input",
            show_default=False,
        ),
    ] = None,
    no_stdin: Annotated[
        bool, typer.Option("--no-stdin", help="Leave standard input alone; for loops in shell scripts")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the answer to FILE, once it is whole; - is standard output",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with text and figures instead of streaming")
    ] = False,
    stream: Annotated[
        Form | None,
        typer.Option(
            "--stream",
            metavar="text|json",
            help="How the answer comes: as text, or as events in lines of JSON [text]",
            show_default=False,
        ),
    ] = None,
    think: Annotated[
        Literal["show", "hide"],
        typer.Option(
            "--think",
            metavar="show|hide",
            help="Whether the text holds what the model thinks aloud, with its tags [hide]",
            show_default=False,
        ),
    ] = "hide",
    logprobs: Annotated[
        int | None,
        typer.Option(
            "--logprobs",
            metavar="N",
            help="In JSON: the log-probability of each token, and the N likeliest in its place",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Answer one prompt, for scripts.

    Standard input (if it is no terminal) and files come first, then the prompt. The answer goes to standard
    output as it comes, all else to standard error. With --prompts, one answer for each line of a file, from
    one loaded model.
    """
    form = _form(as_json, stream, prompts is not None)
    if logprobs is not None and (logprobs < 0 or form == "text"):
        raise UsageError("--logprobs must be at least 0, and needs --json, where they are printed")
    said = _one_of(prompt, prompt_option, prompts)
    settings = shared.settings()
    attached = tuple(read_attached(path, f"-f {path}") for path in files or ())
    lines: Sequence[Line] = ()
    given = Given("", attached, said or "")
    if prompts == "-" and no_stdin:
        raise UsageError(
            "--prompts - reads standard input, which --no-stdin leaves alone; leave one of them out"
        )
    if prompts is not None:
        lines = _lines(prompts, attached, shared.quiet)
    elif not no_stdin:
        given = Given(_read_stdin(shared.quiet), attached, said or "")
    if not lines and given.empty:
        raise UsageError("nothing to answer; give a prompt, a file with -f, or text on standard input")

    say = announcer(shared.quiet)

    from specli.api.model import open_model

    with Sink(output) as sink, ExitStack() as stack:
        try:
            model = stack.enter_context(open_model(shared.order(), settings, say))
        except SpecliError as error:
            if form == "events":  # whoever reads them is told why nothing follows
                Events(sink.out, lambda: False).fail(error)
            raise
        with Interrupts() as interrupts:
            teller = _teller(form, sink, interrupts, shared.quiet, think)
            if lines:
                failed = _answer_all(model, lines, teller, interrupts, logprobs, say)
            else:
                failed = _answer(model, given, teller, logprobs, say)
        sink.interrupted = interrupts.stop()
    if sink.partial is not None:
        say(f"interrupted; what was said so far is in {sink.partial}")
    return interrupts.exit_code or failed


# -- what is asked, and in which form -------------------------------------------------------------


def _form(as_json: bool, stream: Form | None, several: bool) -> Literal["text", "json", "events"]:
    if stream == "json":
        if as_json:
            raise UsageError("--stream json ends with the object of --json; leave one of them out")
        return "events"
    if stream == "text" and (as_json or several):
        other = "--json" if as_json else "--prompts"
        raise UsageError(f"--stream text contradicts {other}, which gives JSON; leave one of them out")
    return "json" if as_json or several else "text"


def _one_of(prompt: str | None, option: str | None, prompts: str | None) -> str | None:
    """The prompt, given in one way at most."""
    ways = {"as PROMPT": prompt, "with -p": option, "with --prompts": prompts}
    given = [way for way, value in ways.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"the prompt is given twice, {' and '.join(given)}; leave one of them out")
    return prompt if prompt is not None else option


def _lines(path: str, files: tuple[Attached, ...], quiet: bool) -> Sequence[Line]:
    """All the prompts, checked before a model is loaded."""
    from specli.api.lines import parse_lines

    if path == "-":
        return parse_lines(_decoded(_read_stdin_bytes(quiet), "standard input"), "standard input", files)
    try:
        data = Path(os.path.expanduser(path)).read_bytes()
    except (OSError, ValueError) as error:
        raise SpecliError(f"--prompts {path}: {getattr(error, 'strerror', None) or error}") from error
    return parse_lines(_decoded(data, path), path, files)


def _decoded(data: bytes, place: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{place}:{number}: not UTF-8 text (byte {error.start})") from error


def _read_stdin(quiet: bool) -> str:
    """Standard input to its end; nothing if it is a terminal, or closed."""
    if is_terminal(sys.stdin):
        return ""
    return _read_stdin_bytes(quiet).decode("utf-8-sig", "replace")


def _read_stdin_bytes(quiet: bool) -> bytes:
    if sys.stdin is None:
        return b""
    waiting = threading.Timer(_WAIT_S, _say_waiting)
    waiting.daemon = True
    if not quiet:
        waiting.start()
    try:
        return sys.stdin.buffer.read()
    except (OSError, ValueError):
        return b""
    finally:
        waiting.cancel()


def _say_waiting() -> None:
    announcer()("reading standard input (--no-stdin leaves it alone)")


# -- answers --------------------------------------------------------------------------------------


def _teller(form: str, sink: Sink, interrupts: Interrupts, quiet: bool, think: Think) -> Teller:
    if form == "events":
        return Events(sink.out, interrupts.stop)
    if form == "json":
        return Json(sink.out, interrupts.stop, think)
    return Text(sink.out, sys.stderr, interrupts.stop, figures=not quiet, think=think)


def _answer(model: Model, given: Given, teller: Teller, logprobs: int | None, say: Say) -> int:
    """The one answer."""
    from specli.api.question import Question

    try:
        stream = model.start(Question(given), {}, halt=teller.halt, logprobs=logprobs)
        teller.tell(stream)
    except SpecliError as error:
        teller.fail(error)
        raise
    model.look_back(stream)
    if stream.live.finish == "context" and isinstance(teller, Text):
        say(f"the context is full ({model.n_ctx} tokens): the answer is cut; --ctx-size makes room")
    if stream.live.finish == "length" and isinstance(teller, Text) and is_terminal(sys.stderr):
        say(f"cut at --max-tokens {model.generator.settings.max_tokens}")
    return 0


def _answer_all(
    model: Model,
    lines: Sequence[Line],
    teller: Teller,
    interrupts: Interrupts,
    logprobs: int | None,
    say: Say,
) -> int:
    """An answer for each line, or why there is none; then 1 if there was none for some line, else 0."""
    failed = 0
    for line in lines:
        if interrupts.stop():
            break
        tags = {"index": line.index, "id": line.id}
        try:
            stream = model.start(line.asked, line.options, halt=teller.halt, logprobs=logprobs)
            teller.tell(stream, tags)
        except SpecliError as error:
            teller.fail(error, tags)
            failed += 1
    if failed:
        say(f"{failed} of {len(lines)} prompts could not be answered; their lines say why")
    return 1 if failed else 0
