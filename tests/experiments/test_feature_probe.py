from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import nn
from torch.utils.data import TensorDataset

from experiments.classifiers import PENALTY, draw_of_each_class
from experiments.feature_probe import DRAWS, FeatureProbe
from hooks import State
from hooks.event_plan import Plan
from hooks.state import Weights
from tests.ranks import on_ranks

CLASSES = 3


@cache
def clouds() -> dict[str, TensorDataset]:
    """Three clouds that overlap, of odd sizes: 61 to train on, 37 to validate."""
    generator = torch.Generator().manual_seed(0)
    centers = 1.2 * torch.randn(CLASSES, 4, generator=generator)

    def some(size: int) -> TensorDataset:
        labels = torch.randint(CLASSES, (size,), generator=generator)
        return TensorDataset(centers[labels] + torch.randn(size, 4, generator=generator), labels)

    return {"train": some(61), "val": some(37)}


DATA = f"{__name__}:clouds"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5))


def expected(features: Any) -> dict[str, float]:
    """Both accuracies by scikit-learn, whose neighbours are found by Euclidean distance between
    unit vectors."""
    (train, labels), (val, targets) = (clouds()[phase].tensors for phase in ("train", "val"))
    with torch.no_grad():
        bank, queries = features(train), features(val)
    unit = [nn.functional.normalize(rows, dim=1).numpy() for rows in (bank, queries)]
    knn = KNeighborsClassifier(
        20, weights=lambda distances: np.exp((1 - distances**2 / 2) / 0.07)
    ).fit(unit[0], labels)
    mean, deviation = bank.mean(0), bank.std(0) + 1e-6
    linear = []
    for draw in range(DRAWS):
        few = draw_of_each_class(labels, 10, draw)
        fitted = LogisticRegression(C=1 / (PENALTY * len(few)), max_iter=1000, tol=1e-8).fit(
            ((bank[few] - mean) / deviation).double().numpy(), labels[few]
        )
        linear.append(fitted.score(((queries - mean) / deviation).double().numpy(), targets))
    return {
        "knn_accuracy": float(knn.score(unit[1], targets)),
        "linear_accuracy": float(np.mean(linear)),
    }


def prefixed(prefix: str, values: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": pytest.approx(value) for name, value in values.items()}


def moved(module: nn.Module) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))


def validated(hook: FeatureProbe, state: State) -> dict[str, float]:
    state.phase, state.metrics = "val", {}
    Plan({"feature_probe": hook}).fire("on_phase_end", state)
    return state.metrics


def test_features_pixels_and_the_untrained_encoder_are_measured_as_scikit_learn_does() -> None:
    module = network()
    state, hook = State(model=module, module=module), FeatureProbe(data=DATA, encoder="")
    hook.on_start(state)
    moved(module)
    metrics = validated(hook, state)
    assert metrics == {
        **prefixed("val", expected(module.eval())),
        **prefixed("val/untrained", expected(network().eval())),
        **prefixed("val/pixels", expected(lambda rows: rows)),
    }


def test_each_set_of_weights_that_is_validated_with_is_measured() -> None:
    module, other = network(), network()
    moved(other)
    state, hook = State(model=module, module=module), FeatureProbe(data=DATA, encoder="")
    hook.on_start(state)

    class Swapped:
        def __init__(self, state: State) -> None:
            pass

        def __enter__(self) -> None:
            self.before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
            module.load_state_dict(other.state_dict())

        def __exit__(self, *_: object) -> None:
            module.load_state_dict(self.before)

    state.evaluations["ema"] = Weights(Swapped, "swapped")
    metrics = validated(hook, state)
    assert metrics["val/ema/knn_accuracy"] == pytest.approx(expected(other.eval())["knn_accuracy"])
    assert metrics["val/knn_accuracy"] == metrics["val/untrained/knn_accuracy"]


def test_after_a_resume_the_untrained_encoder_is_still_that_of_the_beginning() -> None:
    module = network()
    state, first = State(model=module, module=module), FeatureProbe(data=DATA, encoder="")
    first.on_start(state)
    moved(module)
    state.step = 40
    second = FeatureProbe(data=DATA, encoder="")
    second.load_state_dict(first.state_dict())
    second.on_start(state)
    assert validated(second, state) == validated(first, state)


def measured(rank: int, world_size: int) -> dict[str, float]:
    module = network()
    state, hook = (
        State(model=module, module=module, rank=rank, world_size=world_size),
        FeatureProbe(data=DATA, encoder=""),
    )
    hook.on_start(state)
    moved(module)
    return validated(hook, state)


def test_two_ranks_get_the_values_of_one() -> None:
    one, two = measured(0, 1), on_ranks(measured)
    assert two == [one, one]
