"""Many hooks in one run on two ranks: what must be alike is alike, and each rank has its own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from hooks import Hook, Interval
from hooks.stats.device_stats import DeviceStats
from hooks.stats.memory_stats import MemoryStats
from hooks.stats.model_complexity import ModelComplexity
from hooks.stats.optimizer_stats import OptimizerStats
from hooks.stats.perf_stats import PerfStats
from hooks.stats.row_stats import RowStats
from hooks.stats.runtime_info import RuntimeInfo
from hooks.stats.throughput import Throughput
from hooks.training.early_stopping import EarlyStopping
from hooks.training.gradient_clip import GradientClip
from hooks.training.param_scheduler import ParamScheduler
from hooks.training.sampler_seed import DistSamplerSeed
from orchestrator.experiment.optim.component import Component
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.hooks.stats.test_row_stats import ALL, REFERENCE
from tests.ranks import on_ranks
from tests.tasks import Points, Rows, Seen, experiment, numbers

EVERY_STEP = Interval(1, "steps")
SCHEDULER = Component.model_validate({"type": "CosineAnnealingLR", "T_max": 11})
INFO = ("world_size", "samples", "data", "metrics", "flops_per_sample")
STEPS = 6
"""In an epoch of 48 samples in batches of 8."""


def hooks_of() -> dict[str, Hook]:
    return {
        "sampler_seed": DistSamplerSeed(),
        "gradient_clip": GradientClip(max_norm=0.3),
        "param_scheduler": ParamScheduler(every=EVERY_STEP),
        "early_stopping": EarlyStopping("val/loss", "min", min_delta=100, patience=2),
        "perf_stats": PerfStats(),
        "throughput": Throughput(every=Interval(2, "iterations")),
        "memory_stats": MemoryStats(every=Interval(2, "iterations"), min_seconds=0),
        "device_stats": DeviceStats(every=Interval(2, "iterations")),
        "optimizer_stats": OptimizerStats(every=EVERY_STEP),
        "model_complexity": ModelComplexity(),
        "runtime_info": RuntimeInfo(),
        "row_stats": RowStats(ALL),
    }


def run_loop(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """A run that early stopping ends after three epochs; interleaved shares make the batches those
    of one rank."""
    rows = Rows()
    seen = Seen()
    fields = {"epochs": 9, "batch_size": 8 // world_size, "scheduler": SCHEDULER}
    loop = Loop(
        Points(train=48, val=16),
        experiment(**fields),
        {**hooks_of(), "seen": seen},
        RunContext(world=World(rank, world_size, rank), recorder=rows, artifacts=Path(folder)),
    )
    reports = [report.metrics for report in loop.run()]
    train = [row for row in rows.rows if row["phase"] == "train"]
    columns = (
        "lr",
        "grad_norm",
        "update_norm",
        "samples_per_s",
        "world_samples_per_s",
        "rss_bytes",
        "cpu_percent",
        "loss",
    )
    values = {}
    for name in columns:
        values[name] = [float(row[name]) for row in train if name in row]
    return {
        "columns": values,
        "reports": reports,
        "seen": seen.indices,
        "rss": psutil.Process().memory_info().rss,
        "weights": numbers(loop.state.module),
        "info": {name: loop.state.info.get(name) for name in INFO},
    }


@dataclass
class Outcomes:
    """What a run on one rank and one on two have come to."""

    one: dict[str, Any]
    two: list[dict[str, Any]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = tmp_path_factory.mktemp("outcomes")
    return Outcomes(run_loop(0, 1, str(folder / "one")), on_ranks(run_loop, 2, str(folder / "two")))


def near(values: list[float]) -> Any:
    return pytest.approx(values, rel=1e-4)


def test_two_ranks_clip_schedule_and_stop_as_one_rank_does(outcomes: Outcomes) -> None:
    for found in outcomes.two:
        assert len(found["reports"]) == len(outcomes.one["reports"]) == 3
        assert found["columns"]["lr"] == outcomes.one["columns"]["lr"]
        assert found["columns"]["grad_norm"] == near(outcomes.one["columns"]["grad_norm"])
        assert len(found["columns"]["grad_norm"]) == 3 * STEPS
        assert found["weights"] == outcomes.two[0]["weights"]
    for name, values in outcomes.one["weights"].items():
        torch.testing.assert_close(
            torch.tensor(outcomes.two[0]["weights"][name]),
            torch.tensor(values),
            rtol=1e-4,
            atol=1e-6,
        )


def test_the_loss_is_each_ranks_own(outcomes: Outcomes) -> None:
    first, second = (found["columns"]["loss"] for found in outcomes.two)
    assert all(own != other for own, other in zip(first, second, strict=True))
    assert near(outcomes.one["columns"]["loss"]) == [
        (own + other) / 2 for own, other in zip(first, second, strict=True)
    ]


def test_only_the_master_measures_values_equal_on_all_ranks(outcomes: Outcomes) -> None:
    expected = outcomes.one["columns"]["update_norm"]
    assert [found["columns"]["update_norm"] for found in outcomes.two] == [near(expected), []]
    assert len(expected) == 3 * STEPS


def test_each_rank_measures_its_own_time_and_memory(outcomes: Outcomes) -> None:
    for found in outcomes.two:
        columns = found["columns"]
        reports = found["reports"]
        assert columns["world_samples_per_s"] == near(
            [2 * value for value in columns["samples_per_s"]]
        )
        assert len(columns["samples_per_s"]) == len(columns["cpu_percent"]) == 3 * STEPS // 2
        assert columns["rss_bytes"][-1] == pytest.approx(found["rss"], rel=0.1)
        assert reports[-1]["memory/peak_rss_bytes"] >= max(columns["rss_bytes"])
        assert all(report["train/samples_per_s"] > 0 for report in reports)


def test_ranks_know_the_same_facts_and_the_master_the_cost_of_the_model(outcomes: Outcomes) -> None:
    infos = [found["info"] for found in outcomes.two]
    assert infos[0]["metrics"] == infos[1]["metrics"]
    for info in infos:
        assert (info["world_size"], info["samples"]) == (2, 3 * 24)
        assert info["data"]["train"] == {"samples": 48, "batches": STEPS}
    assert [info["flops_per_sample"] for info in infos] == [2 * (5 * 8 + 8 * 3), None]


def test_statistics_of_rows_are_over_all_ranks(outcomes: Outcomes) -> None:
    for epoch in range(3):
        steps = slice(epoch * STEPS, (epoch + 1) * STEPS)
        losses: list[float] = []
        for found in outcomes.two:
            losses += found["columns"]["loss"][steps]
        for found in outcomes.two:
            for name, reference in REFERENCE.items():
                assert found["reports"][epoch][f"stats/loss/{name}"] == pytest.approx(
                    reference(losses)
                ), name
