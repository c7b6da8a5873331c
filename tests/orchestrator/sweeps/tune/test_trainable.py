"""A trial on Ray Train jobs without Ray: the rank is a thread, the queue an event loop, and `fit` a call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.config.sections.experiment import Experiment
from orchestrator.engines import train_engine as train
from orchestrator.engines.session import Assignment
from orchestrator.errors import RunError
from orchestrator.loop.world import World
from orchestrator.records.sweep_folder import trial_folder
from orchestrator.runs.result import Run
from orchestrator.sweeps.tune.schedulers import tune_config
from orchestrator.sweeps.tune.trainable import Trial
from tests.tasks import described

HELD = "5a" * 18
"""The placement group of a job, as Ray names it."""


class Actor:
    """Stands for an actor's handle: the methods run concurrently in an event loop."""

    def __init__(self, actor: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._actor, self._loop = actor, loop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._actor, name)
        return SimpleNamespace(
            remote=lambda *arguments: asyncio.run_coroutine_threadsafe(method(*arguments), self._loop)
        )


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Replace Ray in the engine, and collect the removed placement groups."""
    loop, groups = asyncio.new_event_loop(), []
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stand_in = SimpleNamespace(
        remote=lambda cls: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: Actor(cls(), loop))),
        get=lambda asked: asked.result(timeout=30),
        PlacementGroupID=SimpleNamespace(from_hex=lambda text: text),
        train=SimpleNamespace(report=lambda metrics: None),
    )
    monkeypatch.setattr(train, "ray", stand_in)
    monkeypatch.setattr(train, "fit", fitted)
    monkeypatch.setattr(train, "current_world", World)
    monkeypatch.setattr(train, "get_current_placement_group", lambda: SimpleNamespace(id=bytes.fromhex(HELD)))
    monkeypatch.setattr(train, "PlacementGroup", lambda group: group)
    monkeypatch.setattr(train, "remove_placement_group", groups.append)
    yield groups
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def fitted(worker: Callable[[Assignment], None], assignment: Assignment, experiment: Experiment, *, lean: bool) -> None:
    """One worker, never replaced."""
    try:
        worker(assignment)
    except Exception as error:
        raise RunError(str(error)) from error


def begun(location: Path, number: int = 0, metric: str = "val/accuracy", **values: Any) -> Trial:
    """A trial as Tune makes one, in this process."""
    settings = {"engine": "train", "metric": metric, "space": {"optimizer.lr": {"choice": [0.1]}}}
    sweep = described(epochs=3, hooks={"checkpoint": {"every": 1}}, sweep=settings)
    trial = object.__new__(Trial)
    trial._iteration = trial._time_total = 0
    trial.setup(tune_config(number, values), sweep.source, sweep.sweep, sweep.workers, str(location))
    return trial


def test_a_step_trains_up_to_the_next_report_and_no_further(tmp_path: Path, freed: list[str]) -> None:
    trial, run = begun(tmp_path), Run(trial_folder(str(tmp_path), 0))
    for epoch in range(3):
        answer = trial.step()
        assert answer["epoch"] == epoch
        assert len(run.folder.reports()) == epoch + 1
        assert answer["done"] is (epoch == 2)
    assert run.status == "finished"
    # 52 samples in batches of 8 are 7 iterations, 23 of val are 3.
    assert len(run.stats) == 3 * (7 + 3)
    assert freed == [HELD]


def test_stopped_trial_keeps_its_files_and_the_next_begins(tmp_path: Path, freed: list[str]) -> None:
    trial, run = begun(tmp_path), Run(trial_folder(str(tmp_path), 0))
    trial.step()
    assert trial.reset_config(tune_config(1, {"optimizer.lr": 0.5}))
    assert len(run.folder.reports()) == 1
    assert len(run.stats) == 7 + 3
    assert Path(run.checkpoint("last")).name == "epoch-0001"
    assert trial.step()["epoch"] == 0
    trial.cleanup()
    assert Run(trial_folder(str(tmp_path), 1)).config["optimizer"]["lr"] == 0.5


def test_a_trial_lost_after_its_last_report_only_ends(tmp_path: Path, freed: list[str]) -> None:
    lost = begun(tmp_path)
    for _ in range(3):
        last = lost.step()
    folder = trial_folder(str(tmp_path), 0)
    assert freed == [HELD]
    folder.update(status="running")
    answer = begun(tmp_path).step()
    assert (answer["done"], answer["val/accuracy"]) == (True, last["val/accuracy"])
    assert Run(folder).status == "finished"
    assert len(Run(folder).reports()) == 3


def test_failed_job_fails_its_trial(tmp_path: Path, freed: list[str]) -> None:
    trial = begun(tmp_path, **{"task_args.fails": True})
    with pytest.raises(RunError, match=r"rank 0: .*this loss fails on purpose"):
        trial.step()
    metadata = trial_folder(str(tmp_path), 0).metadata()
    assert metadata.status == "failed"
    assert metadata.mistake is True
    assert "this loss fails on purpose" in metadata.error


def test_a_trial_that_never_reports_the_metric_leaves_no_job_behind(tmp_path: Path, freed: list[str]) -> None:
    with pytest.raises(RunError, match=r"no report of a trial has the sweep's metric 'val/top'.*val/accuracy"):
        begun(tmp_path, metric="val/top").step()
    folder = trial_folder(str(tmp_path), 0)
    assert (folder.metadata().status, folder.metadata().metric_missing) == ("failed", True)
    assert len(Run(folder).stats) == 7 + 3
    assert freed == [HELD]


def test_the_placement_group_of_a_killed_trial_is_removed(tmp_path: Path, freed: list[str]) -> None:
    killed = begun(tmp_path)
    killed.step()
    folder = trial_folder(str(tmp_path), 0)
    # The first trial is not ended, as when its process is killed.
    again = begun(tmp_path)
    again.step()
    assert freed == [HELD]
    again.cleanup()
    assert freed == [HELD, HELD]
    assert [name for name in folder.storage.names() if name.startswith(".")] == []
    killed.cleanup()
