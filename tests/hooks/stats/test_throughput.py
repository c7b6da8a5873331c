"""Speed by hand from rows that are given, and from a run's own rows."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from hooks import Hook, State
from hooks.interval import Interval
from hooks.stats.throughput import Throughput
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from tests.tasks import Points, Rows, experiment


def row(samples: int, seconds: float, phase: str = "train") -> dict[str, Any]:
    return {"phase": phase, "batch_size": samples, "step_s": seconds}


def measured(state: State, hook: Throughput) -> dict[str, Any]:
    state.phase = "train"
    state.row = {}
    hook.on_step(state)
    return state.row


def test_flops_are_three_forward_passes_and_mfu_is_their_share_of_the_peak() -> None:
    state = State(world_size=2, info={"flops_per_sample": 1000})
    state.recent.append(row(10, 0.5))
    assert measured(state, Throughput(peak_flops=240_000)) == {
        "samples_per_s": 20.0,
        "world_samples_per_s": 40.0,
        "flops_per_s": 60_000.0,
        "mfu": 0.25,
    }


@pytest.mark.parametrize("accumulate", [1, 2])
def test_throughput_of_a_run_is_computed_from_its_rows(accumulate: int) -> None:
    """With accumulation a row is a micro-batch, and an epoch ends in a short one."""
    hooks: dict[str, Hook] = {"throughput": Throughput(every=Interval(4, "iterations"), window=3)}
    rows = Rows()
    loop = Loop(
        Points(train=52),
        experiment(epochs=2, accumulate=accumulate),
        hooks,
        RunContext(recorder=rows),
    )
    reports = [report.metrics for report in loop.run()]
    train = [one for one in rows.rows if one["phase"] == "train"]
    assert len(train) == 14
    for index, one in enumerate(train):
        if (index + 1) % 4:
            assert "samples_per_s" not in one
            continue
        before = train[max(0, index - 3) : index]
        expected = sum(other["batch_size"] for other in before) / sum(
            other["step_s"] for other in before
        )
        assert one["samples_per_s"] == pytest.approx(expected)
    assert {other["batch_size"] for other in train} == {8, 4}
    last = train[-3:]
    expected = sum(other["batch_size"] for other in last) / sum(other["step_s"] for other in last)
    assert reports[-1]["throughput/world_samples_per_s"] == pytest.approx(expected)


@pytest.fixture
def matmul_precision() -> Iterator[Callable[[str], None]]:
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("module", "precision", "matmul", "peak"),
    [
        (nn.Linear(2, 2), "bf16", "highest", 312e12),
        (nn.Linear(2, 2), "fp32", "highest", 19.5e12),
        (nn.Linear(2, 2), "fp32", "high", 156e12),
        (nn.Conv2d(2, 2, 1), "fp32", "highest", 156e12),
        (nn.ConvTranspose2d(2, 2, 1), "fp32", "highest", 156e12),
    ],
)
def test_peak_is_that_of_the_precision_in_use(
    module: nn.Module,
    precision: str,
    matmul: str,
    peak: float,
    matmul_precision: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    matmul_precision(matmul)
    hook = Throughput()
    state = State(
        module=module,
        device=torch.device("cuda"),
        config={"precision": precision},
        info={"flops_per_sample": 1e12},
    )
    hook.on_start(state)
    state.recent.append(row(10, 1.0))
    assert measured(state, hook)["mfu"] == pytest.approx(3e13 / peak)
