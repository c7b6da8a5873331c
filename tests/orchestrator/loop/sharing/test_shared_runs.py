"""Runs that share a training, against the same runs alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hooks import Hook, HookError, State
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.session import Session
from orchestrator.experiment.load import to_yaml
from orchestrator.loop.sharing.failed_run import find_failed_run
from orchestrator.loop.world import World
from orchestrator.runs.result import Run
from tests.orchestrator.sweeps.test_shared_training import reports, stored
from tests.tasks import described

DECAYS = (0.5, 0.9)


def experiments(hooks: dict[str, Any], **fields: Any) -> list[Any]:
    """Return one experiment for each decay of an average, with dropout, BatchNorm and noisy
    samples."""
    task_args = {"dropout": 0.2, "batch_norm": True, "noisy": True}
    return [
        described(
            hooks={"ema": {"decay": decay, "evaluate": "both"}, **hooks},
            task_args=task_args,
            **fields,
        )
        for decay in DECAYS
    ]


def new_runs(folder: Path, members: Sequence[Any]) -> list[Assignment]:
    return [
        Assignment(member.source, str(create_run(folder, f"trial-{number}", to_yaml(member))))
        for number, member in enumerate(members)
    ]


def train_together(assignments: Sequence[Assignment]) -> list[Run]:
    leader, *followers = assignments
    session = Session(replace(leader, followers=tuple(followers)), World(), end_hung=None)
    for _ in session.reports():
        pass
    return [Run(RunFolder(assignment.location)) for assignment in assignments]


def train_alone(assignments: Sequence[Assignment]) -> list[Run]:
    for assignment in assignments:
        for _ in Session(assignment, World(), end_hung=None).reports():
            pass
    return [Run(RunFolder(assignment.location)) for assignment in assignments]


def checkpoints(run: Run) -> list[str]:
    return sorted(path.name for path in Path(run.path, "checkpoints").glob("*-*") if path.is_dir())


def assert_equal(shared: Sequence[Run], alone: Sequence[Run]) -> None:
    """Check that the reports and all checkpoints of runs are equal."""
    for run, expected in zip(shared, alone, strict=True):
        assert reports(run) == reports(expected)
        assert checkpoints(run) == checkpoints(expected)
        for name in checkpoints(run):
            assert stored(run, name) == stored(expected, name), name


@dataclass
class Requests(Hook):
    """A hook of the training that requests the end of the run or a checkpoint in the middle of an
    epoch, or fails there."""

    stop_after: int = 0
    save_after: int = 0
    fail_after: int = 0

    def on_step(self, state: State) -> None:
        if state.phase == "train" and state.step == self.fail_after:
            raise ValueError
        if state.phase == "train" and state.step == self.stop_after:
            state.request_stop("requested")
        if state.phase == "train" and state.step == self.save_after:
            state.request_checkpoint("requested")


@pytest.mark.parametrize(
    "request_", [{"stop_after": 5}, {"save_after": 3}], ids=["stop", "checkpoint"]
)
def test_request_of_a_training_hook_reaches_all_runs(
    request_: dict[str, int], tmp_path: Path
) -> None:
    hooks = {
        "requests": {"type": f"{__name__}:Requests", **request_},
        "checkpoint": {"every": "9 epochs", "save_last": False, "keep": None},
    }
    members = experiments(hooks)
    alone = train_alone(new_runs(tmp_path / "alone", members))
    assert (len(reports(alone[1])), checkpoints(alone[1])) in [
        (1, ["step-00000005"]),
        (2, ["step-00000003"]),
    ]
    assert_equal(train_together(new_runs(tmp_path / "shared", members)), alone)


@dataclass
class StopsInReport(Hook):
    """A hook of one run that requests its end in a report."""

    observes: ClassVar[bool] = True
    epoch: int = 0

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        if state.epoch == self.epoch:
            state.request_stop("requested")


def test_a_run_that_stops_in_a_report_leaves_the_others_to_train(tmp_path: Path) -> None:
    members = [
        *experiments({"stops": {"type": f"{__name__}:StopsInReport", "epoch": 2}}, epochs=3)[:1],
        *experiments({"stops": {"type": f"{__name__}:StopsInReport"}}, epochs=3)[1:],
    ]
    alone = train_alone(new_runs(tmp_path / "alone", members))
    assert [report["step"] for report in reports(alone[0])] == [7, 14, 14]
    assert [report["step"] for report in reports(alone[1])] == [7, 14, 21]
    assert_equal(train_together(new_runs(tmp_path / "shared", members)), alone)


def test_schedule_free_optimizer_trains_and_saves_each_run_as_alone(tmp_path: Path) -> None:
    """Each run's checkpoints within an epoch have the weights of the optimizer's evaluation
    mode."""
    optimizer = {"type": "tests.orchestrator.loop.step.test_optimizer_modes:Coarse", "lr": 0.5}
    members = experiments({"checkpoint": {"every": "3 steps", "keep": None}}, optimizer=optimizer)
    alone = train_alone(new_runs(tmp_path / "alone", members))
    assert_equal(train_together(new_runs(tmp_path / "shared", members)), alone)


@dataclass
class CountsStoredRows(Hook):
    """Counts its run's rows on disk whenever a checkpoint is stored."""

    folder: str = ""
    counts: ClassVar[list[tuple[int, int]]] = []
    observes: ClassVar[bool] = True

    def on_saved(self, state: State, path: str) -> None:
        phases = Run(RunFolder(self.folder)).load_stats(["phase"])["phase"]
        self.counts.append((state.iteration, int((phases == "train").sum())))


def test_checkpoint_of_a_run_follows_the_rows_of_its_training(tmp_path: Path) -> None:
    """The first run ends after one epoch. Its rows are those of the training."""
    stopping = {"monitor": "val/accuracy", "mode": "max", "stopping_threshold": 0}
    counting = {"type": f"{__name__}:CountsStoredRows", "folder": f"{tmp_path}/trial-1"}
    first, _ = experiments({"early_stopping": stopping, "checkpoint": {"every": 0}}, epochs=3)
    _, second = experiments({"counts": counting, "checkpoint": {"every": "2 steps"}}, epochs=3)
    CountsStoredRows.counts.clear()
    leader, _ = train_together(new_runs(tmp_path, [first, second]))
    assert len(reports(leader)) == 1
    assert CountsStoredRows.counts[-1][0] == 21
    assert all(iteration == rows for iteration, rows in CountsStoredRows.counts), (
        CountsStoredRows.counts
    )


def test_failure_of_the_training_is_that_of_the_first_run_that_still_trains(
    tmp_path: Path,
) -> None:
    stopping = {"monitor": "val/accuracy", "mode": "max", "stopping_threshold": 0}
    failing = {"type": f"{__name__}:Requests", "fail_after": 12}
    hooks = {"requests": failing, "checkpoint": {"every": 0}}
    first, _ = experiments({**hooks, "early_stopping": stopping}, epochs=3)
    _, second = experiments(hooks, epochs=3)
    assignments = new_runs(tmp_path, [first, second])
    with pytest.raises(HookError, match="requests") as caught:
        train_together(assignments)
    assert len(reports(Run(RunFolder(assignments[0].location)))) == 1
    assert find_failed_run(caught.value) == 1


FIELDS = {"accumulate": 2, "validate_every": "2 steps"}
HOOKS = {"checkpoint": {"every": "3 steps", "keep": None, "best": "val/loss"}}


@pytest.mark.parametrize("epochs", [2, 3])
def test_runs_resume_from_checkpoints_as_alone(epochs: int, tmp_path: Path) -> None:
    """With three epochs the schedule of the learning rate is another, and moves to the checkpoint's
    place."""
    schedule = {"scheduler": {"type": "CosineAnnealingLR"}, "epochs": epochs}
    begun = train_alone(
        new_runs(tmp_path / "begun", experiments(HOOKS, **{**FIELDS, **schedule, "epochs": 2}))
    )
    for name in checkpoints(begun[0])[epochs - 2 :: 4]:
        shared, alone = (
            [
                replace(assignment, checkpoint=f"{run.path}/checkpoints/{name}")
                for assignment, run in zip(
                    new_runs(tmp_path / name / kind, experiments(HOOKS, **FIELDS, **schedule)),
                    begun,
                    strict=True,
                )
            ]
            for kind in ("shared", "alone")
        )
        assert_equal(train_together(shared), train_alone(alone))
