"""From tokens to text: whole characters, stop strings never half printed, streamed = not streamed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specli.chat.text import TextStream, safe_for_terminal
from specli.errors import UsageError

Pieces = list[bytes]

few = st.sampled_from("ab€😀\u0301")
words = st.text(few, min_size=1, max_size=5)
bytes_of_words = st.lists(words, max_size=12).map(lambda parts: "".join(parts).encode())
spoiled = st.lists(
    st.sampled_from([b"a", b"\xe2", b"\x82", b"\xac", b"\xf0\x9f", b"\xed\xa0", b"\xff", b"\xc0"]),
    max_size=15,
)
data = st.one_of(bytes_of_words, spoiled.map(b"".join), st.binary(max_size=40))
stops = st.lists(st.one_of(words, st.just("\ufffd"), st.just("a\ufffd")), max_size=4)


def cut(whole: bytes, places: Sequence[int]) -> Pieces:
    """`whole` in pieces, cut at `places`; equal places make an empty piece, as a control token does."""
    edges = [0, *sorted(min(place, len(whole)) for place in places), len(whole)]
    return [whole[a:b] for a, b in pairwise(edges)]


def stream(pieces: Pieces, stops: Sequence[str], at_a_time: int = 1) -> tuple[TextStream, list[str]]:
    """Feed the pieces as tokens, so many at a time, to the end; what was shown after each."""
    text = TextStream(lambda token: pieces[token], stops)
    tokens = range(len(pieces))
    shown = [text.feed(tokens[i : i + at_a_time]) for i in range(0, len(pieces), at_a_time)]
    return text, [*shown, text.finish()]


def answer(text: str, stops: Sequence[str]) -> str:
    """What must be left of `text`, said plainly: read on until it ends in a stop string, drop that."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


@given(data=data, places=st.lists(st.integers(0, 60), max_size=20), stops=stops, at_a_time=st.integers(1, 7))
@example(data="x€y".encode(), places=[2, 3], stops=["€y"], at_a_time=1)
@settings(deadline=None, max_examples=600)
def test_streamed_is_not_streamed(data: bytes, places: list[int], stops: list[str], at_a_time: int) -> None:
    whole = data.decode("utf-8", "replace")
    text, shown = stream(cut(data, places), stops, at_a_time)
    assert "".join(shown) == answer(whole, stops)
    assert text.stopped == any(stop in whole for stop in stops)
    assert (text.stop in stops) == text.stopped


@given(data=data, places=st.lists(st.integers(0, 60), max_size=20), stops=stops, at_a_time=st.integers(1, 7))
@settings(deadline=None, max_examples=400)
def test_kept_tokens_say_the_answer_and_no_fewer_do(
    data: bytes, places: list[int], stops: list[str], at_a_time: int
) -> None:
    pieces = cut(data, places)
    text, shown = stream(pieces, stops, at_a_time)
    if not text.stopped:
        assert text.kept_tokens == len(pieces)
        return
    kept = "".join(shown)
    assert said(pieces[: text.kept_tokens])[: len(kept)] == kept
    assert text.kept_tokens == 0 or len(said(pieces[: text.kept_tokens - 1])) < len(kept)


def said(pieces: Pieces) -> str:
    """The whole characters in these pieces."""
    text = TextStream(lambda token: pieces[token])
    return text.feed(range(len(pieces)))


@given(
    data=bytes_of_words, places=st.lists(st.integers(0, 60), max_size=20), stops=st.lists(words, max_size=3)
)
def test_no_more_is_held_than_could_become_a_stop(data: bytes, places: list[int], stops: list[str]) -> None:
    pieces = cut(data, places)
    text = TextStream(lambda token: pieces[token], stops)
    shown = ""
    for n in range(len(pieces)):
        shown += text.feed([n])
        if text.stopped:
            break
        so_far = said(pieces[: n + 1])
        held = so_far[len(shown) :]
        assert so_far.startswith(shown)
        assert not held or any(stop.startswith(held) for stop in stops)
        longer = (so_far[i:] for i in range(len(shown)))
        assert not any(stop.startswith(end) for end in longer for stop in stops)


def test_a_stop_over_two_words() -> None:
    pieces = [b"The sky", b" is", b" blu", b"e today", b" and"]
    text, shown = stream(pieces, ["is blue"])
    assert shown == ["The sky", " ", "", "", "", ""]
    assert (text.stopped, text.stop, text.kept_tokens) == (True, "is blue", 2)


def test_a_stop_that_does_not_come() -> None:
    text, shown = stream([b"a", b"b", b"c", b"a", b"b"], ["abd"])
    assert shown == ["", "", "abc", "", "", "ab"]
    assert (text.stopped, text.stop, text.kept_tokens) == (False, None, 5)


@pytest.mark.parametrize(
    ("stops", "kept", "stop"),
    [
        (["cd", "abcdef"], "ab", "cd"),
        (["abcdef"], "", "abcdef"),
        (["f", "def", "ef"], "abc", "def"),
        (["x"], "abcdef", None),
    ],
)
def test_the_stop_complete_first_counts(stops: list[str], kept: str, stop: str | None) -> None:
    for at_a_time in (1, 6):
        text, shown = stream([b"a", b"b", b"c", b"d", b"e", b"f"], stops, at_a_time)
        assert "".join(shown) == kept
        assert text.stop == stop


def test_nothing_comes_after_a_stop() -> None:
    pieces = [b"a", b"!", b"b"]
    text = TextStream(lambda token: pieces[token], ["!"])
    assert text.feed([0, 1, 2]) == "a"
    assert text.feed([2, 2]) == ""
    assert text.finish() == ""
    assert text.kept_tokens == 1


def test_nothing_comes_after_the_end() -> None:
    pieces = [b"a", b"\xe2\x82"]
    text = TextStream(lambda token: pieces[token])
    assert [text.feed([0]), text.feed([1]), text.finish(), text.feed([0]), text.finish()] == [
        "a",
        "",
        "\ufffd",
        "",
        "",
    ]
    assert text.kept_tokens == 2


def test_a_character_in_four_tokens() -> None:
    pieces = [bytes([byte]) for byte in "😀".encode()]
    assert stream(pieces, [])[1] == ["", "", "", "😀", ""]


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        TextStream(lambda token: b"", ["x", ""])


def test_what_steers_a_terminal_is_shown() -> None:
    assert safe_for_terminal("a\x1b[31mb\r\n\tc\x07\x08\x7f\x9b2J\0") == "a␛[31mb␍\n\tc␇␈␡␛[2J␀"
    assert safe_for_terminal("\u202eevil") == "<RLO>evil"


def test_other_text_is_unharmed() -> None:
    text = "שלום \u200fعالم\u200e \u2067x\u2069 👩\u200d👩\u200d👧 e\u0301 ☃\n\tok"
    assert safe_for_terminal(text) == text


@given(st.text(st.one_of(st.characters(), st.characters(max_codepoint=0xA0))), st.integers(0, 30))
def test_nothing_left_that_steers(text: str, at: int) -> None:
    safe = safe_for_terminal(text)
    assert not any((ord(c) < 0x20 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 for c in safe)
    safe.encode()
    assert safe_for_terminal(text[:at]) + safe_for_terminal(text[at:]) == safe
    assert safe_for_terminal(safe) == safe
