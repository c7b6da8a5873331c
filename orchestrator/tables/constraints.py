"""The constraints of a sweep, which the best trial must keep. Imports no pandas."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.statuses import COMPLETE
from orchestrator.errors import DamagedFile
from orchestrator.experiment.fields.comparison import Comparison
from orchestrator.tables.trial_record import TrialRecord
from orchestrator.units import format_in_full, format_value, get_unit


class Constraints:
    """Limits of a sweep's trials, by column of the table of trials; empty if there are none."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._limits = {column: Comparison.parse(text) for column, text in texts.items()}

    def __bool__(self) -> bool:
        return bool(self._limits)

    def explain_infeasible(self, status: str, cells: Mapping[str, Any]) -> str | None:
        """Return which limits a trial with a status breaks; None unless it finished or was stopped.

        The numbers of any other trial are not final: in the first epochs each loss is too high, and
        a trial that failed may lack them. With repeats, such a trial does not take its
        configuration out of the ranking.
        """
        return self.describe_broken(cells) if status in COMPLETE else None

    def describe_broken(self, cells: Mapping[str, Any]) -> str | None:
        """Return which limits a trial breaks, and its values there; None if it keeps all."""
        broken = []
        for column, limit in self._limits.items():
            if not limit.holds(cells.get(column)):
                value = format_value(column, cells.get(column)) or "unknown"
                text = format_value(column, limit.limit)
                if value == text:  # they differ in later digits
                    value = f"{format_in_full(cells[column])} {get_unit(column)}".rstrip()
                broken.append(f"{column} is {value}, not {limit.symbol} {text}")
        return "; ".join(broken) or None

    def measure(self, cells: Mapping[str, Any]) -> list[float]:
        """Return by how much a trial is beyond each limit; 0 or less where it is not."""
        return [limit.measure_excess(cells.get(column)) for column, limit in self._limits.items()]


def read_measured_cells(
    record: TrialRecord, sweep: RunFolder, objectives: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Return what a trial measured, as `make_measured_cells` does; its leader is read from its
    folder, and left out if it is damaged."""
    leader = None
    if record.leader:
        folder = RunFolder(sweep.storage / "trials", record.leader)
        with suppress(DamagedFile):
            leader = TrialRecord.read(folder, objectives)
    return make_measured_cells(record, leader)


def make_measured_cells(
    record: TrialRecord, leader: TrialRecord | DamagedFile | None
) -> dict[str, Any]:
    """Return what a trial measured, by column of the table of trials.

    `leader` is the trial whose training it shared; its speed is that of both, but its time is only
    in its own row, so that sums are correct.
    """
    shared_speed = {}
    if isinstance(leader, TrialRecord):
        speed = ("step_s", "data_wait_share", "samples_per_s")
        shared_speed = {name: leader.usage[name] for name in speed if name in leader.usage}
    return {
        **_get_metrics(record.best),
        **_get_metrics(record.last, "last/"),
        "epoch": record.best.get("epoch"),
        "diverged": record.diverged or None,
        "reports": record.reports,
        **shared_speed,
        **record.usage,
        "total_s": record.wall_s,
    }


def _get_metrics(report: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    return {f"{prefix}{name}": value for name, value in report.items() if name != "epoch"}
