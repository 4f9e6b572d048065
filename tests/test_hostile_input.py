"""Input of any kind: bytes that are no text, words without end, nothing at all, and options beyond every bound."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_builder import MODELS, STRING
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_edits import Gguf

from specli.engine.model import Model, ModelParams
from specli.engine.vocab import Vocab, _cut
from specli.errors import EngineError, SpecliError

DRAFT = MODELS / "tiny-draft.gguf"
EXAMPLES = int(os.environ.get("SPECLI_EXAMPLES", "40"))
"""Of each property; many more for a nightly run."""
# vocabularies whose words the library finds by a regular expression that takes stack for each character
RECURSIVE = ("deepseek-v3", "gpt-4o", "tekken", "bloom", "falcon", "default")


@pytest.fixture(scope="module")
def vocab() -> Vocab:
    return Model(DRAFT, ModelParams(vocab_only=True)).vocab


@settings(max_examples=EXAMPLES, deadline=None)
@given(text=st.binary(max_size=300))
def test_any_bytes_are_tokens(vocab: Vocab, text: bytes) -> None:
    tokens = vocab.tokenize(text)
    assert all(0 <= token < vocab.n_tokens for token in tokens)
    if text.isascii():
        assert vocab.text(tokens) == text


@settings(max_examples=EXAMPLES, deadline=None)
@given(text=st.text(max_size=300))
def test_any_text_is_its_tokens(vocab: Vocab, text: str) -> None:
    """Lone surrogates included: arguments that are no UTF-8 come as such."""
    tokens = vocab.tokenize(text)
    assert vocab.text(tokens).decode("utf-8", "replace") == text.encode("utf-8", "surrogatepass").decode(
        "utf-8", "replace"
    )


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
@given(
    parts=st.lists(
        st.tuples(st.sampled_from(["a", " ", "\n", "!", "中", "a1! ", "é,", "\u0301"]), st.integers(1, 9000)),
        max_size=4,
    )
)
def test_cutting_loses_nothing_and_leaves_no_long_word(parts: list[tuple[str, int]]) -> None:
    text = "".join((piece * n)[:n] for piece, n in parts)
    pieces = list(_cut(text))
    assert "".join(pieces) == text
    longest = max((len(word) for piece in pieces for word in piece.split()), default=0)
    assert longest <= 4000


def test_ordinary_text_is_not_cut() -> None:
    source = Path(__file__).read_text("utf-8") * 3
    assert list(_cut(source)) == [source]
    assert list(_cut("")) == [""]


@pytest.mark.parametrize("pre", RECURSIVE)
def test_a_word_without_end_does_not_take_the_stack(pre: str, tmp_path: Path) -> None:
    """In a process of its own: where this fails, it dies."""
    file = Gguf(DRAFT)
    file.set("tokenizer.ggml.pre", STRING, pre)
    model = file.write(tmp_path / "m.gguf")
    code = (
        "import sys; from pathlib import Path; from specli.engine.model import Model, ModelParams\n"
        "vocab = Model(Path(sys.argv[1]), ModelParams(vocab_only=True)).vocab\n"
        "for run in ('a', ' ', '1', '!', '\\n', '中', '🎉', 'aA1!é中', \"'s\"):\n"
        "    text = (run * 60_000)[:60_000]\n"
        "    assert vocab.text(vocab.tokenize(text)).decode() == text, run\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_templates_own_word_without_end_is_refused(vocab: Vocab) -> None:
    with pytest.raises(EngineError, match="a word of more than 4000 characters"):
        vocab.tokenize("x" * 9000 + "<|im_end|>", special=True)


def test_ten_megabytes_that_cannot_fit_are_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    vocab = Model(DRAFT, ModelParams(vocab_only=True)).vocab
    vocab.most = 2048
    monkeypatch.setattr(vocab, "_tokenize", lambda *_: pytest.fail("taken apart"))
    with pytest.raises(
        SpecliError, match=r"a text of 10000000 bytes has at least \d+ tokens and the context holds 2048"
    ):
        vocab.tokenize("a" * 10_000_000)
    monkeypatch.undo()
    assert vocab.tokenize("a" * 2048)


ODD = {
    "nothing": (b"", 2, "nothing to answer"),
    "blanks": (b" \n\t ", 2, "nothing to answer"),
    "ten megabytes": (b"a" * 10_000_000, 1, "and the context holds"),
    "longer than the context": (b"word " * 3000, 1, "the context holds"),
    "bytes that are no text": (bytes(range(256)), 0, ""),
    "control tokens only": (b"<|im_end|><|im_start|><|endoftext|>", 0, ""),
    "one character, many times": (b"!" * 700, 0, ""),
    "escapes": (b"\x1b[2J\x1b]0;title\x07 \x00 \r\r", 0, ""),
}


@pytest.mark.parametrize("kind", ODD)
def test_standard_input_of_any_kind(kind: str) -> None:
    data, code, says = ODD[kind]
    command = [
        sys.executable,
        "-m",
        "specli",
        "run",
        "-m",
        str(DRAFT),
        "--no-repack",
        "--threads",
        "1",
        "-n",
        "4",
    ]
    done = subprocess.run([*command, "--quiet"], input=data, capture_output=True)
    err = done.stderr.decode()
    assert done.returncode == code, err
    assert says in err and "Traceback" not in err and len(err.splitlines()) == (code > 0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the harness needs Linux")
def test_options_of_any_kind(tmp_path: Path) -> None:
    """Wrong usage or an answer (SPECLI_FUZZ_OPTIONS: how many sets)."""
    script = Path(__file__).parent / "fuzz" / "options.py"
    count = os.environ.get("SPECLI_FUZZ_OPTIONS", "40")
    done = subprocess.run(
        [sys.executable, str(script), "--folder", str(tmp_path), "--count", count],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
