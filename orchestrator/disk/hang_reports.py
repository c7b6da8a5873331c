"""The reports that the ranks of a run write while one of them makes no progress. Imports neither ray
nor torch."""

import re
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.disk.hang import HungRanks, RankStack, find_hung_ranks
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import DamagedFile, HookyardError
from orchestrator.storage.json_files import read_json
from orchestrator.storage.strict_json import format_json
from orchestrator.storage.validation import validate

FOLDER = ".hang"
"""Folder in which the ranks of a run report while one of them hangs; empty otherwise."""
STACKS = f"{FOLDER}/stacks"
"""Folder of the stacks that faulthandler writes if a rank's interpreter lock is held."""
REQUEST = f"{FOLDER}/asked"
"""File with which the driver requests every rank's stack, after Ctrl-C."""
_REPORT = re.compile(r"(?P<attempt>\d+)-(?P<rank>\d+)\.(?P<state>hangs|moves)")
"""Name of a report, which says whether its rank is over its limit."""
_STACK = re.compile(r"(?P<attempt>\d+)-(?P<rank>\d+)")
"""Name of faulthandler's file for a rank."""
_TIMEOUT = re.compile(r"Timeout \((\d+):(\d\d):(\d\d(?:\.\d+)?)\)!")
"""First line of faulthandler's file, with the limit."""
_HOLDS_INTERPRETER = "in a call that does not release Python's interpreter lock"


class HangReports:
    """Reports of the ranks of one attempt, in the run's folder."""

    def __init__(self, folder: RunFolder, attempt: int, world_size: int) -> None:
        self._storage = folder.storage
        self._attempt = attempt
        self._world_size = world_size

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
        folder = self._storage.local
        return None if folder is None else folder / STACKS / f"{self._attempt}-{rank}"

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
            stacks.update(self._read_faulthandler_stacks())
        return [stacks[rank] for rank in sorted(stacks)]

    def _read(self, name: str) -> RankStack | None:
        def read_stack(data: Any) -> RankStack:
            return validate(data, RankStack)

        with suppress(FileNotFoundError, DamagedFile):
            return read_json(self._storage, f"{FOLDER}/{name}", read_stack, "It is left out.")
        return None

    def _read_faulthandler_stacks(self) -> dict[int, RankStack]:
        """Return the stacks that faulthandler wrote, by rank. It writes when a rank is over its
        limit, and says nothing else of the rank."""
        stacks: dict[int, RankStack] = {}
        if self._storage.local is None:
            return stacks
        for name, state in self._storage.tree(STACKS).items():
            match = _STACK.fullmatch(name)
            if not match or not state.size_bytes or int(match["attempt"]) != self._attempt:
                continue
            rank = int(match["rank"])
            text = self._storage.read(f"{STACKS}/{name}").decode(errors="replace")
            limit_s = _read_limit(text)
            stacks[rank] = RankStack(
                rank,
                node="",
                at=state.modified or 0,
                idle_s=limit_s,
                limit_s=limit_s,
                waits=False,
                place=_HOLDS_INTERPRETER,
                stack=text,
            )
        return stacks

    def find_hung_ranks(self) -> HungRanks | None:
        """Return the ranks that hang; None if none does, or if that is not known yet."""
        return find_hung_ranks(self.read(), self._world_size)


def _read_limit(text: str) -> float:
    """Return the limit of which faulthandler's file says that it has passed; 0 if it does not."""
    match = _TIMEOUT.match(text)
    if match is None:
        return 0.0
    hours, minutes, seconds = map(float, match.groups())
    return 3600 * hours + 60 * minutes + seconds


def find_hang(folder: RunFolder) -> HungRanks | None:
    """Return the hung ranks of a run's newest attempt; takes one listing if none hangs."""
    has_reports = any(map(_REPORT.fullmatch, folder.storage.names(FOLDER)))
    if not has_reports and not _has_stacks_of_single_rank(folder):
        return None
    attempts = folder.read_attempts()
    if not attempts:
        return None
    return HangReports(folder, attempts[-1].number, attempts[-1].world_size).find_hung_ranks()


def _has_stacks_of_single_rank(folder: RunFolder) -> bool:
    """Return whether only one rank has files of faulthandler: if it holds its interpreter lock, it
    has no other report."""
    if folder.storage.local is None:
        return False
    matches = filter(None, map(_STACK.fullmatch, folder.storage.names(STACKS)))
    return len({match["rank"] for match in matches}) == 1
