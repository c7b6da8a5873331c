"""What the driver of a sweep keeps of its trials."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial

from orchestrator.config.sweep import Sweep
from orchestrator.sweeps.folder import trial_folder
from orchestrator.sweeps.launch import _Ending, _Watching
from orchestrator.sweeps.search import trial_config
from orchestrator.sweeps.stopping import Stopping


class Hears:
    """A watcher that keeps what it hears."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def ended(self, trial: str, values: dict[str, Any], error: str | None = None) -> None:
        self.ends.append(trial)


def test_of_a_trial_that_is_over_little_is_kept_however_often_it_reported(tmp_path: Path) -> None:
    settings = Sweep.model_validate({"metric": "val/loss", "mode": "min", "space": {"optimizer.lr": {"uniform": [0, 1]}}})
    watcher, kept = Hears(), []
    watching = _Watching(str(tmp_path), watcher, _Ending(Stopping(settings), lambda: False, fail_fast=False))
    for number, reports in enumerate((1, 20)):
        trial_folder(str(tmp_path), number).write_about({"status": "finished", "values": {}})
        trial = Trial("nothing", stub=True, config=trial_config(number, {"optimizer.lr": 0.1}))
        for report in range(1, reports + 1):
            trial.update_last_result({"val/loss": 0.5, "epoch": report, "step": report, "samples": report, "training_iteration": report})
        watching.on_trial_complete(0, [], trial)
        kept.append(len(pickle.dumps(trial.run_metadata)))
        assert trial.metric_analysis == {}
    assert watcher.ends == ["trial-0000", "trial-0001"]
    # Numbers that take a byte more or less, but nothing for each report.
    assert abs(kept[0] - kept[1]) < 20
