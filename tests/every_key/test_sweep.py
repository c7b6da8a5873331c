"""Each key of a sweep changes its trials, or is refused."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator import sweep
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import list_trial_folders
from orchestrator.errors import UsageError
from orchestrator.experiment.load import make_experiment
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.schedulers.asha import Asha
from orchestrator.experiment.sections.schedulers.median import Median
from orchestrator.experiment.sections.sweep import Budget, Plateau, Stop, SweepSettings
from orchestrator.experiment.yaml.dotted_paths import with_value
from orchestrator.loop.report import Report
from orchestrator.sweeps import in_process as sweeps_in_process
from tests.every_key.tasks import PLAIN, QUIET
from tests.every_key.walk import Key, acts, keys_of


class Reports:
    """An engine that trains nothing and reports what its experiment says."""

    def __init__(self, workers: Any, **more: Any) -> None:
        self.reports: Iterator[Report] = iter(())

    def begin(self, assignment: Any, resolved: Any) -> None:
        self.reports = self._make(RunFolder(assignment.location), resolved.experiment)

    def _make(self, folder: RunFolder, experiment: Experiment) -> Iterator[Report]:
        lr = experiment.optimizer.arguments["lr"]
        epochs = experiment.epochs or 0
        for number in range(epochs):
            loss = 1 + 0.01 * experiment.seed - lr * (1 + min(number, 1))
            metrics = {
                "attempt": 0,
                "epoch": number,
                "step": number + 1,
                "iteration": number + 1,
                "samples": 8 * (number + 1),
                "val/loss": loss,
                "val/other": -loss,
            }
            folder.append_report(metrics)
            yield Report(metrics, is_final=number == epochs - 1)

    def next(self) -> Report | None:
        return next(self.reports, None)

    def end_run(self, run_index: int) -> None:
        self.reports = iter(())

    def end(self) -> None: ...


RATES = {"optimizer.lr": {"uniform": [0.01, 0.2]}}
GRID = {
    "search": "grid",
    "space": {"optimizer.lr": {"choice": [0.05, 0.2, 0.15, 0.01]}},
    "trials": None,
}
PLATEAU = {"stop": {"plateau": {"patience": 2, "grace_period": 0}}}
ASHA = {**GRID, "scheduler": {"type": "asha"}}
MEDIAN = {
    **GRID,
    "space": {"optimizer.lr": {"choice": [0.05, 0.01, 0.15, 0.1]}},
    "scheduler": {"type": "median", "min_samples_required": 1},
}
OPTUNA = {"search": {"type": "optuna"}, "trials": 4}
SWEEP: dict[str, Key] = {
    "metric": Key("val/other"),
    "mode": Key("max"),
    "trials": Key(4),
    "repeats": Key(2),
    "search": Key("grid", {"space": {"optimizer.lr": {"choice": [0.1, 0.05]}}, "trials": None}),
    "search.sampler": Key("QMCSampler", OPTUNA),
    "points": Key([{"optimizer.lr": 0.15}]),
    "share_training": Key(False),
    "seed": Key(1),
    "space": Key({"optimizer.lr": {"uniform": [0.1, 0.2]}}),
    "scheduler": Key("asha", GRID),
    "constraints": Key({"val/loss": "<= 0.01"}),
    "stop": Key({"max_reports": 2}),
    "stop.plateau": Key({"patience": 1}),
    "stop.target": Key(0.99),
    "stop.max_reports": Key(3),
    "stop.time": Key(0.001),
    "stop.plateau.patience": Key(1, PLATEAU),
    "stop.plateau.min_delta": Key(5.0, PLATEAU),
    "stop.plateau.grace_period": Key(6, PLATEAU),
    "budget": Key({"trials": 1}),
    "budget.trials": Key(1),
    "budget.samples": Key(60),
    "budget.time": Key(0.001),
    "scheduler.grace_period": Key(2, ASHA),
    "scheduler.reduction_factor": Key(4, ASHA),
    "scheduler.max_t": Key(2, ASHA),
    "scheduler.brackets": Key(3, {"scheduler": {"type": "asha"}, "trials": 6, "seed": 3}),
    "median.grace_period": Key(4, MEDIAN),
    "median.min_samples_required": Key(3, MEDIAN),
    "grid.seed": Key(1, GRID),
}
SWEEP_NOT_SHOWN = {
    "aggregate": "needs trials with noise: tests/orchestrator/sweeps/results/test_result.py",
    "race.level": "needs trials with noise: tests/orchestrator/sweeps/search/test_race.py",
    "max_concurrent": "is asked of Ray: tests/orchestrator/experiment/sweep/test_concurrent_trials.py",
    "engine": "needs Ray: tests/ray/test_sweep.py",
}
"""Also schedulers `hyperband` and `pbt`, which need concurrent trials (tests/ray); one
process refuses them."""


def test_every_key_of_a_sweep_is_covered() -> None:
    known = {
        *keys_of(SweepSettings),
        *(f"stop.{name}" for name in keys_of(Stop)),
        *(f"budget.{name}" for name in keys_of(Budget)),
    }
    known |= {f"stop.plateau.{name}" for name in keys_of(Plateau)} | {
        f"scheduler.{name}" for name in keys_of(Asha) if name != "type"
    }
    known |= {"search.sampler"}
    known |= {f"median.{name}" for name in keys_of(Median) if name != "type"} | {"race.level"}
    assert known == SWEEP.keys() - {"grid.seed"} | SWEEP_NOT_SHOWN.keys()


def trials_of(settings: Mapping[str, Any], folder: Path) -> str:
    """Return the trials of a sweep in this process, and how each ended."""
    written = {key: value for key, value in settings.items() if value is not None}
    done = sweep(
        make_experiment({**PLAIN, "epochs": 6, "hooks": QUIET, "sweep": written}),
        storage=folder,
        local=True,
    )
    runs = [
        (
            one.read_metadata().status,
            one.read_metadata().trial_settings.values,
            one.read_metadata().stopped,
            len(one.read_reports()),
        )
        for one in list_trial_folders(done.folder)
    ]
    try:
        return repr((runs, done.best.name))
    except UsageError:  # where no trial has reported
        return repr(runs)


def test_each_key_of_a_sweep_changes_its_trials_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps_in_process, "InProcess", Reports)
    references: dict[str, str] = {}
    ignored = []
    for number, (path, key) in enumerate(SWEEP.items()):
        base = {"metric": "val/loss", "mode": "min", "trials": 2, "space": RATES, **key.hook}
        known = json.dumps(base, sort_keys=True)
        if known not in references:
            references[known] = trials_of(base, tmp_path / f"{number}")
        inside = path.replace("median.", "scheduler.").replace("grid.", "")
        changed = partial(
            trials_of, with_value(base, inside, key.value), tmp_path / f"{number}-changed"
        )
        if not acts(changed, references[known], f"sweep.{inside}"):
            ignored.append(path)
    assert not ignored
