"""Loggers in the real loop: a run that resumes within an epoch logs the same as an uninterrupted
one."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from hooks import Hook, HookError, Interval, Priority, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.logs.json_lines import FILE, JsonLines
from hooks.logs.shared.statistic import Statistic
from hooks.logs.tensorboard import FOLDER, TensorBoard
from hooks.stats.optimizer_stats import OptimizerStats
from hooks.training.sampler_seed import DistSamplerSeed
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.tasks import Points, experiment

STATISTICS = {
    "loss_epoch": Statistic("loss", "mean", "epoch"),
    "loss_run": Statistic("loss", "max", "global"),
    "loss_median": Statistic("loss", "median", 5),
}


def _hooks() -> dict[str, Hook]:
    return {
        "sampler_seed": DistSamplerSeed(),
        "optimizer_stats": OptimizerStats(every=Interval(5, "steps")),
        "checkpoint": Checkpoint(every=Interval(5, "steps"), keep=None),
        "json_lines": JsonLines(every=Interval(4, "iterations"), statistics=dict(STATISTICS)),
        "tensorboard": TensorBoard(every=Interval(4, "iterations"), statistics=dict(STATISTICS)),
    }


def _live(folder: Path, restore: str | None = None) -> None:
    store = CheckpointStore(Storage(folder / "checkpoints"))
    loop = Loop(Points(), experiment(epochs=2), _hooks(), RunContext(store=store, artifacts=folder))
    if restore:
        loop.restore(restore)
    for _ in loop.run():
        pass


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [_without_times(line) for line in (folder / FILE).read_text().splitlines()]


def _without_times(line: str) -> dict[str, Any]:
    values = json.loads(line)
    return {name: values[name] for name in values if name != "time" and not name.endswith("_s")}


def _curve(folder: Path, tag: str) -> dict[int, float]:
    events = EventAccumulator(str(folder / FOLDER), size_guidance={"scalars": 0})
    events.Reload()
    return {point.step: point.value for point in events.Scalars(tag)}


def test_lines_and_curves_continue_after_a_resume_within_an_epoch(tmp_path: Path) -> None:
    """Epochs of seven iterations, points every fourth and at an epoch's end. The first attempt was
    killed in a line; the second continues from step 5, between two points."""
    whole = tmp_path / "whole"
    resumed = tmp_path / "resumed"
    _live(whole)
    shutil.copytree(whole, resumed)
    with (resumed / FILE).open("a") as file:
        file.write('{"cut short by the ki')
    _live(resumed, restore="step-00000005")
    expected = _lines(whole)
    assert [line["iteration"] for line in expected if "loss" in line] == [4, 7, 8, 12, 14]
    assert _lines(resumed) == expected
    for tag in (
        "train/loss",
        "train/loss_epoch",
        "train/loss_run",
        "train/loss_median",
        "val/accuracy",
    ):
        assert _curve(resumed, tag) == pytest.approx(_curve(whole, tag))
    assert list(_curve(resumed, "train/loss")) == [4, 7, 8, 12, 14]


def _points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return all points of a folder that do not measure time or memory."""
    events = EventAccumulator(
        str(folder / FOLDER), size_guidance={"scalars": 0, "histograms": 0}
    ).Reload()
    points = {}
    for tag in events.Tags()["scalars"]:
        points[tag] = [(point.step, point.value) for point in events.Scalars(tag)]
    for tag in events.Tags()["histograms"]:
        points[tag] = [(drawn.step, drawn.histogram_value.sum) for drawn in events.Histograms(tag)]
    return {tag: kept for tag, kept in points.items() if not re.search("_s$|_bytes$", tag)}


@dataclass
class Kill(Hook):
    """Ends the attempt after the `number`-th event of this name."""

    event: str = ""
    number: int = 1
    priority = Priority.LOWEST

    def on_step(self, state: State) -> None:
        self._count("on_step")

    def on_phase_end(self, state: State) -> None:
        self._count(f"end of {state.phase}")

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        self._count("on_report")

    def _count(self, event: str) -> None:
        self.number -= event == self.event
        if event == self.event and self.number == 0:
            raise RuntimeError("killed")


@pytest.mark.parametrize("axis", ["step", "iteration", "epoch", "samples"])
@pytest.mark.parametrize(
    "kill", [("end of val", 1), ("on_report", 1), ("on_step", 14), ("on_step", 9), ("on_step", 4)]
)
def test_points_at_the_step_of_a_checkpoint_are_drawn_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, axis: Any, kill: tuple[str, int]
) -> None:
    """An epoch has five iterations and three steps, and its validation comes after its checkpoint,
    at the same step."""
    # TensorBoard reads files of one second by this number as text, where 10 comes before 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))

    def train(folder: Path, restore: str | None = None, **hooks: Hook) -> None:
        every = {} if axis == "epoch" else {"every": Interval(1, "iterations")}
        logger = TensorBoard(axis=axis, histograms=Interval(1, "steps"), **every)
        store = CheckpointStore(Storage(folder / "checkpoints"))
        hooks = {
            "checkpoint": Checkpoint(Interval(2, "steps"), keep=None),
            "tensorboard": logger,
            **hooks,
        }
        settings = experiment(epochs=2, accumulate=2, batch_size=12)
        loop = Loop(Points(), settings, hooks, RunContext(store=store, artifacts=folder))
        if restore:
            loop.restore(restore)
        for _ in loop.run():
            pass

    train(tmp_path / "whole")
    with pytest.raises(HookError, match="killed"):
        train(tmp_path / "killed", kill=Kill(*kill))
    newest = CheckpointStore(Storage(tmp_path / "killed" / "checkpoints")).find_latest().name
    train(tmp_path / "killed", newest)
    assert _points(tmp_path / "killed") == _points(tmp_path / "whole")


def _two_epochs(
    rank: int, world_size: int, root: str, epochs: int, restore: str | None = None
) -> None:
    hooks: dict[str, Hook] = {
        "checkpoint": Checkpoint(),
        "json_lines": JsonLines(every=Interval(2, "iterations")),
        "tensorboard": TensorBoard(
            every=Interval(2, "iterations"), axis="samples", histograms=Interval(3, "steps")
        ),
    }
    store = CheckpointStore(Storage(root), is_master=rank == 0)
    fields = {"epochs": epochs, "batch_size": 8 if world_size == 2 else 13}
    loop = Loop(
        Points(val=0),
        experiment(**fields),
        hooks,
        RunContext(
            world=World(rank, world_size, rank), store=store, artifacts=Path(root, str(world_size))
        ),
    )
    if restore:
        loop.restore(restore)
    for _ in loop.run():
        pass


def test_samples_count_all_ranks_even_if_their_number_changes(tmp_path: Path) -> None:
    """Of 52 samples each of two ranks has batches of 8, 8, 8 and 2; then one has four of 13."""
    on_ranks(_two_epochs, 2, str(tmp_path), 1)
    _two_epochs(0, 1, str(tmp_path), 2, "epoch-0001")
    for attempt, points, samples, histogram in (
        ("2", [32, 52], [32, 52], 48),
        ("1", [78, 104], [78, 104], 78),
    ):
        assert list(_curve(tmp_path / attempt, "train/loss")) == points
        assert [line["samples"] for line in _lines(tmp_path / attempt) if "loss" in line] == samples
        events = EventAccumulator(str(tmp_path / attempt / FOLDER)).Reload()
        assert [drawn.step for drawn in events.Histograms("parameters/0.bias")] == [histogram]
