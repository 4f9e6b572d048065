"""`specli run`: one answer for scripts."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specli import __version__
from specli.chat.attached import Attached, fenced, read_attached
from specli.cli.options import Shared, is_raw, open_generator, shared_options
from specli.errors import UsageError
from specli.interrupts import Interrupts
from specli.ui.terminal import is_terminal, with_fallbacks

if TYPE_CHECKING:
    from specli.assembly import Generator
    from specli.chat.answer import Answer
    from specli.core.types import Candidate, TokenLogprobs

_WAIT_S = 3.0  # silence on stdin after which it is said what we wait for


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
        typer.Option("-f", "--file", metavar="FILE", help="Put a file before the prompt (may be repeated)"),
    ] = None,
    no_stdin: Annotated[
        bool, typer.Option("--no-stdin", help="Leave standard input alone; for loops in shell scripts")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with text and figures instead of streaming")
    ] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(
            "--logprobs",
            metavar="N",
            help="With --json: the log-probability of each token, and the N likeliest in its place",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Answer once: standard input (if it is no terminal) and files first, then the prompt.

    The answer goes to standard output as it comes, all else to standard error.
    """
    if prompt is not None and prompt_option is not None:
        raise UsageError("the prompt is given twice, as PROMPT and with -p; leave one of them out")
    if logprobs is not None and (logprobs < 0 or not as_json):
        raise UsageError("--logprobs must be at least 0, and needs --json, where they are printed")
    settings = shared.settings()
    said = prompt if prompt is not None else prompt_option
    given = Given(
        "" if no_stdin else _read_stdin(shared.quiet),
        tuple(read_attached(path, f"-f {path}") for path in files or ()),
        said or "",
    )
    if given.empty:
        raise UsageError("nothing to answer; give a prompt, a file with -f, or text on standard input")

    def say(line: str) -> None:
        if not shared.quiet and sys.stderr is not None:
            print(with_fallbacks(f"specli: {line}", sys.stderr), file=sys.stderr, flush=True)

    began = time.perf_counter()
    with open_generator(shared, settings, say) as generator:
        loaded = time.perf_counter() - began
        tokens = _tokens(generator, given, is_raw(generator, shared))
        with Interrupts() as interrupts:
            answer = _answer(generator, tokens, interrupts, shared.quiet, as_json, logprobs)
            generator.look_back()
            if as_json:
                _print_json(generator, answer, loaded)
        if answer.finish == "context" and not as_json:
            say(
                f"the context is full ({generator.target.n_ctx} tokens): the answer is cut; --ctx-size makes room"
            )
        return interrupts.exit_code or 0


# -- what is asked ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Given:
    """All that was given, in the order in which the model gets it."""

    stdin: str
    files: tuple[Attached, ...]
    prompt: str

    @property
    def empty(self) -> bool:
        """Whether there is nothing to answer."""
        return not any(text.strip() for text in (self.stdin, self.prompt, *(f.text for f in self.files)))

    def message(self) -> str:
        """As one message: each file named and fenced, unless a single file is all there is."""
        if len(self.files) == 1 and not self.stdin.strip() and not self.prompt.strip():
            return self.files[0].text.strip("\n")
        parts = [self.stdin.strip("\n"), *(fenced(file) for file in self.files), self.prompt]
        return "\n\n".join(part for part in parts if part.strip())

    def raw(self) -> str:
        """As bare text to continue: nothing added but missing line ends in between."""
        parts = [part for part in (self.stdin, *(f.text for f in self.files), self.prompt) if part]
        return "".join(p if p.endswith("\n") else p + "\n" for p in parts[:-1]) + parts[-1]


def _read_stdin(quiet: bool) -> str:
    """Standard input to its end; nothing if it is a terminal, or closed."""
    if sys.stdin is None or is_terminal(sys.stdin):
        return ""
    waiting = threading.Timer(_WAIT_S, _say_waiting)
    waiting.daemon = True
    if not quiet:
        waiting.start()
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig", "replace")
    except (OSError, ValueError):
        return ""
    finally:
        waiting.cancel()


def _say_waiting() -> None:
    if sys.stderr is not None:
        print("specli: reading standard input (--no-stdin leaves it alone)", file=sys.stderr, flush=True)


def _tokens(generator: Generator, given: Given, raw: bool) -> list[int]:
    from specli.chat.conversation import Message

    if raw:
        return generator.prompter.raw(given.raw())
    system = generator.settings.system
    messages = [Message("system", system)] if system else []
    return generator.prompter.tokens([*messages, Message("user", given.message())])


# -- the answer ---------------------------------------------------------------------------------


def _answer(
    generator: Generator,
    tokens: Sequence[int],
    interrupts: Interrupts,
    quiet: bool,
    silent: bool,
    logprobs: int | None,
) -> Answer:
    """Answer to the end, or until stopped; shown while it comes unless `silent`."""
    if silent:
        answer = generator.answer(tokens, interrupts.stop, logprobs)
        for _ in answer:
            pass
        return answer
    from specli.ui.readout import Readout
    from specli.ui.terminal import no_echo

    with _outputs() as (out, err):
        readout = Readout(out, err, generator.methods, figures=not quiet)

        def stop() -> bool:
            readout.reading(len(generator.target.tokens), len(tokens))
            return interrupts.stop()

        answer = generator.answer(tokens, stop)
        readout.begin(answer)
        with no_echo():
            try:
                for step in answer:
                    readout.step(step)
            finally:
                readout.end()
    return answer


@contextmanager
def _outputs() -> Iterator[tuple[Any, Any]]:
    """stdout and stderr; a bin in place of one that is closed."""
    import os

    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        yield sys.stdout or nowhere, sys.stderr or nowhere


def _print_json(generator: Generator, answer: Answer, load_s: float) -> None:
    out = sys.stdout
    if out is None:
        return
    # Escaped where the encoding would otherwise replace characters.
    ascii_only = "utf" not in (out.encoding or "").lower()
    print(
        json.dumps(as_json_object(generator, answer, load_s), ensure_ascii=ascii_only), file=out, flush=True
    )


def _logprobs(generator: Generator, answer: Answer) -> list[dict[str, object]] | None:
    """Of each token, and of those likeliest in its place; null if not asked for."""
    if answer.logprobs is None:
        return None
    vocab = generator.model.vocab

    def shown(each: Candidate | TokenLogprobs) -> dict[str, object]:
        text = vocab.piece(each.token, special=True).decode("utf-8", "replace")
        return {"id": each.token, "text": text, "logprob": each.logprob}

    return [{**shown(each), "top": [shown(one) for one in each.top]} for each in answer.logprobs]


def as_json_object(generator: Generator, answer: Answer, load_s: float) -> dict[str, object]:
    """What `--json` prints; null for what was not measured."""
    stats, timing = answer.stats, answer.timing
    ran = bool(stats.cycles)
    prompt_rate = None
    if timing.prompt_s and timing.prompt_tokens:
        prompt_rate = timing.prompt_tokens / timing.prompt_s
    return {
        "specli": __version__,
        "model": generator.model.name,
        "draft": generator.draft_model.name if generator.draft_model else None,
        "methods": generator.methods,
        "profile": generator.settings.profile,
        "text": answer.text,
        "token_ids": answer.tokens,
        "logprobs": _logprobs(generator, answer),
        "finish_reason": answer.finish,
        "tokens": {
            "prompt": answer.prompt_length,
            "generated": stats.generated,
            "drafted": stats.drafted,
            "tested": stats.tested,
            "accepted": stats.accepted,
            "cycles": stats.cycles,
        },
        "acceptance": {
            "rate": stats.acceptance_rate,
            "mean_accepted_length": stats.mean_accepted_length,
            "per_position": stats.per_position,
        },
        "by_method": {
            name: {"drafted": m.drafted, "tested": m.tested, "accepted": m.accepted}
            for name, m in stats.by_method.items()
        },
        "timing": {
            "load_s": load_s,
            "prompt_s": timing.prompt_s,
            "first_token_s": timing.first_token_s,
            "decode_s": stats.total_s if ran else None,
            "draft_s": stats.draft_s if ran else None,
            "verify_s": stats.verify_s if ran else None,
        },
        "cycle": {
            "draft_share": stats.draft_share,
            "verify_share": stats.verify_share,
            "widths": {str(width): count for width, count in sorted(stats.widths.items())},
            "wasted_tokens": stats.wasted,
            "break_even_length": answer.break_even_length,
            "break_even_acceptance": answer.break_even,
        },
        "tokens_per_second": stats.tokens_per_second,
        "prompt_tokens_per_second": prompt_rate,
        "speedup_estimate": answer.speedup,
        "seed": answer.seed,
        "exact_width": generator.settings.fixed_width,
        "notices": generator.notices,
    }
