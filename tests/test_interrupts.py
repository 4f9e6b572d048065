"""The first signal ends an answer in order, the second one ends the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from running import TINY

from specli import interrupts
from specli.engine import backend
from specli.engine.context import Context, ContextParams
from specli.engine.model import Model, ModelParams
from specli.errors import Interrupted, Terminated
from specli.interrupts import Interrupts, held, resend_dropped

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def press(number: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def before() -> Iterator[None]:
    """As in a terminal, whatever this run inherited."""
    kept = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, kept)


def test_a_second_press_counts_once_the_first_is_that_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(interrupts, "time", clock)
    with Interrupts(patience=1.0) as pressed:
        assert not pressed.stop() and pressed.exit_code is None
        press()
        assert pressed.stop() and pressed.exit_code == 130 and not pressed.terminated
        clock.now += 0.9  # the same press, by a nervous finger
        press()
        clock.now += 0.2
        with pytest.raises(KeyboardInterrupt):
            press()
    with pytest.raises(KeyboardInterrupt):  # Python's own handler is back
        press()


def test_without_patience_the_second_press_counts_at_once() -> None:
    with Interrupts() as pressed:
        press()
        with pytest.raises(KeyboardInterrupt):
            press()
        assert pressed.exit_code == 130


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_end_may_be_asked_for_twice(number: signal.Signals, code: int) -> None:
    kept = signal.signal(number, signal.SIG_DFL)
    try:
        with Interrupts(patience=60.0) as pressed:
            press(number)
            assert pressed.exit_code == code and pressed.terminated
            with pytest.raises(Terminated) as error:
                press(number)
            assert error.value.exit_code == code
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, kept)


def test_what_was_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts() as pressed:
        press()
        assert not pressed.stop()


class PressesWhenWrittenTo:
    """Stands for stderr: the library's log goes there from within a call into C."""

    def __init__(self) -> None:
        self.presses = 1

    def write(self, _text: str) -> None:
        if self.presses:
            self.presses -= 1
            press()

    def flush(self) -> None: ...


@contextmanager
def pressed_in_the_log() -> Iterator[None]:
    backend.load_library()
    stream = PressesWhenWrittenTo()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        backend.set_verbose(True)
        try:
            yield
        finally:
            backend.set_verbose(False)
    assert not stream.presses


def test_an_interrupt_in_the_log_of_a_load_ends_the_load() -> None:
    with pressed_in_the_log(), pytest.raises(KeyboardInterrupt):
        Model(TINY)


def test_an_interrupt_that_only_sets_a_flag_ends_the_load_too() -> None:
    with pressed_in_the_log(), Interrupts() as pressed, pytest.raises(Interrupted, match="was loaded"):
        Model(TINY)
    assert pressed.stop()


def test_an_interrupt_in_the_log_of_a_context_is_heard() -> None:
    with (
        Model(TINY, ModelParams(use_extra_bufts=False)) as model,
        pressed_in_the_log(),
        pytest.raises(KeyboardInterrupt),
    ):
        Context(model, ContextParams(n_ctx=256))


def test_signals_held_back_are_handled_afterwards_in_their_order() -> None:
    heard: list[int] = []
    kept = [signal.signal(number, lambda n, _: heard.append(n)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with held() as waiting:
            assert not waiting()
            press(signal.SIGTERM)
            press()
            assert waiting() and not heard
        assert heard == [signal.SIGTERM, signal.SIGINT]
        press()
        assert heard[2:] == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, kept[0])
        signal.signal(signal.SIGTERM, kept[1])


class PressesWhenFreed:
    def __del__(self) -> None:
        press()


def test_an_interrupt_that_python_drops_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # put back afterwards
    resend_dropped()
    with pytest.raises(KeyboardInterrupt):
        PressesWhenFreed()
        for _ in range(3000):
            time.sleep(0.01)


def test_the_end_is_no_error() -> None:
    """Nothing that handles errors may hold it up."""
    assert not issubclass(Terminated, Exception)


def ends(code: str, *args: str, **variables: str) -> tuple[int, str]:
    """A program of its own that runs `code`, then specli."""
    whole = f"import atexit, os, signal, sys\n{code}\nfrom specli.__main__ import main\nsys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", whole, *args],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, **variables}, timeout=300,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130)])
def test_a_signal_while_a_file_is_written_ends_the_program(
    tmp_path: Path, nth: int, number: str, code: int
) -> None:
    press = (
        "signal.signal(signal.SIGINT, signal.default_int_handler)\nfsync, n = os.fsync, [0]\n"
        "def pressed(fd):\n    n[0] += 1\n    fsync(fd)\n"
        f"    if n[0] == {nth}: os.kill(os.getpid(), signal.{number})\n"
        "os.fsync = pressed"
    )
    model = ("-m", str(TINY), "--threads", "1", "--max-tokens", "3", "--no-stdin", "hi")
    found, said = ends(press, "run", *model, SPECLI_CACHE_DIR=str(tmp_path))
    assert found == code and ("terminated" in said or "interrupted" in said), said


def test_a_signal_while_it_is_imported_ends_in_order() -> None:
    press = (
        "class Finder:\n    def find_spec(self, name, *_):\n"
        "        if name == 'specli.cli.main': os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Finder())"
    )
    assert ends(press, "--version") == (143, "specli: terminated\n")


def test_a_signal_at_the_very_end_changes_nothing() -> None:
    press = "for n in (2, 15, 1): atexit.register(os.kill, os.getpid(), n)"
    assert ends(press, "--version") == (0, "")


def test_a_signal_while_the_library_is_imported_is_no_broken_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(name: str) -> None:
        raise Terminated(143)

    monkeypatch.setattr(backend.importlib, "import_module", stop)
    with pytest.raises(Terminated):
        backend.load_library.__wrapped__()
