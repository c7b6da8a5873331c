import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import psutil
import pytest

from orchestrator.errors import RunError
from orchestrator.process.interrupts import Interrupts, interrupt_at_sigterm


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
    assert (
        "Exiting at once. To resume from the last checkpoint: hookyard resume runs/digits"
        in capsys.readouterr().err
    )


def test_closed_terminal_requests_the_end_however_often_it_is_told(exits: list[int]) -> None:
    """A shell sends SIGHUP to its jobs, and the kernel once more when the shell has exited."""
    with Interrupts("") as interrupts:
        signal.raise_signal(signal.SIGHUP)
        assert interrupts.requested
        signal.raise_signal(signal.SIGHUP)
        assert exits == []
        with pytest.raises(Left):
            signal.raise_signal(signal.SIGTERM)
    assert exits == [130]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_closed_terminal_is_ignored_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts("") as interrupts:
            signal.raise_signal(signal.SIGHUP)
            assert not interrupts.requested
    finally:
        signal.signal(signal.SIGHUP, before)


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
from orchestrator.process.interrupts import Interrupts, interrupt_at_sigterm
before = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
import time; time.sleep(1.2)
with Interrupts("hookyard resume RUN"):
    started = subprocess.Popen(["sleep", "1000"])
    print(before.pid, started.pid, flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # so that it does not end the call
    ctypes.CDLL(None).sleep(1000)
"""


def test_second_signal_kills_child_processes_even_during_a_c_call() -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", STANDS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
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


FORKS = """
import multiprocessing, signal
from torch.utils.data import DataLoader
from orchestrator.process.interrupts import Interrupts, interrupt_at_sigterm

class Rows(list):
    def __getitem__(self, index):
        return index, signal.set_wakeup_fd(-1)

with Interrupts("") as interrupts:
    context = multiprocessing.get_context("fork")
    batches = iter(DataLoader(Rows(range(40)), 2, num_workers=2, multiprocessing_context=context))
    next(batches)
    processes = multiprocessing.active_children()
    print(flush=True)
    input()
    indices, wakeups = zip(*batches)
    print(sum(map(len, indices)), {int(fd) for pair in wakeups for fd in pair}, interrupts.requested, interrupts._count)
    for process in processes:
        process.terminate()
        process.join()
    print(len(processes), [process.exitcode for process in processes])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_the_process_group_leaves_the_processes_of_a_loader_at_work(
    number: signal.Signals,
) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    driver: Any = subprocess.Popen(
        [sys.executable, "-c", FORKS], text=True, start_new_session=True, **pipes
    )
    driver.stdout.readline()
    os.killpg(driver.pid, number)
    said, errors = driver.communicate("\n", timeout=60)
    assert said.splitlines() == ["38 {-1} True 1", "2 [0, 0]"], errors


CHILD = """
import multiprocessing, os, signal
from orchestrator.process.interrupts import Interrupts, interrupt_at_sigterm

def wait(ready):
    ready.send(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    signal.pause()

with Interrupts(""):
    pass
context = multiprocessing.get_context("fork")
ours, theirs = context.Pipe()
process = context.Process(target=wait, args=(theirs,))
process.start()
print(ours.recv())
os.kill(process.pid, signal.SIGTERM)
process.join()
print(process.exitcode)
"""


def test_children_started_after_the_block_keep_their_signals() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["set()", "-15"], done.stderr


def test_failure_is_raised_in_the_waiting_main_thread() -> None:
    with Interrupts("") as interrupts:
        threading.Timer(0.1, interrupts.fail, ["rank 0 stands"]).start()
        with pytest.raises(RunError, match="rank 0 stands"):
            time.sleep(30)
    assert not interrupts.requested


def test_failure_is_raised_where_sigint_is_ignored() -> None:
    """As in a job that a script starts with `&`."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts("") as interrupts:
            threading.Timer(0.1, interrupts.fail, ["rank 0 stands"]).start()
            with pytest.raises(RunError, match="rank 0 stands"):
                time.sleep(5)
        assert not interrupts.requested
    finally:
        signal.signal(signal.SIGINT, before)


def test_sigterm_interrupts_within_the_block_only() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interrupt_at_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
