from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score

from hooks import Hook, State
from orchestrator.errors import RunError
from orchestrator.loop.loop import Loop
from orchestrator.loop.world import World
from tests.ranks import on_ranks
from tests.tasks import Points, experiment


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
    assert metrics["val/loss"] == pytest.approx(functional.cross_entropy(output, dataset.labels).item(), rel=1e-6)
    assert metrics["val/accuracy"] == (output.argmax(1) == dataset.labels).double().mean().item()


def test_meters_are_torchmetrics_own_values() -> None:
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

    def meters(self) -> dict[str, Any]:
        return {"f1": self.meter}


@pytest.mark.parametrize(
    ("meter", "given"),
    [(MulticlassF1Score(3, average=None), r"values of shape \(3,\)"), (MetricCollection([MulticlassF1Score(3)]), "a dict")],
)
def test_a_meter_that_gives_more_than_one_number_is_named(meter: Any, given: str) -> None:
    with pytest.raises(RunError, match=f"compute\\(\\) of the meter 'f1' gives {given}, and must give one number"):
        list(Loop(Given(meter=meter), experiment(epochs=1), {}).run())


class Modes(Hook):
    """Notes whether the model is in train mode, by phase."""

    def __init__(self) -> None:
        self.training: dict[str, set[bool]] = {"train": set(), "val": set()}

    def on_forward(self, state: State) -> None:
        self.training[state.phase].add(state.module.training)


def test_the_model_trains_in_train_mode_and_is_validated_in_eval_mode() -> None:
    hook = Modes()
    list(Loop(Points(dropout=0.5), experiment(), {"modes": hook}).run())
    assert hook.training == {"train": {True}, "val": {False}}


def _validate_on_rank(rank: int, world_size: int) -> dict[str, Any]:
    loop = Loop(Metered(), experiment(epochs=1), {}, world=World(rank, world_size, rank))
    torch.manual_seed(5)
    for parameter in loop.state.module.parameters():
        nn.init.normal_(parameter)
    loop.evaluation.run("val")
    return loop.state.metrics


@pytest.mark.parametrize("world_size", [2, 3])
def test_validation_counts_every_sample_once_whatever_the_ranks(world_size: int) -> None:
    """The model is the same on all; 23 samples are shared unevenly by 2 and by 3 ranks."""
    many = on_ranks(_validate_on_rank, world_size)
    one = _validate_on_rank(0, 1)
    for values in many:
        assert values["val/accuracy"] == one["val/accuracy"]
        assert values["val/loss"] == pytest.approx(one["val/loss"], rel=1e-6)
        assert values["val/f1"] == pytest.approx(one["val/f1"], rel=1e-6)
        assert values["val/auroc"] == pytest.approx(one["val/auroc"], rel=1e-6)
