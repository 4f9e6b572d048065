"""check-draft: does the draft fit, and does it say why not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_models import Made, byte_tokens, changed_copy, words
from model_edits import heads_only

from specli.assembly import Generator, Request
from specli.engine.compat import compare_vocabularies, shared_tokens
from specli.engine.fit import check_fit
from specli.engine.gguf import read_header
from specli.engine.model import Model, ModelParams
from specli.errors import ModelFileError, SpecliError, UsageError
from specli.profiles import load, resolve

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)


def specli(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Made(words(320), template=CHATML, width=64).write(tmp_path_factory.mktemp("m") / "base.gguf")


def test_a_smaller_model_of_the_same_vocabulary_fits(tiny_target: Path, tiny_draft: Path) -> None:
    fit = check_fit(tiny_target, tiny_draft)
    assert fit.verdict == "fits"
    assert fit.share == 1.0
    assert 0.2 < fit.size_ratio < 0.3


def test_changed_token_texts_are_listed_with_their_ids(base: Path, tmp_path: Path) -> None:
    other = changed_copy(base, tmp_path / "other.gguf", {270: "apple", 280: "pear", 290: "plum", 300: "fig"})
    check = compare_vocabularies(read_header(base), read_header(other))
    assert check.differing == (270, 280, 290, 300)
    assert check.problem is not None and "'tok11' here and 'apple' there" in check.problem
    fit = check_fit(base, other)
    assert fit.verdict == "fits-with-notes"
    assert fit.share is not None and 0.95 < fit.share < 1
    assert check_fit(base, other, same_vocab=True).verdict == "does-not-fit"


def test_more_differences_than_are_shown_are_counted(base: Path, tmp_path: Path) -> None:
    other = changed_copy(base, tmp_path / "other.gguf", {i: f"new{i}" for i in range(262, 290)})
    check = compare_vocabularies(read_header(base), read_header(other))
    assert len(check.differing) == 5
    assert check.problem is not None and "and 23 more" in check.problem


def test_add_bos_flipped_is_noted(base: Path, tmp_path: Path) -> None:
    other = changed_copy(base, tmp_path / "o.gguf", **{"tokenizer.ggml.add_bos_token": True})
    fit = check_fit(base, other)
    assert fit.verdict == "fits-with-notes"
    assert [f.check for f in fit.findings if f.note] == ["add_bos"]


def test_special_tokens_and_pre_tokenizer_are_noted(base: Path, tmp_path: Path) -> None:
    keys = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.pre": "qwen2"}
    fit = check_fit(base, changed_copy(base, tmp_path / "o.gguf", **keys))
    assert {f.check for f in fit.findings if f.note} == {"BOS", "EOS", "pre-tokenizer"}
    assert fit.verdict == "fits-with-notes"


def test_padding_at_the_end_is_a_note_and_more_is_another_vocabulary(tmp_path: Path) -> None:
    short = Made(words(512)).write(tmp_path / "short.gguf")
    padded = Made(words(640)).write(tmp_path / "padded.gguf")
    long = Made(words(641)).write(tmp_path / "long.gguf")
    for pair in ((short, padded), (padded, short)):
        fit = check_fit(*pair)
        assert fit.verdict == "fits-with-notes" and fit.share == 1.0
        assert "the first 512 are the same" in fit.findings[0].note
    assert check_fit(short, long, same_vocab=True).verdict == "does-not-fit"


def test_another_kind_of_tokenizer_without_overlap_does_not_fit(base: Path, tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"▁wort{i}" for i in range(400))]
    types = [2, 3, 3, *[1] * 400]
    alien = Made(tokens, kind="llama", pre="default", bos=1, eos=2, types=types).write(
        tmp_path / "alien.gguf"
    )
    fit = check_fit(base, alien)
    assert fit.verdict == "does-not-fit"
    assert fit.share is not None and fit.share < 0.02
    problem = next(f.note for f in fit.findings if not f.ok)
    assert "different kinds, gpt2 and llama" in problem and "hardly anything" in problem


def test_another_kind_with_overlap_is_shared_by_bytes_not_by_spelling(tmp_path: Path) -> None:
    ours = Made([*words(259 + 1)[:259], "Ġone", "Ġtwo", "three"]).write(tmp_path / "a.gguf")
    tokens = ["<unk>", "<s>", "</s>", "▁two", "three", "▁five", "▁one"]
    theirs = Made(tokens, kind="llama", pre="default", bos=1, eos=2, types=[2, 3, 3, 1, 1, 1, 1]).write(
        tmp_path / "b.gguf"
    )
    params = ModelParams(vocab_only=True)
    with Model(ours, params) as target, Model(theirs, params) as draft:
        shared = shared_tokens(target.vocab, draft.vocab)
    assert {int(i): int(shared.to_target[i]) for i in (3, 4, 6)} == {3: 260, 4: 261, 6: 259}
    assert shared.to_target[5] == -1 and shared.to_target[2] == 2  # both end a text
    assert [int(shared.to_draft[i]) for i in (259, 260, 261)] == [6, 3, 4]
    assert shared.n_shared == 4 and shared.share == pytest.approx(4 / 7)


def test_a_mapping_is_one_to_one(tmp_path: Path) -> None:
    ours = Made([*words(260)[:259], "same"]).write(tmp_path / "a.gguf")
    with Model(ours, ModelParams(vocab_only=True)) as a, Model(ours, ModelParams(vocab_only=True)) as b:
        shared = shared_tokens(a.vocab, b.vocab)
    assert list(shared.to_target) == list(range(260)) == list(shared.to_draft)


def test_heads_alone_are_no_draft(base: Path, tiny_target: Path, tmp_path: Path) -> None:
    import gguf
    import numpy as np

    path = tmp_path / "head.gguf"
    w = gguf.GGUFWriter(str(path), "eagle3")
    w.add_tensor("fc.weight", np.zeros((4, 32), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    fit = check_fit(base, path)
    assert fit.verdict == "does-not-fit" and any("EAGLE-3" in f.note for f in fit.findings if not f.ok)
    with pytest.raises(UsageError, match=r"head is an EAGLE-3 head; use it with --spec-type draft-eagle3"):
        Generator(Request(resolve(load(), {"spec-type": "draft-model"}), base, path))


def test_prediction_heads_alone_fit_their_own_model_only(
    tiny_target: Path, base: Path, tmp_path: Path
) -> None:
    heads = heads_only(tiny_target, tmp_path / "heads.gguf")
    fit = check_fit(tiny_target, heads)
    assert fit.verdict == "fits-with-notes" and "--spec-type draft-mtp" in fit.findings[0].note
    fit = check_fit(base, heads)
    assert fit.verdict == "does-not-fit" and any("belong to another model" in f.note for f in fit.findings)


def test_a_draft_as_large_as_the_target_is_noted(base: Path) -> None:
    fit = check_fit(base, base)
    assert [f.check for f in fit.findings if f.note] == ["parameters"]


def test_templates_count_by_what_they_write(base: Path, tmp_path: Path) -> None:
    key = "tokenizer.chat_template"
    same = "{% if tools %}{{ tools }}{% endif %}" + CHATML
    assert check_fit(base, changed_copy(base, tmp_path / "s.gguf", **{key: same})).verdict == "fits"
    other = changed_copy(base, tmp_path / "o.gguf", **{key: CHATML.replace("im_start", "turn")})
    assert [f.check for f in check_fit(base, other).findings if f.note] == ["chat template"]


# -- row 17 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("padded_is_draft", [True, False])
def test_padding_ids_are_never_proposed_nor_emitted(tmp_path: Path, padded_is_draft: bool) -> None:
    """Tiny pair of 512 and 640 tokens: the draft longs for a padding id, and may not have it."""
    short = Made(words(512), seed=1, favoured=[300, 301] if padded_is_draft else [300, 301, 302])
    padded = Made(words(640), seed=2, favoured=[600, 639, 300] if padded_is_draft else [300, 301, 302])
    a, b = short.write(tmp_path / "short.gguf"), padded.write(tmp_path / "padded.gguf")
    target, draft = (a, b) if padded_is_draft else (b, a)
    flags = {"spec-type": "draft-model", "fixed": True, "temp": 0.0, "max-tokens": 40, "ctx-size": 256,
             "spec-draft-n-max": 4}  # fmt: skip
    with Generator(Request(resolve(load(), flags), target, draft)) as generator:
        assert any("the first 512 are the same" in notice for notice in generator.notices)
        answer = generator.answer([300, 301, 302, 303])
        proposed = [t for step in answer if step.cycle for t in step.cycle.draft.tokens]
    assert proposed and max(proposed) < 512
    assert answer.tokens and max(answer.tokens) < 512


# -- row 45 and the command ------------------------------------------------------------------------


def test_an_incomplete_file_is_named_whichever_it_is(
    tiny_target: Path, tiny_draft: Path, tmp_path: Path
) -> None:
    data = tiny_draft.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data[: len(data) * 6 // 10])
    for pair in ((cut, tiny_draft), (tiny_target, cut)):
        done = specli("check-draft", *pair)
        assert done.returncode == 1, done.stderr
        assert done.stdout == "" and done.stderr.count("\n") == 1
        assert "cut.gguf" in done.stderr and "incomplete" in done.stderr
    for extra in (["-m", cut], ["-m", tiny_target, "--draft-model", cut]):
        done = specli("run", *extra, "--no-stdin", "-p", "x", "-n", 4)
        assert done.returncode == 1 and "cut.gguf" in done.stderr and "incomplete" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.smol
def test_sixty_percent_of_the_real_file(smol: Path, tiny_draft: Path, tmp_path: Path) -> None:
    cut = tmp_path / "smol-cut.gguf"
    with smol.open("rb") as file:
        cut.write_bytes(file.read(smol.stat().st_size * 6 // 10))
    for pair in ((cut, tiny_draft), (smol, cut)):
        with pytest.raises(ModelFileError, match=r"smol-cut\.gguf: the file is incomplete"):
            check_fit(*pair)


def test_json_and_exit_codes(tiny_target: Path, tiny_draft: Path, base: Path) -> None:
    done = specli("check-draft", tiny_target, tiny_draft, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["verdict"] == "fits" and said["expected"] is None
    assert set(said["reasons"][0]) == {"check", "target", "draft", "ok", "note"}
    done = specli("check-draft", tiny_target, base, "--same-vocab", "--json")
    assert done.returncode == 3
    said = json.loads(done.stdout)
    assert said["verdict"] == "does-not-fit" and any(not r["ok"] for r in said["reasons"])


def test_wrong_usage(tiny_target: Path, tiny_draft: Path) -> None:
    for arguments, word in (
        ((tiny_target,), "--scan"),
        ((tiny_target, tiny_draft, "--scan"), "--scan"),
        ((tiny_target, "--scan", "--measure"), "--measure"),
        ((tiny_target, tiny_draft, "--temp", "1"), "--measure"),
    ):
        done = specli("check-draft", *arguments)
        assert done.returncode == 2 and word in done.stderr and "Traceback" not in done.stderr
    done = specli("check-draft", tiny_target, "--scan-dir", "/nowhere/at/all")
    assert done.returncode == 1 and "no such directory" in done.stderr


def test_scan_ranks_what_lies_on_the_disk(tiny_target: Path, tiny_draft: Path, tmp_path: Path) -> None:
    fitting = tmp_path / "fitting.gguf"
    fitting.write_bytes(tiny_draft.read_bytes())
    Made(words(300)).write(tmp_path / "other.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\3\0\0\0")
    done = specli("check-draft", tiny_target, "--scan-dir", tmp_path, "--same-vocab", "--json")
    assert done.returncode == 0, done.stderr
    ranked = json.loads(done.stdout)["drafts"]
    names = [Path(d["draft"]).name for d in ranked if Path(d["draft"]).parent == tmp_path]
    assert names == ["fitting.gguf", "other.gguf"]
    assert [d["verdict"] for d in ranked if "other" in d["draft"]] == ["does-not-fit"]


# -- the large pair --------------------------------------------------------------------------------


@pytest.mark.large
def test_the_large_pair_fits_and_smol_in_part(qwen_target: Path, qwen_draft: Path, smol: Path) -> None:
    assert check_fit(qwen_target, qwen_draft).verdict == "fits"
    fit = check_fit(qwen_target, smol)
    assert fit.verdict == "fits-with-notes"
    assert fit.share is not None and 0.7 < fit.share < 0.9
    assert "% of the draft's tokens" in fit.findings[0].note
    assert check_fit(qwen_target, smol, same_vocab=True).verdict == "does-not-fit"


@pytest.mark.large
def test_a_copy_of_the_large_draft_with_four_tokens_changed(
    qwen_target: Path, qwen_draft: Path, tmp_path: Path
) -> None:
    ids = {1000: "w1000", 20_000: "w20000", 90_000: "w90000", 150_000: "w150000"}
    other = changed_copy(qwen_draft, tmp_path / "changed.gguf", ids)
    assert compare_vocabularies(read_header(qwen_target), read_header(other)).differing == tuple(ids)
    assert check_fit(qwen_target, other, same_vocab=True).verdict == "does-not-fit"


def test_the_byte_alphabet_of_the_builder_is_complete() -> None:
    assert len(set(byte_tokens())) == 256


def test_a_mismatch_is_refused_at_load_by_name(tiny_target: Path, tmp_path: Path) -> None:
    single = [f"<0x{byte:02X}>" for byte in range(256)]  # llama.cpp dies without them
    tokens = ["<unk>", "<s>", "</s>", *single, *(f"▁wort{i}" for i in range(4000))]
    types = [2, 3, 3, *[6] * 256, *[1] * 4000]
    alien = Made(tokens, kind="llama", pre="default", bos=1, types=types).write(tmp_path / "alien.gguf")
    with pytest.raises(SpecliError, match="alien cannot draft for tiny-target-mtp"):
        Generator(Request(resolve(load(), {"spec-type": "draft-model"}), tiny_target, alien))
