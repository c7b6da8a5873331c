"""An error of one of the runs that share a training is that run's, wherever it is raised."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import sweep
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines import run_attempt
from orchestrator.engines.assigned_run import AssignedRun
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.attempt_recorder import AttemptRecorder
from orchestrator.engines.run_attempt import RunAttempt
from orchestrator.engines.session import Session
from orchestrator.errors import UsageError
from orchestrator.experiment.load import to_yaml
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.sharing.failed_run import find_failed_run
from orchestrator.loop.world import World
from tests.tasks import described


def assign_three(root: Path) -> Assignment:
    assignments = []
    for number, decay in enumerate((0.5, 0.7, 0.9)):
        experiment = described(hooks={"ema": {"decay": decay}, "checkpoint": {}})
        folder = create_run(root, f"trial-{number}", to_yaml(experiment))
        assignments.append(Assignment(experiment.source, str(folder)))
    leader, *followers = assignments
    return replace(leader, followers=tuple(followers))


def name_of_folder(owner: Any) -> str:
    return str(getattr(owner, "folder", None) or owner._folder).rpartition("/")[-1]


def name_of_store(store: CheckpointStore) -> str:
    return store.run_name


def name_of_context(context: RunContext) -> str:
    return context.store.run_name if context.store else ""


CALLS = [
    (AssignedRun, "prepare_checkpoints", name_of_folder),
    (CheckpointStore, "find_latest", name_of_store),
    (AssignedRun, "begin", name_of_folder),
    (run_attempt, "open_artifacts", lambda storage: storage.name),
    (RunAttempt, "make_context", lambda attempt: attempt.assigned.folder.name),
    (RunContext, "make_state_fields", name_of_context),
    (AttemptRecorder, "record_training", name_of_folder),
    (AttemptRecorder, "record_samples", name_of_folder),
    (AttemptRecorder, "read_repeated_reports", name_of_folder),
    (AttemptRecorder, "record_end", name_of_folder),
    (AttemptRecorder, "write_report", name_of_folder),
]
"""What is called for each run, and how its first argument names the run."""


@pytest.mark.parametrize(("owner", "name", "name_of"), CALLS)
def test_error_of_one_run_is_marked_as_its_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    name_of: Callable[[Any], str],
) -> None:
    original = getattr(owner, name)

    def refuse_the_last(first: Any, *arguments: Any, **options: Any) -> Any:
        if name_of(first) == "trial-2":
            raise UsageError("not this one")
        return original(first, *arguments, **options)

    monkeypatch.setattr(owner, name, refuse_the_last)
    with pytest.raises(UsageError, match="not this one") as caught:
        list(Session(assign_three(tmp_path), World()).reports())
    assert find_failed_run(caught.value) == 2


def test_error_of_the_last_files_is_marked_as_that_of_their_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files = AttemptRecorder.write_files

    def refuse_one(recorder: AttemptRecorder) -> None:
        if is_over and name_of_folder(recorder) == "trial-1":
            raise UsageError("not this one")
        write_files(recorder)

    is_over = False
    monkeypatch.setattr(AttemptRecorder, "write_files", refuse_one)
    reports = Session(assign_three(tmp_path), World()).reports()
    next(reports)
    is_over = True
    with pytest.raises(UsageError, match="not this one") as caught:
        reports.close()
    assert find_failed_run(caught.value) == 1


def test_error_at_the_begin_of_an_attempt_fails_only_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_attempt = RunFolder.begin_attempt

    def refuse_the_last(folder: RunFolder, *arguments: Any) -> Any:
        if folder.name == "trial-0002":
            raise UsageError("not this one")
        return begin_attempt(folder, *arguments)

    monkeypatch.setattr(RunFolder, "begin_attempt", refuse_the_last)
    settings = {
        "metric": "val/loss",
        "search": "grid",
        "space": {"hooks.ema.decay": {"grid": [0.5, 0.7, 0.9]}},
    }
    experiment = described(epochs=1, hooks={"ema": {}}, sweep=settings)
    done = sweep(experiment, tmp_path, local=True)
    assert done.trials["status"].tolist() == ["finished", "finished", "failed"]
