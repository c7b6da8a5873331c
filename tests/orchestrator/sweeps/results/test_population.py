"""Trials that continue from another trial's weights, and the same in a single run: without Ray."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator import Experiment, open_run
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import CHECKPOINTS_TO_EXPLOIT, trial_name
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.session import Session
from orchestrator.errors import CheckpointError
from orchestrator.loop.report import Report
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from orchestrator.sweeps.begin_trial import begin_trial
from orchestrator.sweeps.results.population import History
from orchestrator.sweeps.results.result import Sweep
from tests.orchestrator.runs.written import new_run
from tests.tasks import described

SPACE = {"hooks.ema.decay": {"uniform": [0.1, 0.9]}, "optimizer.lr": {"loguniform": [0.01, 0.5]}}


def population(**fields: Any) -> Experiment:
    settings = {
        "metric": "val/loss",
        "mode": "min",
        "trials": 3,
        "scheduler": "pbt",
        "space": SPACE,
    }
    hooks = {"ema": {}, "console": None, "checkpoint": {"keep": 2}}
    return described(**{"epochs": 4, "hooks": hooks, "sweep": settings, **fields})


class ByHand:
    """A trial that trains report by report, saves, and begins again from a checkpoint with other
    values, as in Tune."""

    def __init__(self, sweep: RunFolder, experiment: Experiment, number: int) -> None:
        self.sweep = sweep
        self.experiment = experiment
        self.number = number

    def begin(self, values: dict[str, Any], checkpoint: str | None = None) -> None:
        trial, folder = begin_trial(
            str(self.sweep), self.number, self.experiment.source, self.experiment.sweep, values
        )
        self.folder = folder
        self.session = Session(
            Assignment(trial.experiment.source, str(folder), checkpoint=checkpoint), World(), trial
        )
        self.reports = self.session.reports()

    def next(self) -> Report:
        return next(self.reports)

    def finish(self) -> None:
        for _ in self.reports:
            pass


def store_of(folder: RunFolder) -> CheckpointStore:
    return CheckpointStore(find_checkpoint_folder(folder))


@pytest.fixture
def sweep(tmp_path: Path) -> RunFolder:
    return new_run(tmp_path, "sweep", "", sweep={"objectives": [["val/loss", "min"]], "trials": 3})


GOOD = {"hooks.ema.decay": 0.5, "optimizer.lr": 0.2}
BAD = {"hooks.ema.decay": 0.9, "optimizer.lr": 0.01}
MUTATED = {"hooks.ema.decay": 0.6, "optimizer.lr": 0.16}


def exploited(sweep: RunFolder, experiment: Experiment) -> tuple[ByHand, ByHand]:
    """Trial 1 makes three reports and then continues trial 0's second, with mutated values."""
    good = ByHand(sweep, experiment, 0)
    bad = ByHand(sweep, experiment, 1)
    good.begin(GOOD)
    bad.begin(BAD)
    good.next()
    report = good.next()
    checkpoint = good.session.save()
    for _ in range(3):
        bad.next()
    bad.reports.close()
    bad.begin(MUTATED, checkpoint)
    fields = {
        "report": 2,
        "epoch": 1,
        "step": report.metrics["step"],
        "score": 1.0,
        "source_score": 0.5,
    }
    History(sweep).append(
        trial=trial_name(1), source=trial_name(0), before=GOOD, after=MUTATED, **fields
    )
    return good, bad


def test_a_population_s_trial_as_an_experiment_has_its_last_values(sweep: RunFolder) -> None:
    exploited(sweep, population())
    kept = Sweep(sweep).experiment("trial-0000")
    assert (kept.name, kept.sweep) == ("sweep-trial-0000", None)
    assert kept.optimizer.arguments["lr"] == GOOD["optimizer.lr"]
    changed = Sweep(sweep).experiment(1)
    assert changed.optimizer.arguments["lr"] == MUTATED["optimizer.lr"]
    assert changed.hooks["ema"]["decay"] == MUTATED["hooks.ema.decay"]
    assert changed.changes == []


def test_the_epochs_that_an_exploit_replaces_are_superseded(sweep: RunFolder) -> None:
    """The tables have no rows, reports and checkpoints of the abandoned third epoch."""
    good, bad = exploited(sweep, population())
    bad.next()
    trial = open_run(bad.folder.storage.location)
    assert trial.metrics["epoch"].tolist() == [0, 1, 2]
    assert not trial.stats.duplicated(["rank", "phase", "epoch", "iteration"]).any()
    assert bad.folder.read_metadata().trial_settings.values == MUTATED
    assert trial.config["optimizer"]["lr"] == 0.16
    assert store_of(bad.folder).list_names() == ["epoch-0002", "epoch-0003"]
    assert "epoch-0002" in store_of(good.folder).list_names()
    assert store_of(bad.folder).find_latest().name == "epoch-0003", "the newest intact checkpoint"


def test_a_trial_killed_after_an_exploit_resumes_from_the_copied_checkpoint(
    sweep: RunFolder,
) -> None:
    """The crash comes before the next checkpoint."""
    _, bad = exploited(sweep, population())
    bad.next()
    bad.reports.close()
    for name in store_of(bad.folder).list_names()[1:]:
        store_of(bad.folder).storage.delete(name)
    bad.begin(MUTATED)
    assert bad.next().metrics["epoch"] == 2
    assert bad.folder.read_attempts()[-1].checkpoint == "epoch-0002"


def test_a_trial_keeps_its_newest_checkpoints_for_others(sweep: RunFolder) -> None:
    trial = ByHand(sweep, population(epochs=CHECKPOINTS_TO_EXPLOIT + 3), 0)
    trial.begin(GOOD)
    for _ in range(CHECKPOINTS_TO_EXPLOIT + 2):
        trial.next()
        trial.session.save()
    store = store_of(trial.folder)
    newest = [f"epoch-{epoch:04d}" for epoch in range(3, CHECKPOINTS_TO_EXPLOIT + 3)]
    assert store.list_names() == sorted({*newest, store.resolve("best")})


def test_a_checkpoint_that_is_damaged_is_not_adopted(sweep: RunFolder, tmp_path: Path) -> None:
    trial = ByHand(sweep, population(), 0)
    trial.begin(GOOD)
    trial.next()
    path = trial.session.save()
    (Path(path) / "model.pt").write_bytes(b"damaged")
    other = CheckpointStore(Storage(tmp_path / "other"))
    with pytest.raises(CheckpointError, match=r"model.pt is damaged"):
        other.reset_to(path)
    with pytest.raises(CheckpointError, match="no checkpoint 'epoch-0009'"):
        other.reset_to(path.replace("epoch-0001", "epoch-0009"))
    assert other.list_names() == []
