"""The `specli` program: its commands, and the one place where errors become lines and exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TextIO

import typer

from specli import __version__, lastwords
from specli.cli import (
    bench,
    chat,
    check_draft,
    doctor,
    explain,
    export,
    layers,
    lossy,
    models,
    profiles,
    run,
    sessions,
    tune,
)
from specli.cli.help import Groups, Sections
from specli.cli.usage import usage_line
from specli.errors import SpecliError, Terminated, UsageError
from specli.interrupts import end_on_sigterm, resend_dropped
from specli.ui.terminal import announcer, notice, tolerant

app = typer.Typer(name="specli", cls=Groups, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command("chat", cls=Sections)(chat.chat)
app.command("run", cls=Sections)(run.run)
app.command("bench", cls=Sections)(bench.bench)
app.command("tune", cls=Sections)(tune.tune)
app.command("check-draft", cls=Sections)(check_draft.check_draft)
app.command("layers", cls=Sections)(layers.layers)
app.command("doctor", cls=Sections)(doctor.doctor)
app.command("export", cls=Sections)(export.export)
app.command("explain", cls=Sections)(explain.explain)
app.add_typer(profiles.app, name="profiles")
app.add_typer(models.app, name="models")
app.add_typer(sessions.app, name="sessions")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specli {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Local GGUF models, faster by speculative decoding, without changing what they say."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def main(args: Sequence[str] | None = None) -> int:
    """Run specli with `args` (the command line's by default); returns the exit code.

    What goes wrong is said in one line on stderr. SPECLI_DEBUG=1, or --verbose, adds where,
    but for wrong usage.
    """
    args = list(sys.argv[1:] if args is None else args)
    if sys.stdout is None:  # closed: nobody is to read it, and that is no failure
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # it stays to the end
    losses = lossy.Losses(sys.stdout)
    tolerant(sys.stderr)
    end_on_sigterm()
    resend_dropped()
    lastwords.install()
    debug = os.environ.get("SPECLI_DEBUG", "") not in ("", "0") or bool({"--verbose", "-v"} & set(args))
    code = _guarded(lambda: _invoke(args), debug)
    if losses.any and not {"--quiet", "-q"} & set(args):
        announcer()(losses.line)
    return _guarded(lambda: _flush(code), debug)


def _invoke(args: list[str]) -> int:
    command: Any = typer.main.get_command(app)
    if "_SPECLI_COMPLETE" in os.environ:  # the shell asks for completions
        command.main(args=args, prog_name="specli")
    # Not command.main(): it would turn a closed pipe into exit code 1 before we see it.
    with command.make_context("specli", args) as ctx:
        result = command.invoke(ctx)
    return result if isinstance(result, int) else 0


def _flush(code: int) -> int:
    if sys.stdout is not None:
        sys.stdout.flush()
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except OSError:  # notices that cannot be written are no failure
            _mute(sys.stderr)
    return code


def _guarded(work: Callable[[], int], debug: bool) -> int:
    try:
        return work()
    except BrokenPipeError:
        _mute()
        return 0
    except Exception as error:
        return _report(error, debug)
    except Terminated as end:
        return _say("terminated", end.exit_code)
    except KeyboardInterrupt:
        return _say("interrupted", 128 + int(signal.SIGINT))


def _report(error: Exception, debug: bool) -> int:
    """Say what went wrong; return the exit code."""
    if debug and not isinstance(error, (typer.Exit, typer.Abort, UsageError)) and not _is_usage(error):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, SpecliError):
        return _say(str(error), error.exit_code)
    if isinstance(error, typer.Exit):
        return int(error.exit_code)
    if isinstance(error, typer.Abort):
        return _say("interrupted", 128 + int(signal.SIGINT))
    if _is_usage(error):
        return _usage(error)
    if isinstance(error, OSError) and error.filename is None and error.strerror:
        return _say(f"cannot write or read: {error.strerror}", 1)
    if isinstance(error, MemoryError):
        return _say("out of memory; a smaller --ctx-size or a smaller model needs less", 1)
    return _say(
        f"unexpected {type(error).__name__}: {error}; please report it (SPECLI_DEBUG=1 shows where it came from)",
        1,
    )


def _is_usage(error: Exception) -> bool:
    """Whether it is one of the parser's, wherever Typer keeps that."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: its help is the message
        message = str(error.format_message()).strip()
        if message:
            print(message, file=sys.stderr)
        return int(error.exit_code)
    return _say(usage_line(error), int(error.exit_code))


def _say(message: str, code: int) -> int:
    if sys.stderr is not None:
        line = notice(" ".join(message.split()), sys.stderr)
        try:
            print(line, file=sys.stderr, flush=True)
        except OSError:
            _mute()
    return code


def _mute(*streams: TextIO) -> None:
    """Nobody reads any more: what is still buffered goes nowhere, also when Python shuts down."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams or (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (AttributeError, OSError, ValueError):  # closed, or none at all
            continue
    os.close(nowhere)
