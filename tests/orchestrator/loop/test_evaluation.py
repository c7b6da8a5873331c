import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from hooks import Hook, HookError, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.training.early_stopping import EarlyStopping
from orchestrator import run
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import TaskError
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.runs.result import Run
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.tasks import Points, PointSet, Rows, described, experiment


class Metered(Points):
    """Points with metrics that are no means over samples."""

    def meters(self) -> dict[str, Any]:
        return {"f1": MulticlassF1Score(3), "auroc": MulticlassAUROC(3)}


def test_means_are_over_samples_not_batches() -> None:
    """The last batches are smaller, so a mean of batch means would differ."""
    loop = Loop(Points(), experiment(epochs=1), {})
    metrics = next(loop.run()).metrics
    dataset: Any = Points().data()["val"]
    model = loop.state.module.eval()
    with torch.no_grad():
        output = model(dataset.points)
    assert metrics["val/loss"] == pytest.approx(
        functional.cross_entropy(output, dataset.labels).item(), rel=1e-6
    )
    assert metrics["val/accuracy"] == (output.argmax(1) == dataset.labels).double().mean().item()


def test_meters_equal_torchmetrics() -> None:
    dataset: Any = Points().data()["val"]
    loop = Loop(Metered(), experiment(epochs=1), {})
    metrics = next(loop.run()).metrics
    with torch.no_grad():
        output = loop.state.module.eval()(dataset.points)
    assert metrics["val/f1"] == pytest.approx(MulticlassF1Score(3)(output, dataset.labels).item())
    assert metrics["val/auroc"] == pytest.approx(MulticlassAUROC(3)(output, dataset.labels).item())


@dataclass
class Given(Points):
    """Has a meter of its own."""

    meter: Any = None
    called: str = "f1"

    def meters(self) -> dict[str, Any]:
        return {self.called: self.meter}


def test_each_value_of_a_meter_has_a_name() -> None:
    dataset: Any = Points().data()["val"]
    collection = MetricCollection(
        {"macro": MulticlassF1Score(3), "each": MulticlassF1Score(3, average=None)}
    )
    for meter, names in (
        (MulticlassF1Score(3, average=None), ["f1/0", "f1/1", "f1/2"]),
        (collection, ["f1/each/0", "f1/each/1", "f1/each/2", "f1/macro"]),
    ):
        loop = Loop(Given(meter=meter), experiment(epochs=1), {})
        metrics = next(loop.run()).metrics
        assert (
            sorted(name.removeprefix("val/") for name in metrics if name.startswith("val/f1"))
            == names
        )
        with torch.no_grad():
            expected = MulticlassF1Score(3, average=None)(
                loop.state.module.eval()(dataset.points), dataset.labels
            )
        assert [metrics[f"val/{name}"] for name in names[:3]] == pytest.approx(expected.tolist())


def test_meter_without_numbers_is_refused() -> None:
    message = (
        r"compute\(\) of the meter 'f1' returns values of shape \(2, 3, 3\); expected a number"
    )
    meter = MulticlassConfusionMatrix(3)
    meter.compute = lambda: torch.zeros(2, 3, 3)
    with pytest.raises(TaskError, match=message):
        list(Loop(Given(meter=meter), experiment(epochs=1), {}).run())


@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_meter_with_the_name_of_another_metric_is_refused(name: str) -> None:
    with pytest.raises(
        TaskError, match=rf"meters\(\) returns '{name}', but val/{name} exists already"
    ):
        list(Loop(Given(meter=MulticlassF1Score(3), called=name), experiment(epochs=1), {}).run())


class Several(Metered):
    """Has a second set of val."""

    def data(self) -> Mapping[str, Any]:
        return {**super().data(), "val/few": PointSet(7, noisy=False, seed=7)}


def _validate_on_rank(rank: int, world_size: int) -> dict[str, Any]:
    loop = Loop(
        Several(), experiment(epochs=1), {}, RunContext(world=World(rank, world_size, rank))
    )
    torch.manual_seed(5)
    for parameter in loop.state.module.parameters():
        nn.init.normal_(parameter)
    loop.runs[0].evaluation.evaluate("val")
    return loop.state.metrics


@pytest.mark.parametrize("world_size", [2, 3])
def test_validation_counts_every_sample_once_on_any_number_of_ranks(world_size: int) -> None:
    """The model is the same on all; 23 and 7 samples are shared unevenly by 2 and by 3 ranks."""
    many = on_ranks(_validate_on_rank, world_size)
    one = _validate_on_rank(0, 1)
    for values in many:
        assert values == pytest.approx(one, rel=1e-6)
        assert (values["val/accuracy"], values["val/few/accuracy"]) == (
            one["val/accuracy"],
            one["val/few/accuracy"],
        )


@dataclass
class Drawing(Points):
    """Draws from torch, NumPy and `random` wherever it evaluates."""

    sets: int = 1

    def data(self) -> Mapping[str, Any]:
        data = super().data()
        return {
            **data,
            **{f"val/{number}": PointSet(11, False, 5) for number in range(1, self.sets)},
        }

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        output: Tensor = super().forward(model, batch)
        return (
            output + torch.rand_like(output) + np.random.rand() * random.random()
            if not model.training
            else output
        )


def drawing(hooks: Mapping[str, Any] | None = None, **fields: Any) -> Any:
    task_args = {
        "dropout": 0.3,
        "noisy": True,
        "batch_norm": True,
        "test": 9,
        **fields.pop("task_args", {}),
    }
    return described(
        **{
            "task": f"{__name__}:Drawing",
            "task_args": task_args,
            "hooks": {**(hooks or {})},
            **fields,
        }
    )


EVERY = {
    "its best": {"checkpoint": {"every": 0, "best": "val/loss", "save_last": False}},
    "steps": {"checkpoint": {"keep": None, "every": "2 steps"}},
}
WEIGHTS = {
    "ema": {"ema": {"decay": 0.5, "evaluate": "ema", "buffers": "ema"}},
    "both": {"ema": {"decay": 0.5, "evaluate": "both"}},
}


def measured(reports: Sequence[Mapping[str, Any]], step: int, phase: str) -> dict[str, Any]:
    """The metrics of a phase at a step, without times and memory."""
    metrics = {
        name: value
        for report in reports
        if report["step"] == step
        for name, value in report.items()
    }
    return {
        name: value
        for name, value in metrics.items()
        if name.startswith(f"{phase}/") and not name.endswith(("_s", "_bytes"))
    }


def assert_measured_again(done: Run) -> None:
    """Every checkpoint of a step that the run has reported gives what it reported."""
    checked = 0
    for name in (path.name for path in Path(done.path, "checkpoints").iterdir() if path.is_dir()):
        for phase in ("val", "test"):
            step = CheckpointStore(find_checkpoint_folder(done.folder)).read_position(name).step
            if expected := measured(done.reports(), step, phase):
                assert measured(done.evaluate(name, phase).reports(), step, phase) == expected, (
                    name,
                    phase,
                )
                checked += 1
    assert checked


@pytest.mark.parametrize(("every", "weights"), [("its best", "both"), ("steps", "ema")])
def test_evaluating_a_checkpoint_again_gives_the_metrics_of_the_run(
    every: str, weights: str, tmp_path: Path
) -> None:
    experiment = drawing(
        {**EVERY[every], **WEIGHTS[weights]}, validate_every="4 steps", task_args={"sets": 2}
    )
    assert_measured_again(run(experiment, tmp_path, "run", local=True))


# A validation without a loss


class AfterValidation(Hook):
    """Keeps the length of the training phase at each report, which follows a validation."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def on_report(self, state: State, metrics: Mapping[str, Any]) -> None:
        self.lengths.append(state.phase_length)


def test_a_resumed_run_knows_the_length_of_a_training_phase_before_it_trains(
    tmp_path: Path,
) -> None:
    """A checkpoint of an epoch's end is validated before the next training phase."""
    context = RunContext(store=CheckpointStore(Storage(tmp_path)))
    list(Loop(Points(), experiment(), {"checkpoint": Checkpoint()}, context).run())

    after = AfterValidation()
    loop = Loop(Points(), experiment(), {"after": after}, context)
    loop.restore("epoch-0001")
    list(loop.run())
    assert after.lengths == [7, 7]  # 52 samples in batches of 8


class Detector(Metered):
    """Has no loss in some phases."""

    without_loss: Any = ("val", "test")

    def loss(self, output: Tensor, batch: Any) -> Any:
        is_without = self.progress.phase in self.without_loss
        return None if is_without else super().loss(output, batch)


class Seen(Hook):
    """The loss of each validation batch, as hooks see it."""

    def __init__(self) -> None:
        self.losses: list[Any] = []

    def on_loss(self, state: State) -> None:
        if state.phase == "val":
            self.losses.append(state.loss)


def test_validation_may_have_no_loss() -> None:
    """Metrics and meters stay those of the same training, with a loss there; the rows of val have
    none."""
    seen, rows = Seen(), Rows()
    fields: Any = {"epochs": 2}
    task = Detector(test=9)
    detected = [
        report.metrics
        for report in Loop(
            task, experiment(**fields), {"seen": seen}, RunContext(recorder=rows)
        ).run()
    ]
    reports = [report.metrics for report in Loop(Metered(test=9), experiment(**fields), {}).run()]
    without = [
        {name: value for name, value in report.items() if name not in ("val/loss", "test/loss")}
        for report in reports
    ]
    assert detected == without
    assert {"val/accuracy", "val/f1", "train/loss"} < detected[0].keys()
    assert seen.losses == [None] * 6
    assert [set(row) & {"loss"} for row in rows.rows if row["phase"] == "val"] == [set()] * 6


@dataclass
class Bare(Detector):
    """Measures nothing in val."""

    def meters(self) -> dict[str, Any]:
        return {}

    def metrics(self, output: Tensor, batch: Any) -> dict[str, Tensor]:
        return {}


def test_validation_may_leave_everything_to_hooks() -> None:
    metrics = next(Loop(Bare(), experiment(epochs=1), {}).run()).metrics
    assert [name for name in metrics if "/" in name] == ["train/loss"]


@pytest.mark.parametrize(
    "hook", [EarlyStopping("val/loss"), Checkpoint(best="val/loss")], ids=["monitor", "best"]
)
def test_hook_that_monitors_a_missing_loss_names_the_metrics_there_are(hook: Hook) -> None:
    with pytest.raises(
        HookError, match=r"there is no metric 'val/loss'; available: train/loss, .*val/accuracy"
    ):
        list(Loop(Detector(), experiment(epochs=1), {"hook": hook}).run())


def test_checkpoints_are_kept_by_a_metric_that_there_is(tmp_path: Path) -> None:
    store, hook = CheckpointStore(Storage(tmp_path), "points"), Checkpoint()
    list(
        Loop(Detector(), experiment(epochs=1), {"checkpoint": hook}, RunContext(store=store)).run()
    )
    assert [best["metric"] for best in hook.state_dict()["bests"]["checkpoints"]] == [
        "val/accuracy"
    ]


class Fickle(Points):
    """Has a loss for some batches of val only."""

    first: Any = False

    def loss(self, output: Tensor, batch: Any) -> Any:
        is_without = (
            self.progress.phase == "val" and (self.progress.phase_iteration == 0) == self.first
        )
        return None if is_without else super().loss(output, batch)


@pytest.mark.parametrize("first", [True, False])
def test_some_losses_of_a_phase_are_refused(first: bool) -> None:
    task = Fickle()
    task.first = first
    with pytest.raises(
        TaskError, match=r"loss\(\) returns None for some batches of val.*test_evaluation\.py"
    ):
        list(Loop(task, experiment(epochs=1), {}).run())


def test_training_needs_a_loss() -> None:
    task = Detector()
    task.without_loss = ("train",)
    with pytest.raises(TaskError, match=r"loss\(\) returns None; expected a scalar tensor"):
        list(Loop(task, experiment(epochs=1), {}).run())


def _detect(rank: int, world_size: int) -> dict[str, Any]:
    """Validate on two samples, of which the last rank has none."""
    world = World(rank=rank, world_size=world_size)
    return next(
        Loop(Bare(val=2), experiment(epochs=1, batch_size=4), {}, RunContext(world=world)).run()
    ).metrics


def test_rank_without_a_sample_validates_without_a_loss() -> None:
    one, other, last = on_ranks(_detect, 3)
    assert one == other == last
    assert "val/loss" not in one
