"""How a trial that trains may change, and what it takes for an end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RunError
from orchestrator.loop.report import Report
from orchestrator.sweeps.active_trial import ActiveTrial, TrialState
from tests.tasks import described

SWEEP = {"metric": "val/loss", "trials": 1, "space": {"optimizer.lr": {"uniform": [0.0, 1.0]}}}
PHASES = ("train", "val")
TRAINING = TrialState.TRAINING
ENDING = TrialState.ENDING
ENDED = TrialState.ENDED


def make_trial(folder: Path) -> ActiveTrial:
    folder.mkdir()
    (folder / "experiment.yaml").write_text("name: sweep\n")
    experiment = described(sweep=SWEEP)
    assert experiment.sweep is not None
    values = {"optimizer.lr": 0.1}
    return ActiveTrial.begin(str(folder), 0, experiment.source, experiment.sweep, values)


def report(trial: ActiveTrial, step: int = 1, **fields: Any) -> bool:
    counters = {"iteration": step, "epoch": 0, "step": step, "samples": 8 * step}
    metrics = {**counters, "val/loss": 0.5}
    trial.folder.append_report({"attempt": 0, **metrics})
    return trial.add_report(Report(metrics, phases=PHASES, **fields))


CALLS: dict[str, Callable[[ActiveTrial], Any]] = {
    "report": report,
    "last report": lambda trial: report(trial, 2, is_final=True),
    "early end": lambda trial: report(trial, 2, is_final=True, stopped=("as good as it gets",)),
    "pause": lambda trial: report(
        trial, 2, is_final=True, interrupted=True, stopped=("interrupted",)
    ),
    "stop": lambda trial: trial.stop("max_reports: 1 reached"),
    "end": lambda trial: trial.record_end(),
    "fail": lambda trial: trial.record_failure(OSError("the disk is gone")),
}
STOPPED = ["max_reports: 1 reached"]


@pytest.mark.parametrize(
    ("calls", "state", "status", "reasons"),
    [
        ("", TRAINING, "running", []),
        ("report", TRAINING, "running", []),
        ("report, last report", ENDING, "running", []),
        ("report, last report, end", ENDED, "finished", []),
        ("early end", ENDING, "running", []),
        ("early end, end", ENDED, "stopped", ["as good as it gets"]),
        ("pause", ENDING, "running", []),
        ("pause, end", ENDED, "interrupted", ["interrupted"]),
        ("report, stop", ENDING, "running", []),
        ("report, stop, end", ENDED, "stopped", STOPPED),
        # A trial that has come to its end has not been stopped; an interrupted one has not come to
        # its end.
        ("last report, stop, end", ENDED, "finished", []),
        ("early end, stop, end", ENDED, "stopped", ["as good as it gets"]),
        ("pause, stop, end", ENDED, "stopped", STOPPED),
        ("pause, end, stop", ENDED, "interrupted", ["interrupted"]),
        ("report, end", ENDED, "finished", []),
        # Its files could not be closed, for example.
        ("report, stop, fail", ENDED, "failed", []),
        ("last report, fail", ENDED, "failed", []),
        ("fail", ENDED, "failed", []),
        ("report, fail, stop", ENDED, "failed", []),
    ],
)
def test_calls_lead_from_one_state_to_the_next(
    tmp_path: Path, calls: str, state: TrialState, status: str, reasons: list[str]
) -> None:
    trial = make_trial(tmp_path / "sweep")
    for call in filter(None, calls.split(", ")):
        CALLS[call](trial)
    assert (trial.state, trial.status) == (state, status)
    metadata = trial.folder.read_metadata()
    assert (metadata.status, [*metadata.stopped]) == (status, reasons)


@pytest.mark.parametrize("first", ["end", "fail"])
@pytest.mark.parametrize("second", ["end", "fail"])
def test_a_trial_ends_once(tmp_path: Path, first: str, second: str) -> None:
    trial = make_trial(tmp_path / "sweep")
    report(trial)
    CALLS[first](trial)
    with pytest.raises(AssertionError, match="trial 0"):
        CALLS[second](trial)


def test_a_trial_without_the_metric_can_be_interrupted_but_not_end(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "sweep")
    with pytest.raises(RunError, match=r"without a report that has the sweep's metric 'val/loss'"):
        trial.record_end()
    partial = Report(
        {"epoch": 0},
        ("interrupted",),
        interrupted=True,
        is_final=True,
        is_partial=True,
        phases=PHASES,
    )
    assert not trial.add_report(partial)
    trial.record_end()
    assert trial.status == "interrupted"


def test_the_first_report_of_an_attempt_replaces_those_that_it_repeats(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "sweep")
    trial.folder.begin_attempt()
    report(trial, 1)
    report(trial, 2)
    assert [line["step"] for line in trial.reports] == [1, 2]
    trial.folder.begin_attempt()
    trial.begin_attempt()
    assert trial.last is None
    metrics = {"iteration": 1, "epoch": 0, "step": 1, "samples": 8, "val/loss": 0.25}
    trial.folder.append_report({"attempt": 1, **metrics})
    assert trial.add_report(Report(metrics, phases=PHASES))
    assert [line["val/loss"] for line in trial.reports] == [0.25]


def test_the_task_and_hooks_are_taken_once(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "sweep")
    assert trial.take_resolved() is not None
    assert trial.take_resolved() is None
