"""What Tune learns of a trial that fails, from an engine that fails as the test says."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.execution.tune_controller import TuneController
from ray.tune.result import DONE, TRAINING_ITERATION
from ray.tune.utils.util import flatten_dict

from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import trial_folder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.experiment.load import to_yaml
from orchestrator.loop.report import Report
from orchestrator.private_api.ray_tune import PermanentFailure
from orchestrator.storage.strict_json import format_json
from orchestrator.sweeps.search.search import make_trial_config
from orchestrator.sweeps.tune import trainable
from orchestrator.sweeps.tune.adapters import Stopper, TrialEvents
from orchestrator.sweeps.tune.trainable import Trial
from orchestrator.sweeps.tune.trial_data import SCORE, TRIAL, TrialResult, make_tune_config
from tests.orchestrator.sweeps.test_running_sweep import running
from tests.tasks import described

SWEEP = {"metric": "val/loss", "trials": 2, "space": {"optimizer.lr": {"uniform": [0.0, 1.0]}}}


class BrokenEngine:
    """An engine whose rank fails at the first report, and which may not be able to shut down."""

    def __init__(self, workers: Any) -> None:
        self.error: BaseException = TypeError("a bug of the task")
        self.can_shut_down = True

    def begin(self, assignment: Assignment, resolved: Any) -> None: ...

    def next(self) -> Report | None:
        raise RankFailed.from_error(0, 1, self.error)

    def end(self) -> None:
        if not self.can_shut_down:
            raise RuntimeError("an actor does not answer")


class DyingEngine:
    """An engine whose trials report as the test says, until a process dies."""

    def __init__(self, workers: Any) -> None:
        self.run_indices: list[int] = []
        self.index_without_metric: int | None = None
        """Index of the run whose only report is its last and lacks the sweep's metric."""
        self.failure = RankFailed.died(0, 1)
        self.folders: list[RunFolder] = []
        self.checkpoint: str | None = None

    def begin(self, assignment: Assignment, resolved: Any) -> None:
        self.checkpoint = assignment.checkpoint
        self.folders = [RunFolder(run.location) for run in (assignment, *assignment.followers)]

    def next(self) -> Report | None:
        if not self.run_indices:
            raise self.failure
        index = self.run_indices.pop(0)
        is_final = index == self.index_without_metric
        metrics = {"iteration": 1, "epoch": 0, "step": 1, "samples": 8}
        metrics["val/accuracy" if is_final else "val/loss"] = 0.5
        self.folders[index].append_report({"attempt": 0, **metrics})
        return Report(metrics, run_index=index, is_final=is_final)

    def save(self) -> str:
        return str(self.folders[0].storage / "checkpoints/epoch-0001")

    def end_run(self, run_index: int) -> None: ...

    def end(self) -> None: ...


class InterruptedEngine:
    """An engine whose trials are interrupted within their first epoch."""

    def __init__(self, workers: Any) -> None:
        self.run_indices: list[int] = []

    def begin(self, assignment: Assignment, resolved: Any) -> None:
        self.run_indices = [*range(1 + len(assignment.followers))]

    def next(self) -> Report | None:
        if not self.run_indices:
            return None
        metrics = {"iteration": 1, "epoch": 0, "step": 1, "samples": 8}
        return Report(
            metrics,
            phases=("train", "val"),
            run_index=self.run_indices.pop(0),
            is_partial=True,
            is_final=True,
            interrupted=True,
            stopped=("time_limit",),
        )

    def end(self) -> None: ...


def begin_trial(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any] | None = None,
    engine: type[BrokenEngine | DyingEngine | InterruptedEngine] = BrokenEngine,
    **fields: Any,
) -> Trial:
    experiment = described(sweep=SWEEP, **fields)
    sweep = create_run(folder, "sweep", to_yaml(experiment), source=experiment.source)
    monkeypatch.setattr(trainable, "ENGINES", {"gang": engine})
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    trial = Trial.__new__(Trial)
    trial._iteration = 0
    trial.setup(
        config or make_tune_config(0, {"optimizer.lr": 0.1}),
        experiment.source,
        experiment.sweep,
        experiment.workers,
        sweep.location,
    )
    return trial


@pytest.mark.parametrize(
    ("error", "expected"),
    [(TypeError("a bug of the task"), PermanentFailure), (OSError("no route to host"), RankFailed)],
)
def test_an_error_while_the_engine_shuts_down_does_not_hide_the_failure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    expected: type[Exception],
) -> None:
    """Tune would retry a failure that is not permanent."""
    trial = begin_trial(tmp_path, monkeypatch)
    engine: Any = trial._engine
    engine.error = error
    engine.can_shut_down = False
    with pytest.raises(expected, match=str(error)):
        trial.step()
    metadata = trial_folder(str(tmp_path / "sweep"), 0).read_metadata()
    assert metadata.status == "failed"
    assert str(error) in str(metadata.error)
    assert "trial-0000" in capsys.readouterr().err
    trial.cleanup()


def test_a_restart_leaves_out_the_trial_that_failed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_trial_config(0, {}, [{"number": 1, "values": {}}, {"number": 2, "values": {}}])
    trial = begin_trial(tmp_path, monkeypatch, {TRIAL: config}, DyingEngine)
    alone = trial_folder(str(tmp_path / "sweep"), 0)
    alone.begin("")
    alone.run_file.end("failed", error="a bug of a hook", is_user_error=True)
    engine: Any = trial._engine
    engine.run_indices = [0]
    assert TrialResult.read(trial.step()).reported == 1
    assert [folder.name for folder in engine.folders] == ["trial-0001", "trial-0002"]
    assert alone.read_metadata().error == "a bug of a hook"


def test_the_driver_learns_at_the_first_report_which_trial_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {"number": 1, "values": {"hooks.speed.every": "never"}}
    config = make_trial_config(0, {}, [refused])
    trial = begin_trial(tmp_path, monkeypatch, {TRIAL: config}, DyingEngine)
    engine: Any = trial._engine
    engine.run_indices = [0, 0]
    results = [TrialResult.read(trial.step()) for _ in range(2)]
    assert [(result.reported, result.failed) for result in results] == [(0, (1,)), (0, ())]
    assert trial_folder(str(tmp_path / "sweep"), 1).read_metadata().status == "failed"


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_death_after_a_trial_has_stopped_fails_the_others_of_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_recorded: bool, is_killed: bool
) -> None:
    """The leader's end is recorded at the next report. An error that no trial has made, such as a
    death or an exit, is not the leader's."""
    config = make_trial_config(0, {}, [{"number": 1, "values": {}}])
    trial = begin_trial(tmp_path, monkeypatch, {TRIAL: config}, DyingEngine)
    engine: Any = trial._engine
    if not is_killed:
        engine.failure = RankFailed.from_error(0, 1, SystemExit(1))
    engine.run_indices = [0, 1] if is_recorded else [0]
    assert TrialResult.read(trial.step()).reported == 0
    trial.stop_early(0, "val/loss 0.5 reached the target 0.5")
    if is_recorded:
        assert TrialResult.read(trial.step()).reported == 1
    with pytest.raises((RankFailed, PermanentFailure)):
        trial.step()
    records = [trial_folder(str(tmp_path / "sweep"), number).read_metadata() for number in range(2)]
    assert [record.status for record in records] == ["stopped", "failed"]
    assert records[0].stopped == ["val/loss 0.5 reached the target 0.5"]
    assert records[0].error is None


def test_a_trial_without_the_metric_does_not_fail_those_that_have_reported_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trial 2 has not reported yet, but the metric is not missing from the sweep."""
    followers: list[Any] = [{"number": number, "values": {}} for number in (1, 2)]
    config = make_trial_config(0, {}, followers)
    trial = begin_trial(tmp_path, monkeypatch, {TRIAL: config}, DyingEngine)
    engine: Any = trial._engine
    engine.run_indices = [0, 1]
    engine.index_without_metric = 1
    assert TrialResult.read(trial.step()).reported == 0

    monkeypatch.setattr(engine, "begin", lambda *_: engine.run_indices.extend([0]))
    result = TrialResult.read(trial.step())
    assert (result.reported, result.failed) == (0, (1,))
    records = [trial_folder(str(tmp_path / "sweep"), number).read_metadata() for number in range(3)]
    assert [record.status for record in records] == ["running", "failed", "running"]
    assert records[1].metric_missing


def restore_pointer(trial: Trial, folder: Path, checkpoint: str) -> None:
    pointer = {"checkpoint": checkpoint, "report": None, "count_offset": 0}
    (folder / "checkpoint.json").write_text(format_json(pointer))
    trial.load_checkpoint(str(folder))


def count_reports(trial: Trial, reports: int) -> list[int]:
    """Return Tune's counts of the next reports, made as `Trainable.train` makes them."""
    engine: Any = trial._engine
    engine.run_indices = [0] * reports
    counts = []
    for _ in range(reports):
        result = trial.step()
        trial._iteration += 1
        counts.append(result.get(TRAINING_ITERATION, trial._iteration))
    return counts


@pytest.mark.parametrize("exploited", [0, 5])
def test_tune_counts_every_report_of_a_trial_that_continues_after_its_pointer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exploited: int
) -> None:
    """Tune has the checkpoint of report 3. The trial continues from its own newest one, of report
    8. After an exploit, Tune counts from the other trial's reports."""
    trial = begin_trial(tmp_path, monkeypatch, engine=DyingEngine)
    if exploited:
        restore_pointer(trial, tmp_path, f"{tmp_path}/sweep/trials/trial-0001/checkpoints/epoch-1")
        trial._iteration = exploited
    counts = count_reports(trial, 3)
    trial.save_checkpoint(str(tmp_path))
    counts += count_reports(trial, 5)
    with pytest.raises(RankFailed):
        trial.step()
    trial._iteration = counts[2]
    trial.load_checkpoint(str(tmp_path))
    counts += count_reports(trial, 2)
    assert counts == [exploited + count for count in range(1, 11)]


@pytest.mark.parametrize("has_out_dir", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_a_restored_trial_continues_from_another_s_checkpoint_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, has_out_dir: bool
) -> None:
    """Assigned, its own checkpoint would delete the newer ones."""
    out_dir = tmp_path / "elsewhere"
    checkpoint = {"out_dir": str(out_dir)} if has_out_dir else {}
    fields = {"hooks": {"checkpoint": checkpoint}}
    trial = begin_trial(tmp_path, monkeypatch, engine=DyingEngine, **fields)
    engine: Any = trial._engine
    engine.run_indices = [0]
    name = f"trial-000{number}"
    folder = tmp_path / "sweep/trials" / name / "checkpoints"
    if has_out_dir:
        folder = out_dir / "sweep" / name
    checkpoint_path = str(folder / "epoch-0001")
    restore_pointer(trial, tmp_path, checkpoint_path)
    trial.step()
    expected = None if number == 0 else checkpoint_path
    assert engine.checkpoint == expected
    exploits = trial_folder(str(tmp_path / "sweep"), 0).read_metadata().trial_settings.exploits
    assert (exploits and exploits.checkpoint) == expected


@pytest.mark.parametrize("followers", [0, 1])
def test_tune_accepts_the_end_of_a_trial_that_was_interrupted_before_its_first_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, followers: int
) -> None:
    others: list[Any] = [{"number": 1, "values": {}}] * followers
    config = {TRIAL: make_trial_config(0, {}, others)}
    trial = begin_trial(tmp_path, monkeypatch, config, InterruptedEngine)
    # `Trainable.train` adds these to what `step` returns.
    result = {**trial.step(), "config": config, TRAINING_ITERATION: 1}
    for number in range(1 + followers):
        folder = trial_folder(str(tmp_path / "sweep"), number)
        assert folder.read_metadata().status == "interrupted"

    metric = SimpleNamespace(metric=SCORE)
    controller = SimpleNamespace(_metric=None, _scheduler_alg=metric, _search_alg=metric)
    TuneController._validate_result_metrics(controller, flatten_dict(result))
    assert result[DONE]

    sweep = running(tmp_path, metric="val/loss")
    reports: list[Any] = []
    monkeypatch.setattr(sweep, "add_report", lambda *report: reports.append(report))
    assert not Stopper(sweep)("", result)
    TrialEvents(sweep).on_trial_result(0, [], SimpleNamespace(config=config), result)
    assert reports == []
