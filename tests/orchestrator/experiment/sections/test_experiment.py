"""The sections of an experiment and their own checks."""

from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.experiment.load import make_experiment
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.workers import Workers
from orchestrator.experiment.yaml.source import ExperimentSource


def test_experiments_with_equal_content_are_equal() -> None:
    first, second = (Experiment(name="x", task="a:B", epochs=1) for _ in range(2))
    assert first.with_source(ExperimentSource({}, import_paths=("/somewhere",))) == second
    assert first != Experiment(name="x", task="a:B", epochs=2)
    assert first != {"name": "x"}


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "-x"])
def test_invalid_folder_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name: must contain only letters, digits"):
        Experiment(name=name, task="a:B", epochs=1)


@pytest.mark.parametrize(
    ("written", "size"),
    [("8 GiB", 8 * 2**30), ("1.5GB", 1_500_000_000), ("12 B", 12), (7, 7), ("3 MiB", 3 * 2**20)],
)
def test_memory_is_bytes_or_a_size_with_unit(written: Any, size: int) -> None:
    assert Workers(memory=written).memory == size


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ({"gpu": 1.5}, "workers.gpu"),
        ({"memory": 0}, "workers.memory"),
        ({"memory": "8,5 GiB"}, "workers.memory: must be bytes, or a size such as 8 GiB"),
        ({"memory": "8 GiB per rank"}, "workers.memory: must be bytes, or a size such as 8 GiB"),
        ({"resources": {"spot": 0}}, "workers.resources.spot"),
    ],
)
def test_invalid_resources_are_refused(workers: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_experiment(
            {"name": "x", "task": "tests.tasks:Points", "epochs": 1, "workers": workers}
        )


def test_setting_without_its_needed_setting_is_refused() -> None:
    written = {
        "name": "x",
        "task": "tests.tasks:Points",
        "epochs": 1,
        "scaler": {"init_scale": 2.0},
    }
    with pytest.raises(
        ConfigError, match=r"scaler\.init_scale: has no effect without `precision: fp16`"
    ):
        make_experiment(written)
    assert make_experiment({**written, "precision": "fp16"}).scaler.init_scale == 2
