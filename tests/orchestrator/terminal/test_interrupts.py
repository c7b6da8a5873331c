from __future__ import annotations

import os
import signal
import threading

import pytest

from orchestrator.terminal.interrupts import Interrupts


class Left(BaseException):
    """What os._exit does here."""


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise Left

    monkeypatch.setattr(os, "_exit", leave)
    return codes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_leaves(
    exits: list[int], capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    with Interrupts("hookyard resume runs/digits") as interrupts:
        assert not interrupts.asked
        signal.raise_signal(number)
        assert interrupts.asked
        assert exits == []
        assert "Saving a checkpoint" in capsys.readouterr().err
        with pytest.raises(Left):
            signal.raise_signal(number)
    assert exits == [130]
    assert "Leaving at once. To go on from the last checkpoint: hookyard resume runs/digits" in capsys.readouterr().err


def test_what_comes_next_is_said_in_the_words_of_what_is_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    with Interrupts("", "Each trial ends."):
        signal.raise_signal(signal.SIGINT)
    assert "Each trial ends. Ctrl-C again leaves at once." in capsys.readouterr().err


def test_the_handlers_of_before_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts(""):
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] != before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_in_a_thread_it_leaves_the_handlers_alone() -> None:
    """Python takes handlers in the main thread alone; a notebook may run elsewhere."""
    before = signal.getsignal(signal.SIGINT)
    found: list[object] = []

    def elsewhere() -> None:
        with Interrupts("") as interrupts:
            found.extend([interrupts.asked, signal.getsignal(signal.SIGINT)])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [False, before]
