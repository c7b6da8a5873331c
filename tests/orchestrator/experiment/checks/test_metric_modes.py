"""Modes of metrics follow from other parts of an experiment and from the task's meters."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torchmetrics import MeanSquaredError

from hooks import EarlyStopping
from orchestrator import Experiment
from orchestrator.experiment.load import load_experiment
from tests.orchestrator.experiment.samples import Line

HERE = "tests.orchestrator.experiment.checks.test_metric_modes"


@dataclass
class Patience(EarlyStopping):
    """Stops early."""


@dataclass
class Distant(Line):
    """A line whose meters have names that tell no direction, or the wrong one."""

    def meters(self) -> Mapping[str, Any]:
        return {"distance": MeanSquaredError(), "speed": MeanSquaredError()}


def load_distant(file: Path, more: str) -> Experiment:
    file.write_text(f"name: line\ntask: {HERE}:Distant\nepochs: 2\n{more}\n")
    return load_experiment(file)


@pytest.mark.parametrize("metric", ["val/distance", "val/speed"])
def test_direction_is_that_of_the_meter(file: Path, metric: str) -> None:
    monitored = load_distant(
        file,
        f"hooks: {{checkpoint: {{best: {metric}}}, early_stopping: {{monitor: {metric}}}}}\n"
        f"sweep: {{metric: {metric}, space: {{seed: {{choice: [1, 2]}}}}}}",
    )
    assert monitored.hooks["checkpoint"]["mode"] == "min"
    assert monitored.hooks["early_stopping"]["mode"] == "min"
    assert monitored.sweep is not None
    assert monitored.sweep.objectives == [(metric, "min")]


def test_mode_of_the_experiment_precedes_that_of_the_meter(file: Path) -> None:
    early_stopping = "hooks: {early_stopping: {monitor: val/distance, mode: max}}"
    monitored = load_distant(file, early_stopping)
    assert monitored.hooks["early_stopping"]["mode"] == "max"


def test_scheduler_follows_the_direction_of_the_meter(file: Path) -> None:
    """ReduceLROnPlateau's default is `min`; by its name, `speed` would need `max`."""
    load_distant(
        file,
        "optimizer: {type: SGD, lr: 0.1}\nscheduler: {type: ReduceLROnPlateau}\n"
        "hooks: {param_scheduler: {monitor: val/speed}}",
    )


def test_subclass_of_a_hook_takes_the_mode_of_another_hook(file: Path) -> None:
    """By its name, `speed` would need `max`."""
    monitored = load_distant(
        file,
        "hooks: {checkpoint: {best: val/speed, mode: min},"
        f" patience: {{type: '{HERE}:Patience', monitor: val/speed}}}}",
    )
    assert monitored.hooks["patience"]["mode"] == "min"
