"""From where runs that share a training continue, and checkpoints that are not theirs."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.session import Session
from orchestrator.errors import UsageError
from orchestrator.experiment.load import to_yaml
from orchestrator.experiment.yaml.source import ParentCheckpoint
from orchestrator.loop.sharing.failed_run import find_failed_run
from orchestrator.loop.world import World
from tests.tasks import described


def begin_runs(root: Path, out_dir: Path) -> list[Assignment]:
    """Create two runs whose checkpoints are outside their folders."""
    created = []
    for number, decay in enumerate((0.5, 0.9)):
        hooks = {"ema": {"decay": decay}, "checkpoint": {"out_dir": str(out_dir)}}
        experiment = described(hooks=hooks)
        folder = create_run(root, f"trial-{number}", to_yaml(experiment))
        created.append(Assignment(experiment.source, str(folder)))
    return created


def train(assignments: Sequence[Assignment]) -> None:
    leader, *followers = assignments
    list(Session(replace(leader, followers=tuple(followers)), World()).reports())


def list_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


LEFT_BEHIND = [
    ([[], [1, 2]], 1),  # nothing in common
    ([[1], [1, 2]], 0),  # different newest ones, and one in common
    ([[1, 2], [1, 2]], 0),
]
"""The epochs of the checkpoints of each run that an earlier sweep has left behind, and the first
run that has any."""


@pytest.mark.parametrize(("epochs", "index"), LEFT_BEHIND)
def test_checkpoints_of_an_earlier_sweep_are_neither_deleted_nor_continued_from(
    tmp_path: Path, epochs: Sequence[Sequence[int]], index: int
) -> None:
    kept = tmp_path / "kept"
    train(begin_runs(tmp_path / "earlier", kept))
    for number, own in enumerate(epochs):
        for epoch in {1, 2} - {*own}:
            shutil.rmtree(kept / f"trial-{number}" / f"epoch-000{epoch}")
    before = list_files(kept)

    assignments = begin_runs(tmp_path / "later", kept)
    with pytest.raises(
        UsageError, match=rf"trial-{index}/epoch.* belongs to an earlier run"
    ) as caught:
        train(assignments)
    assert find_failed_run(caught.value) == index
    assert list_files(kept) == before
    for assignment in assignments:
        assert RunFolder(assignment.location).read_attempts() == []


@pytest.mark.parametrize("is_continued", [False, True])
@pytest.mark.parametrize("kept_epoch", [1, 2])
def test_run_that_begins_at_a_given_checkpoint_keeps_those_of_an_earlier_run(
    tmp_path: Path, is_continued: bool, kept_epoch: int
) -> None:
    """Whether it is that of another trial, or a copy of that of its parent run; also if the earlier
    run's has the name of the given one."""
    kept = tmp_path / "kept"
    train(begin_runs(tmp_path / "earlier", kept))
    shutil.rmtree(kept / f"trial-0/epoch-000{3 - kept_epoch}")
    before = list_files(kept)

    assignment = begin_runs(tmp_path / "later", kept)[0]
    given = str(kept / "trial-1/epoch-0001")
    if is_continued:
        parent = ParentCheckpoint(str(tmp_path / "earlier/trial-1"), "epoch-0001", "", 1, 7)
        assignment = replace(assignment, source=replace(assignment.source, continued_from=parent))
    else:
        assignment = replace(assignment, checkpoint=given)
    with pytest.raises(UsageError, match=rf"trial-0/epoch-000{kept_epoch} belongs to"):
        train([assignment])
    assert list_files(kept) == before
