"""What a group tells of its trials, with an engine that reports and fails as the test says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.errors import MetricMissing, RunError, StorageError
from orchestrator.loop.report import Report
from orchestrator.loop.sharing.failed_run import mark_failed_run
from orchestrator.sweeps import trial_group
from orchestrator.sweeps.active_trial import ActiveTrial
from orchestrator.sweeps.trial_group import Failed, Reported, TrialGroup
from tests.tasks import described

SWEEP = {"metric": "val/loss", "trials": 3, "space": {"optimizer.lr": {"uniform": [0.0, 1.0]}}}


class ScriptedEngine:
    """An engine whose runs report or fail in a given order."""

    def __init__(self, *events: Report | BaseException | None) -> None:
        self.events = [*events]
        self.begun: list[list[str]] = []
        """The names of the trials of each attempt."""
        self.ended_runs: list[int] = []
        self.shutdowns = 0

    def begin(self, assignment: Assignment, resolved: Any) -> None:
        self.folders = [RunFolder(run.location) for run in (assignment, *assignment.followers)]
        self.begun.append([folder.name for folder in self.folders])

    def next(self) -> Report | None:
        event = self.events.pop(0)
        if isinstance(event, BaseException):
            raise event
        if event:
            self.folders[event.run_index].append_report({"attempt": 0, **event.metrics})
        return event

    def save(self) -> str:
        raise NotImplementedError

    def end_run(self, run_index: int) -> None:
        self.ended_runs.append(run_index)

    def end(self) -> None:
        self.shutdowns += 1


def report(index: int, metric: str = "val/loss", **fields: Any) -> Report:
    metrics = {"iteration": 1, "epoch": 0, "step": 1, "samples": 8, metric: 0.5}
    return Report(metrics, phases=("train", "val"), run_index=index, **fields)


def failure(index: int | None) -> RankFailed:
    """Return a failure of a run, or of a process that says of none."""
    if index is None:
        return RankFailed.died(0, 1)
    error = TypeError("a bug of a hook")
    mark_failed_run(error, index)
    return RankFailed.from_error(0, 1, error)


def make_group(folder: Path, engine: ScriptedEngine, count: int = 3) -> TrialGroup:
    folder.mkdir()
    experiment = described(sweep=SWEEP)
    assert experiment.sweep is not None
    trials = [
        ActiveTrial.begin(str(folder), number, experiment.source, experiment.sweep, {})
        for number in range(count)
    ]
    return TrialGroup(engine, trials, experiment.sweep)


def list_statuses(group: TrialGroup) -> list[str]:
    """Return the statuses in the trials' folders, which the trials know."""
    statuses = [trial.folder.read_metadata().status for trial in group.trials]
    assert statuses == [trial.status for trial in group.trials]
    return [*statuses]


def number(event: Reported | Failed | None) -> int:
    assert event is not None
    return event.trial.number


def test_an_end_is_recorded_when_the_group_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted = []
    monkeypatch.setattr(trial_group, "compact_rows", lambda folder: compacted.append(folder.name))
    engine = ScriptedEngine(report(0), report(1, is_final=True), report(2), report(2), None)
    group = make_group(tmp_path / "sweep", engine)
    first = group.next()
    assert isinstance(first, Reported)
    group.stop(first.trial, "as good as the target")
    assert list_statuses(group) == ["running", "running", "running"]
    assert number(group.next()) == 1
    assert list_statuses(group) == ["stopped", "running", "running"]
    assert [trial.number for trial in group.list_continuing()] == [2]
    assert number(group.next()) == 2
    assert list_statuses(group) == ["stopped", "finished", "running"]
    assert number(group.next()) == 2
    assert (compacted, group.has_ended) == ([], False)
    assert group.next() is None
    assert list_statuses(group) == ["stopped", "finished", "finished"]
    assert group.has_ended
    assert group.next() is None
    group.shut_down()
    assert compacted == ["trial-0000", "trial-0001", "trial-0002"]
    assert (engine.ended_runs, engine.shutdowns, len(engine.begun)) == ([0], 1, 1)


def test_the_others_continue_without_a_failed_trial(tmp_path: Path) -> None:
    engine = ScriptedEngine(report(0), failure(1), report(1), None)
    group = make_group(tmp_path / "sweep", engine)
    assert number(group.next()) == 0
    failed = group.next()
    assert isinstance(failed, Failed)
    assert (failed.trial.number, list_statuses(group)) == (1, ["running", "failed", "running"])
    assert isinstance(failed.failure, RunError)
    assert failed.trial.folder.read_metadata().is_user_error
    # The runs of the next attempt have other indices.
    assert number(group.next()) == 2
    assert group.next() is None
    assert list_statuses(group) == ["finished", "failed", "finished"]
    assert engine.begun == [
        ["trial-0000", "trial-0001", "trial-0002"],
        ["trial-0000", "trial-0002"],
    ]


@pytest.mark.parametrize(
    ("named", "stopped", "expected"),
    [(None, [], 0), (None, [0], 1), (None, [0, 1], 0), (0, [0], 0), (1, [0], 1)],
)
def test_a_death_is_the_failure_of_a_trial_that_continues(
    tmp_path: Path, named: int | None, stopped: Sequence[int], expected: int
) -> None:
    """An error in a trial's own code, such as a hook's at its end, is that trial's."""
    engine = ScriptedEngine(report(0), report(1), failure(named))
    group = make_group(tmp_path / "sweep", engine, 2)
    events = [group.next(), group.next()]
    for index in stopped:
        event = events[index]
        assert isinstance(event, Reported)
        # Its report was the last before the failure.
        event.trial.stop("as good as the target")
    assert number(group.next()) == expected


def refuse_end_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make the first attempt to record the end of a trial fail."""
    end = RunFolder.end

    def refuse(folder: RunFolder, status: Any, **fields: Any) -> None:
        if folder.name != name:
            end(folder, status, **fields)
            return
        monkeypatch.setattr(RunFolder, "end", end)
        raise StorageError("the bucket does not answer")

    monkeypatch.setattr(RunFolder, "end", refuse)


def assert_end_was_refused(event: Reported | Failed | None) -> None:
    assert isinstance(event, Failed)
    assert (event.trial.number, str(event.failure)) == (0, "the bucket does not answer")
    assert event.trial.folder.read_metadata().status == "failed"


def test_a_trial_whose_end_cannot_be_recorded_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_group(tmp_path / "sweep", ScriptedEngine(report(0, is_final=True), None), 1)
    assert number(group.next()) == 0
    refuse_end_once(monkeypatch, "trial-0000")
    assert_end_was_refused(group.next())
    assert group.has_ended


def test_a_report_is_kept_though_the_end_of_another_trial_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine can still stop the trial that has reported, so its report comes first."""
    engine = ScriptedEngine(report(0, is_final=True), report(1, is_final=True))
    group = make_group(tmp_path / "sweep", engine, 2)
    assert number(group.next()) == 0
    refuse_end_once(monkeypatch, "trial-0000")
    reported = group.next()
    assert isinstance(reported, Reported)
    assert (reported.trial.number, len(reported.trial.reports)) == (1, 1)
    assert engine.shutdowns == 0
    assert_end_was_refused(group.next())
    assert group.next() is None
    assert list_statuses(group) == ["failed", "finished"]


def test_a_trial_whose_end_cannot_be_recorded_after_another_s_failure_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine(report(0), failure(1), report(0), None)
    group = make_group(tmp_path / "sweep", engine)
    first = group.next()
    assert isinstance(first, Reported)
    group.stop(first.trial, "as good as the target")
    assert number(group.next()) == 1
    refuse_end_once(monkeypatch, "trial-0000")
    group.shut_down()
    assert_end_was_refused(group.next())
    assert number(group.next()) == 2
    assert group.next() is None
    assert list_statuses(group) == ["failed", "failed", "finished"]
    assert engine.begun[1:] == [["trial-0002"]]


def test_no_event_is_lost_when_the_last_trials_fail_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_group(tmp_path / "sweep", ScriptedEngine(report(0), failure(1)), 2)
    first = group.next()
    assert isinstance(first, Reported)
    group.stop(first.trial, "as good as the target")
    assert number(group.next()) == 1
    refuse_end_once(monkeypatch, "trial-0000")
    group.shut_down()
    assert not group.has_ended
    assert_end_was_refused(group.next())
    assert (group.has_ended, group.next()) == (True, None)


def test_a_trial_without_the_metric_fails_and_says_so(tmp_path: Path) -> None:
    engine = ScriptedEngine(report(0, "val/accuracy", is_final=True), report(0), None)
    group = make_group(tmp_path / "sweep", engine, 2)
    failed = group.next()
    assert isinstance(failed, Failed)
    assert isinstance(failed.failure, MetricMissing)
    assert failed.trial.folder.read_metadata().metric_missing
    assert number(group.next()) == 1
    assert group.next() is None
    assert list_statuses(group) == ["failed", "finished"]


def test_a_report_without_the_metric_is_no_event(tmp_path: Path) -> None:
    """An interruption within an epoch reports no metrics of its phases."""
    stop: Any = {"stopped": ("interrupted",), "interrupted": True, "is_final": True}
    partial = report(0, "samples_seen", is_partial=True, **stop)
    engine = ScriptedEngine(partial, None)
    group = make_group(tmp_path / "sweep", engine, 1)
    assert group.next() is None
    assert list_statuses(group) == ["interrupted"]


def test_training_that_is_shut_down_continues_in_another_attempt(tmp_path: Path) -> None:
    engine = ScriptedEngine(report(0), report(1))
    group = make_group(tmp_path / "sweep", engine, 2)
    first = group.next()
    assert isinstance(first, Reported)
    group.stop(first.trial, "as good as the target")
    group.shut_down()
    assert list_statuses(group) == ["stopped", "running"]
    assert [trial.number for trial in group.list_continuing()] == [1]
