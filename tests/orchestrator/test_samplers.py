from collections import Counter

import pytest
import torch
from torch.utils.data import ConcatDataset, TensorDataset

from orchestrator.samplers import MixtureSampler, StratifiedSampler

THREE = ConcatDataset([TensorDataset(torch.zeros(size)) for size in (10, 4, 6)])


@pytest.mark.parametrize(
    "labels", [[0] * 60 + [1] * 30 + [2] * 10, ["a"] * 60 + ["b"] * 30 + ["c"] * 10]
)
def test_every_stretch_of_a_stratified_order_has_the_labels_of_the_whole(
    labels: list[object],
) -> None:
    sampler = StratifiedSampler(labels)
    orders = [list(sampler) for _ in range(2)]
    assert orders[0] != orders[1]
    for order in orders:
        assert sorted(order) == list(range(100))
        for begin in range(0, 100, 20):
            counts = Counter(labels[place] for place in order[begin : begin + 20])
            assert all(
                abs(counts[label] - expected) <= 1
                for label, expected in zip(sorted(set(labels), key=str), (12, 6, 2), strict=True)
            )


def test_a_mixture_has_so_many_of_each_dataset_as_the_weights_say_and_each_of_its_samples_as_often() -> (
    None
):
    sampler = MixtureSampler(THREE, [1, 2, 0], length=30)
    order = list(sampler)
    assert len(sampler) == len(order) == 30
    counts = Counter(order)
    assert [counts[place] for place in range(10)] == [1] * 10
    assert [counts[place] for place in range(10, 14)] == [5] * 4
    assert not any(counts[place] for place in range(14, 20))
    assert list(sampler) != order


def test_rounding_favors_the_largest_remainders() -> None:
    parts = Counter(
        (place >= 10) + (place >= 14) for place in MixtureSampler(THREE, [0.45, 0.35, 0.2])
    )
    assert [parts[part] for part in range(3)] == [9, 7, 4]
    assert len(MixtureSampler(THREE, [1, 1, 1], length=5)) == 5


@pytest.mark.parametrize("weights", [[1, 2], [1, -1, 1], [0, 0, 0], [1, 2, float("nan")]])
def test_weights_that_do_not_fit_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="a mixture of 3 datasets needs as many weights"):
        MixtureSampler(THREE, weights)
