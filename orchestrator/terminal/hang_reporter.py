"""The hang reporter: prints which rank hangs, where, and which ranks wait for it. Driver, in a thread of its own,
because the driver itself waits for the ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Self

from hooks.state import Display
from orchestrator.errors import HookyardError
from orchestrator.records.hang import ASKED, FOLDER, HungRanks, find_hang
from orchestrator.records.run_folder import RunFolder
from orchestrator.terminal.run_status import look_every_s

ASK_AFTER_S = 3.0
"""Seconds after Ctrl-C after which the ranks that have not ended are asked for their stacks."""

_log = logging.getLogger("hookyard")


class HangReporter:
    """Checks the active runs, and prints each hang once, and when it is over. The log gets the stacks too.

    `active_runs` returns the runs, and `is_ending` whether they were asked to end; then the lines say that the end
    waits for the hung rank.
    """

    def __init__(
        self, active_runs: Callable[[], Sequence[RunFolder]], display: Display, is_ending: Callable[[], bool]
    ) -> None:
        self._active_runs, self._display, self._is_ending = active_runs, display, is_ending
        self._reported: dict[str, tuple[int, ...]] = {}
        self._ending_s = 0.0
        self._asked: set[str] = set()
        self._folders: dict[str, RunFolder] = {}
        self._stop = Event()
        self._thread = Thread(target=self._watch, name="hang-reporter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)
        with suppress(HookyardError, OSError):
            for folder in self._folders.values():
                folder.storage.delete(FOLDER)

    def _watch(self) -> None:
        every_s = 1.0
        while not self._stop.wait(every_s):
            self._ending_s += every_s if self._is_ending() else 0
            for folder in self._active_runs():
                every_s = look_every_s(folder.storage)
                try:
                    self._check(folder)
                except (HookyardError, OSError) as error:
                    _log.debug("%s cannot be checked for hangs: %s", folder, error)

    def _check(self, folder: RunFolder) -> None:
        if self._ending_s >= ASK_AFTER_S and folder.location not in self._asked and folder.storage.local:
            self._asked.add(folder.location)
            folder.storage.write(ASKED, "")
        self._folders[folder.location] = folder
        hang = find_hang(folder)
        before, ranks = self._reported.get(folder.location), hang.ranks if hang else None
        if ranks == before:
            return None
        if hang is None or ranks is None:
            del self._reported[folder.location]
            return self._display.line(f"{folder.name}: every rank makes progress again")
        self._reported[folder.location] = ranks
        return self._report(folder, hang)

    def _report(self, folder: RunFolder, hang: HungRanks) -> None:
        prefix = "the end waits for this: " if folder.location in self._asked else ""
        log = f" (stack: {folder}/log.txt)" if hang.stacks else ""
        self._display.line(f"{folder.name}: {prefix}{hang}{log}")
        folder.log(hang.stacks)
