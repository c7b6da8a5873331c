import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from orchestrator.errors import RunError
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
def test_first_signal_requests_the_end_and_second_exits(
    exits: list[int], capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    with Interrupts("hookyard resume runs/digits") as interrupts:
        assert not interrupts.requested
        signal.raise_signal(number)
        assert interrupts.requested
        assert exits == []
        assert "Saving a checkpoint" in capsys.readouterr().err
        with pytest.raises(Left):
            signal.raise_signal(number)
    assert exits == [130]
    assert "Exiting at once. To resume from the last checkpoint: hookyard resume runs/digits" in capsys.readouterr().err


def test_previous_signal_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts(""):
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] != before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_handlers_stay_in_other_threads() -> None:
    """Python takes handlers in the main thread alone; a notebook may run elsewhere."""
    before = signal.getsignal(signal.SIGINT)
    found: list[object] = []

    def elsewhere() -> None:
        with Interrupts("") as interrupts:
            found.extend([interrupts.requested, signal.getsignal(signal.SIGINT)])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [False, before]


STANDS = """
import ctypes, signal, subprocess, sys
from orchestrator.terminal.interrupts import Interrupts
before = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
import time; time.sleep(1.2)
with Interrupts("hookyard resume RUN"):
    started = subprocess.Popen(["sleep", "1000"])
    print(before.pid, started.pid, flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # so that it does not end the call
    ctypes.CDLL(None).sleep(1000)
"""


def test_second_signal_kills_child_processes_even_during_a_c_call() -> None:
    driver = subprocess.Popen([sys.executable, "-c", STANDS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert driver.stderr is not None
    before, started = (psutil.Process(int(number)) for number in driver.stdout.readline().split())
    driver.send_signal(signal.SIGINT)
    assert "Press Ctrl-C again to exit at once" in driver.stderr.readline()
    driver.send_signal(signal.SIGINT)
    assert driver.wait(timeout=30) == 130
    assert f"Ended 1 process of the run: sleep ({started.pid})" in driver.stderr.read()
    assert before.is_running()
    before.kill()
    assert psutil.wait_procs([started], timeout=10)[1] == []


def test_failure_is_raised_in_the_waiting_main_thread() -> None:
    with Interrupts("") as interrupts:
        threading.Timer(0.1, interrupts.fail, ["rank 0 stands"]).start()
        with pytest.raises(RunError, match="rank 0 stands"):
            time.sleep(30)
    assert not interrupts.requested
