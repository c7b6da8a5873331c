"""What happens to trials that train together, with an engine that reports and fails as told."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.disk.run_file import RunFile
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.errors import MetricMissing, RunError, StorageError
from orchestrator.loop.report import Report
from orchestrator.loop.sharing.failed_run import mark_failed_run
from orchestrator.sweeps import trial_group
from orchestrator.sweeps.active_trial import ActiveTrial, TrialState, list_training
from orchestrator.sweeps.trial_group import TrialEvent, TrialFailed, TrialGroup, TrialReported
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
        self.end_error: Exception | None = None
        """What the next end of training raises."""

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
        error = self.end_error
        self.end_error = None
        if error:
            raise error


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


def begin_trials(folder: Path, count: int = 3) -> list[ActiveTrial]:
    folder.mkdir()
    experiment = described(sweep=SWEEP)
    assert experiment.sweep is not None
    return [
        ActiveTrial.begin(str(folder), number, experiment.source, experiment.sweep, {})
        for number in range(count)
    ]


def make_group(engine: ScriptedEngine, trials: Sequence[ActiveTrial]) -> TrialGroup:
    settings = described(sweep=SWEEP).sweep
    assert settings is not None
    return TrialGroup(engine, trials, settings)


def list_statuses(trials: Sequence[ActiveTrial]) -> list[str]:
    """Return the statuses in the trials' folders, which the trials know."""
    statuses = [trial.folder.read_metadata().status for trial in trials]
    assert statuses == [trial.status for trial in trials]
    return [*statuses]


def advance(group: TrialGroup) -> list[tuple[str, int]]:
    """Train to the next report; return what has happened to which trial."""
    return describe(group.advance())


def describe(events: Sequence[TrialEvent]) -> list[tuple[str, int]]:
    return [
        (type(event).__name__.removeprefix("Trial").lower(), event.trial.number) for event in events
    ]


def stop_at_next_report(group: TrialGroup) -> None:
    (event,) = group.advance()
    assert isinstance(event, TrialReported)
    group.stop(event.trial, "as good as the target")


def find_failure(event: TrialEvent) -> TrialFailed:
    assert isinstance(event, TrialFailed)
    return event


def test_an_end_is_recorded_when_the_others_train_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted = []
    monkeypatch.setattr(trial_group, "compact_rows", lambda folder: compacted.append(folder.name))
    engine = ScriptedEngine(report(0), report(1, is_final=True), report(2), report(2), None)
    trials = begin_trials(tmp_path / "sweep")
    group = make_group(engine, trials)
    stop_at_next_report(group)
    assert list_statuses(trials) == ["running", "running", "running"]
    assert advance(group) == [("reported", 1)]
    assert list_statuses(trials) == ["stopped", "running", "running"]
    assert list_training(trials) == trials[2:]
    assert advance(group) == [("reported", 2)]
    assert list_statuses(trials) == ["stopped", "finished", "running"]
    assert advance(group) == [("reported", 2)]
    assert compacted == []
    assert not group.has_ended
    assert advance(group) == [("ended", 0), ("ended", 1), ("ended", 2)]
    assert list_statuses(trials) == ["stopped", "finished", "finished"]
    assert group.has_ended
    assert group.close() == []
    assert compacted == ["trial-0000", "trial-0001", "trial-0002"]
    assert (engine.ended_runs, engine.shutdowns) == ([0], 1)


def test_the_others_continue_without_a_failed_trial(tmp_path: Path) -> None:
    engine = ScriptedEngine(report(0), failure(1), report(1), None)
    trials = begin_trials(tmp_path / "sweep")
    group = make_group(engine, trials)
    assert advance(group) == [("reported", 0)]
    assert group.is_training
    (event,) = group.advance()
    failed = find_failure(event)
    assert (failed.trial.number, list_statuses(trials)) == (1, ["running", "failed", "running"])
    assert isinstance(failed.failure, RunError)
    assert failed.trial.folder.read_metadata().is_user_error
    assert (engine.shutdowns, group.is_training, group.has_ended) == (1, False, False)
    # The runs of the next attempt have other indices.
    assert advance(group) == [("reported", 2)]
    assert advance(group) == [("ended", 0), ("ended", 2)]
    assert list_statuses(trials) == ["finished", "failed", "finished"]
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
    trials = begin_trials(tmp_path / "sweep", 2)
    group = make_group(engine, trials)
    for _ in trials:
        group.advance()
    for index in stopped:
        # Its report was the last before the failure.
        trials[index].stop("as good as the target")
    assert advance(group)[0] == ("failed", expected)


def refuse_end_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make the first attempt to record the end of a trial fail."""
    end = RunFile.end

    def refuse(file: RunFile, status: Any, **fields: Any) -> None:
        if file.read().name != name:
            end(file, status, **fields)
            return
        monkeypatch.setattr(RunFile, "end", end)
        raise StorageError("the bucket does not answer")

    monkeypatch.setattr(RunFile, "end", refuse)


def assert_end_was_refused(event: TrialEvent) -> None:
    failed = find_failure(event)
    assert (failed.trial.number, str(failed.failure)) == (0, "the bucket does not answer")
    assert failed.trial.folder.read_metadata().status == "failed"


def test_a_trial_whose_end_cannot_be_recorded_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine(report(0, is_final=True), None)
    group = make_group(engine, begin_trials(tmp_path / "sweep", 1))
    assert advance(group) == [("reported", 0)]
    refuse_end_once(monkeypatch, "trial-0000")
    (event,) = group.advance()
    assert_end_was_refused(event)
    assert group.has_ended


@pytest.mark.parametrize("is_final", [False, True])
def test_the_others_train_on_though_the_end_of_a_trial_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_final: bool
) -> None:
    """Its run has ended, so the engine trains the others as before."""
    ends = [None] if is_final else [report(1, is_final=True), None]
    engine = ScriptedEngine(report(0, is_final=True), report(1, is_final=is_final), *ends)
    trials = begin_trials(tmp_path / "sweep", 2)
    group = make_group(engine, trials)
    assert advance(group) == [("reported", 0)]
    refuse_end_once(monkeypatch, "trial-0000")
    refused, reported = group.advance()
    assert_end_was_refused(refused)
    assert describe([reported]) == [("reported", 1)]
    if not is_final:
        assert advance(group) == [("reported", 1)]
    assert advance(group) == [("ended", 1)]
    assert list_statuses(trials) == ["failed", "finished"]
    assert (len(engine.begun), engine.shutdowns) == (1, 1)


def test_a_trial_whose_end_cannot_be_recorded_after_another_s_failure_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine(report(0), failure(1), report(0), None)
    trials = begin_trials(tmp_path / "sweep")
    group = make_group(engine, trials)
    stop_at_next_report(group)
    refuse_end_once(monkeypatch, "trial-0000")
    failed, refused = group.advance()
    assert describe([failed]) == [("failed", 1)]
    assert_end_was_refused(refused)
    assert advance(group) == [("reported", 2)]
    assert advance(group) == [("ended", 2)]
    assert list_statuses(trials) == ["failed", "failed", "finished"]
    assert engine.begun[1:] == [["trial-0002"]]


def test_a_trial_fails_if_training_cannot_be_ended_after_its_last_report(tmp_path: Path) -> None:
    engine = ScriptedEngine(report(0, is_final=True), None)
    engine.end_error = StorageError("the last files cannot be written")
    trials = begin_trials(tmp_path / "sweep", 1)
    group = make_group(engine, trials)
    assert [*advance(group), *advance(group)] == [("reported", 0), ("failed", 0)]
    assert trials[0].folder.read_metadata().error == "the last files cannot be written"


def test_an_error_while_training_is_ended_for_a_failure_fails_no_other_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next attempt begins with an engine that works, or fails."""
    engine = ScriptedEngine(report(0), failure(1), report(0), None)
    engine.end_error = RuntimeError("an actor does not answer")
    trials = begin_trials(tmp_path / "sweep")
    group = make_group(engine, trials)
    stop_at_next_report(group)
    assert advance(group) == [("failed", 1), ("ended", 0)]
    assert list_statuses(trials) == ["stopped", "failed", "running"]
    shown = capsys.readouterr().err
    assert "trial-0000" in shown
    assert "an actor does not answer" in shown
    assert advance(group) == [("reported", 2)]
    assert advance(group) == [("ended", 2)]


def test_an_error_while_training_is_ended_early_fails_no_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ScriptedEngine(report(0), report(1))
    engine.end_error = RuntimeError("an actor does not answer")
    trials = begin_trials(tmp_path / "sweep", 2)
    group = make_group(engine, trials)
    stop_at_next_report(group)
    assert describe(group.close()) == [("ended", 0)]
    assert list_statuses(trials) == ["stopped", "running"]
    assert "an actor does not answer" in capsys.readouterr().err


def test_a_trial_without_the_metric_fails_and_says_so(tmp_path: Path) -> None:
    engine = ScriptedEngine(report(0, "val/accuracy", is_final=True), report(0), None)
    trials = begin_trials(tmp_path / "sweep", 2)
    group = make_group(engine, trials)
    (event,) = group.advance()
    failed = find_failure(event)
    assert isinstance(failed.failure, MetricMissing)
    assert failed.trial.folder.read_metadata().metric_missing
    assert advance(group) == [("reported", 1)]
    assert advance(group) == [("ended", 1)]
    assert list_statuses(trials) == ["failed", "finished"]


def test_a_report_without_the_metric_is_no_event(tmp_path: Path) -> None:
    """An interruption within an epoch reports no metrics of its phases."""
    stop: Any = {"stopped": ("interrupted",), "interrupted": True, "is_final": True}
    partial = report(0, "samples_seen", is_partial=True, **stop)
    trials = begin_trials(tmp_path / "sweep", 1)
    group = make_group(ScriptedEngine(partial, None), trials)
    assert advance(group) == []
    assert advance(group) == [("ended", 0)]
    assert list_statuses(trials) == ["interrupted"]


def test_training_that_is_closed_continues_in_another_attempt(tmp_path: Path) -> None:
    engine = ScriptedEngine(report(0), report(0), None)
    trials = begin_trials(tmp_path / "sweep", 2)
    group = make_group(engine, trials)
    stop_at_next_report(group)
    assert describe(group.close()) == [("ended", 0)]
    assert list_statuses(trials) == ["stopped", "running"]
    assert trials[1].state is TrialState.TRAINING
    assert advance(group) == [("reported", 1)]
    assert advance(group) == [("ended", 1)]
