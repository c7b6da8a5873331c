"""What a run reached, and the checkpoint that holds it."""

import json
import math
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from torch import Tensor
from typer.testing import CliRunner

from orchestrator import ConfigError, Run, run
from orchestrator.cli import app
from orchestrator.disk.best import Best
from orchestrator.disk.checkpoint_folder import list_checkpoints
from orchestrator.report import make_report
from tests.tasks import Points, described


def answer(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(
        described(epochs=3, hooks={"checkpoint": {"keep": 1}}),
        tmp_path_factory.mktemp("runs"),
        local=True,
    )


def test_best_is_the_best_report_and_its_checkpoint_is_kept(done: Run) -> None:
    """By the first metric of val that is no loss, which nobody had to name."""
    accuracies = done.metrics["val/accuracy"]
    assert done.best is not None
    assert (done.best.metric, done.best.mode, done.best.value) == (
        "val/accuracy",
        "max",
        accuracies.max(),
    )
    assert done.best.epoch == accuracies.idxmax() < 2
    assert done.best.checkpoint == f"epoch-000{accuracies.idxmax() + 1}"
    assert done.best.checkpoint_value == done.best.value
    assert list_checkpoints(done.folder) == [done.best.checkpoint, "epoch-0003"]


def test_best_without_a_checkpoint_names_the_one_labeled_best(tmp_path: Path) -> None:
    changes = [{"at": 1, "set": {"optimizer.lr": 10.0}}]  # worse from here on
    hooks = {"checkpoint": {"every": 2}, "early_stopping": {"monitor": "val/loss"}}
    done = run(described(epochs=3, changes=changes, hooks=hooks), tmp_path, local=True)
    losses = done.metrics["val/loss"]
    assert losses.idxmin() == 0
    best = done.best
    assert best is not None
    assert (best.metric, best.value) == ("val/loss", losses.min())
    assert best.checkpoint_value == losses[1:].min() > best.value
    assert f"without a checkpoint; the one labeled best is {best.checkpoint}, with " in str(best)


def test_report_of_a_checkpoint_is_found_by_its_iteration(tmp_path: Path) -> None:
    """After the first epoch, updates are skipped: all reports have the same step, but other running
    statistics."""
    skips = {"type": "tests.orchestrator.loop.test_loop_skipped_steps:Skips", "after": 7}
    hooks = {"skips": skips, "checkpoint": {"best": "val/loss"}}
    done = run(
        described(epochs=3, task_args={"batch_norm": True}, hooks=hooks), tmp_path, local=True
    )
    assert [*done.metrics["step"]] == [7, 7, 7]
    losses = done.metrics["val/loss"]
    assert losses.nunique() == 3
    assert losses.idxmin() > 0
    assert done.best is not None
    assert (done.best.value, done.best.checkpoint_value) == (losses.min(), losses.min())
    assert done.best.iteration == 7 * (losses.idxmin() + 1)


@dataclass
class BreaksLater(Points):
    """Has only NaN as training losses after the first epoch."""

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        loss = super().loss(output, batch)
        return (
            loss * math.nan
            if self.progress.phase == "train" and self.progress.iteration >= 7
            else loss
        )


def test_weights_of_before_a_divergence_whose_updates_were_skipped_are_offered(
    tmp_path: Path,
) -> None:
    hooks = {"nan_guard": {"action": "skip", "patience": 99}, "checkpoint": {"best": "val/loss"}}
    done = run(described(task=f"{__name__}:BreaksLater", hooks=hooks), tmp_path, local=True)
    known = json.loads(answer("show", str(done.path), "--json"))
    assert known["diverged"] == "train/loss is NaN since epoch 2"
    assert 'load("best")' in known["use"]["python"]


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("@best", "nowhere is not a run"),
        ("@nothing", "no checkpoint 'nothing'"),
        ("@last", "set epochs to more than that"),
        (
            "",
            "is a run, not an experiment file. To continue its best checkpoint as a new run: hookyard run ",
        ),
    ],
)
def test_wrong_reference_is_a_usage_error(done: Run, reference: str, told: str) -> None:
    path = str(Path(done.path).parent / "nowhere") if "nowhere" in told else done.path
    result = CliRunner().invoke(app, ["run", f"{path}{reference}"])
    assert (result.exit_code, told in result.output) == (2, True)


def stopping(metric: str, mode: str) -> dict[str, Any]:
    return {"early_stopping": {"monitor": metric, "mode": mode, "patience": 99}}


@pytest.mark.parametrize(
    ("checkpoint", "others", "metric", "mode"),
    [
        ({}, {}, "val/accuracy", "max"),
        ({}, stopping("val/loss", "max"), "val/loss", "max"),
        ({"best": "auto"}, stopping("val/accuracy", "min"), "val/accuracy", "min"),
        ({"best": "val/loss", "mode": "max"}, {}, "val/loss", "max"),
        ({"best": ["val/loss", "val/accuracy"], "mode": ["min", "min"]}, {}, "val/loss", "min"),
        (
            {"best": ["val/loss", "val/accuracy"]},
            stopping("val/accuracy", "min"),
            "val/loss",
            "min",
        ),
    ],
)
def test_hook_and_readers_agree_on_the_best(
    checkpoint: dict[str, Any], others: dict[str, Any], metric: str, mode: str, tmp_path: Path
) -> None:
    changes = [{"at": 1, "set": {"optimizer.lr": 3.0}}, {"at": 2, "set": {"optimizer.lr": 0.01}}]
    hooks = {"checkpoint": {"keep": None, **checkpoint}, **others}
    done = run(described(epochs=3, changes=changes, hooks=hooks), tmp_path, local=True)
    value = (max if mode == "max" else min)(report[metric] for report in done.reports())
    best = done.best
    assert best is not None
    assert (best.metric, best.mode, best.value, best.checkpoint_value) == (
        metric,
        mode,
        value,
        value,
    )
    assert done.checkpoint("best").name == best.checkpoint
    assert done.folder.read_metadata().best == best
    assert done.modes[metric] == mode
    assert f"Best: {best}" in done.folder.storage.read("log.txt").decode() + answer(
        "show", str(done.path)
    )
    shutil.rmtree(Path(done.path, "checkpoints"))
    Path(done.path, "checkpoints").mkdir()
    again = done.best
    assert again is not None
    assert (again.metric, again.mode, again.value, again.step) == (metric, mode, value, best.step)


def test_contradicting_modes_are_refused(tmp_path: Path) -> None:
    hooks = {"checkpoint": {"best": "val/loss", "mode": "max"}, **stopping("val/loss", "min")}
    with pytest.raises(ConfigError, match=r"is better|set the same mode|has mode"):
        run(described(epochs=1, hooks=hooks), tmp_path, local=True)


@dataclass
class Scored(Points):
    """Reaches a score in the validation after each epoch."""

    scores: list[float | None] = field(default_factory=list)
    """A null stands for NaN, which a file cannot hold."""

    def metrics(self, output: Tensor, batch: Any) -> dict[str, Tensor]:
        score: float | None = 0.0
        if self.progress.phase == "val":
            score = self.scores[self.progress.step // 7 - 1]
        return {"score": torch.full((len(output),), math.nan if score is None else score)}


def test_best_is_finite(tmp_path: Path) -> None:
    """Neither the hook, which marks the checkpoint, nor who reads the reports."""
    cases = [((math.inf, 0.5, 0.75), "max"), ((0.75, 0.5, math.nan), "min")]
    for number, (scores, mode) in enumerate(cases):
        experiment = described(
            task=f"{__name__}:Scored",
            task_args={"scores": [None if math.isnan(score) else score for score in scores]},
            epochs=3,
            hooks={"checkpoint": {"best": "val/score", "mode": mode, "keep": None}},
        )
        done = run(experiment, tmp_path, f"run-{number}", local=True)
        expected = (max if mode == "max" else min)(
            score for score in scores if math.isfinite(score)
        )
        assert done.best is not None
        assert (done.best.value, done.best.checkpoint_value) == (expected, expected)
        assert done.checkpoint("best").name == f"epoch-000{scores.index(expected) + 1}"
        assert bool(done.best.diverged) == (not math.isfinite(scores[-1]))


def test_divergence_is_shown_everywhere(tmp_path: Path) -> None:
    """Its best is marked; weights of after that are not handed over."""
    sgd = {"optimizer": {"type": "SGD", "lr": 0.1}}
    late = [{"at": "1 epochs", "set": {"optimizer.lr": 1e30}}]
    after, at_once = (
        run(described(**{"epochs": 2, **sgd, **fields}), tmp_path, name, local=True)
        for name, fields in {
            "after": {"changes": late, "hooks": {"checkpoint": {"best": "val/loss"}}},
            "at_once": {
                "optimizer": {"type": "SGD", "lr": 1e30},
                "hooks": {"checkpoint": {"best": "val/loss"}},
            },
        }.items()
    )
    epochs = {"after": 1, "at_once": 0}
    for done in (after, at_once):
        words = f"train/loss is NaN since epoch {epochs[done.name] + 1}"
        assert f"diverged: {words}\n" in answer("show", str(done.path))
        assert "It is unknown" not in answer("show", str(done.path))
        known = json.loads(answer("show", str(done.path), "--json"))
        assert known["diverged"] == words
        assert (known["use"] is None) == (done is at_once)
        assert words in answer("ls", "--storage", str(tmp_path))
    assert after.best is not None
    assert after.best.step == 7
    assert "(epoch 1, step 7; diverged: train/loss is NaN since epoch 2)" in str(after.best)
    assert str(after.best) in make_report(after.folder)
    assert at_once.best is None
    listed = {
        row["name"]: row["diverged"]
        for row in json.loads(answer("ls", "--storage", str(tmp_path), "--json"))
    }
    assert listed == {
        name: f"train/loss is NaN since epoch {epoch + 1}" for name, epoch in epochs.items()
    }


class _Distance(torchmetrics.MeanMetric):
    """A meter of which lower values are better, as its name does not tell."""

    higher_is_better = False

    def update(self, output: Tensor, target: Tensor) -> None:  # type: ignore[override]
        super().update(torch.nn.functional.cross_entropy(output, target))


class Distant(Points):
    """Points with nothing but a meter beside the loss."""

    def metrics(self, output: Tensor, batch: Any) -> dict[str, Tensor]:
        return {}

    def meters(self) -> dict[str, Any]:
        return {"gap": _Distance()}


def test_best_follows_the_direction_of_the_meter(tmp_path: Path) -> None:
    done = run(described(task=f"{__name__}:Distant", epochs=3), tmp_path, local=True)
    gaps = done.metrics["val/gap"]
    assert done.best is not None
    assert (done.best.metric, done.best.mode, done.best.value) == ("val/gap", "min", gaps.min())
    assert done.best.checkpoint == f"epoch-000{gaps.idxmin() + 1}"
    assert done.modes["val/gap"] == "min"


def test_checkpoint_of_another_report_with_the_same_value_is_not_that_of_the_best() -> None:
    best = Best("val/accuracy", "max", 1.0, 2, 30, 30, "epoch-0007", 1.0, checkpoint_iteration=70)
    assert str(best) == (
        "val/accuracy 1 (epoch 3, step 30), without a checkpoint;"
        " the one labeled best is epoch-0007, with 1"
    )
    assert str(replace(best, checkpoint_iteration=30)) == (
        "val/accuracy 1 (epoch 3, step 30), in the checkpoint epoch-0007"
    )
