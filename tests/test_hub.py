"""From references to files: paths, aliases, and a stand-in for Hugging Face on loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_stand_in import COMMIT, Hub, serving
from made_models import Made, words

from specli.config import config_path, load_config, parse_config, set_default
from specli.download import choose_quant, fetch, find_cached, part_names
from specli.engine.gguf import read_header
from specli.errors import HubError, ModelFileError, UsageError
from specli.hub import resolve_model

REPO = "someone/tiny-GGUF"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 4096)  # so that small files are resumed too
    with serving() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running
    close_session()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return Made(words(300)).write(tmp_path_factory.mktemp("m") / "m.gguf").read_bytes()


def split_in_two(tmp_path: Path) -> dict[str, bytes]:
    """A split model: two parts that say so."""
    import gguf
    import numpy as np

    out = {}
    for no in range(2):
        name = f"tiny-Q8_0-{no + 1:05d}-of-00002.gguf"
        w = gguf.GGUFWriter(str(tmp_path / name), "llama")
        w.add_uint16("split.no", no)
        w.add_uint16("split.count", 2)
        w.add_int32("split.tensors.count", 2)
        w.add_tensor(f"t{no}.weight", np.zeros((4, 32), np.float32))
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        out[name] = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
    return out


def test_pull_brings_the_whole_file_and_later_needs_no_network(hub: Hub, model: bytes) -> None:
    hub.files[REPO] = {"README.md": b"x", "tiny-Q4_K_M.gguf": model, "tiny-Q8_0.gguf": b"other"}
    path = resolve_model(REPO)
    assert path.read_bytes() == model
    before = len(hub.requests)
    assert resolve_model(f"{REPO}:Q4_K_M") == path
    assert len(hub.requests) == before


def test_all_parts_of_a_split_model_come_and_the_first_is_named(hub: Hub, tmp_path: Path) -> None:
    parts = split_in_two(tmp_path)
    hub.files[REPO] = dict(parts)
    path = resolve_model(f"{REPO}:Q8_0")
    assert path.name == "tiny-Q8_0-00001-of-00002.gguf"
    assert all(part.is_file() for part in read_header(path).parts)
    assert [part.read_bytes() for part in read_header(path).parts] == list(parts.values())


def test_a_split_model_with_a_part_missing_is_fetched_on(hub: Hub, tmp_path: Path) -> None:
    hub.files[REPO] = split_in_two(tmp_path)
    path = resolve_model(f"{REPO}:Q8_0")
    read_header(path).parts[1].unlink()
    assert find_cached(REPO, "Q8_0") is None
    assert all(part.is_file() for part in read_header(resolve_model(f"{REPO}:Q8_0")).parts)


def test_a_repository_that_lacks_a_part_is_refused(hub: Hub, tmp_path: Path) -> None:
    parts = split_in_two(tmp_path)
    hub.files[REPO] = {name: data for name, data in parts.items() if "00001-of" in name}
    with pytest.raises(HubError, match=r"lacks tiny-Q8_0-00002-of-00002.gguf"):
        fetch(REPO, "Q8_0")


def test_a_broken_connection_is_resumed_where_it_broke(hub: Hub, model: bytes) -> None:
    hub.files[REPO] = {"tiny-Q4_K_M.gguf": model}
    hub.break_after = [40_960]
    assert resolve_model(REPO).read_bytes() == model
    assert hub.ranges and int(hub.ranges[0][6:].split("-")[0]) > 0


def test_a_killed_pull_leaves_nothing_that_passes_for_whole(hub: Hub, model: bytes, tmp_path: Path) -> None:
    """Killed in the middle; what came is no model yet, and the next pull goes on or begins anew."""
    hub.files[REPO] = {"tiny-Q4_K_M.gguf": model}
    hub.break_after = [8192] * 50
    code = (
        "import huggingface_hub.constants as c; c.DOWNLOAD_CHUNK_SIZE = 4096\n"
        "from specli.cli.main import main; import sys; sys.exit(main())"
    )
    child = subprocess.Popen([sys.executable, "-c", code, "models", "pull", REPO], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while len(hub.break_after) > 49 and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert child.stderr is not None
    child.stderr.close()
    assert find_cached(REPO, None) is None
    assert not [p for p in (tmp_path / "hf").rglob("*.gguf") if p.is_file()]
    hub.break_after = []
    assert resolve_model(REPO).read_bytes() == model


def test_a_file_that_came_short_is_not_kept(hub: Hub, model: bytes) -> None:
    hub.files[REPO] = {"tiny-Q4_K_M.gguf": model}
    hub.sizes["tiny-Q4_K_M.gguf"] = len(model) + 1000
    with pytest.raises(HubError, match=f"{len(model)} bytes came, {len(model) + 1000} should have"):
        fetch(REPO)
    assert find_cached(REPO, None) is None


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (401, "", "the token is not valid"),
        (401, "RepoNotFound", "no such model on Hugging Face that you may see"),
        (403, "GatedRepo", "ask for it on"),
        (404, "RepoNotFound", "no such model on Hugging Face that you may see"),
        (500, "", "the server answered 500"),
    ],
)
def test_what_the_server_refuses_is_one_clear_line(hub: Hub, status: int, code: str, said: str) -> None:
    hub.status, hub.error_code = status, code
    with pytest.raises(HubError) as error:
        resolve_model(REPO)
    assert said in str(error.value) and "\n" not in str(error.value) and REPO in str(error.value)


def test_no_network_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    env = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(tmp_path)}
    env.pop("HF_HUB_OFFLINE", None)
    for extra, said in (({}, "cannot be reached"), ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE forbids")):
        command = [sys.executable, "-m", "specli", "models", "pull", REPO]
        done = subprocess.run(
            command, env={**env, **extra}, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 1 and done.stdout == ""
        assert said in done.stderr and done.stderr.count("\n") == 1


def test_a_disk_too_full_is_said_before_anything_comes(hub: Hub, model: bytes) -> None:
    hub.files[REPO] = {"tiny-Q4_K_M.gguf": model}
    hub.sizes["tiny-Q4_K_M.gguf"] = 10**16
    with pytest.raises(HubError, match=r"10000000\.0 GB to fetch and .* GB free"):
        fetch(REPO)
    assert not [r for r in hub.requests if "/resolve/" in r]


def test_a_disk_that_fills_up_on_the_way(hub: Hub, model: bytes, tmp_path: Path) -> None:
    """A limit on file size stands in for the end of the disk: the write fails in the middle."""
    hub.files[REPO] = {"tiny-Q4_K_M.gguf": model}
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "import huggingface_hub.constants as c; c.DOWNLOAD_CHUNK_SIZE = 4096\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "from specli.cli.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "models", "pull", REPO],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert "too large" in done.stderr or "full" in done.stderr
    assert find_cached(REPO, None) is None


# -- what is meant ---------------------------------------------------------------------------------


def test_quantisations_are_chosen_by_whole_words() -> None:
    names = ["m-Q4_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-Q8_0.gguf"]
    assert choose_quant("r", names, "q4_k") == "m-Q4_K.gguf"
    assert choose_quant("r", names, None) == "m-Q4_K_M.gguf"
    assert choose_quant("r", ["only-Q5_K_M.gguf"], None) == "only-Q5_K_M.gguf"
    with pytest.raises(HubError, match=r"no Q2_K among m-Q4_K.gguf"):
        choose_quant("r", names, "Q2_K")
    with pytest.raises(HubError, match="no GGUF file"):
        choose_quant("r", ["model.safetensors"], None)


def test_one_part_of_a_split_model_names_the_first(tmp_path: Path) -> None:
    for name, data in split_in_two(tmp_path).items():
        (tmp_path / name).write_bytes(data)
    first, second = (tmp_path / name for name in part_names("tiny-Q8_0-00002-of-00002.gguf"))
    assert resolve_model(str(first)) == first == resolve_model(str(tmp_path))
    with pytest.raises(ModelFileError, match=r"give the first, .*00001-of-00002.gguf"):
        resolve_model(str(second))
    second.unlink()
    with pytest.raises(ModelFileError, match=r"00002-of-00002.gguf is missing"):
        resolve_model(str(first))


def test_aliases_and_the_default_of_the_config(
    tmp_path: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLI_CONFIG_DIR", str(tmp_path))
    (tmp_path / "config.toml").write_text(f'# mine\n[models.aliases]\ntiny = "{tiny_draft}"\n')
    assert resolve_model("tiny") == tiny_draft
    with pytest.raises(ModelFileError, match='did you mean "tiny"'):
        resolve_model("tinny")
    set_default("tiny")
    assert resolve_model(None) == tiny_draft
    assert "# mine" in config_path().read_text()
    set_default(str(tiny_draft))
    assert load_config().default == str(tiny_draft) and config_path().read_text().count("default") == 1
    set_default(None)
    assert load_config().default is None and load_config().aliases["tiny"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[models]\ndirz = []", "unknown key dirz; did you mean"),
        ("[model]", "unknown section"),
        ('[models]\ndirs = "x"', "must be a list"),
        ("[models]\nauto-draft = 1", "must be true or false"),
        ("[models]\ndefault = 3", "must be a text"),
        ("[models", "not valid TOML"),
    ],
)
def test_a_wrong_config_is_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        parse_config(text, "config.toml")
    assert str(error.value).startswith("config.toml")


def test_the_stand_in_names_its_commit(hub: Hub, model: bytes) -> None:
    hub.files[REPO] = {"tiny-Q4_K_M.gguf": model}
    assert COMMIT in str(resolve_model(REPO))
