"""Model files that llama.cpp would end the process over: each kind is refused in one line, before it is loaded.

The kinds were found by `fuzz/model_files.py`, which runs here for a short while (SPECLI_FUZZ: how many files).
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from feature_models import RandomDraft
from gguf_builder import ARRAY, F32, I32, MODELS, STRING, U32, string, value
from made_models import Made, words
from model_edits import Entry, Gguf, as_qwen3, heads_only
from running import Runner, run

from specli.engine import admission, probe
from specli.engine.admission import admit, admit_head, sound_header
from specli.engine.gguf import read_header
from specli.engine.gguf_model import check_model
from specli.engine.probe import FAULT_VARIABLE, Outcome, TrialSettings
from specli.errors import MemoryShortage, ModelFileError, SpecliError, UsageError

__all__ = ["run"]  # a fixture

DRAFT, HYBRID, MTP = (MODELS / f"tiny-{name}.gguf" for name in ("draft", "hybrid", "target-mtp"))
SETTINGS = TrialSettings(threads=1)
Edit = Callable[[Gguf], None]


def put(key: str, kind: int, item: object) -> Edit:
    return lambda file: file.set(key, kind, item)


def numbers(key: str, kind: int, *items: object) -> Edit:
    head = struct.pack("<IIQ", ARRAY, kind, len(items))
    return lambda file: file.keys.__setitem__(key, head + b"".join(value(kind, item) for item in items))


def without(name: str) -> Edit:
    return lambda file: file.keep(lambda each: each != name)


def stored_as(name: str, kind: int, size: int) -> Edit:
    def edit(file: Gguf) -> None:
        (tensor,) = [t for t in file.tensors if t.name == name]
        tensor.kind, tensor.data = kind, bytes(size)

    return edit


def same_token_twice(file: Gguf) -> None:
    texts = [string(f"t{i}") for i in range(1279)] + [string("t7")]
    file.keys["tokenizer.ggml.tokens"] = struct.pack("<IIQ", ARRAY, STRING, 1280) + b"".join(texts)


def a_byte_that_is_none(file: Gguf) -> None:
    file.keys["tokenizer.ggml.token_type"] = (
        struct.pack("<IIQ", ARRAY, I32, 1280) + struct.pack("<i", 6) * 1280
    )


BROKEN: dict[str, tuple[Path, Edit, str]] = {
    "no blocks": (DRAFT, put("llama.block_count", U32, 0), "block_count is 0"),
    "too many blocks": (DRAFT, put("llama.block_count", U32, 513), "1 to 512 can be"),
    "more heads than blocks": (MTP, put("hy_v3.nextn_predict_layers", U32, 6), "is 6 of 5 blocks"),
    "nothing but heads": (MTP, put("hy_v3.nextn_predict_layers", U32, 5), "is 5 of 5 blocks"),
    "negative epsilon": (DRAFT, put("llama.attention.layer_norm_rms_epsilon", F32, -1.0), "epsilon is -1"),
    "no number for epsilon": (
        HYBRID,
        put("qwen35.attention.layer_norm_rms_epsilon", F32, float("nan")),
        "epsilon is nan",
    ),
    "experts used but none there": (DRAFT, put("llama.expert_used_count", U32, 2), "is 2 of 0 experts"),
    "groups of no experts": (DRAFT, put("llama.expert_group_count", U32, 4), "is 4 for 0 experts"),
    "too many experts": (DRAFT, put("llama.expert_count", U32, 1025), "at most 1024"),
    "unknown rotation": (DRAFT, put("llama.rope.scaling.type", STRING, "x"), "not one of none, linear"),
    "rotation wider than a head": (HYBRID, put("qwen35.rope.dimension_count", U32, 4096), "a head has"),
    "rotation of 4 billion": (HYBRID, put("qwen35.rope.dimension_count", U32, 2**32 - 32), "a head has"),
    "rotation of nothing in sections": (
        HYBRID,
        put("qwen35.rope.dimension_count", U32, 0),
        "dimension_sections",
    ),
    "rotation of a part": (MTP, put("hy_v3.rope.dimension_count", U32, 62), "62 for heads of 64"),
    "rotation in large sections": (
        HYBRID,
        numbers("qwen35.rope.dimension_sections", I32, 900, 4, 4, 0),
        "dimension_sections",
    ),
    "no head": (DRAFT, put("llama.attention.head_count_kv", U32, 3), "4 attention heads cannot share 3"),
    "negative width": (DRAFT, put("llama.embedding_length", I32, -1), "embedding_length is -1"),
    "state of another size": (HYBRID, put("qwen35.ssm.inner_size", U32, 256), "contradict each other"),
    "no groups": (HYBRID, put("qwen35.ssm.group_count", U32, 0), "contradict each other"),
    "never attends": (HYBRID, put("qwen35.full_attention_interval", U32, 0), "interval is 0"),
    "half of a recurrent block": (
        HYBRID,
        without("blk.0.attn_gate.weight"),
        "blk.0.attn_gate.weight is missing",
    ),
    "a way up only": (MTP, without("blk.1.ffn_down.weight"), "blk.1.ffn_down.weight is missing"),
    "a way down only": (DRAFT, without("blk.1.ffn_up.weight"), "blk.1.ffn_up.weight is missing"),
    "a norm of integers": (
        MTP,
        stored_as("blk.1.attn_q_norm.weight", 25, 128),
        "attn_q_norm.weight is stored as I16",
    ),
    "weights that nothing multiplies": (
        DRAFT,
        stored_as("blk.1.attn_v.weight", 28, 128 * 64 * 8),
        "attn_v.weight is stored as F64",
    ),
    "no tokenizer": (DRAFT, put("tokenizer.ggml.model", STRING, "none"), "carries no tokenizer"),
    "no tokens": (DRAFT, numbers("tokenizer.ggml.tokens", I32, 1, 2), "no list of texts"),
    "the same token twice": (DRAFT, same_token_twice, "has the token 't7' twice"),
    "bytes that are none": (DRAFT, a_byte_that_is_none, "is said to be a byte"),
    "fewer types than tokens": (
        DRAFT,
        numbers("tokenizer.ggml.token_type", I32, 1, 1),
        "1280 tokens and the types of 2",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_llama_cpp_would_die_over_is_refused_before(kind: str, tmp_path: Path) -> None:
    model, edit, says = BROKEN[kind]
    file = Gguf(model)
    edit(file)
    header = read_header(file.write(tmp_path / "broken.gguf"))
    with pytest.raises(ModelFileError) as refused:
        check_model(header)
    message = str(refused.value)
    assert says in message and message.isprintable()
    assert message.startswith(f"{tmp_path / 'broken.gguf'}: not a model that llama.cpp can load: ")


def test_embeddings_for_another_vocabulary(tmp_path: Path) -> None:
    file = Gguf(DRAFT)
    (tensor,) = [t for t in file.tensors if t.name == "token_embd.weight"]
    file.tensors[file.tensors.index(tensor)] = Entry(
        tensor.name, (128, 640), tensor.kind, tensor.data[: 640 * 136]
    )
    with pytest.raises(ModelFileError, match="1280 tokens and embeddings for 640"):
        check_model(read_header(file.write(tmp_path / "m.gguf")))


def test_a_vocabulary_without_bytes(tmp_path: Path) -> None:
    """SentencePiece spells in bytes what it has no token for."""
    single = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens, types = ["<unk>", "<s>", "</s>", *single, "▁a"], [2, 3, 3, *[6] * 256, 1]
    whole = Made(tokens, kind="llama", pre="default", bos=1, types=types)
    check_model(read_header(whole.write(tmp_path / "whole.gguf")))
    lacking = Made(
        [*tokens[:200], *words(60)[3:]], kind="llama", pre="default", bos=1, types=[*types[:200], *[1] * 57]
    )
    with pytest.raises(ModelFileError, match="lacks 59 of the 256 bytes, such as <0xC5>"):
        check_model(read_header(lacking.write(tmp_path / "lacking.gguf")))


@pytest.mark.parametrize("model", [DRAFT, HYBRID, MTP], ids=lambda path: path.stem)
def test_whole_models_pass(model: Path) -> None:
    check_model(read_header(model))


def test_large_models_pass(smol: Path) -> None:
    check_model(read_header(smol))
    for path in (Path.home() / ".cache" / "specli-models").glob("*.gguf"):
        check_model(read_header(path))


# -- tried in a child process ------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECLI_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(FAULT_VARIABLE, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are tried in a child process, as they are."""
    tried: list[Path] = []

    def run(path: Path, *rest: Any, **named: Any) -> Outcome:
        tried.append(path)
        return probe.run_trial(path, *rest, **named)

    monkeypatch.setattr(admission, "run_trial", run)
    return tried


def copy(path: Path) -> Path:
    path.write_bytes(DRAFT.read_bytes())
    return path


def test_a_file_is_tried_once_under_the_same_settings(
    cache: Path, tmp_path: Path, trials: list[Path]
) -> None:
    model = copy(tmp_path / "new.gguf")
    for settings in (SETTINGS, TrialSettings(threads=2), SETTINGS):
        assert admit(model, settings, no_repack=True).notices == ()
    assert trials == [model]
    (file,) = cache.glob("file-*.json")
    assert file.stat().st_mode & 0o777 == 0o600
    assert str(tmp_path) not in file.read_text()  # nothing that tells where the user keeps models
    admit(model, TrialSettings(threads=1, type_k="f32"), no_repack=True)
    assert len(trials) == 2


def test_a_changed_file_is_tried_again(cache: Path, tmp_path: Path, trials: list[Path]) -> None:
    model = copy(tmp_path / "new.gguf")
    admit(model, SETTINGS, no_repack=True)
    os.utime(model, (1, 1))
    admit(model, SETTINGS, no_repack=True)
    assert len(trials) == 2


@pytest.mark.parametrize(
    "record", ["", "{", "[]", '{"holds_for": 1}', '{"holds_for": null, "checks": "x"}', "\0" * 99]
)
def test_a_record_that_is_none_counts_as_none(
    cache: Path, tmp_path: Path, trials: list[Path], record: str
) -> None:
    model = copy(tmp_path / "new.gguf")
    admit(model, SETTINGS, no_repack=True)
    (file,) = cache.glob("file-*.json")
    file.write_text(record)
    admit(model, SETTINGS, no_repack=True)
    assert len(trials) == 2
    assert json.loads(file.read_text())["tried"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        ("segv-always", ModelFileError, "llama.cpp does not survive this file (SIGSEGV in a trial run)"),
        ("kill-always", MemoryShortage, "the trial run was killed (SIGKILL), most likely for want of memory"),
    ],
)
def test_a_death_in_the_child_is_one_line_and_not_remembered(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    error: type[SpecliError],
    says: str,
) -> None:
    model = copy(tmp_path / "new.gguf")
    monkeypatch.setenv(FAULT_VARIABLE, fault)
    with pytest.raises(error) as died:
        admit(model, SETTINGS, no_repack=True)
    assert says in str(died.value) and "\n" not in str(died.value)
    monkeypatch.delenv(FAULT_VARIABLE)
    admit(model, SETTINGS, no_repack=True)


def test_what_the_check_does_not_know_ends_the_child_only(cache: Path, tmp_path: Path) -> None:
    """Norms in halves are computed with on some devices; the processor's code gives up over them."""
    file = Gguf(DRAFT)
    stored_as("blk.0.attn_norm.weight", 1, 256)(file)
    model = file.write(tmp_path / "halves.gguf")
    check_model(read_header(model))
    with pytest.raises(
        ModelFileError, match=r"halves\.gguf: llama\.cpp does not survive this file \(SIGABRT"
    ):
        admit(model, SETTINGS, no_repack=True)


def in_halves(source: Path, out: Path, name: str) -> Path:
    """A copy with one tensor, a norm, stored as F16."""
    file = Gguf(source)
    (tensor,) = [t for t in file.tensors if t.name == name]
    tensor.kind, tensor.data = 1, bytes(2 * tensor.dims[0])
    return file.write(out)


@pytest.fixture
def beside(tmp_path: Path) -> dict[str, tuple[Path, Path, str]]:
    """Files that draft beside a model, by kind: the model, the file, and one of its norms."""
    qwen = as_qwen3(MTP, tmp_path / "qwen3.gguf")
    heads = heads_only(MTP, tmp_path / "heads.gguf")
    block = RandomDraft(qwen, "dflash").write(tmp_path / "block.gguf")
    return {
        "heads": (MTP, heads, "blk.4.nextn.enorm.weight"),
        "eagle": (qwen, MODELS / "tiny-eagle3.gguf", "blk.0.attn_norm.weight"),
        "block": (qwen, block, "blk.0.attn_norm.weight"),
    }


@pytest.mark.parametrize("kind", ["heads", "eagle", "block"])
def test_what_drafts_beside_the_model_is_tried_beside_it(
    kind: str, beside: dict[str, tuple[Path, Path, str]], cache: Path, tmp_path: Path, run: Runner
) -> None:
    model, head, norm = beside[kind]
    good = run("-m", model, "--draft-model", head, "a")
    assert good.code == 0 and good.out, good.err
    broken = in_halves(head, tmp_path / "halves.gguf", norm)
    result = run("-m", model, "--draft-model", broken, "a")
    assert result.code == 1 and not result.out
    assert "halves.gguf: llama.cpp does not survive this file (SIGABRT: binary-ops.cpp" in result.line


@pytest.mark.parametrize("kind", ["model", "heads", "eagle", "block"])
def test_what_computes_no_numbers_is_refused(
    kind: str, beside: dict[str, tuple[Path, Path, str]], cache: Path, tmp_path: Path, run: Runner
) -> None:
    model, head, norm = beside.get(kind, (DRAFT, DRAFT, "blk.0.attn_norm.weight"))
    file = Gguf(head)
    (tensor,) = [t for t in file.tensors if t.name == norm]
    tensor.data = struct.pack("<f", float("nan")) * tensor.dims[0]
    broken = file.write(tmp_path / "nan.gguf")
    result = run(*(("-m", broken) if kind == "model" else ("-m", model, "--draft-model", broken)), "a")
    assert result.code == 1 and not result.out and "nan.gguf: it computes no numbers (NaN)" in result.line


def test_a_head_is_tried_once_for_a_model(
    beside: dict[str, tuple[Path, Path, str]], cache: Path, tmp_path: Path, trials: list[Path]
) -> None:
    model, head, _ = beside["eagle"]
    for _ in range(2):
        assert admit_head(head, model, SETTINGS, False) is None
    assert len(trials) == 1
    other = tmp_path / "other.gguf"
    file = Gguf(model)
    file.set("general.name", STRING, "another")
    admit_head(head, file.write(other), SETTINGS, False)
    assert len(trials) == 2
    for _ in range(2):  # heads of another model: refused by the child, said elsewhere, and not remembered
        assert admit_head(beside["heads"][1], DRAFT, SETTINGS, False) is None
    assert len(trials) == 4


def test_a_cache_that_takes_nothing_is_one_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("SPECLI_CACHE_DIR", str(tmp_path / "file"))
    (notice,) = admit(DRAFT, SETTINGS, no_repack=True).notices
    assert notice.startswith(
        "tiny-draft.gguf will be tried in a child process again next time: cannot write "
    )


def test_where_no_child_can_be_started_the_check_must_do(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    assert admit(DRAFT, SETTINGS, no_repack=True).use_extra_bufts is False
    (file,) = cache.glob("file-*.json")
    assert json.loads(file.read_text())["tried"] == []


def test_wrong_options_are_not_the_files_fault(cache: Path, trials: list[Path]) -> None:
    with pytest.raises(UsageError, match="--cache-type-v q8_0 needs flash attention"):
        admit(DRAFT, TrialSettings(threads=1, flash_attn="off", type_v="q8_0"), no_repack=True)
    assert not trials


def test_memory_out_of_all_proportion_is_refused_by_the_child(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "room", lambda size, settings: 1 << 20)
    with pytest.raises(ModelFileError, match="tiny-draft"):
        admit(DRAFT, SETTINGS, no_repack=True)


def test_the_command_line_says_it_in_one_line(cache: Path, tmp_path: Path) -> None:
    file = Gguf(DRAFT)
    file.set("llama.block_count", U32, 2**31)
    broken = file.write(tmp_path / "bad\x1b[2J.gguf")
    for command in (["run", "-m"], ["check-draft"], ["chat", "-m"]):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "specli",
                *command,
                str(broken),
                *([str(DRAFT)] if "check" in command[0] else ["Hi"][: command[0] == "run"]),
            ],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        assert done.returncode in ((1,) if command[0] != "check-draft" else (0, 1, 3)), done.stderr
        assert "\x1b" not in done.stderr + done.stdout and "Traceback" not in done.stderr
        assert command[0] == "check-draft" or "block_count is 2147483648" in done.stderr


def test_a_header_once_checked_is_not_checked_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy(tmp_path / "new.gguf")
    sound_header(model)
    monkeypatch.setattr(admission, "check_model", lambda header: pytest.fail("checked again"))
    sound_header(model)


# -- many --------------------------------------------------------------------------------------------


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the harness needs Linux")
@pytest.mark.parametrize("kind", ["models", "heads", "eagle", "block"])
def test_mutated_files_harm_nobody(
    kind: str, beside: dict[str, tuple[Path, Path, str]], tmp_path: Path
) -> None:
    """Files that pass the check may still be more than llama.cpp bears; then its child process dies and not
    specli. What must not be: hangs, memory, errors that are not specli's."""
    script = Path(__file__).parent / "fuzz" / "model_files.py"
    count = os.environ.get("SPECLI_FUZZ", "60" if kind == "models" else "20")
    files = [] if kind == "models" else [str(beside[kind][1]), "--beside", str(beside[kind][0])]
    done = subprocess.run(
        [sys.executable, str(script), "--folder", str(tmp_path / "fuzz"), "--count", count, *files],
        capture_output=True,
        text=True,
    )
    assert "traceback" not in done.stdout and "hang" not in done.stdout, done.stdout
    assert done.returncode in (0, 1) and f"{count} files in" in done.stdout, done.stdout + done.stderr
