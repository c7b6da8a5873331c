"""What loggers read of a row."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch import nn

from hooks import State
from hooks.logs.readings import numbers, readings


def test_numbers_are_kept_and_tensors_read_exactly() -> None:
    big = 2**53 - 1
    columns = {"a": 3, "b": 0.1, "c": torch.tensor(big), "d": torch.tensor([0.5]), "e": numpy.float32(0.25), "f": True}
    read = numbers(columns)
    assert read == {"a": 3, "b": 0.1, "c": float(big), "d": 0.5, "e": 0.25, "f": True}
    assert type(read["a"]) is int
    assert list(read) == list(columns)


def test_what_is_no_number_is_left_out() -> None:
    assert numbers({"phase": "train", "span": object(), "many": torch.ones(3), "none": None}) == {}


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_loss_is_the_mean_of_the_window(kind: type) -> None:
    state = State(row={"loss": 9.0, "grad_norm": 2.0})
    assert readings(state, [kind(1.0), kind(2.0), kind(6.0)]) == {"loss": 3.0, "grad_norm": 2.0}


def test_the_learning_rate_comes_from_the_row_or_else_the_optimizer() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1e-6)
    assert readings(State(optimizer=optimizer), []) == {"lr": 1e-6}
    assert readings(State(optimizer=optimizer, row={"lr": 0.5}), []) == {"lr": 0.5}
