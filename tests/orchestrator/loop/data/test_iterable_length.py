"""Iterable datasets whose `__len__` is wrong, and the numbers of their passes."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from hooks import Interval
from hooks.training.sampler_seed import DistSamplerSeed
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import TaskError
from orchestrator.loop.inference_loops import EvaluationLoop, make_restored_run
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.tasks import Points, PointSet, experiment


class Counted(IterableDataset[Any]):
    """Has a length that may be wrong, and keeps the numbers of its passes."""

    def __init__(self, points: PointSet, length: int) -> None:
        self.points = points
        self.length = length
        self.passes: list[int] = []

    def __len__(self) -> int:
        return self.length

    def set_epoch(self, epoch: int) -> None:
        self.passes.append(epoch)

    def __iter__(self) -> Iterator[Any]:
        return (self.points[index] for index in range(len(self.points)))


@dataclass
class Lengths(Points):
    """Iterable datasets of `train` and `val` points whose lengths are wrong by these numbers."""

    train: int = 32
    val: int = 16
    train_error: int = 0
    val_error: int = 0

    def data(self) -> Any:
        errors = {"train": self.train_error, "val": self.val_error}
        if "_streams" not in vars(self):
            self._streams = {
                phase: Counted(points, len(points) + errors[phase])  # type: ignore[arg-type]
                for phase, points in super().data().items()
            }
        return self._streams


def warnings_of(task: Points, caplog: Any, **fields: Any) -> list[str]:
    with caplog.at_level(logging.WARNING, "hookyard"):
        list(
            Loop(
                task, experiment(batch_size=4, **fields), {"sampler_seed": DistSamplerSeed()}
            ).run()
        )
    return [record.message for record in caplog.records]


@pytest.mark.parametrize(("epochs", "processes"), [(1, 0), (3, 0), (3, 2)])
@pytest.mark.parametrize(
    ("errors", "warnings"),
    [
        ({}, []),
        (
            {"train_error": -8},
            ["The train dataset has more than 6 batches, and 6 by its __len__: an epoch leaves"],
        ),
        (
            {"train_error": 8},
            ["The train dataset has 8 batches, and 10 by its __len__: an epoch repeats"],
        ),
        (
            {"val_error": -8},
            ["The val dataset has more than 2 batches, and 2 by its __len__: all of them"],
        ),
        (
            {"val_error": 8},
            ["The val dataset has 4 batches, and 6 by its __len__: all of them count"],
        ),
    ],
)
def test_wrong_length_is_said_once(
    caplog: pytest.LogCaptureFixture,
    errors: dict[str, int],
    warnings: list[str],
    epochs: int,
    processes: int,
) -> None:
    task = Lengths(**errors)  # type: ignore[arg-type]
    said = warnings_of(task, caplog, epochs=epochs, loader={"num_workers": processes})
    assert [line[: len(start)] for line, start in zip(said, warnings, strict=True)] == warnings


def test_wrong_length_is_said_in_a_resumed_pass(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> Loop:
        context = RunContext(store=CheckpointStore(Storage(tmp_path)))
        settings = experiment(batch_size=4, epochs=1, validate_every=Interval(3, "steps"))
        return Loop(Lengths(train_error=8), settings, {}, context)

    loop = make()
    reports = loop.run()
    next(reports)
    checkpoint = loop.save()
    reports.close()
    resumed = make()
    resumed.restore(checkpoint)
    with caplog.at_level(logging.WARNING, "hookyard"):
        list(resumed.run())
    [warning] = [record.message for record in caplog.records]
    assert warning.startswith("The train dataset has 8 batches, and 10 by its __len__")


def test_passes_that_are_not_epochs_are_checked_too(caplog: pytest.LogCaptureFixture) -> None:
    [line] = warnings_of(Lengths(val=0, train_error=8), caplog, epochs=2, epoch_steps=6)
    assert line.startswith(
        "The train dataset has 8 batches, and 10 by its __len__: all of them count"
    )


def test_progress_of_a_validation_has_the_length_of_the_last_one() -> None:
    loop = Loop(Lengths(val_error=8), experiment(batch_size=4, epochs=2), {})
    val = loop.training.data.phases["val"]
    lengths = [val.length()]
    for _ in loop.run():
        lengths.append(val.length())
    assert lengths == [6, 4, 4]


def _uneven(rank: int, world_size: int) -> list[str]:
    lines: list[str] = []
    logging.getLogger("hookyard").addFilter(
        lambda record: lines.append(record.getMessage()) is not None
    )
    world = World(rank, world_size)
    for train, error in ((36, 0), (36, 8)):
        context = RunContext(world=world)
        list(
            Loop(
                Lengths(train=train, train_error=error),
                experiment(batch_size=4, epochs=2),
                {},
                context,
            ).run()
        )
    return lines


def test_rank_with_less_data_does_not_warn() -> None:
    """Of 36 samples each rank has 18, in 5 batches; of 44 it would have 22, in 6."""
    ranks = on_ranks(_uneven, 2)
    assert [len(lines) for lines in ranks] == [1, 1]
    for rank, [line] in enumerate(ranks):
        assert line.startswith(
            f"The train dataset has 5 batches on rank {rank}, and 6 by its __len__"
        )


# The numbers of passes


@pytest.mark.parametrize(
    ("every", "fields", "passes"),
    [
        (Interval(1), {"epochs": 3}, [0, 1, 2]),
        (Interval(2), {"epochs": 5}, [0, 1, 2]),
        (Interval(3, "steps"), {"steps": 8}, [0, 1, 2]),
        (Interval(1), {"steps": 10}, [0, 1]),
    ],
)
def test_validation_gets_the_number_of_its_pass(
    every: Interval, fields: dict[str, Any], passes: list[int]
) -> None:
    task = Lengths()
    list(Loop(task, experiment(batch_size=4, validate_every=every, **fields), {}).run())
    assert task.data()["val"].passes == passes


def test_evaluation_of_a_checkpoint_gets_the_number_of_its_validation(tmp_path: Path) -> None:
    context = RunContext(store=CheckpointStore(Storage(tmp_path)))
    settings = experiment(batch_size=4, epochs=3)
    loop = Loop(Lengths(), settings, {}, context)
    passes = []
    for _ in loop.run():
        task = Lengths()
        evaluation = EvaluationLoop(make_restored_run(task, settings, {}, context), kind="val")
        evaluation.restore(str(loop.save()))
        list(evaluation.run())
        passes += task.data()["val"].passes
    assert passes == [0, 1, 2]


def test_own_loader_with_fewer_batches_than_its_length_says_so() -> None:
    class Short(Points):
        def loader(self, dataset: Any, batches: Any, phase: str, options: dict[str, Any]) -> Any:
            return ShortLoader(super().loader(dataset, batches, phase, options))  # type: ignore[arg-type]

    class ShortLoader(list[Any]):
        def __len__(self) -> int:
            return 9

    with pytest.raises(
        TaskError, match="the train loader has fewer batches than its length says: it ended after 7"
    ):
        list(Loop(Short(), experiment(), {}).run())
