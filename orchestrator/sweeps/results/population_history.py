"""What a population did: who went on from whom, when, with which values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.records.run_folder import RunFolder, now
from orchestrator.storage.stored_data import append_line, read_lines, sealed

FILE = "population.jsonl"


@dataclass(frozen=True)
class Exploit:
    """A trial that went on from another one's weights."""

    time: str
    trial: str
    source: str
    """Whose weights it took."""
    report: int
    """Which report of the source, counted from 1, its checkpoint belongs to."""
    epoch: int
    step: int
    """Optimizer steps behind those weights."""
    score: float
    """The metric the trial had reached."""
    source_score: float
    before: Mapping[str, Any]
    """The source's values."""
    after: Mapping[str, Any]
    """The values the trial goes on with."""

    @property
    def changes(self) -> dict[str, Any]:
        """The values that are others than the source's."""
        return {
            path: value for path, value in self.after.items() if path not in self.before or self.before[path] != value
        }


class History:
    """The exploits of a sweep, in a file of its own as they happen. Driver."""

    def __init__(self, sweep: RunFolder) -> None:
        self._storage = sweep.storage

    def append(self, **fields: Any) -> None:
        """Adds one."""
        append_line(self._storage, FILE, asdict(Exploit(time=now(), **fields)))

    def read(self) -> list[Exploit]:
        """All of them, oldest first; none where no trial took another one's weights."""
        return read_lines(self._storage, FILE, Exploit)

    def forget_unbegun(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Drops a trial's last exploit where the driver was lost before the trial took it up; `values` are those it
        has."""
        exploits = self.read()
        last = {exploit.trial: exploit for exploit in exploits}
        unbegun = [one for trial, one in last.items() if trial in values and one.after != values[trial]]
        kept = [exploit for exploit in exploits if exploit not in unbegun]
        if unbegun:
            self._storage.join(FILE)
            self._storage.write(FILE, "".join(sealed(json.dumps(asdict(exploit))) + "\n" for exploit in kept))


def lineage(exploits: list[Exploit], trial: str) -> list[Exploit]:
    """The exploits that led to a trial's weights, oldest first: its last, then its source's before that, and so on."""
    found: list[Exploit] = []
    for exploit in reversed(exploits):
        if exploit.trial == trial:
            found.append(exploit)
            trial = exploit.source
    return found[::-1]
