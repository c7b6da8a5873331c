"""Several sets of val and of test: each is gone through and reported by its name."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from hooks import Hook, State
from hooks.stats.perf_stats import PerfStats
from orchestrator import ConfigError, RunError, resume, run
from orchestrator.errors import TaskError
from orchestrator.experiment.resolve import resolve
from orchestrator.loop.loop import Loop
from tests.tasks import Points, PointSet, described, experiment

TASK = "tests.orchestrator.loop.test_several_sets:Sets"
SIZES = {"test/far": 6, "val/noisy": 31, "train": 52, "val": 23, "val/few": 9}


@dataclass
class Sets(Points):
    """Has sets of val and test, whose plain one may be missing."""

    plain: bool = True

    def data(self) -> Mapping[str, Any]:
        return {
            phase: PointSet(size, noisy=False, seed=size)
            for phase, size in SIZES.items()
            if self.plain or phase != "val"
        }


@dataclass
class FailsOnce(Hook):
    """Ends the run at an iteration of a set of val, after so many steps, in its first attempt."""

    marker: str = ""

    def on_step(self, state: State) -> None:
        if (state.phase, state.step, state.phase_iteration) == ("val/few", 12, 1) and not Path(
            self.marker
        ).exists():
            Path(self.marker).touch()
            raise ZeroDivisionError("broken on purpose")


HOOKS = {
    "ema": {"decay": 0.9, "evaluate": "both"},
    "checkpoint": {
        "every": "2 steps",
        "keep": None,
        "best": ["val/noisy/ema/accuracy", "val/few/loss"],
    },
    "early_stopping": {"monitor": "val/few/ema/loss", "patience": 100},
}


def test_each_dataset_is_evaluated_and_reported_by_its_name(tmp_path: Path) -> None:
    """Several validations an epoch; the second attempt begins where the first was killed within one
    of them."""
    fails = {"fails": {"type": f"{__name__}:FailsOnce", "marker": str(tmp_path / "marker")}}
    one = described(task=TASK, validate_every="3 steps", hooks={**HOOKS, **fails})
    (tmp_path / "marker").touch()
    whole = run(one, tmp_path, "whole", local=True)
    (tmp_path / "marker").unlink()
    with pytest.raises(RunError, match="broken on purpose"):
        run(one, tmp_path, "broken", local=True)
    done = resume(tmp_path / "broken")

    assert [report["step"] for report in done.reports() if "val/few/loss" in report] == [
        3,
        6,
        9,
        12,
        14,
    ]
    keys, names = (
        ["rank", "phase", "epoch", "iteration"],
        [name for name in done.metrics if "/" in name and not name.endswith(("_s", "_bytes"))],
    )
    assert done.metrics[["step", *names]].equals(whole.metrics[["step", *names]])
    rows = done.stats
    assert not rows.duplicated(keys).any()
    assert rows[keys].astype(str).equals(whole.stats[keys].astype(str))
    assert list(rows["phase"].unique()) == ["train", "val", "val/few", "val/noisy", "test/far"]
    few = rows[(rows["phase"] == "val/few") & (rows["epoch"] == 1)]
    assert list(zip(few["iteration"], few["batch_size"], strict=True)) == [
        (1 + place, 1 if place % 2 else 8) for place in range(12)
    ]

    raw = Points().model()
    raw.load_state_dict(
        torch.load(Path(str(done.checkpoint("last"))) / "model.pt", weights_only=True)
    )
    for name, size in {"val": 23, "val/noisy": 31, "val/few": 9, "test/far": 6}.items():
        points = PointSet(size, noisy=False, seed=size)
        reported = next(one for one in reversed(done.reports()) if f"{name}/loss" in one)
        with torch.no_grad():
            assert reported[f"{name}/loss"] == pytest.approx(
                functional.cross_entropy(raw(points.points), points.labels).item(), rel=1e-5
            )

    best = max(
        done.reports(), key=lambda one: (one.get("val/noisy/ema/accuracy", -1.0), -one["step"])
    )
    assert (done.best and (done.best.metric, done.best.value, done.best.step)) == (
        "val/noisy/ema/accuracy",
        best["val/noisy/ema/accuracy"],
        best["step"],
    )
    points = PointSet(31, noisy=False, seed=31)
    with torch.no_grad():
        loss = functional.cross_entropy(done.load("best")(points.points), points.labels).item()
    assert loss == pytest.approx(best["val/noisy/ema/loss"], rel=1e-5) != best["val/noisy/loss"]
    assert done.summary("phase").index.tolist() == [
        "train",
        "val",
        "val/few",
        "val/noisy",
        "test/far",
    ]


@dataclass
class Other(Points):
    """Gives a phase of any name, and may have a meter of several values."""

    phase: str = "val"
    meter: str = ""

    def data(self) -> Mapping[str, Any]:
        return {**super().data(), self.phase: PointSet(8, noisy=False, seed=1)}

    def meters(self) -> Mapping[str, Any]:
        return {self.meter: Answer()} if self.meter else {}


class Answer(nn.Module):
    """A meter that gives a mapping."""

    def update(self, output: Any, target: Any) -> None: ...

    def compute(self) -> dict[str, float]:
        return {"loss": 42.0}


@pytest.mark.parametrize(
    "phase", ["valid", "vall/x", "train/x", "val/", "val/a b", "val/a/b", "val/.x", "/val", 3]
)
def test_invalid_phase_name_is_refused(phase: Any) -> None:
    with pytest.raises(ConfigError, match=f"data\\(\\) returns a phase '{phase}'"):
        Loop(Other(phase=phase), experiment(), {})


def test_two_metrics_of_one_name_are_refused() -> None:
    config = described(
        task=f"{__name__}:Other",
        task_args={"phase": "val/ema"},
        hooks={"ema": {"evaluate": "both"}},
    )
    loop = Loop(Other(phase="val/ema"), config, resolve(config.source).hooks)
    with pytest.raises(
        TaskError, match="data\\(\\) has a phase 'val/ema', which is the name of the hook 'ema'"
    ):
        next(loop.run())
    with pytest.raises(TaskError, match="val/few/loss would be metrics of two phases; rename one"):
        next(Loop(Other(phase="val/few", meter="few"), experiment(), {}).run())


@dataclass
class Timed(Points):
    """Returns a metric with the name of a hook's."""

    def metrics(self, output: Any, batch: Any) -> dict[str, Any]:
        return {"iteration_s": torch.ones(len(batch[1]))}


def test_metric_with_the_name_of_a_hook_s_is_refused() -> None:
    loop = Loop(Timed(), experiment(), {"perf_stats": PerfStats()})
    told = "train/iteration_s would be a metric of the task and of the hook 'perf_stats'"
    with pytest.raises(TaskError, match=told):
        next(loop.run())
