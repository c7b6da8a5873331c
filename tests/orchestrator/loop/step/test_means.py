from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from orchestrator.loop.step.means import Means


def over(*means: Means) -> dict[str, float]:
    return Means.over_ranks(one.state_dict() for one in means)


def filled(*entries: tuple[str, float, int]) -> Means:
    means = Means()
    for entry in entries:
        means.add(*entry)
    return means


def test_the_mean_weighs_each_sample_alike() -> None:
    # 8 samples of sum 4 and 2 of sum 2: 6 / 10, while a mean of means would be 0.75
    assert over(filled(("accuracy", 4.0, 8), ("accuracy", 2.0, 2))) == {"accuracy": 0.6}


def test_the_mean_over_ranks_counts_every_sample_of_each() -> None:
    means = over(filled(("loss", 1.5, 3), ("loss", 0.5, 1)), filled(("loss", 4.0, 2)), filled())
    assert means == {"loss": float(Fraction(6, 6))}


def test_a_name_that_only_another_rank_has_is_there() -> None:
    assert over(filled(), filled(("auc", 3.0, 4))) == {"auc": 0.75}


def test_a_value_without_samples_is_left_out() -> None:
    assert over(filled(("loss", 0.0, 0))) == {}


def test_tensors_are_summed_where_they_are() -> None:
    means = Means()
    means.add("loss", torch.tensor(1.5, dtype=torch.float64), 2)
    means.add("loss", torch.tensor(0.5, dtype=torch.float64), 2)
    assert over(means) == {"loss": 0.5}
    means.add("accuracy", torch.tensor(1.5, device="meta"), 2)
    means.add("accuracy", torch.tensor(0.5, device="meta"), 2)  # of that device no number can be read


def test_sums_of_floats_are_not_rounded_to_float32() -> None:
    means = Means()
    for _ in range(1000):
        means.add("loss", 0.1, 1)
    assert over(means)["loss"] == pytest.approx(0.1, rel=1e-13)


def test_the_sums_of_another_rank_are_taken_in() -> None:
    mine, other = Means(), Means()
    mine.add("loss", 6.0, 3)
    other.add("loss", 4.0, 1)
    other.add("accuracy", 1.0, 2)
    mine.include(other.state_dict())
    assert over(mine) == {"loss": 2.5, "accuracy": 0.5}


def test_its_state_goes_on_where_it_was_taken() -> None:
    first = filled(("loss", 0.1, 1), ("loss", 0.7, 2))
    second = Means()
    second.include(first.state_dict())
    for means in (first, second):
        means.add("loss", 0.3, 1)
    assert second.state_dict() == first.state_dict() == {"loss": [0.1 + 0.7 + 0.3, 4]}


def test_what_was_added_can_be_taken_back_for_all_who_hold_them() -> None:
    means = Means()
    means.add("loss", 6.0, 2)
    held, before = means, means.copied()
    means.add("loss", 100.0, 1)
    means.add("kl", 1.0, 1)
    held.become(before)
    assert over(means) == {"loss": 3.0}
