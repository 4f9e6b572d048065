"""Markdown set in a terminal as it streams: nothing lost, nothing torn, nothing left behind."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pytest
from emulator import Emulator
from hypothesis import given, settings
from hypothesis import strategies as st

from specli.ui import terminal
from specli.ui.code import Highlighter
from specli.ui.inline import Inline, Palette, plain
from specli.ui.layout import Layout, Margin, Run, char_count, clusters
from specli.ui.markdown import Markdown
from specli.ui.page import Page

ANSWER = r"""# Sorting a list

Python has **two** ways: `sorted(xs)` makes a *new* list, and `xs.sort()` sorts in place, see snake_case.

1. First, read [the manual](https://docs.python.org/3/howto/sorting.html) which is long.
   - nested **bold *both* more** and a_b_c
2. Then try it:

```python
def by_length(words: list[str]) -> list[str]:
    '''Shortest
    first.'''
    return sorted(words, key=len)  # stable, and this line is longer than any of the windows here, as lines are
```

| Call | Returns | Cost |
|---|---|---:|
| `sorted` | a new list | O(n log n) |
| `sort` | `None` | O(n log n) |

> Both are stable, so equal items keep their order, which is what people mostly want.

中文字符没有空格，所以可以在任何地方换行，标点除外。שלום עולם! 👩‍👩‍👧 é
Done: 2*3*4, **open, `open
"""
WORDS = re.compile(r"\w{2,}")


class Screen(io.StringIO):
    """A terminal whose screen can be looked at."""

    encoding = "utf-8"

    def __init__(self, emulator: Emulator) -> None:
        super().__init__()
        self.emulator = emulator
        self.writes: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.writes.append(text)
        self.emulator.feed(text.replace("\n", "\r\n"))
        return len(text)


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Screen(Emulator(80, 24))
    monkeypatch.setattr(terminal, "columns", lambda stream: screen.emulator.columns)
    return screen


def stream(
    screen: Screen, text: str, sizes: Sequence[int] = (), size: int = 4, live: str = "LIVE 9 tok/s"
) -> str:
    """What is seen in the end of `text`, streamed; the window is resized to each of `sizes` on the way."""
    page = Page(screen)
    markdown = Markdown(Palette(), lambda: page.width)
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    every = max(1, len(pieces) // (len(sizes) + 1))
    for n, piece in enumerate(pieces):
        page.write(markdown.feed(piece), markdown.pending, live)
        if n % every == every - 1 and n // every < len(sizes):
            screen.emulator.resize(sizes[n // every])
    page.end(markdown.finish())
    assert not screen.emulator.unknown
    return screen.emulator.text


# -- what it looks like -------------------------------------------------------------------------


def test_an_answer_in_eighty_columns(window: Screen) -> None:
    seen = stream(window, ANSWER)
    look = window.emulator.styled
    assert seen.startswith(
        "Sorting a list\n\nPython has two ways: sorted(xs) makes a new list, and xs.sort()"
    )
    assert (
        look("Sorting") == "1;4" and look("two") == "1" and look("new") == "3" and look("sorted(xs)") == "36"
    )
    assert (
        "1. First, read the manual (https://docs.python.org/3/howto/sorting.html) which\n   is long.\n"
        in seen
    )
    assert "   • nested bold both more and a_b_c\n" in seen
    assert look("both") == "1;3"
    assert (
        "```python\ndef by_length(words: list[str]) -> list[str]:\n    '''Shortest\n    first.'''\n" in seen
    )
    assert look("def") == "35" and look("first.") == "32" and look("stable") == "2;3"
    assert (
        "Call    Returns           Cost\n──────  ──────────  ──────────\nsorted  a new list  O(n log n)\n"
        in seen
    )
    assert (
        "│ Both are stable, so equal items keep their order, which is what people mostly\n│ want.\n" in seen
    )
    assert "👩‍👩‍👧" in seen and "é" in seen and "שלום עולם!" in seen
    assert seen.endswith("Done: 2*3*4, **open, `open\n")


def test_in_forty_columns_words_stay_whole(window: Screen) -> None:
    window.emulator.resize(40)
    seen = stream(window, ANSWER)
    for row in seen.split("\n"):
        assert char_count(row) <= 40 or row.startswith(("def ", "    return"))  # code is one line to copy
    whole = set(WORDS.findall(re.sub(r"[*`|\[\]()]|https\S+", " ", ANSWER)))
    assert {word for word in whole if word.isascii() and len(word) < 20} <= set(WORDS.findall(seen))


def test_no_colours_means_styles_and_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(70)
    markdown = Markdown(Palette(colour=False), lambda: 70)
    text = layout.feed(markdown.feed(ANSWER) + markdown.finish()) + layout.flush()
    codes = {code for found in re.findall(r"\x1b\[([\d;]*)m", text) for code in found.split(";")}
    assert codes <= {"", "0", "1", "3", "4", "9"} and "1" in codes
    assert "`sorted(xs)`" in text


def test_symbols_that_the_encoding_lacks() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    markdown = Markdown(Palette(), lambda: 40, lambda symbol: terminal.with_fallbacks(symbol, out))
    text = plain([*markdown.feed("- a\n> b\n---\n|a|b|\n|-|-|\n|c|d|\n"), *markdown.finish()])
    assert text.isascii()
    assert text.startswith("* a\n| b\n----")


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("a **b** c", "a b c"),
        ("__init__.py and __main__", "__init__.py and __main__"),
        ("2*3*4 = 24, a * b", "2*3*4 = 24, a * b"),
        ("snake_case_name _it_", "snake_case_name it"),
        ("`a*b*c` **`x`**", "a*b*c x"),
        ("``a ` b`` `c", "a ` b `c"),
        ("\\*not\\* \\(x_1\\) \\alpha", "*not* \\(x_1\\) \\alpha"),
        ("[a](b) [c] [d](d) ![e](f) x[0](", "a (b) [c] d e (f) x[0]("),
        ("[a](x_(y)_z) <br> &lt;", "a (x_(y)_z) <br> &lt;"),
        ("~~a~~ ~b~ ~~c", "~~a~~ ~b~ ~~c"),
        ("***a*** **b *c***", "a b c"),
        ("**a", "**a"),
        ("** a ** and **", "** a ** and **"),
        ("**中文**字", "中文字"),
        ("Hello!", "Hello!"),
        ("$a_1 + b_2$ and $x * y * z$", "$a_1 + b_2$ and $x * y * z$"),
        ("*a **b** c*", "a b c"),
        ("**a `**` b**", "a ** b"),
    ],
)
def test_marks_in_a_line(source: str, shown: str) -> None:
    assert plain(Inline(Palette()).whole(source)) == shown
    markdown = Markdown(Palette(), lambda: 80)
    items = [item for char in source for item in markdown.feed(char)] + markdown.finish()
    assert plain(items) == shown


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("#hashtag\n####### seven\n", "#hashtag\n####### seven\n"),
        ("## A #\n", "A #\n"),
        ("-5 is less\n1.5 is more\n2024. was\n", "-5 is less\n1.5 is more\n2024. was\n"),
        ("- \n-\n1.\n", "- \n-\n1.\n"),
        ("a\n\n    x = **a\n\n\ty **b**\n", "a\n\n    x = **a\n\n\ty **b**\n"),
        ("- a\n\n    b **c**\n", "• a\n\n    b c\n"),
        ("- a\n## B\n\n    **c**\n    **d**\n", "• a\nB\n\n    **c**\n    **d**\n"),
        ("| no table\nx\n", "| no table\nx\n"),
        ("| a |\n| b |\nx\n", "| a |\n| b |\nx\n"),
        ("~~~\n**x**\n~~~\ny **z**\n", "~~~\n**x**\n~~~\ny z\n"),
        ("````md\n```\nx\n```\n````\n", "````md\n```\nx\n```\n````\n"),
        ("```one``` line\n", "one line\n"),
        ("```py\nopen to the end", "```py\nopen to the end"),
        ("> > a\n", "│ │ a\n"),
        ("> - a\n", "│ • a\n"),
        ("***\n* * *\n", "────────\n────────\n"),
        ("a\r\n", "a\r\n"),
        ("", ""),
        ("\n\n", "\n\n"),
    ],
)
def test_lines(source: str, shown: str) -> None:
    for size in (1, 100):
        markdown = Markdown(Palette(), lambda: 8)
        items = [i for at in range(0, len(source), size) for i in markdown.feed(source[at : at + size])]
        assert plain(items + markdown.finish()) == shown


STEPS = """1. Install
   - ```bash
     pip install x
     ```
   - Then check **it**:
2. **Second**
"""
STEPS_SHOWN = """1. Install
   • ```bash
     pip install x
     ```
   • Then check it:
2. Second
"""


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (STEPS, STEPS_SHOWN),
        ("> ```\n> **x**\n>\n> ```\n> **y**\n", "│ ```\n│ **x**\n│ \n│ ```\n│ y\n"),
        ("> ```\n> **x**\n**y**\n", "│ ```\n│ **x**\ny\n"),  # the quote's end is the code's
        ("- > ~~~\n  > **x**\n  > ~~~\n  **y**\n", "• │ ~~~\n  │ **x**\n  │ ~~~\n  y\n"),
        ("1. a\n   > ```\n   > **x**\n   > ```\n2. **b**\n", "1. a\n   │ ```\n   │ **x**\n   │ ```\n2. b\n"),
        ("1. a\n\n   ```\n   **x**\n\n   **y**\n   ```\n2. **b**\n",
         "1. a\n\n   ```\n   **x**\n\n   **y**\n   ```\n2. b\n"),
        ("- ```\n  **x**\n\n**never closed**\n", "• ```\n  **x**\n\nnever closed\n"),
        ("- ```\n**x**\n\n**y**\n```\n**z**\n", "• ```\n**x**\n\n**y**\n```\nz\n"),  # careless
        ("- ```\n  **x**\n```\n**z**\n", "• ```\n  **x**\n```\nz\n"),
        ("```markdown\n1. a\n     ```bash\n     **x**\n     ```\n```\n**z**\n",
         "```markdown\n1. a\n     ```bash\n     **x**\n     ```\n```\nz\n"),
        ("```\n    ```\n``` x\n~~~\n   ````\n**z**\n", "```\n    ```\n``` x\n~~~\n   ````\nz\n"),
        ("~~~ `a`\n**x**\n~~~\n**z**\n", "~~~ `a`\n**x**\n~~~\nz\n"),
        ("a\n\n    ```\n    **b**\n", "a\n\n    ```\n    **b**\n"),  # code by its indentation
        ("- a\n      ```\n      **x**\n      ```\n- **b**\n", "• a\n      ```\n      **x**\n      ```\n• b\n"),
        ("> - - **a**\n> # B\n", "│ • • a\n│ B\n"),
        ("- \t```\n\t**x**\n\t```\n**z**\n", "• ```\n    **x**\n    ```\nz\n"),
    ],
)  # fmt: skip
def test_fences_in_lists_and_quotes(source: str, shown: str) -> None:
    for size in (1, 2, 100):
        markdown = Markdown(Palette(), lambda: 40)
        items = [i for at in range(0, len(source), size) for i in markdown.feed(source[at : at + size])]
        assert plain(items + markdown.finish()) == shown


def test_a_line_of_code_too_long_to_hold_is_not_taken_for_a_fence() -> None:
    source = "- ```\n  " + "x" * 4500 + "```\n  **a**\n  ```\n**b**\n"
    for size in (1, 4100):
        markdown = Markdown(Palette(), lambda: 40)
        items = [i for at in range(0, len(source), size) for i in markdown.feed(source[at : at + size])]
        assert plain(items + markdown.finish()) == source.replace("- `", "• `").replace("**b**", "b")


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("Name | **Age**\n--- | ---\nBob | 3\n\nx\n", "Name  Age\n────  ───\nBob   3\n\nx\n"),
        ("People:\nName | Age\n:-- | --:\nBob | 3", "People:\nName  Age\n────  ───\nBob     3"),
        ("|A|Bcd|\n|:-:|:-:|\n|one|x|\n", " A   Bcd\n───  ───\none   x\n"),
        ("a | **b**\nc\n", "a | b\nc\n"),
        ("a | b", "a | b"),
        ("a | b\n---\n", "a | b\n" + "─" * 30 + "\n"),
        ("a | b\n--- | --- | ---\n", "a | b\n--- | --- | ---\n"),
        ("- **a** | b\n- c | d\n", "• a | b\n• c | d\n"),
        ("a | b\n--- | ---\nc | d\n- **e**\n", "a  b\n─  ─\nc  d\n• e\n"),
        ("| a | b |\n| c | d |\n|---|---|\n", "| a | b |\nc  d\n─  ─\n"),
        ("a" * 60 + " | b\n--- | ---\n", "a" * 60 + " | b\n--- | ---\n"),  # streamed before it could be known
        ("a | " + "b" * 400 + "\n--- | ---\n", "a | " + "b" * 400 + "\n--- | ---\n"),
    ],
)
def test_tables(source: str, shown: str) -> None:
    for size in (1, 3, 100):
        markdown = Markdown(Palette(), lambda: 30)
        items = [i for at in range(0, len(source), size) for i in markdown.feed(source[at : at + size])]
        assert plain(items + markdown.finish()) == shown


def test_containers_have_an_end() -> None:
    markdown = Markdown(Palette(), lambda: 40)
    said = plain([*markdown.feed("> " * 5000 + "x\n" + "- " * 5000 + "y\n"), *markdown.finish()])
    assert said.count("│") == said.count("•") == 20 and said.count("> ") == 4980 and said.count("- ") == 4980


def test_the_beginning_of_a_line_that_may_be_a_row_is_seen_at_once() -> None:
    markdown = Markdown(Palette(), lambda: 30)
    assert markdown.feed("Some **words** of") == [] and plain(markdown.pending) == "Some words of"
    assert plain(markdown.feed(" prose that is longer than the first cell of a table")).startswith(
        "Some words"
    )


def test_a_table_too_narrow_for_columns_is_listed() -> None:
    markdown = Markdown(Palette(), lambda: 16)
    source = "|First|Second|Third|\n|---|---|---|\n|a long cell|another one|and more|\n"
    text = plain([*markdown.feed(source), *markdown.finish()])
    assert text == "First: a long cell\nSecond: another one\nThird: and more\n"


def test_a_table_wraps_inside_its_cells(window: Screen) -> None:
    window.emulator.resize(40)
    seen = stream(window, "|A|What|\n|:-|--:|\n|one|some words that need more than a row|\n|x\\|y|z|\n")
    assert seen == (
        "A    " + "What".rjust(34) + "\n" + "─" * 3 + "  " + "─" * 34 + "\n"
        "one  "
        + "some words that need more than a".rjust(34).rstrip()
        + "\n"
        + "row".rjust(39)
        + "\nx|y"
        + "z".rjust(36)
        + "\n"
    )


@pytest.mark.parametrize(("opens", "closes"), [("[", "](u)"), ("*_", "_*"), ("[**", "**](u)"), ("[", "")])
@pytest.mark.parametrize("around", ["{}\n", "# {}\n", "> - {}\n", "|a|\n|-|\n|{}|\n\n"])
def test_marks_within_marks_without_end_are_text(opens: str, closes: str, around: str) -> None:
    source = around.format(opens * 1500 + "word" + closes * 1500)
    for size in (500, len(source)):
        markdown = Markdown(Palette(), lambda: 80)
        items = []
        for at in range(0, len(source), size):
            items += markdown.feed(source[at : at + size])
            assert markdown.pending is not None
        assert plain([*items, *markdown.finish()]).replace("\n", "").count("word") == 1


def test_code_that_its_lexer_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str) -> None:
        raise RuntimeError("no")

    code = Highlighter("python", True)
    assert code.line("def f():")[0] == Run("def", "35", free=True)
    monkeypatch.setattr(code._lexer, "get_tokens", fail)
    assert code.line("return 1") == [Run("return 1", free=True)]
    assert code.line("") == [Run("", free=True)]
    assert Highlighter("python", True).line("x" * 2000) == [Run("x" * 2000, free=True)]


def test_strings_over_many_lines_keep_their_colour() -> None:
    code = Highlighter("python", True)
    lines = [
        "class A:",
        "    def f(self):",
        '        """First.',
        "",
        "def not_code",
        *["more"] * 300,
        '        """',
        "        return 1",
    ]
    styles = [
        [run.style for run in code.line(line) if isinstance(run, Run) and run.text.strip()] for line in lines
    ]
    assert styles[4:306] == [["32"]] * 302
    assert styles[306] == ["35", "36"]


# -- how it streams -----------------------------------------------------------------------------


ANYTHING = ANSWER + f"\n{STEPS}\nA | B\n--- | ---\n1 | 2\n> ```\n> x\n> ```\n"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(ANYTHING)), max_size=40))
def test_it_does_not_matter_how_the_answer_is_cut(cuts: list[int]) -> None:
    def render(cuts: Sequence[int]) -> str:
        layout = Layout(50)
        markdown = Markdown(Palette(), lambda: layout.width)
        out, at = "", 0
        for cut in (*sorted(cuts), len(ANYTHING)):
            out += layout.feed(markdown.feed(ANYTHING[at:cut]))
            layout.preview(markdown.pending)
            at = cut
        return _merged(out + layout.feed(markdown.finish()) + layout.flush())

    assert render(cuts) == render(())


def _merged(text: str) -> str:
    """Without the seams between two runs of one style."""
    while (shorter := re.sub(r"(\x1b\[([\d;]+)m[^\x1b]*)\x1b\[0m\x1b\[\2m", r"\1", text)) != text:
        text = shorter
    return text


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab \n*_`[]()#>-|1.!~\\中é👩"), max_size=80), st.integers(1, 7))
def test_no_character_is_lost_but_marks(text: str, size: int) -> None:
    markdown = Markdown(Palette(), lambda: 200)
    items = [i for at in range(0, len(text), size) for i in markdown.feed(text[at : at + size])]
    said = plain(items + markdown.finish())
    for char in "ab1中é👩":
        assert said.count(char) == text.count(char)


@settings(max_examples=200, deadline=None)
@given(
    st.text(st.sampled_from("ab \n中文。（👩\u200d\u0301\ufe0fשx-"), max_size=120),
    st.integers(8, 30),
    st.integers(1, 9),
    st.booleans(),
)
def test_rows_hold_what_fits_and_all_of_it(text: str, width: int, size: int, hard: bool) -> None:
    layout = Layout(width)
    out = "".join(layout.feed([Run(text[i : i + size], hard=hard)]) for i in range(0, len(text), size))
    out += layout.flush()
    spare = 1  # cell of the window that is never set: a mark that widens a character may come late
    assert all(char_count(row) <= width + spare for row in out.split("\n"))
    assert re.sub(r"\s", "", out) == re.sub(r"\s", "", text)
    if hard:
        assert out.replace("\n", "") == text.replace("\n", "")


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("size", range(1, 11))
@pytest.mark.parametrize("text", ["aa。a\ufe0f。a\ufe0f", "aaaa\ufe0faaaa\ufe0f", "a。bcd。ef"])
def test_marks_that_come_late_count_once_each(text: str, size: int, hard: bool) -> None:
    layout, at_once = Layout(8), Layout(8)
    out = "".join(layout.feed([Run(text[i : i + size], hard=hard)]) for i in range(0, len(text), size))
    out += layout.flush()
    assert all(char_count(row) <= 9 for row in out.split("\n")) and out.replace("\n", "") == text
    assert hard or out == at_once.feed([Run(text)]) + at_once.flush()


def test_what_is_drawn_as_one_is_not_torn() -> None:
    assert [c.text for c in clusters("é👩‍👩‍👧🇩🇪🇫🇷👍🏽❤️x")] == ["é", "👩‍👩‍👧", "🇩🇪", "🇫🇷", "👍🏽", "❤️", "x"]
    layout = Layout(8)
    assert layout.feed([Run("（中文）测试。字")]) + layout.flush() == "（中文）\n测试。字"


@pytest.mark.parametrize("size", range(1, 8))
def test_marks_that_come_late_are_not_drawn_twice(window: Screen, size: int) -> None:
    text = "a e\u0301 👩‍👩‍👧[x](y) 🇩🇪 👍🏽 ❤️ 1️⃣ 中"
    assert stream(window, text, size=size) == text.replace("[x](y)", "x (y)") + "\n"


def test_margins_and_long_words() -> None:
    layout = Layout(10)
    out = (
        layout.feed([Run("• ", hard=True), Margin("  "), Run("aaa bbb ccc " + "d" * 20 + " e\nf")])
        + layout.flush()
    )
    assert out == "• aaa bbb\n  ccc\n  dddddddd\n  dddddddd\n  dddd e\nf"


@pytest.mark.parametrize("reflow", [True, False])
@pytest.mark.parametrize("sizes", [(40, 80), (80, 40, 80, 30, 120), (20, 100)])
def test_resizing_leaves_the_answer_once_and_nothing_else(
    window: Screen, reflow: bool, sizes: Sequence[int]
) -> None:
    window.emulator.reflow = reflow
    seen = stream(window, ANSWER, sizes)
    assert "LIVE" not in seen and "tok/s" not in seen
    said = re.sub(r"\s|[│─]", "", seen)
    calm = Screen(Emulator(80, 24))
    calm.emulator.columns = window.emulator.columns
    if reflow:  # where terminals cut rows off, the reader's loss is the terminal's
        assert sorted(said) == sorted(re.sub(r"\s|[│─]", "", stream(calm, ANSWER)))


def test_a_long_answer_scrolls_and_stays_in_the_scrollback(window: Screen) -> None:
    window.emulator.lines = 10
    seen = stream(window, "".join(f"line {n} of **many**\n" for n in range(200)))
    assert seen == "".join(f"line {n} of many\n" for n in range(200))


def test_what_is_held_back_is_shown_within_the_window(window: Screen) -> None:
    window.emulator.lines = 10
    table = "|n|what|\n|-|-|\n" + "".join(f"|{n}|row|\n" for n in range(40))
    page = Page(window)
    markdown = Markdown(Palette(), lambda: page.width)
    page._height = lambda: 10  # type: ignore[method-assign]
    page.write([Run("before\n")])
    for char in table:
        page.write(markdown.feed(char), markdown.pending, "LIVE")
    assert "|39|row|" in window.emulator.text and "LIVE" in window.emulator.text
    assert window.emulator.y >= window.emulator.top  # the cursor's place was not scrolled away
    page.end(markdown.finish())
    seen = window.emulator.text
    assert seen.startswith("before\nn   what\n") and seen.endswith("39  row\n") and seen.count("row") == 40
    assert "|" not in seen and "LIVE" not in seen


def test_one_step_is_one_write(window: Screen) -> None:
    page = Page(window)
    page.write([Run("some words to be ")], [Run("**guess")], "LIVE")
    page.write([Run("set in one go\n")], [], "LIVE")
    assert len(window.writes) == 2
