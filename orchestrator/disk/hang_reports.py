"""The reports that the ranks of a run write while one of them makes no progress. Imports neither ray
nor torch."""

import re
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.disk.faulthandler_stacks import FaulthandlerStacks, is_single_rank
from orchestrator.disk.hang import HungRanks, RankStack, find_hung_ranks
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import DamagedFile, HookyardError
from orchestrator.storage.json_files import read_json
from orchestrator.storage.strict_json import format_json
from orchestrator.storage.validation import validate

FOLDER = ".hang"
"""Folder in which the ranks of a run report while one of them hangs; empty otherwise."""
REQUEST = f"{FOLDER}/asked"
"""File with which the driver requests every rank's stack, after Ctrl-C."""
_REPORT = re.compile(r"(?P<attempt>\d+)-(?P<rank>\d+)\.(?P<state>hangs|moves)")
"""Name of a report, which says whether its rank is over its limit."""


class HangReports:
    """Reports of the ranks of one attempt, in the run's folder."""

    def __init__(self, folder: RunFolder, attempt: int, world_size: int) -> None:
        self._storage = folder.storage
        self._attempt = attempt
        self._world_size = world_size
        self._faulthandler_stacks = FaulthandlerStacks(folder.storage / FOLDER, attempt)

    def _name_report(self, rank: int, *, over_limit: bool) -> str:
        state = "hangs" if over_limit else "moves"
        return f"{FOLDER}/{self._attempt}-{rank}.{state}"

    def write(self, stack: RankStack) -> None:
        """Write a rank's report. Called on that rank."""
        name = self._name_report(stack.rank, over_limit=stack.is_over_limit)
        self._storage.write(name, format_json(asdict(stack)))
        self._storage.delete(self._name_report(stack.rank, over_limit=not stack.is_over_limit))

    def withdraw(self, rank: int) -> None:
        """Delete a rank's report. Called on that rank."""
        for over_limit in (True, False):
            self._storage.delete(self._name_report(rank, over_limit=over_limit))

    def ranks_over_limit(self) -> list[int]:
        """Return the ranks over their limit. Takes one listing, because thousands of ranks call
        this."""
        reports = self._list_reports()
        return sorted(int(report["rank"]) for report in reports if report["state"] == "hangs")

    def _list_reports(self) -> list[re.Match[str]]:
        """Return the parsed names of this attempt's reports."""
        matches = filter(None, map(_REPORT.fullmatch, self._storage.names(FOLDER)))
        return [match for match in matches if int(match["attempt"]) == self._attempt]

    def stack_file(self, rank: int) -> Path | None:
        """Return faulthandler's file for a rank's stack; None on an object store, to which it
        cannot write."""
        return self._faulthandler_stacks.find_file(rank)

    def has_request(self) -> bool:
        """Return whether the driver has requested stacks; only on a disk that can be read, where it
        costs nothing."""
        if self._storage.local is None:
            return False
        with suppress(HookyardError, OSError):
            return self._storage.exists(REQUEST)
        return False

    def read(self) -> list[RankStack]:
        """Return the ranks' reports, ordered by rank; skips reports that are being withdrawn."""
        names = [report[0] for report in self._list_reports()]
        reports = self._storage.map(self._read, names)
        stacks = {stack.rank: stack for stack in reports if stack}
        # With other ranks, one of them reports that it waits for the rank that holds its lock.
        if stacks or self._world_size == 1:
            stacks.update(self._faulthandler_stacks.read())
        return [stacks[rank] for rank in sorted(stacks)]

    def _read(self, name: str) -> RankStack | None:
        def read_stack(data: Any) -> RankStack:
            return validate(data, RankStack)

        with suppress(FileNotFoundError, DamagedFile):
            return read_json(self._storage, f"{FOLDER}/{name}", read_stack, "It is left out.")
        return None

    def find_hung_ranks(self) -> HungRanks | None:
        """Return the ranks that hang; None if none does, or if that is not known yet."""
        return find_hung_ranks(self.read(), self._world_size)


def find_hang(folder: RunFolder) -> HungRanks | None:
    """Return the hung ranks of a run's newest attempt; takes one listing if none hangs."""
    has_reports = any(map(_REPORT.fullmatch, folder.storage.names(FOLDER)))
    if not has_reports and not is_single_rank(folder.storage / FOLDER):
        return None
    attempts = folder.read_attempts()
    if not attempts:
        return None
    return HangReports(folder, attempts[-1].number, attempts[-1].world_size).find_hung_ranks()
