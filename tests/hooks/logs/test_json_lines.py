"""scalars.jsonl, read back with the standard library."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hooks.interval import Interval
from hooks.logs.json_lines import FILE, JsonLines
from tests.hooks.logs.conftest import Start
from tests.hooks.phases import loss_rows, run_phase


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line, parse_constant=_refuse)
        for line in (folder / FILE).read_text().splitlines()
    ]


def test_a_line_every_interval_has_counters_and_the_mean_loss_since_the_last(
    start: Start, tmp_path: Path
) -> None:
    hook = JsonLines(every=Interval(2, "iterations"))
    state = start(
        hook, accumulate=2, optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1e-6)
    )
    run_phase(hook, state, "train", loss_rows(1, 2, 3, 5, 9), batch_sizes=[4] * 5, length=6)
    found = _lines(tmp_path)[:-1]
    for line in found:
        assert datetime.fromisoformat(line.pop("time")).utcoffset() == timedelta(0)
    assert found == [
        {
            "phase": "train",
            "epoch": 0,
            "iteration": 2,
            "step": 1,
            "samples": 8,
            "loss": 1.5,
            "lr": 1e-6,
        },
        {
            "phase": "train",
            "epoch": 0,
            "iteration": 4,
            "step": 2,
            "samples": 16,
            "loss": 4.0,
            "lr": 1e-6,
        },
        {
            "phase": "train",
            "epoch": 0,
            "iteration": 5,
            "step": 2,
            "samples": 20,
            "loss": 9.0,
            "lr": 1e-6,
        },
    ], "what is left at the end of the phase has a line, too"


def test_each_phase_ends_with_its_metrics(start: Start, tmp_path: Path) -> None:
    hook = JsonLines()
    state = start(hook)
    run_phase(hook, state, "train", loss_rows(1), metrics={"train/loss": 1.0})
    run_phase(hook, state, "val", loss_rows(7), metrics={"val/accuracy": 0.25})
    _, train, val = _lines(tmp_path)
    assert (train["phase"], train["metrics"]) == ("train", {"train/loss": 1.0})
    assert (val["phase"], val["metrics"], val["epoch"], val["step"]) == (
        "val",
        {"val/accuracy": 0.25},
        0,
        1,
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values_are_null(start: Start, tmp_path: Path, value: float) -> None:
    hook = JsonLines(every=Interval(1, "iterations"))
    run_phase(hook, start(hook), "train", loss_rows(value), metrics={"train/loss": value})
    row, end = _lines(tmp_path)
    assert row["loss"] is None
    assert end["metrics"] == {"train/loss": None}
