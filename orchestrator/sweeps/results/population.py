"""Exploits of a population: which trial continued from another's weights, when, and with which
values."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.timestamps import format_now
from orchestrator.storage.json_lines import append_line, read_lines

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


class History:
    """Exploits of a sweep, in a file of its folder. Used in the driver."""

    def __init__(self, sweep: RunFolder) -> None:
        self._storage = sweep.storage

    def append(self, **fields: Any) -> None:
        append_line(self._storage, FILE, asdict(Exploit(time=format_now(), **fields)))

    def read(self) -> list[Exploit]:
        return read_lines(self._storage, FILE, Exploit)
