"""`specli explain`: the pages of the documentation in the terminal."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specli.cli import complete
from specli.ui.terminal import can_move, columns, echo, has_colour, with_fallbacks

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from specli.explain import Page

WIDEST = 96
"""Cells of a line at most: longer ones are hard to read."""

_STYLES = {
    "markdown.h1": "bold", "markdown.h2": "bold", "markdown.h3": "italic", "markdown.code": "cyan",
    "markdown.table.border": "dim", "markdown.table.header": "bold",
}  # fmt: skip


def explain(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]",
            help="A method, as --spec-type names it, or another topic; without it, all are listed",
            show_default=False,
            autocompletion=complete.topics,
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print the Markdown as it is, as when piped")
    ] = False,
) -> None:
    """Explain a method, or what to do when something is wrong.

    The pages are those of docs/: methods, chat, profiles, options, recipes, Python, troubleshooting.
    """
    from specli.explain import page, pages

    if topic is None:
        _print_topics(pages())
        return
    text = page(topic).text
    if plain or not can_move(sys.stdout):
        sys.stdout.write(with_fallbacks(text, sys.stdout))
    else:
        _render(text)


def _print_topics(found: list[Page]) -> None:
    width = max(len(each.topic) for each in found)
    for each in found:
        echo(f"{each.topic:{width}}  {each.about}")
    echo("")
    echo("specli explain TOPIC shows the page.")


def _render(text: str) -> None:
    """Print Markdown for someone who looks on: links as words, headings at the left."""
    from rich.console import Console
    from rich.theme import Theme

    console = Console(
        width=min(columns(sys.stdout), WIDEST),
        no_color=not has_colour(sys.stdout),
        highlight=False,
        theme=Theme(_STYLES),
    )
    console.print(_markdown(with_fallbacks(_without_links(text), sys.stdout)))


def _without_links(text: str) -> str:
    return re.sub(r"(?<!!)\[([^\]]+)\]\([^)]+\)", r"\1", text)


def _markdown(text: str) -> Any:
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.padding import Padding
    from rich.text import Text

    class Left(Heading):
        """A heading at the left margin, without a box."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            self.text.justify = "left"
            yield self.text

    class Indented(CodeBlock):
        """Code as it is, set in: to be copied."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            code = Text(str(self.text).rstrip(), style="cyan", overflow="fold", no_wrap=False)
            yield Padding(code, (0, 0, 0, 4))

    class Rendered(Markdown):
        elements = {  # noqa: RUF012
            **Markdown.elements, "heading_open": Left, "fence": Indented, "code_block": Indented,
        }  # fmt: skip

    return Rendered(text, hyperlinks=False)
