"""What Tune learns of a trial that fails, from an engine that fails as the test says."""

import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.disk.new_run import create_run
from orchestrator.disk.sweep_folder import trial_folder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.experiment.load import to_yaml
from orchestrator.loop.report import Report
from orchestrator.private_api.ray_tune import PermanentFailure
from orchestrator.sweeps.search.search import make_trial_config
from orchestrator.sweeps.tune import trainable
from orchestrator.sweeps.tune.trainable import Trial
from orchestrator.sweeps.tune.trial_data import TRIAL, make_tune_config
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


def begin_trial(
    folder: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any] | None = None
) -> Trial:
    experiment = described(sweep=SWEEP)
    sweep = create_run(folder, "sweep", to_yaml(experiment), source=experiment.source)
    monkeypatch.setattr(trainable, "ENGINES", {"gang": BrokenEngine})
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    trial = Trial.__new__(Trial)
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
    config["failed"] = [0]
    trial = begin_trial(tmp_path, monkeypatch, {TRIAL: config})
    with pytest.raises(PermanentFailure):
        trial.step()
    statuses = {}
    for number in range(3):
        folder = trial_folder(str(tmp_path / "sweep"), number)
        statuses[number] = folder.exists() and folder.read_metadata().status
    assert statuses == {0: False, 1: "failed", 2: "failed"}
