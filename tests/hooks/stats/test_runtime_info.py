"""What a run says of itself, against the experiment and against the loop that trains it."""

import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from hooks import Hook, State
from hooks.stats.runtime_info import RuntimeInfo
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.session import Session
from orchestrator.experiment.load import to_dict, to_yaml
from orchestrator.experiment.resolve import resolve
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.orchestrator.runs.written import new_run
from tests.tasks import Points, described, experiment


class Watcher(Hook):
    """What a later hook reads in `state.info` at each beginning and end."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def on_phase_start(self, state: State) -> None:
        self._look(state)

    def on_phase_end(self, state: State) -> None:
        self._look(state)

    def _look(self, state: State) -> None:
        self.seen.append(
            tuple(state.info[name] for name in ("phase", "epoch", "iteration", "step", "samples"))
        )


def test_other_hooks_can_read_the_position_of_the_run() -> None:
    """52 samples are 7 iterations and, two to a step, 4 steps an epoch."""
    watcher = Watcher()
    loop = Loop(
        Points(train=52, val=23),
        experiment(epochs=2, accumulate=2),
        {"watcher": watcher, "info": RuntimeInfo()},
    )
    metrics = [report.metrics for report in loop.run()][-1]
    assert watcher.seen == [
        ("train", 0, 0, 0, 0),
        (None, 1, 7, 4, 52),
        ("val", 1, 7, 4, 52),
        (None, 1, 7, 4, 52),
        ("train", 1, 7, 4, 52),
        (None, 2, 14, 8, 104),
        ("val", 2, 14, 8, 104),
        (None, 2, 14, 8, 104),
    ]
    info = loop.state.info
    assert info["metrics"] == {name: value for name, value in metrics.items() if "/" in name}
    assert set(info["metrics"]) == {"train/loss", "train/accuracy", "val/loss", "val/accuracy"}


def test_facts_of_the_run() -> None:
    given = described(epochs=3, seed=7, hooks={"runtime_info": {}})
    config = to_dict(given)
    task = resolve(given.source).task
    loop = Loop(task, given, {"info": RuntimeInfo()}, RunContext(config=config))
    next(loop.run())
    info = loop.state.info
    assert (info["experiment"], info["seed"], info["max_epochs"], info["max_steps"]) == (
        "points",
        7,
        3,
        None,
    )
    assert info["versions"]["torch"] == torch.__version__
    assert info["versions"]["python"] == platform.python_version()
    assert info["data"] == {
        "train": {"samples": 52, "batches": 7},
        "val": {"samples": 23, "batches": 3},
    }
    assert isinstance(resolve(given.source).hooks["runtime_info"], RuntimeInfo)


def test_the_learning_rate_of_every_group_is_there() -> None:
    """MMEngine's has the first group alone."""
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [
        {"params": [parameters[0]], "lr": 0.1},
        {"params": [parameters[1]], "lr": torch.tensor(0.25)},
    ]
    optimizer = torch.optim.Adam(groups)
    hook = RuntimeInfo()
    state = State(optimizer=optimizer)
    hook.on_start(state)
    assert state.info["learning_rates"] == [0.1, 0.25]
    optimizer.param_groups[0]["lr"] = 0.01
    hook.on_phase_start(state)
    assert state.info["learning_rates"] == [0.01, 0.25]


@pytest.mark.parametrize(
    "said", [{"classes": ["cat", "dog"]}, {"metainfo": {"classes": ("cat", "dog")}}]
)
def test_classes_are_those_of_the_dataset_or_its_subset(said: dict[str, Any]) -> None:
    dataset = TensorDataset(torch.zeros(10, 1))
    for name, value in said.items():
        setattr(dataset, name, value)
    loaders = {
        "train": DataLoader(Subset(dataset, range(6)), batch_size=4),
        "val": iter(()),
        "test": SimpleNamespace(dataset=dataset),
    }
    state = State(loaders=loaders)
    RuntimeInfo().on_start(state)
    assert state.info["data"] == {
        "train": {"samples": 6, "batches": 2, "classes": ["cat", "dog"]},
        "val": {},
        "test": {"samples": 10, "classes": ["cat", "dog"]},
    }


def _run(root: Path, **fields: Any) -> RunFolder:
    given = described(hooks={"runtime_info": {}, "model_complexity": {}}, **fields)
    folder = new_run(root, "points", to_yaml(given), seed=1)
    list(Session(Assignment(given.source, str(folder)), World()).reports())
    return folder


def test_run_json_has_the_facts_at_the_end(tmp_path: Path) -> None:
    folder = _run(tmp_path, epochs=2)
    assert folder.read_metadata().info == {}
    folder.run_file.end("finished")
    metadata = folder.read_metadata()
    assert (metadata.status, metadata.seed, metadata.attempts) == ("finished", 1, 1)
    assert metadata.info["iteration"] == 14
    assert metadata.info["learning_rates"] == [0.1]
    assert metadata.info["metrics"]["val/accuracy"] == folder.read_reports()[-1]["val/accuracy"]
    assert metadata.info["parameters"] == 5 * 8 + 8 + 8 * 3 + 3
