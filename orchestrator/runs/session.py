"""A session: one attempt at a run in one worker process, wherever that process runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hooks.state import Display, State
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.components import build_hooks, build_task
from orchestrator.config.imports import extend_import_path
from orchestrator.config.load import experiment_from_dict
from orchestrator.errors import UsageError
from orchestrator.loop.loop import Loop, Report
from orchestrator.loop.world import World
from orchestrator.runs.folder import Attempt, RunFolder, now
from orchestrator.stats.recorder import Recorder, Sink


@dataclass(frozen=True)
class Assignment:
    """What a worker is told: plain data that travels to any process."""

    experiment: dict[str, Any]
    """The resolved experiment."""
    import_paths: tuple[str, ...]
    location: str
    """The run's folder."""
    collector: str | None = None
    """The name of the run's collector actor."""


def reports(
    assignment: Assignment,
    world: World,
    *,
    sink: Sink | None = None,
    display: Display | None = None,
    stop_asked: Callable[[], bool] = lambda: False,
) -> Iterator[Report]:
    """Trains, from the newest whole checkpoint if there is one; yields each report after writing it down.

    Runs in every worker process: in a Ray Train worker, in a trial's gang, or in the driver's own process.
    """
    extend_import_path(assignment.import_paths)
    experiment = experiment_from_dict(assignment.experiment, assignment.import_paths)
    folder = RunFolder(assignment.location)
    task = build_task(experiment)
    hooks = build_hooks(experiment, task)
    out_dir = getattr(hooks.get("checkpoint"), "out_dir", None)
    store = CheckpointStore(folder.checkpoints(out_dir), folder.name, world.is_master)
    attempt = _begin(folder, store, world)
    identity = {"rank": world.rank, "node": world.node, "attempt": attempt.number}
    recorder = Recorder(folder.storage, folder.rank_folder(attempt.number, world.rank), identity, sink)
    artifacts = folder.storage.local or Path(tempfile.mkdtemp(prefix="hookyard-"))
    artifacts.mkdir(parents=True, exist_ok=True)
    loop = Loop(
        task,
        experiment,
        hooks,
        world=world,
        recorder=recorder,
        store=store,
        artifacts=artifacts,
        display=display,
        config=assignment.experiment,
        name=folder.name,
        stop_asked=stop_asked,
    )
    if attempt.checkpoint:
        loop.restore(attempt.checkpoint)
    training = loop.run()
    try:
        for report in training:
            if world.is_master and not report.cut_short:
                folder.append_metrics({"attempt": attempt.number, "time": now(), **report.metrics})
            _hand_over(loop.state, folder)
            yield report
    finally:
        training.close()
        _hand_over(loop.state, folder)


def _begin(folder: RunFolder, store: CheckpointStore, world: World) -> Attempt:
    def begin() -> Attempt:
        store.recover()
        checkpoint = store.latest()
        if checkpoint and not folder.attempts():
            raise UsageError(f"{store.path(checkpoint)} is of an earlier run; move it away, or give another out_dir or name")
        position = store.position(checkpoint) if checkpoint else None
        return folder.begin_attempt(checkpoint, position, {"hosts": hosts, "world_size": world.world_size})

    hosts = world.gather({"rank": world.rank, "node": world.node, "device": str(world.device), "torch": torch.__version__})
    attempt: Attempt = world.broadcast(begin)
    return attempt


def _hand_over(state: State, folder: RunFolder) -> None:
    """Keeps what is known of the run, and takes what hooks wrote locally to its storage, where that lies elsewhere."""
    if state.is_master:
        folder.write_info(state.info)
    if folder.storage.local is None and any(state.artifacts.iterdir()):
        folder.storage.upload(state.artifacts)
