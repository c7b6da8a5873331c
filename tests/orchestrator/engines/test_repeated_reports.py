"""Losses that a run reports again after a resume, compared with the first ones."""

import math
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hooks import Hook, State
from hooks.position import Position, Stage
from orchestrator.disk.attempts import Attempt, Host, write_attempt
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.repeated_reports import find_repeated_reports
from orchestrator.engines.session import Session
from orchestrator.experiment.load import to_yaml
from orchestrator.experiment.yaml.origins import ParentCheckpoint
from orchestrator.loop.world import World
from orchestrator.runs.continuation import copy_parent_checkpoint, make_continuation
from orchestrator.testing.small_loop import Screen
from tests.ranks import on_ranks, until_killed
from tests.tasks import Points, described

HERE = __name__


class OwnGenerator(Dataset[Any]):
    """Samples with noise from a generator that no checkpoint holds."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset, self.noise = dataset, torch.Generator().manual_seed(1)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        point, label, place = self.dataset[index]
        return point + 0.3 * torch.randn(5, generator=self.noise), label, place


@dataclass
class Unsaved(Points):
    """Points with state of one kind that no checkpoint holds."""

    kind: str = ""
    batch_norm: bool = True
    dropout: float = 0.3
    noisy: bool = True

    def data(self) -> Mapping[str, Dataset[Any]]:
        data = super().data()
        return {
            phase: OwnGenerator(dataset) if self.kind == f"{phase} generator" else dataset
            for phase, dataset in data.items()
        }

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        if self.kind == "temperature":
            self.temperature = getattr(self, "temperature", 1.0) + 0.02
            output = output / self.temperature
        return super().loss(output, batch)


def _make(root: Path, kind: str, **fields: Any) -> Assignment:
    experiment = described(
        task=f"{HERE}:Unsaved", task_args={"kind": kind}, **{"epochs": 3, **fields}
    )
    folder = create_run(root, experiment.name, to_yaml(experiment))
    return Assignment(experiment.source, str(folder))


def _train(given: Assignment, reports: int = 99) -> list[str]:
    """Return the warnings of an attempt that ends after a number of reports, as after a kill: the
    checkpoint of the interval is the newest."""
    screen = Screen()
    training = Session(given, World(), display=screen).reports()
    for _ in zip(range(reports), training, strict=False):
        pass
    training.close()
    return [line.split(" is ")[0] for line in screen.lines if "no setting has changed" in line]


KINDS = {
    "": [],
    # The checkpoint of the second epoch was saved before its validation, which is repeated.
    "val generator": ["val/loss"],
    "temperature": ["val/loss"],
    # No training is repeated.
    "train generator": [],
}


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_validation_is_compared(tmp_path: Path, kind: str) -> None:
    given = _make(tmp_path, kind)
    assert _train(given, 2) == []
    assert _train(given) == KINDS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_training_is_compared(tmp_path: Path, kind: str) -> None:
    """The last report was at step 14, the newest checkpoint is of step 10, within an epoch."""
    given = _make(tmp_path, kind, hooks={"checkpoint": {"every": "10 steps"}})
    assert _train(given, 2) == []
    assert _train(given) == (
        ["train/loss"] if kind in ("temperature", "train generator") else KINDS[kind]
    )


@dataclass
class DiesOnce(Hook):
    """Ends its process at a training iteration, unless its folder shows that it did before."""

    iteration: int = 0
    folder: str = ""

    def on_loss(self, state: State) -> None:
        marker = Path(self.folder) / f"died-{state.rank}"
        is_due = state.phase == "train" and state.iteration + 1 == self.iteration
        if is_due and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def _train_on_rank(rank: int, world_size: int, given: Assignment) -> list[str]:
    screen = Screen()
    for _ in Session(given, World(rank, world_size, rank), display=screen).reports():
        pass
    return [line.split(" is ")[0] for line in screen.lines if "no setting has changed" in line]


@pytest.mark.parametrize(("kind", "expected"), [("", []), ("temperature", ["val/loss"])])
def test_killed_ranks_repeat_their_validation(
    tmp_path: Path, kind: str, expected: list[str]
) -> None:
    """Two ranks are killed in the third epoch, which begins at iteration 9."""
    dies = {"type": f"{HERE}:DiesOnce", "iteration": 11, "folder": str(tmp_path)}
    given = _make(tmp_path, kind, hooks={"dies": dies})
    assert until_killed(_train_on_rank, 2, given) == [-signal.SIGKILL, -signal.SIGKILL]
    assert on_ranks(_train_on_rank, 2, given) == [expected, []]


@pytest.mark.parametrize(
    ("label", "overrides", "expected"),
    [
        ("epoch-0002", {"name": "copy"}, ["val/loss"]),
        ("epoch-0002", {"name": "longer", "epochs": 9}, ["val/loss"]),
        ("epoch-0002", {"name": "seeded", "seed": 5}, []),
        ("epoch-0002", {"name": "wider", "batch_size": 13}, []),
    ],
)
def test_new_run_from_a_checkpoint_is_compared_with_the_reports_of_its_parent(
    tmp_path: Path, label: str, overrides: dict[str, Any], expected: list[str]
) -> None:
    """The parent's validation is repeated whatever the number of epochs, but not with other
    samples."""
    parent = _make(tmp_path, "temperature", hooks={"checkpoint": {"keep": None}})
    assert _train(parent) == []
    texts = [f"{name}={value}" for name, value in overrides.items()]
    experiment = make_continuation(RunFolder(parent.location), label, texts)
    folder = create_run(tmp_path, overrides["name"], to_yaml(experiment))
    copy_parent_checkpoint(folder, experiment)
    assert _train(Assignment(experiment.source, str(folder))) == expected


STARTED = "2090-01-01T00:00:00.000Z"  # no module is newer
LOSS = 0.5
FIRST = Attempt(0, started=STARTED, hosts=[Host(0, "node")], settings={"epochs": 1, "seed": 2})


def _compare(
    root: Path,
    report: Mapping[str, Any],
    first: Attempt = FIRST,
    iteration: int = 8,
    fields: Mapping[str, Any] | None = None,
    **changes: Any,
) -> bool:
    """Return whether a report differs from that of the first attempt, of a loss of 0.5 at iteration
    8; by default it validates again at a checkpoint there."""
    folder = RunFolder(root)
    write_attempt(folder.storage, first)
    folder.append_report(
        {"attempt": 0, "time": STARTED, "iteration": 8, "val/loss": LOSS, "val/ms": 1}
    )
    position = Position(iteration=iteration, stage=Stage.TRAINED)
    changes = {"checkpoint": "epoch-0001", "position": position, **changes}
    second = replace(first, number=1, **changes)
    repeated = find_repeated_reports(folder, second, described(**(fields or {})), None)
    assert repeated is not None
    return repeated.find_difference({"iteration": 8, **report}) is not None


@pytest.mark.parametrize(
    ("report", "differs"),
    [
        ({"val/loss": LOSS}, False),
        ({"val/loss": LOSS * (1 + 1e-6)}, False),  # rounding
        ({"val/loss": LOSS * (1 + 1e-3)}, True),
        ({"val/loss": math.nan}, True),
        ({"val/loss": math.inf}, True),
        ({"val/loss": LOSS, "val/ms": 9.0}, False),  # some metrics measure time
        ({"val/loss": 0.9, "iteration": 9}, False),
        ({"val/ema/loss": 0.9}, False),
    ],
)
def test_only_known_losses_that_differ_beyond_rounding_are_told(
    tmp_path: Path, report: dict[str, Any], differs: bool
) -> None:
    assert _compare(tmp_path, report) is differs


GPU = [Host(0, "node", device="cuda:0")]
FOUR = [Host(rank, "node") for rank in range(4)]
DIFFERENT: dict[str, dict[str, Any]] = {
    "another seed": {"settings": {"epochs": 1, "seed": 3}},
    "another setting in a later version": {"settings": {"epochs": 1, "seed": 2, "new": 4}},
    "more epochs of training": {"settings": {"epochs": 7, "seed": 2}, "iteration": 4},
    "another machine": {"hosts": [Host(0, "other")]},
    "more ranks": {"hosts": [Host(0, "node"), Host(1, "node")], "world_size": 2},
    "training on a GPU": {"first": replace(FIRST, hosts=GPU), "iteration": 4},
    "training on four ranks": {"first": replace(FIRST, hosts=FOUR, world_size=4), "iteration": 4},
    "microbatches by free memory": {"fields": {"accumulate": "auto"}, "iteration": 4},
    "an attempt of an earlier version": {"first": replace(FIRST, settings={})},
    "code that has changed": {"first": replace(FIRST, started="2020-01-01T00:00:00.000Z")},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_other_numbers_are_expected_with(tmp_path: Path, what: str) -> None:
    assert _compare(tmp_path, {"val/loss": 0.9}, **DIFFERENT[what]) is False


ALIKE: dict[str, dict[str, Any]] = {
    "training": {"iteration": 4},
    "more epochs": {"settings": {"epochs": 7, "seed": 2}},
    "a validation on a GPU": {"first": replace(FIRST, hosts=GPU)},
    "a validation on four ranks": {"first": replace(FIRST, hosts=FOUR, world_size=4)},
    "deterministic training on a GPU": {
        "first": replace(FIRST, hosts=GPU),
        "fields": {"deterministic": True},
        "iteration": 4,
    },
}


@pytest.mark.parametrize("what", ALIKE)
def test_the_same_numbers_are_expected_after(tmp_path: Path, what: str) -> None:
    assert _compare(tmp_path, {"val/loss": 0.9}, **ALIKE[what]) is True


def test_reports_of_a_parent_that_is_gone_are_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    attempt = replace(FIRST, checkpoint="epoch-0001")
    parent = ParentCheckpoint(str(tmp_path / "gone"), "epoch-0001", "", 1, 8)
    repeated = find_repeated_reports(folder, attempt, described(), parent)
    assert repeated is None or repeated.find_difference({"iteration": 8, "val/loss": 1.0}) is None
