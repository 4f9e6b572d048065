"""The options that chat, run, bench and tune share, made from the one table of settings.

A flag that is not given stays None, so the profile's value counts. What may be given, and within
what bounds, is checked where the profile is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from specli.cli import complete
from specli.errors import UsageError
from specli.keys import Key, Kind
from specli.settings import DEFAULT_PROFILE, KEYS, Settings
from specli.ui.terminal import be_plain

if TYPE_CHECKING:
    from specli.assembly import Generator
    from specli.opening import Order

Command = TypeVar("Command", bound=Callable[..., Any])

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "model": ("-m",),
    "draft-model": ("--spec-draft-model", "-md"),
    "system": ("-sys",),
    "max-tokens": ("-n",),
    "ctx-size": ("-c",),
    "threads": ("-t",),
    "threads-batch": ("-tb",),
    "gpu-layers": ("-ngl",),
    "spec-draft-ngl": ("-ngld",),
    "flash-attn": ("-fa",),
    "cache-type-k": ("-ctk",),
    "cache-type-v": ("-ctv",),
}
"""llama.cpp's other spellings."""

_TYPES: Mapping[Kind, Any] = {
    "bool": bool, "int": int, "float": float, "text": str, "choice": str,
    "types": list[str], "texts": list[str], "table": list[str],
}  # fmt: skip
_METAVARS: Mapping[str, str] = {
    "int": "N", "float": "X", "text": "TEXT", "choice": "WORD", "types": "TYPE[,TYPE]",
    "texts": "TEXT", "table": "TOKEN(+/-)X", "model": "MODEL", "draft-model": "MODEL", "exact-width": "W",
    "tree": "WIDTHxDEPTH",
}  # fmt: skip
_PANELS = {"": "Model", "spec": "Speculation", "sampling": "Sampling", "engine": "Machine"}
_OUTPUT = "Output"


@dataclass(frozen=True, slots=True)
class Shared:
    """What the shared options said. `flags`: by attribute of Settings, None where not given; `profile` likewise."""

    flags: Mapping[str, object]
    profile: str | None
    template_file: Path | None
    raw: bool
    quiet: bool
    verbose: bool
    plain: bool = False

    def settings(self) -> Settings:
        """Flags over profile over defaults. Raises UsageError for what cannot be meant together."""
        settings = self.order().settings()
        if self.quiet and self.verbose:
            raise UsageError("--quiet and --verbose contradict each other; leave one of them out")
        return settings

    def order(self, use_tuned: bool = True, ignore_end: bool = False) -> Order:
        """The same for the one door to a loaded model."""
        from specli.opening import Order

        return Order(
            self.flags, self.profile, self.template_file, self.raw, self.verbose, not self.quiet, use_tuned,
            ignore_end,
        )  # fmt: skip


def open_generator(
    shared: Shared,
    settings: Settings,
    say: Callable[[str], None],
    *,
    use_tuned: bool = True,
    ignore_end: bool = False,
) -> Generator:
    """Find the files and load. `say` gets each notice. `use_tuned`: take the profile that `specli tune`
    wrote for these models, if it holds here and no other was asked for."""
    from specli import opening

    return opening.open_generator(shared.order(use_tuned, ignore_end), settings, say)


def is_raw(generator: Generator, shared: Shared) -> bool:
    """Whether text is completed instead of messages answered."""
    from specli import opening

    return opening.is_raw(generator, shared.raw)


# -- the decorator ------------------------------------------------------------------------------


def shared_options(command: Command) -> Command:
    """Give a command, which takes `shared: Shared`, all the shared options in its signature."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        p.replace(annotation=hints.get(p.name, p.annotation), kind=inspect.Parameter.KEYWORD_ONLY)
        for p in inspect.signature(command).parameters.values()
        if p.name != "shared"
    ]
    keys = [key for key in KEYS if key.flag]

    @wraps(command)
    def with_options(**given: Any) -> Any:
        flags = {key.attribute: given.pop(key.attribute) for key in keys}
        rest = {name: given.pop(name) for name in _SWITCHES}
        if rest["plain"]:
            be_plain()
        return command(shared=Shared(flags, **rest), **given)

    parameters = [*own, *(_option(key) for key in keys), *_switches()]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_options  # type: ignore[return-value]


def _option(key: Key) -> inspect.Parameter:
    names = [*_ALIASES.get(key.name, ()), key.flag]
    if key.kind == "bool":
        plain = key.flag[2:]
        names[-1] += f"/--{plain[3:]}" if plain.startswith("no-") else f"/--no-{plain}"
    option = typer.Option(
        *names,
        help=_help(key),
        metavar=_METAVARS.get(key.name) or _METAVARS.get(key.kind),
        show_default=False,
        autocompletion=complete.of_key(key),
        rich_help_panel=_PANELS["engine" if key.name == "parallel" else key.section],
    )
    return _parameter(key.attribute, _TYPES[key.kind] | None, option, None)


def _help(key: Key) -> str:
    """What it is, what it may be, what it is if not given."""
    text = key.help[:1].upper() + key.help[1:]
    if key.choices or (key.kind in ("int", "float") and key.name != "parallel"):
        text += f": {_bounds(key)}"
    if key.kind == "texts" or key.kind == "table":
        text += " (may be given several times)"
    elif key.default is not None and key.kind != "bool":
        shown = ",".join(key.default) if isinstance(key.default, tuple) else key.default
        text += f" [{shown}]"
    elif key.unset and key.unset != "none":
        text += f" [{key.unset}]"
    return text


def _bounds(key: Key) -> str:
    """As the key says, but without an upper bound that nobody would reach."""
    if key.low is None or key.high is None or key.high < 100_000:
        return key.bounds
    words = f"{key.low:.10g} or more"
    return words if key.automatic is None else f"{words}, or {key.automatic} for automatic"


_SWITCHES = ("profile", "template_file", "raw", "quiet", "verbose", "plain")


def _switches() -> list[inspect.Parameter]:
    model = _PANELS[""]
    return [
        _parameter(
            "profile",
            str | None,
            typer.Option(
                "--profile", metavar="NAME|FILE", rich_help_panel=model, show_default=False,
                autocompletion=complete.profiles,
                help=f"Where all that is not given comes from (specli profiles list) [{DEFAULT_PROFILE}; in chat and run what tune found]",
            ),
            None,
        ),
        _parameter(
            "template_file",
            Path | None,
            typer.Option(
                "--chat-template-file", readable=False, metavar="FILE", rich_help_panel=model,
                help="A Jinja chat template to use instead of the model's own",
            ),
            None,
        ),
        _switch("raw", "--raw", model, "Use no chat template: continue the text as it is"),
        _switch("quiet", "-q", "--quiet", _OUTPUT, "No figures and no notices; errors only"),
        _switch("verbose", "-v", "--verbose", _OUTPUT, "Print the library's log, and where an error came from"),
        _switch("plain", "--plain", _OUTPUT, "For screen readers: no colours, no rendering, nothing that moves"),
    ]  # fmt: skip


def _switch(name: str, *rest: str) -> inspect.Parameter:
    *names, panel, text = rest
    return _parameter(name, bool, typer.Option(*names, rich_help_panel=panel, help=text), False)


def _parameter(name: str, kind: Any, option: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )
