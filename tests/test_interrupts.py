"""The first signal ends an answer in order, the second one ends the program."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from specli import interrupts
from specli.errors import Interrupted
from specli.interrupts import Interrupts

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
            with pytest.raises(Interrupted) as error:
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
