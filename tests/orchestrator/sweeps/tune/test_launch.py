"""How the driver of a sweep ends the trials that Tune gives up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.tune.experiment import Trial

from orchestrator.config.load import experiment_from_dict
from orchestrator.config.sections.sweep import Sweep
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.sweep_folder import trial_folder
from orchestrator.stats.aggregate.trial_index import TrialIndex
from orchestrator.sweeps.stopping_rules import StoppingRules
from orchestrator.sweeps.sweep_context import SweepContext, make_search
from orchestrator.sweeps.tune.launch import _TrialEvents, _tune_config
from orchestrator.sweeps.tune.tune_config import tune_config
from tests.orchestrator.config.samples import TEXT

SETTINGS = {"metric": "val/loss", "mode": "min", "space": {"optimizer.lr": {"uniform": [0, 1]}}}


class Hears:
    """A announcer that keeps what it hears."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def ended(self, trial: str, values: dict[str, Any], error: str | None = None) -> None:
        self.ends.append(trial)


def under_way(folder: Path, settings: dict[str, Any], announcer: Any = None) -> SweepContext:
    experiment = experiment_from_dict(
        {**yaml.safe_load(TEXT), "optimizer": {"type": "SGD", "lr": 0.1}, "sweep": settings}
    )
    sweep, run = Sweep.model_validate(settings), RunFolder(folder)
    index = TrialIndex(run, [("val/loss", "min")])
    search = make_search(experiment, sweep, {})
    return SweepContext(experiment, sweep, run, {}, search, StoppingRules(sweep), announcer, index)


def watching(folder: Path, announcer: Hears) -> _TrialEvents:
    return _TrialEvents(under_way(folder, SETTINGS, announcer))


@pytest.mark.parametrize(
    ("lr", "error"), [(0.1, "the trial's process died"), (-1.0, "SGD raised: Invalid learning rate: -1.0")]
)
def test_a_trial_that_tune_gives_up_before_it_began_is_a_failed_one(tmp_path: Path, lr: float, error: str) -> None:
    announcer = Hears()
    (tmp_path / "experiment.yaml").write_text(TEXT)
    watching(tmp_path, announcer).on_trial_error(
        0, [], Trial("nothing", stub=True, config=tune_config(4, {"optimizer.lr": lr}))
    )
    metadata = trial_folder(str(tmp_path), 4).metadata()
    assert (metadata.status, metadata.values) == ("failed", {"optimizer.lr": lr})
    assert error in metadata.error
    assert announcer.ends == ["trial-0004"]


@pytest.mark.parametrize(
    ("scheduler", "at_once"), [("fifo", 2), ("asha", 2), ("pbt", None), ("pb2", None), ("hyperband", None)]
)
def test_schedulers_whose_trials_wait_for_each_other_have_them_all_at_once(
    tmp_path: Path, scheduler: str, at_once: int | None
) -> None:
    sweep = under_way(tmp_path, {**SETTINGS, "search": "random", "scheduler": scheduler, "trials": 3})
    config = _tune_config(sweep, 2)
    assert (config.search_alg, config.num_samples, config.max_concurrent_trials) == (None, 3, at_once)
