"""Exploits of a population: which trial continued from another's weights, when, and with which
values."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.disk.run_folder import RunFolder, now
from orchestrator.storage.stored_data import append_line, format_line, read_lines

FILE = "population.jsonl"


@dataclass(frozen=True)
class Exploit:
    """A trial that continued from another trial's weights."""

    time: str
    trial: str
    source: str
    """The trial whose weights it copied."""
    report: int
    """Report of the source, counted from 1, that its checkpoint belongs to."""
    epoch: int
    step: int
    """Optimizer steps of the source's weights."""
    score: float
    """Metric of the trial."""
    source_score: float
    before: Mapping[str, Any]
    """Values of the source."""
    after: Mapping[str, Any]
    """New values of the trial."""

    @property
    def changes(self) -> dict[str, Any]:
        """Values that differ from those of the source."""
        return {
            path: value
            for path, value in self.after.items()
            if path not in self.before or self.before[path] != value
        }


class History:
    """Exploits of a sweep, in a file of its folder. Used in the driver."""

    def __init__(self, sweep: RunFolder) -> None:
        self._storage = sweep.storage

    def append(self, **fields: Any) -> None:
        append_line(self._storage, FILE, asdict(Exploit(time=now(), **fields)))

    def read(self) -> list[Exploit]:
        return read_lines(self._storage, FILE, Exploit)

    def drop_unstarted(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Drop a trial's last exploit if its `values` differ: the driver died before the exploit
        started."""
        exploits = self.read()
        last = {exploit.trial: exploit for exploit in exploits}
        unstarted = [
            exploit
            for trial, exploit in last.items()
            if trial in values and exploit.after != values[trial]
        ]
        if unstarted:
            lines = [
                format_line(asdict(exploit)) for exploit in exploits if exploit not in unstarted
            ]
            self._storage.write(FILE, "".join(lines))


def trace_lineage(exploits: Sequence[Exploit], trial: str) -> list[Exploit]:
    """Return the exploits that led to a trial's weights, oldest first."""
    path: list[Exploit] = []
    for exploit in reversed(exploits):
        if exploit.trial == trial:
            path.append(exploit)
            trial = exploit.source
    return path[::-1]
