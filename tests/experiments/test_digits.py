from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import Dataset

from experiments.digits import Digits


@pytest.fixture(scope="module")
def data() -> dict[str, Dataset[Any]]:
    return dict(Digits().data())


def samples(dataset: Any) -> list[tuple[bytes, int]]:
    return [(image.numpy().tobytes(), int(label)) for image, label in dataset]


def test_the_split_holds_every_sample_of_the_source_once(data: dict[str, Any]) -> None:
    assert (len(data["train"]), len(data["val"])) == (1400, 397)
    source = load_digits()
    images = torch.from_numpy(source.images).float() / 16
    expected = [
        (image.numpy().tobytes(), int(label))
        for image, label in zip(images, source.target, strict=True)
    ]
    assert sorted(samples(data["train"]) + samples(data["val"])) == sorted(expected)


def test_the_loss_is_cross_entropy_and_accuracy_has_one_value_per_sample() -> None:
    output = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
    batch = (None, torch.tensor([1, 2]))
    log_probabilities = functional.log_softmax(output, dim=1)
    assert Digits().loss(output, batch).item() == pytest.approx(
        -(log_probabilities[0, 1] + log_probabilities[1, 2]).item() / 2
    )
    assert Digits().metrics(output, batch)["accuracy"].tolist() == [1.0, 0.0]
