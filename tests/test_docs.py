"""The documentation says what the program does: options, commands, links, pages, help and completion."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from specli import explain
from specli.chat.conversation import Message
from specli.chat.sessions import Session, Shelf
from specli.cli.main import app, main
from specli.cli.manual import ENVIRONMENT, EXITS, FILES, MANUALS
from specli.cli.reference import commands, reference
from specli.errors import UsageError
from specli.settings import TYPES, key

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
METHODS = sorted(path.stem for path in (ROOT / "docs" / "methods").glob("*.md"))


# -- commands as they are written -------------------------------------------------------------------


def written(page: Path) -> Iterator[str]:
    """Every command line in a page that may call specli: in blocks of shell code, set-in blocks and code spans."""
    text = page.read_text("utf-8").replace("\\|", "|")
    for block in re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield from whole_lines(re.sub(r"\\\n\s*", " ", block))
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from (
        line for line in re.findall(r"^ {4}(specli .*)$", prose, re.MULTILINE) if "[OPTIONS]" not in line
    )
    yield from (span for span in re.findall(r"`([^`\n]+)`", prose) if span.startswith("specli "))


def whole_lines(block: str) -> Iterator[str]:
    """Lines, those joined that a quoted text runs over."""
    begun = ""
    for line in block.splitlines():
        begun = f"{begun}\n{line}" if begun else line
        try:
            shlex.split(begun, comments=True)
        except ValueError:
            continue
        yield begun
        begun = ""
    assert not begun, f"a quote is not closed: {begun}"


def words(line: str) -> Iterator[list[str]]:
    """The arguments of each call of specli in a line of shell, those in $(…) first."""
    while inner := re.search(r"\$\(\(?([^()]*)\)\)?", line):
        yield from words(inner[1])
        line = f"{line[: inner.start()]}1{line[inner.end() :]}"
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.wordchars += ":@+,%$[]{}^!"
    lexer.commenters = "#"
    args: list[str] | None = None
    for word in lexer:
        if word in ("specli", ".venv/bin/specli"):
            args = []
        elif args is not None and re.fullmatch(r"[;|&<>()]+", word):
            yield args
            args = None
        elif args is not None:
            args.append(word)
    if args is not None:
        yield args


@cache
def program() -> Any:
    return typer.main.get_command(app)


def parse(args: list[str]) -> None:
    """Let the program read `args`, and run nothing. Raises what a wrong option raises."""
    command = program()
    ctx = command.make_context("specli", list(args))
    while hasattr(command, "resolve_command"):
        rest = [*getattr(ctx, "_protected_args", ()), *ctx.args]
        if not rest:
            return
        name, command, rest = command.resolve_command(ctx, rest)
        ctx = command.make_context(name, rest, parent=ctx)


LINES = [
    pytest.param(args, id=f"{page.relative_to(ROOT)}: {' '.join(args)}"[:100])
    for page in PAGES
    for line in written(page)
    for args in words(line)
]


def test_commands_were_found() -> None:
    assert len(LINES) > 60


@pytest.mark.parametrize("args", LINES)
def test_every_command_in_the_documentation_can_be_read(args: list[str]) -> None:
    if "--help" in args or any(arg.endswith("-completion") for arg in args) or "TOPIC" in args:
        return
    if " ".join(args) in MANUALS:  # only the name of a command
        return
    parse(args)
    if "--spec-type" in args:
        key("spec-type").accept_flag(args[args.index("--spec-type") + 1])


def test_a_wrong_option_would_be_found() -> None:
    with pytest.raises(Exception, match="no-such"):
        parse(["chat", "--no-such"])
    with pytest.raises(Exception, match="no-such"):
        parse(["models", "no-such"])


@cache
def options() -> set[str]:
    return {
        name
        for command in commands()
        for records in command.options.values()
        for names, _ in records
        for name in re.findall(r"--?[a-z0-9][a-z0-9-]*", names)
    }


OURS = [page for page in PAGES if page.stem != "compare"]  # which names options of other programs


@pytest.mark.parametrize("page", OURS, ids=lambda page: page.stem)
def test_every_option_named_in_the_documentation_exists(page: Path) -> None:
    spans = re.findall(r"`(-[^`\n]+)`", page.read_text("utf-8"))
    named = {name for span in spans for name in re.findall(r"(?:^|[\s/])(--?[a-z][a-z0-9-]*)", span)}
    assert named - options() == set()


# -- generated, and so equal ------------------------------------------------------------------------


def test_the_option_tables_are_those_of_the_program() -> None:
    assert (ROOT / "docs" / "options.md").read_text("utf-8") == reference(), (
        "run: python -m specli.cli.reference docs/options.md"
    )


def test_every_command_has_a_manual_and_every_manual_a_command() -> None:
    assert set(MANUALS) == {command.path for command in commands()}
    for manual in MANUALS.values():
        assert set(manual.environment) <= set(ENVIRONMENT)
        assert set(manual.files) <= set(FILES)
        assert set(manual.exits) <= set(EXITS)
        for topic in manual.topics:
            explain.page(topic)


@pytest.mark.parametrize("path", MANUALS)
def test_help_fits_the_terminal_and_its_examples_can_be_read(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    assert main([*path.split(), "--help"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert "Examples:" in said and "Exit status:" in said
    assert "..." not in said.partition("Commands:")[2].partition("Examples:")[0]  # no summary is cut
    for row in MANUALS[path].examples:
        for args in words(row.name):
            if "--help" not in args and not any(arg.endswith("-completion") for arg in args):
                parse(args)


# -- links ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, target


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_need_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not re.search(r"url\((?!#)|@import|<image|<script|href=", text)
    assert "DejaVu Sans Mono" in text


# -- specli explain ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", TYPES)
def test_every_method_has_a_page(method: str) -> None:
    assert explain.page(method).text


@pytest.mark.parametrize("topic", [name for name in METHODS if name != "families"])
def test_pages_of_methods_say_the_same_things_in_the_same_order(topic: str) -> None:
    page = explain.page(topic)
    assert page.topic == topic
    assert page.text.startswith(f"# {topic}: {page.about}\n")
    headings = re.findall(r"^## (.*)$", page.text, re.MULTILINE)
    wanted = ["Options", "What it cannot do"]
    assert [heading for heading in headings if heading in wanted] == wanted


def test_families_names_every_method_that_drafts_and_what_is_not_here() -> None:
    text = explain.page("families").text
    for method in set(TYPES) - {"none", "auto"}:
        topic = explain.page(method).topic
        assert f"{topic}.md" in text
    for absent in ("Medusa", "SSD", "SpecSA"):
        assert f"**{absent}**" in text
        assert explain.page(absent).topic == "families"


def test_every_page_that_the_readme_names_can_be_explained_and_is_in_the_wheel() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    named = set(re.findall(r"\]\(docs/(?:methods/)?([\w-]+)\.md", readme)) - {"architecture"}
    assert named and named <= {page.topic for page in explain.pages()}
    wheel = (ROOT / "pyproject.toml").read_text("utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert (f'"docs/{page.name}" = "specli/_explain/{page.name}"' in wheel) == (
            page.stem in explain._OTHERS
        )


def test_aliases_lead_to_pages_that_are_there() -> None:
    topics = {page.topic for page in explain.pages()}
    assert set(explain.ALIASES.values()) <= topics
    assert not set(explain.ALIASES) & topics


def test_an_unknown_topic_names_the_nearest() -> None:
    with pytest.raises(UsageError, match='did you mean "draft-model"'):
        explain.page("draft-modle")
    assert main(["explain", "no such thing"]) == 2


def test_explain_lists_and_prints_the_file_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    listed = capsys.readouterr().out
    assert all(re.search(rf"^{page.topic} ", listed, re.MULTILINE) for page in explain.pages())
    assert main(["explain", "trouble" + "shooting"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")


@pytest.mark.parametrize("width", [80, 40])
def test_explain_renders_for_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from specli.cli import explain as command

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for page in explain.pages():
        out = Terminal()
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", out)
            patched.setattr(command, "columns", lambda _: width)
            patched.setenv("TERM", "xterm")
            patched.setenv("NO_COLOR", "1")
            command.explain(page.topic)
        said = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
        assert page.about.split()[0] in said
        assert "](" not in said and "##" not in said
        assert max(map(len, said.splitlines())) <= width


def test_the_wheel_ships_the_pages() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert '"docs/methods" = "specli/_explain"' in text
    others = {page.topic for page in explain.pages()} - set(METHODS)
    assert others == set(explain._OTHERS)
    for topic in others:
        assert f'"docs/{topic}.md" = "specli/_explain/{topic}.md"' in text


def test_the_files_shown_on_the_page_on_profiles_are_valid() -> None:
    from specli.config import parse_config
    from specli.profiles import parse

    profile, config = re.findall(
        r"^```toml\n(.*?)^```", explain.page("profiles").text, re.DOTALL | re.MULTILINE
    )
    assert parse(profile, "mine", "mine.toml").given["draft-n-max"] == 4
    assert parse_config(config, "config.toml").aliases == {"coder": "~/models/coder-1.5b.gguf"}


def test_the_page_on_chat_lists_its_commands() -> None:
    from specli.ui.commands import COMMANDS

    text = explain.page("chat").text.replace("\\|", "|")
    listed = re.findall(r"^\| `/(\w+) ?([^`]*)` \| ", text, re.MULTILINE)
    assert listed == [(command.name, command.argument) for command in COMMANDS if command.name != "exit"] + [
        ("exit", "")
    ]


# -- completion -------------------------------------------------------------------------------------


def complete(line: str, **more: str) -> list[str]:
    """What bash is offered for the last word of `line`."""
    program = "import sys; from specli.cli.main import main; sys.exit(main())"
    env = {**os.environ, "_SPECLI_COMPLETE": "complete_bash", "COMP_WORDS": line, **more}
    env["COMP_CWORD"] = str(len(line.split(" ")) - 1)
    code = [sys.executable, "-c", f"sys = __import__('sys'); sys.argv[0] = 'specli'; {program}"]
    done = subprocess.run(code, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert not done.stderr
    return done.stdout.split()


def test_the_shell_completes_commands_options_models_profiles_and_methods(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[models.aliases]\ntiny-one = "x/y"\n', "utf-8")
    own = {"SPECLI_CONFIG_DIR": str(tmp_path)}
    assert complete("specli exp") == ["export", "explain"]
    assert "--spec-type" in complete("specli chat --spec-t")
    assert complete("specli chat -m tests/models/tiny-d") == ["tests/models/tiny-draft.gguf"]
    assert complete("specli chat -m tests/mod") == []  # a folder: the shell completes it
    assert complete("specli chat -m tiny", **own) == ["tiny-one"]
    assert complete("specli run --profile cod", **own) == ["code"]
    assert complete("specli chat --spec-type ngram-simple,draft-m") == [
        "ngram-simple,draft-model", "ngram-simple,draft-mtp",
    ]  # fmt: skip
    assert complete("specli chat -fa o") == ["on", "off"]
    assert complete("specli explain trou") == ["troubleshooting"]
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "holiday.json").touch()
    assert complete("specli chat --resume h", SPECLI_DATA_DIR=str(tmp_path)) == ["holiday"]
    Shelf(tmp_path / "sessions").write("rome", Session((Message("user", "What now?\n\\$(Go)'\""),), "m", "f"))
    fish = {"_SPECLI_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    line = "specli chat --resume r"
    shown = complete(line, SPECLI_DATA_DIR=str(tmp_path), _TYPER_COMPLETE_ARGS=line, **fish)
    assert shown == ["rome", "What", "now?", "Go"]


@pytest.mark.parametrize("args", [["--help"], ["chat", "--help"], ["explain"], ["explain", "auto"]])
def test_help_and_pages_are_light(args: list[str]) -> None:
    code = (
        "import sys; from specli.cli.main import main\n"
        f"code = main({args!r})\n"
        "heavy = {'numpy', 'llama_cpp', 'rich', 'prompt_toolkit', 'huggingface_hub'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
