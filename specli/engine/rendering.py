"""The process that renders chat templates: a template is a program, and comes with a file from strangers.

    python -m specli.engine.rendering

Reads one JSON object a line and answers each with one: `source`, `bos` and `eos` compile a template, and
the answer tells the variables it asks for; `messages` render it. It runs in Jinja's sandbox, which keeps it from everything but what it was given; here
it cannot have more than its time, memory and length either. Not for people to run: `ChatTemplate` does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import meta
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_SECONDS = 2  # of one answer
MEMORY = 512 << 20  # bytes beyond what is there at the start


class _GenerationTag(Extension):
    """`{% generation %}` marks answers for training; here what it holds is simply written."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja has it)

    def parse(self, parser: Any) -> Any:
        """What stands between the tags."""
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise ValueError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


class Renderer:
    """One compiled template, in the environment that Transformers and llama.cpp give it."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        self._template = environment.from_string(source)
        self.asks_for = sorted(meta.find_undeclared_variables(environment.parse(source)))
        self._given: dict[str, Any] = {
            "bos_token": bos, "eos_token": eos, "raise_exception": _raise_exception, "strftime_now": _now,
            "functions": None, "function_call": None, "tools": None, "tool_choice": None,
        }  # fmt: skip

    def render(
        self, messages: list[dict[str, str]], generation_prompt: bool, given: dict[str, Any], most: int
    ) -> str:
        """The text. `given`: further variables. Raises ValueError for more than `most` characters."""
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate(
            messages=messages, add_generation_prompt=generation_prompt, **{**self._given, **given}
        ):
            length += len(piece)
            if length > most:
                raise ValueError(f"it writes more than {most} characters")
            pieces.append(piece)
        return "".join(pieces)


def answers(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """One object for each line: `text`, or `error` and whether it is the template's `syntax`."""
    renderer: Renderer | None = None
    for line in lines:
        asked = json.loads(line)
        try:
            if "source" in asked:
                renderer = Renderer(asked["source"], asked["bos"], asked["eos"])
                yield {"text": "", "asks_for": renderer.asks_for}
            else:
                assert renderer is not None
                text = renderer.render(
                    asked["messages"], asked["generation_prompt"], asked["given"], asked["most"]
                )
                yield {"text": text}
        except MemoryError:
            yield {"error": "it takes too much memory"}
        except RecursionError:
            yield {"error": "it calls itself without end"}
        except Exception as error:  # Jinja reports a broken template in many ways, and it may raise its own
            yield {"error": str(error) or type(error).__name__}


def limit_memory() -> None:
    """No core file, and no more than MEMORY bytes beyond what there is."""
    with suppress(ImportError, OSError, ValueError):  # where the system cannot: the time is bounded still
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = held + MEMORY
        resource.setrlimit(
            resource.RLIMIT_AS, (limit if most == resource.RLIM_INFINITY else min(limit, most), most)
        )


def limit_time() -> None:
    """From now on CPU_SECONDS, or the system ends this process."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + CPU_SECONDS, most))


def _asked() -> Iterator[bytes]:
    """The lines of standard input, with time for each."""
    for line in iter(sys.stdin.buffer.readline, b""):
        limit_time()
        yield line


def main() -> None:
    """Answer until standard input ends."""
    limit_memory()
    out = sys.stdout.buffer
    out.write(b'{"text": ""}\n')  # ready
    out.flush()
    for answer in answers(_asked()):
        try:
            data = json.dumps(answer).encode()
        except MemoryError:
            data = b'{"error": "it takes too much memory"}'
        out.write(data + b"\n")
        out.flush()


if __name__ == "__main__":
    # what cannot be undone when a limit is hit is not worth a word: the parent knows
    with suppress(BrokenPipeError, KeyboardInterrupt, MemoryError):
        main()
