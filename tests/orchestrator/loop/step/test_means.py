"""Means count each sample of all ranks once."""

import math
from typing import Any

import pytest
import torch

from orchestrator.loop.step.means import Means


def over(*means: Means) -> dict[str, float]:
    return Means.merge_ranks(one.state_dict() for one in means)


def filled(*entries: tuple[str, float, int]) -> Means:
    means = Means()
    for entry in entries:
        means.add(*entry)
    return means


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        # 8 samples of sum 4 and 2 of sum 2: 6 / 10, while a mean of means would be 0.75
        ([[("accuracy", 4.0, 8), ("accuracy", 2.0, 2)]], {"accuracy": 0.6}),
        ([[("loss", 1.5, 3), ("loss", 0.5, 1)], [("loss", 4.0, 2)], []], {"loss": 1.0}),
        ([[], [("auc", 3.0, 4)]], {"auc": 0.75}),
        ([[("loss", 0.0, 0)]], {}),
        ([[("loss", 1.5, 3), ("loss", math.nan, 0)]], {"loss": 0.5}),
    ],
)
def test_a_mean_counts_every_sample_of_all_ranks_once(
    ranks: Any, expected: dict[str, float]
) -> None:
    assert over(*(filled(*entries) for entries in ranks)) == expected


def test_tensors_are_summed_where_they_are() -> None:
    means = Means()
    means.add("loss", torch.tensor(1.5, dtype=torch.float64), 2)
    means.add("loss", torch.tensor(0.5, dtype=torch.float64), 2)
    assert over(means) == {"loss": 0.5}
    means.add("accuracy", torch.tensor(1.5, device="meta"), 2)
    means.add(
        "accuracy", torch.tensor(0.5, device="meta"), 2
    )  # of that device no number can be read
