"""What hooks may add to reports."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hooks import Hook, State
from hooks.errors import HookError
from orchestrator import RunError, run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import TaskError
from orchestrator.loop.loop import Loop
from tests.tasks import Points, described, experiment

ENTRIES = ["attempt", "epoch", "iteration", "samples", "step", "time"]


@dataclass
class Adds(Hook):
    """Adds a metric of a name to each report."""

    metric: str = "time"

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        metrics[self.metric] = 3.2


@dataclass
class AddsIfPossible(Adds):
    """Is no reason for the run to fail."""

    best_effort: ClassVar[bool] = True


class ChangesPhase(Hook):
    """Adds a metric to those of a phase."""

    def on_phase_end(self, state: State) -> None:
        state.metrics["step"] = 3.2


@pytest.mark.parametrize("entry", ENTRIES)
def test_hook_that_replaces_an_entry_of_a_report_fails(entry: str) -> None:
    expected = rf"hook 'adds' failed in on_report: .*`{entry}` is an entry of every report"
    with pytest.raises(HookError, match=expected):
        list(Loop(Points(), experiment(), {"adds": Adds(entry)}).run())


@pytest.mark.parametrize("entry", ENTRIES)
def test_report_keeps_its_entries_if_failures_of_the_hook_are_only_logged(
    entry: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        reports = list(Loop(Points(), experiment(), {"adds": AddsIfPossible(entry)}).run())
    # 52 samples in batches of 8 are 7 steps an epoch
    counters = ("epoch", "step", "iteration", "samples")
    assert [[report.metrics[name] for name in counters] for report in reports] == [
        [0, 7, 7, 52],
        [1, 14, 14, 104],
    ]
    assert not {"attempt", "time"} & reports[0].metrics.keys()
    assert f"`{entry}` is an entry of every report" in caplog.text


def test_metric_of_a_phase_must_not_have_the_name_of_an_entry_either() -> None:
    with pytest.raises(TaskError, match=r"`step` in state.metrics is an entry of every report"):
        list(Loop(Points(), experiment(), {"changes": ChangesPhase()}).run())


def test_reports_stay_readable_after_a_hook_has_named_its_metric_time(tmp_path: Path) -> None:
    adds = described(hooks={"adds": {"type": f"{__name__}:Adds"}})
    with pytest.raises(RunError, match="hook 'adds' failed in on_report"):
        run(adds, tmp_path, local=True)
    assert RunFolder(tmp_path / "points").read_reports() == []
