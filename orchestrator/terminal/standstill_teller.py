"""The teller of standstills: says which rank stands still, where, and which wait for it. Driver, in a thread of its
own, as what drives the run waits for the ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Self

from hooks.state import Display
from orchestrator.errors import HookyardError
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.standstill import ASKED, FOLDER, Standstill, present_standstill
from orchestrator.terminal.run_status import look_every_s

ASK_AFTER_S = 3.0
"""How long after Ctrl-C the ranks that have not ended are asked where they are."""

_log = logging.getLogger("hookyard")


class StandstillTeller:
    """Looks at the runs under way, tells of each standstill once, and when it is over. What it tells is in the log too,
    with the stacks of the ranks that stand.

    `under_way` gives the runs, and `ending` whether they were asked to end: then it is told what that waits for.
    """

    def __init__(
        self, under_way: Callable[[], Sequence[RunFolder]], display: Display, ending: Callable[[], bool]
    ) -> None:
        self._under_way, self._display, self._ending = under_way, display, ending
        self._told: dict[str, tuple[int, ...]] = {}
        self._ended_for_s = 0.0
        self._asked: set[str] = set()
        self._seen: dict[str, RunFolder] = {}
        self._left = Event()
        self._thread = Thread(target=self._watch, name="standstill-teller", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._left.set()
        self._thread.join(timeout=5)
        with suppress(HookyardError, OSError):
            for folder in self._seen.values():
                folder.storage.delete(FOLDER)

    def _watch(self) -> None:
        every_s = 1.0
        while not self._left.wait(every_s):
            self._ended_for_s += every_s if self._ending() else 0
            for folder in self._under_way():
                every_s = look_every_s(folder.storage)
                try:
                    self._look(folder)
                except (HookyardError, OSError) as error:
                    _log.debug("%s cannot be looked at: %s", folder, error)

    def _look(self, folder: RunFolder) -> None:
        if self._ended_for_s >= ASK_AFTER_S and folder.location not in self._asked and folder.storage.local:
            self._asked.add(folder.location)
            folder.storage.write(ASKED, "")
        self._seen[folder.location] = folder
        found = present_standstill(folder)
        before, ranks = self._told.get(folder.location), found.ranks if found else None
        if ranks == before:
            return None
        if found is None or ranks is None:
            del self._told[folder.location]
            return self._display.line(f"{folder.name}: no rank stands still any more")
        self._told[folder.location] = ranks
        return self._tell(folder, found)

    def _tell(self, folder: RunFolder, found: Standstill) -> None:
        waited = "the end waits for this: " if folder.location in self._asked else ""
        log = f" (stack: {folder}/log.txt)" if found.stacks else ""
        self._display.line(f"{folder.name}: {waited}{found}{log}")
        folder.log(found.stacks)
