"""export: a profile in other engines' words."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from specli.export import ENGINES, export
from specli.profiles import available, load, resolve
from specli.settings import Settings


def settings(**flags: object) -> Settings:
    return resolve(load(), flags)


def value(command: tuple[str, ...], flag: str) -> str:
    return command[command.index(flag) + 1]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("profile", [entry.name for entry in available()])
@pytest.mark.parametrize("draft", [None, "org/draft"])
def test_each_profile_becomes_a_script_that_a_shell_can_read(
    engine: str, profile: str, draft: str | None
) -> None:
    exported = export(engine, resolve(load(profile)), "org/my model's file.gguf", draft)
    script = exported.text()
    lines = script.split("EOF\n")[-1].splitlines()
    command = "\n".join(line for line in lines if not line.startswith("#"))
    assert tuple(shlex.split(command.replace("\\\n", " "))) == exported.command
    done = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_draft_is_never_given_to_llama_server_without_its_type() -> None:
    command = export("llama-server", settings(**{"spec-type": "draft-model"}), "t.gguf", "d.gguf").command
    assert value(command, "--spec-type") == "draft-simple"
    assert value(command, "--spec-draft-model") == "d.gguf" and value(command, "--parallel") == "1"
    command = export("llama-server", settings(**{"spec-type": "none"}), "t.gguf", "d.gguf").command
    assert value(command, "--spec-type") == "none" and "d.gguf" not in command


def test_a_head_goes_to_the_engine_as_what_its_file_says() -> None:
    head = str(Path(__file__).parent / "models" / "tiny-eagle3.gguf")
    for given in (settings(), settings(**{"spec-type": "draft-eagle3"})):
        command = export("llama-server", given, "t.gguf", head).command
        assert (
            value(command, "--spec-type").endswith("draft-eagle3")
            and value(command, "--spec-draft-model") == head
        )
    eagle = settings(**{"spec-type": "draft-eagle3", "spec-draft-n-max": 3})
    config = json.loads(value(export("vllm", eagle, "org/t", "org/head").command, "--speculative-config"))
    assert config == {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}
    assert value(export("sglang", eagle, "org/t", "org/head").command, "--speculative-algorithm") == "EAGLE3"
    assert "decoding_type: Eagle3" in export("tensorrt-llm", eagle, "org/t", "org/head").text()
    block = export("vllm", settings(**{"spec-type": "draft-dspark"}), "org/t", "org/block")
    assert "--speculative-config" not in block.command and "draft-dspark is left out" in block.text()


def test_settings_reach_llama_server() -> None:
    given = settings(**{
        "spec-type": "ngram-simple,draft-mtp", "spec-ngram-simple-size-n": 5, "spec-ngram-simple-size-m": 20,
        "spec-draft-n-max": 3, "temp": 0.25, "ctx-size": 4096, "threads": 3, "gpu-layers": 7, "seed": 9,
        "cache-type-k": "q8_0", "no-repack": True, "logit-bias": ["15-1.5", "word+2"], "max-tokens": 50,
    })  # fmt: skip
    exported = export("llama-server", given, "user/repo:Q8_0", None)
    for flag, expected in {
        "--hf-repo": "user/repo:Q8_0", "--spec-type": "ngram-simple,draft-mtp", "--spec-ngram-simple-size-n": "5",
        "--spec-ngram-simple-size-m": "20", "--spec-draft-n-max": "3", "--temp": "0.25", "--ctx-size": "4096",
        "--threads": "3", "--gpu-layers": "7", "--seed": "9", "--cache-type-k": "q8_0", "--logit-bias": "15-1.5",
        "--predict": "50",
    }.items():  # fmt: skip
        assert value(exported.command, flag) == expected
    assert "--no-repack" in exported.command
    assert any("'word'" in comment for comment in exported.comments)


def test_what_has_no_counterpart_is_said() -> None:
    given = settings(**{"exact": True, "spec-type": "draft-self"})
    for engine in ENGINES:
        comments = "\n".join(export(engine, given, "m", None).comments)
        assert "--exact has no counterpart" in comments and "draft length by measured profit" in comments
    assert "draft-self has no counterpart" in "\n".join(export("llama-server", given, "m", None).comments)
    two = settings(**{"spec-type": "ngram-simple,draft-model"})
    assert "no counterpart for trying draft-model next" in "\n".join(export("vllm", two, "m", "d").comments)


def test_vllm_gets_one_json_object() -> None:
    command = export(
        "vllm", settings(**{"spec-type": "draft-model", "spec-draft-n-max": 5}), "m", "d"
    ).command
    config = json.loads(value(command, "--speculative-config"))
    assert config == {"method": "draft_model", "model": "d", "num_speculative_tokens": 5}
    command = export("vllm", settings(**{"spec-type": "ngram-simple"}), "m", None).command
    config = json.loads(value(command, "--speculative-config"))
    assert config["method"] == "ngram" and config["prompt_lookup_max"] == 12
    assert "--speculative-config" not in export("vllm", settings(**{"spec-type": "none"}), "m", None).command


def test_sglang_verifies_one_more_than_it_drafts() -> None:
    command = export(
        "sglang", settings(**{"spec-type": "draft-model", "spec-draft-n-max": 4}), "m", "d"
    ).command
    assert value(command, "--speculative-algorithm") == "STANDALONE"
    assert (
        value(command, "--speculative-num-steps") == "4" and value(command, "--speculative-eagle-topk") == "1"
    )
    assert value(command, "--speculative-num-draft-tokens") == "5"


def test_tensorrt_gets_a_config_file() -> None:
    exported = export("tensorrt-llm", settings(**{"spec-type": "draft-model"}), "m", "d")
    assert value(exported.command, "--config") == exported.file_name
    assert "  decoding_type: DraftTarget\n  max_draft_len: 4\n" in exported.file_text


def test_the_command() -> None:
    command = [sys.executable, "-m", "specli", "export"]
    done = subprocess.run([*command, "vlm", "-m", "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and 'did you mean "vllm"?' in done.stderr
    done = subprocess.run(
        [*command, "llama-server", "-m", "x", "--spec-type", "draft-model"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "--draft-model MODEL" in done.stderr
    done = subprocess.run(
        [*command, "llama-server", "-m", "u/x", "--draft-model", "u/d", "--profile", "ngram-simple"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "--spec-type ngram-simple,draft-simple" in done.stdout


def _all_flags() -> set[str]:
    """Every flag that any profile and setting can bring out."""
    everything = settings(**{
        "spec-type": "ngram-simple,ngram-map-k,ngram-map-k4v,draft-mtp,draft-model,draft-self", "ctx-size": 512,
        "threads": 1, "threads-batch": 1, "gpu-layers": 1, "spec-draft-ngl": 1, "seed": 1, "max-tokens": 5,
        "no-repack": True, "logit-bias": ["1+1"],
    })  # fmt: skip
    words = [
        *export("llama-server", everything, "m", "d").command,
        *export("llama-server", everything, "a/b", "c/d").command,
    ]
    return {word for word in words if word.startswith("--")}


def test_every_flag_is_one_that_llama_cpp_has() -> None:
    """Against the sources, where they are (SPECLI_LLAMA_CPP names their directory)."""
    source = Path(os.environ.get("SPECLI_LLAMA_CPP", "")) / "common" / "arg.cpp"
    if not os.environ.get("SPECLI_LLAMA_CPP") or not source.is_file():
        pytest.skip("SPECLI_LLAMA_CPP names no llama.cpp sources")
    known = set(re.findall(r'"(--[a-z0-9-]+)"', source.read_text("utf-8")))
    assert len(known) > 100
    assert _all_flags() <= known, _all_flags() - known


_PEER = """
import json, sys, xllamacpp as x
p = x.CommonParams()
types = x.common_speculative_type
for name, value in json.load(sys.stdin):
    at, *path = [p, *name.split(".")]
    for part in path[:-1]:
        at = getattr(at, part)
    assert hasattr(at, path[-1]), name
    if name == "speculative.types":
        value = [getattr(types, "COMMON_SPECULATIVE_TYPE_" + v.upper().replace("-", "_")) for v in value]
    setattr(at, path[-1], value)
    got = getattr(at, path[-1])
    assert got == value or abs(got - value) < 1e-6, (name, got, value)
print("taken")
"""
_FIELDS = {
    "--model": "model.path", "--parallel": "n_parallel", "--ctx-size": "n_ctx", "--batch-size": "n_batch",
    "--threads": "cpuparams.n_threads", "--temp": "sampling.temp", "--top-k": "sampling.top_k",
    "--top-p": "sampling.top_p", "--min-p": "sampling.min_p", "--spec-draft-model": "speculative.draft.mparams.path",
    "--spec-draft-n-max": "speculative.draft.n_max", "--spec-draft-n-min": "speculative.draft.n_min",
    "--spec-draft-p-min": "speculative.draft.p_min", "--spec-type": "speculative.types",
    "--spec-ngram-simple-size-n": "speculative.ngram_simple.size_n",
    "--spec-ngram-simple-size-m": "speculative.ngram_simple.size_m",
}  # fmt: skip


def test_the_prebuilt_peer_takes_what_is_exported() -> None:
    """The prebuilt llama.cpp server of the package xllamacpp (SPECLI_PEER_PYTHON runs it) takes the types
    and values of the exported command into its parameters, and gives them back."""
    peer = os.environ.get("SPECLI_PEER_PYTHON")
    if not peer:
        pytest.skip("SPECLI_PEER_PYTHON names no Python with xllamacpp")
    given = settings(**{"spec-type": "ngram-simple,draft-model", "ctx-size": 512, "threads": 2})
    command = export("llama-server", given, "t.gguf", "d.gguf").command
    pairs: list[tuple[str, object]] = []
    for flag, field in _FIELDS.items():
        text = value(command, flag)
        if flag == "--spec-type":
            pairs.append((field, text.split(",")))
        else:
            number = re.fullmatch(r"-?\d+(\.\d+)?", text)
            pairs.append(
                (
                    field,
                    text
                    if not number
                    else float(text)
                    if number[1] or flag == "--spec-draft-p-min"
                    else int(text),
                )
            )
    done = subprocess.run(
        [peer, "-c", _PEER], input=json.dumps(pairs), capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "taken", done.stderr[-500:]
