"""The stacks that faulthandler writes for ranks whose interpreter lock is held, so that they cannot
report themselves. Imports neither ray nor torch."""

import re
from pathlib import Path

from orchestrator.disk.hang import RankStack
from orchestrator.storage import Storage

STACKS = "stacks"
"""Folder of the stacks, in that of the hang reports."""
_STACK = re.compile(r"(?P<attempt>\d+)-(?P<rank>\d+)")
"""Name of faulthandler's file for a rank."""
_TIMEOUT = re.compile(r"Timeout \((\d+):(\d\d):(\d\d(?:\.\d+)?)\)!")
"""First line of faulthandler's file, with the limit."""
_HOLDS_INTERPRETER = "in a call that does not release Python's interpreter lock"


class FaulthandlerStacks:
    """The stacks of one attempt. There are none on an object store, to which faulthandler cannot
    write.

    Args:
        hang_folder: The folder of the hang reports.
        attempt: Number of the attempt.
    """

    def __init__(self, hang_folder: Storage, attempt: int) -> None:
        self._hang_folder = hang_folder
        self._attempt = attempt

    def find_file(self, rank: int) -> Path | None:
        """Return faulthandler's file for a rank; None on an object store."""
        folder = self._hang_folder.local
        return None if folder is None else folder / STACKS / f"{self._attempt}-{rank}"

    def read(self) -> dict[int, RankStack]:
        """Return the stacks by rank. Faulthandler writes one when a rank is over its limit, and says
        nothing else of the rank."""
        stacks: dict[int, RankStack] = {}
        if self._hang_folder.local is None:
            return stacks
        for name, state in self._hang_folder.tree(STACKS).items():
            match = _STACK.fullmatch(name)
            if not match or not state.size_bytes or int(match["attempt"]) != self._attempt:
                continue
            rank = int(match["rank"])
            text = self._hang_folder.read(f"{STACKS}/{name}").decode(errors="replace")
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


def _read_limit(text: str) -> float:
    """Return the limit of which faulthandler's file says that it has passed; 0 if it does not."""
    match = _TIMEOUT.match(text)
    if match is None:
        return 0.0
    hours, minutes, seconds = map(float, match.groups())
    return 3600 * hours + 60 * minutes + seconds


def is_single_rank(hang_folder: Storage) -> bool:
    """Return whether only one rank has files of faulthandler: if it holds its interpreter lock, it
    has no other report."""
    if hang_folder.local is None:
        return False
    matches = filter(None, map(_STACK.fullmatch, hang_folder.names(STACKS)))
    return len({match["rank"] for match in matches}) == 1
