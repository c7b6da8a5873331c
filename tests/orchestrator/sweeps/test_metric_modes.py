"""The mode of a metric, set in one part of an experiment, holds in the others, in a sweep and in its trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.load import make_experiment_from_source
from orchestrator.config.sections.experiment import Experiment
from orchestrator.errors import ConfigError
from orchestrator.runs.result import open_run
from orchestrator.sweeps.trials import begin_trial, make_trial_source
from tests.tasks import described

SPACE = {"optimizer.lr": {"choice": [0.1, 0.2]}, "hooks.checkpoint.keep": {"choice": [1, 2]}}


def trial_of(sweep: Experiment, values: dict[str, Any]) -> Experiment:
    assert sweep.sweep is not None
    return make_experiment_from_source(make_trial_source(sweep.source, sweep.sweep, values))


def test_a_trial_s_hooks_have_the_sweep_s_mode_for_its_metric() -> None:
    """But not a trial whose checkpoint uses another metric."""
    space = {"hooks.checkpoint.best": {"choice": ["val/score", "val/accuracy"]}}
    hooks = {"checkpoint": {"best": "val/score"}, "stop": {"type": "early_stopping", "monitor": "val/score"}}
    experiment = described(epochs=1, hooks=hooks, sweep={"metric": "val/score", "mode": "min", "space": space})
    for best, mode in (("val/score", "min"), ("val/accuracy", None)):
        trial = trial_of(experiment, {"hooks.checkpoint.best": best})
        assert {name: trial.hooks[name]["mode"] for name in hooks} == {"checkpoint": mode, "stop": "min"}


def test_a_sweep_has_its_checkpoint_s_mode() -> None:
    hooks = {"checkpoint": {"best": ["val/loss", "val/score"], "mode": ["min", "max"]}}
    experiment = described(epochs=1, hooks=hooks, sweep={"metric": "val/score", "space": SPACE})
    assert experiment.sweep is not None
    assert experiment.sweep.objectives == [("val/score", "max")]


def test_a_trial_s_own_tables_know_the_sweep_s_mode(tmp_path: Path) -> None:
    """Though its experiment has no sweep any more, and nothing else in it judges by the metric."""
    settings = {"metric": "val/shift", "mode": "min", "space": {"optimizer.lr": {"choice": [0.1]}}}
    experiment = described(epochs=1, sweep=settings)
    assert experiment.sweep is not None
    begin_trial(str(tmp_path), 0, experiment.source, experiment.sweep, {"optimizer.lr": 0.1})
    assert open_run(tmp_path / "trials" / "trial-0000").modes == {"val/shift": "min"}


@pytest.mark.parametrize(
    "checkpoint",
    [{"best": "val/accuracy", "mode": "max"}, {"best": ["val/loss", "val/accuracy"], "mode": ["min", "max"]}],
)
def test_opposite_modes_of_a_metric_are_refused(checkpoint: dict[str, Any]) -> None:
    sweep = {"metric": "val/accuracy", "mode": "min", "space": SPACE}
    with pytest.raises(ConfigError, match=r"hooks.checkpoint: has mode max for val/accuracy, but sweep has mode min"):
        described(epochs=1, hooks={"checkpoint": checkpoint}, sweep=sweep)
