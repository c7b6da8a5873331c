"""Timing side by side: contestants take turns in one process, so that what the machine does
meanwhile hits them all."""

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from threading import Semaphore, Thread
from time import perf_counter

Pause = Callable[[], None]
"""What a contestant calls at the end of each piece of its work: it waits there for its next
turn."""


class _Contestant(Thread):
    """A contestant in a thread of its own; only one runs at a time."""

    def __init__(self, work: Callable[[Pause], None]) -> None:
        super().__init__(daemon=True)
        self._work, self._go, self._stopped = work, Semaphore(0), Semaphore(0)
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        self._go.acquire()
        try:
            self._work(self._pause)
        except BaseException as error:
            self._error = error
        finally:
            self._stopped.release()

    def _pause(self) -> None:
        self._stopped.release()
        self._go.acquire()

    def turn(self) -> float:
        """Lets it work up to its next pause, or to its end; returns the seconds."""
        started = perf_counter()
        self._go.release()
        self._stopped.acquire()
        seconds = perf_counter() - started
        if self._error is not None:
            raise self._error
        return seconds


def take_turns(
    contestants: Mapping[str, Callable[[Pause], None]], rounds: int
) -> dict[str, list[float]]:
    """Seconds of each contestant's pieces of work, one piece per round; a first round, with the
    setup, is not counted.

    A contestant does `rounds + 1` pieces of work and calls the function it is given at the end of
    each.
    """
    threads = {name: _Contestant(work) for name, work in contestants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in threads}
    for _ in range(rounds + 1):
        for name, thread in threads.items():
            seconds[name].append(thread.turn())
    for thread in threads.values():
        thread.turn()
    return {name: times[1:] for name, times in seconds.items()}


def ratio(times: Sequence[float], base: Sequence[float]) -> float:
    """Return the median over rounds of the time as a multiple of the base's."""
    return median(mine / theirs for mine, theirs in zip(times, base, strict=True))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints Markdown: a heading, the machine, and a table whose first column is text and whose
    others are numbers."""
    print(f"\n## {title}\n\n{machine()}\n")
    print("| " + " | ".join(columns) + " |")
    print("| --- |" + " ---: |" * (len(columns) - 1))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)


def machine() -> str:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, load {load}."
