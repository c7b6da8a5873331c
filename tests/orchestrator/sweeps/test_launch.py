"""What the driver of a sweep keeps of its trials, and how it ends those that Tune gives up."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.tune.experiment import Trial

from orchestrator.config.load import experiment_from_dict
from orchestrator.config.sweep import Sweep
from orchestrator.sweeps.folder import trial_folder
from orchestrator.sweeps.launch import _Ending, _Watching
from orchestrator.sweeps.search import trial_config
from orchestrator.sweeps.stopping import Stopping
from tests.orchestrator.config.samples import TEXT

SETTINGS = {"metric": "val/loss", "mode": "min", "space": {"optimizer.lr": {"uniform": [0, 1]}}}


class Hears:
    """A watcher that keeps what it hears."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.errors: list[str | None] = []

    def ended(self, trial: str, values: dict[str, Any], error: str | None = None) -> None:
        self.ends.append(trial)
        self.errors.append(error)


def watching(folder: Path, watcher: Hears) -> _Watching:
    ending = _Ending(Stopping(Sweep.model_validate(SETTINGS)), lambda: False, fail_fast=False)
    return _Watching(str(folder), experiment_from_dict({**yaml.safe_load(TEXT), "optimizer": {"type": "SGD", "lr": 0.1}, "sweep": SETTINGS}), watcher, ending)


def test_of_a_trial_that_is_over_little_is_kept_however_often_it_reported(tmp_path: Path) -> None:
    watcher, kept = Hears(), []
    told = watching(tmp_path, watcher)
    for number, reports in enumerate((1, 20)):
        trial_folder(str(tmp_path), number).write_about({"status": "finished", "values": {}})
        trial = Trial("nothing", stub=True, config=trial_config(number, {"optimizer.lr": 0.1}))
        for report in range(1, reports + 1):
            trial.update_last_result({"val/loss": 0.5, "epoch": report, "step": report, "samples": report, "training_iteration": report})
        told.on_trial_complete(0, [], trial)
        kept.append(len(pickle.dumps(trial.run_metadata)))
        assert trial.metric_analysis == {}
    assert watcher.ends == ["trial-0000", "trial-0001"]
    # Numbers that take a byte more or less, but nothing for each report.
    assert abs(kept[0] - kept[1]) < 20


@pytest.mark.parametrize(("lr", "error"), [(0.1, "the trial's process died"), (-1.0, "SGD refuses this: Invalid learning rate: -1.0")])
def test_a_trial_that_tune_gives_up_before_it_began_is_a_failed_one(tmp_path: Path, lr: float, error: str) -> None:
    watcher = Hears()
    watching(tmp_path, watcher).on_trial_error(0, [], Trial("nothing", stub=True, config=trial_config(4, {"optimizer.lr": lr})))
    about = trial_folder(str(tmp_path), 4).about()
    assert (about["status"], about["values"]) == ("failed", {"optimizer.lr": lr})
    assert error in about["error"]
    assert watcher.ends == ["trial-0004"]
