"""Whether a sweep's metric that a report lacks may still come."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hooks import Hook, State
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import MetricMissing
from orchestrator.experiment.resolve import resolve
from orchestrator.loop.report import Report
from orchestrator.sweeps.metric_monitor import MetricMonitor
from tests.tasks import described

PHASES = ("train", "val", "val/noisy")
TRAINED = {"epoch": 0, "train/loss": 0.7}
VALIDATED = {**TRAINED, "val/loss": 0.5, "val/noisy/loss": 0.6}


@dataclass
class Fid(Hook):
    """A hook of the user, which may report any metric."""

    def on_phase_end(self, state: State) -> None: ...


def make_monitor(metric: str, folder: Path, *, has_own_hook: bool, seen: bool) -> MetricMonitor:
    space = {"optimizer.lr": {"uniform": [0.0, 1.0]}}
    hooks = {"fid": {"type": f"{__name__}:Fid"}} if has_own_hook else {}
    experiment = described(sweep={"metric": metric, "mode": "min", "space": space}, hooks=hooks)
    assert experiment.sweep is not None
    resolved = resolve(experiment.source.without_sweep())
    return MetricMonitor(experiment.sweep, resolved, RunFolder(folder), seen=seen)


@pytest.mark.parametrize(
    ("metric", "metrics", "fields", "has_own_hook", "is_missing"),
    [
        # The report is of training alone; validation comes later.
        ("val/iou", TRAINED, {}, False, False),
        ("val/iou", VALIDATED, {}, False, True),
        ("val/noisy/iou", VALIDATED, {}, False, True),
        ("val/noisy/iou", {**TRAINED, "val/loss": 0.5}, {}, False, False),
        ("train/iou", TRAINED, {}, False, True),
        # The run has no test phase.
        ("test/loss", TRAINED, {}, False, True),
        # A column of the rows may appear later.
        ("stats/step_s/p95", VALIDATED, {}, False, False),
        # A run that is interrupted in a phase makes its metrics after a resume.
        ("val/iou", VALIDATED, {"is_partial": True}, False, False),
        ("val/iou", TRAINED, {"is_final": True}, False, True),
        ("val/iou", TRAINED, {"is_final": True, "stopped": ("interrupted",)}, False, False),
        # A hook of the user may report it later, unless it looks misspelled.
        ("val/iou", VALIDATED, {}, True, False),
        ("test/loss", TRAINED, {}, True, False),
        ("val/lss", VALIDATED, {}, True, True),
    ],
)
def test_a_metric_is_missing_once_no_later_report_can_have_it(
    tmp_path: Path,
    metric: str,
    metrics: dict[str, Any],
    fields: dict[str, Any],
    has_own_hook: bool,
    is_missing: bool,
) -> None:
    report = Report(metrics, phases=PHASES, **fields)
    monitor = make_monitor(metric, tmp_path, has_own_hook=has_own_hook, seen=False)
    if is_missing:
        with pytest.raises(MetricMissing, match=f"no report of a trial has .*'{metric}'"):
            monitor.check_report(report)
    else:
        assert not monitor.check_report(report)


@pytest.mark.parametrize("seen", [False, True])
def test_a_metric_that_was_reported_once_is_not_missing_later(tmp_path: Path, seen: bool) -> None:
    monitor = make_monitor("val/iou", tmp_path, has_own_hook=False, seen=seen)
    if not seen:
        assert monitor.check_report(Report({**VALIDATED, "val/iou": 0.1}, phases=PHASES))
    assert not monitor.check_report(Report(VALIDATED, phases=PHASES, is_final=True))
