"""An attempt of a run on its ranks: where it continues, and what the run's folder records of it."""

import logging
import sys
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from hooks.loop_services import Display
from orchestrator.disk.attempts import Attempt, DataOrder, Host
from orchestrator.disk.checkpoints.files import name_rank_file
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.hang import FOLDER as HANG_REPORTS
from orchestrator.disk.process import is_pid_alive
from orchestrator.disk.repeated_reports import (
    RepeatedReports,
    compute_fingerprints,
    find_repeated_reports,
)
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.ray_data import may_use_ray_data
from orchestrator.errors import UsageError
from orchestrator.experiment.load import to_dict
from orchestrator.loop.hooked_run import HookedRun
from orchestrator.loop.training_run import TrainingRun
from orchestrator.loop.world import World
from orchestrator.user_code import MAIN

_ORDER_KEYS = ("seed", "batch_size", "loader", "task", "task_args")
"""Keys of an experiment that decide the order of its samples."""

_log = logging.getLogger("hookyard")


def begin_attempt(
    assignment: Assignment, store: CheckpointStore, world: World, display: Display | None
) -> Attempt:
    """Begin an attempt at the assignment's checkpoint or the newest one; collective."""
    host = Host(
        world.rank,
        world.node,
        world.local_rank,
        str(world.device),
        torch.__version__,
        torch.get_num_threads(),
    )
    hosts = world.gather(host)
    checkpoint = None
    if assignment.target is None:
        checkpoint = _choose_checkpoint(assignment, store, world, display)
    attempt: Attempt = world.broadcast(
        partial(_record_start, assignment, store, checkpoint, hosts, display)
    )
    return attempt


def _choose_checkpoint(
    assignment: Assignment, store: CheckpointStore, world: World, display: Display | None
) -> str | None:
    """Return the checkpoint to continue from, after removing what a killed process left behind."""

    def show_skipped(reason: str) -> None:
        if display is not None:
            display.line(f"left out: {reason}")
        elif world.is_master:
            _log.warning("left out: %s", reason)

    world.broadcast(partial(_recover, store))
    if assignment.checkpoint is None:
        return store.find_latest(show_skipped, world)
    checkpoint: str = world.broadcast(partial(store.reset_to, assignment.checkpoint))
    return checkpoint


def _recover(store: CheckpointStore) -> None:
    store.recover()
    # An `out_dir` is outside the folder that the driver cleans.
    store.storage.delete_leftovers(is_pid_alive)


def _record_start(
    assignment: Assignment,
    store: CheckpointStore,
    checkpoint: str | None,
    hosts: Sequence[Host],
    display: Display | None,
) -> Attempt:
    """Record the start of an attempt, and show where it continues. Called on rank 0."""
    folder = RunFolder(assignment.location)
    folder.storage.delete(HANG_REPORTS)
    is_assigned = assignment.checkpoint or assignment.source.continued_from
    if checkpoint and not is_assigned and not folder.read_attempts():
        raise UsageError(
            f"{store.get_path(checkpoint)} belongs to an earlier run; move it away, or choose"
            " another out_dir or name"
        )
    position = store.read_position(checkpoint) if checkpoint else None
    attempt = folder.begin_attempt(checkpoint, position, hosts, len(hosts))
    if display is not None and attempt.number:
        display.line(_describe_resume(checkpoint, hosts))
    return attempt


def _describe_resume(checkpoint: str | None, hosts: Sequence[Host]) -> str:
    start = "Started from scratch (no checkpoint)"
    if checkpoint:
        start = f"Resumed from {checkpoint}"
    plural = "s" if len(hosts) > 1 else ""
    nodes = ", ".join(dict.fromkeys(host.node for host in hosts))
    return f"{start} with {len(hosts)} rank{plural} on {nodes}"


def describe_training(attempt: Attempt, run: TrainingRun) -> Attempt:
    """Return the attempt with the data and the settings that its run trains with."""
    settings = to_dict(run.experiment)
    order = None
    if isinstance(run, HookedRun):
        values = {name: settings[name] for name in _ORDER_KEYS}
        order = DataOrder(values, run.training.data.sizes())
    return replace(
        attempt,
        epoch_iterations=run.cursor.epoch.length or None,
        order=order,
        settings=compute_fingerprints(settings),
        meter_modes=run.state.meter_modes,
    )


def gather_samples(
    run: TrainingRun, store: CheckpointStore, checkpoint: str, world: World
) -> list[int]:
    """Return the training samples of all ranks that saved a restored checkpoint, in their order;
    collective."""
    n_saved = store.read_manifest(checkpoint)["world_size"]
    saved_ranks = range(world.rank, n_saved, world.world_size)
    counts = {}
    if saved_ranks:
        counts[world.rank] = run.state.samples
    # Ranks that no longer exist have left rows, too.
    for lost_rank in saved_ranks[1:]:
        saved = store.load(checkpoint, name_rank_file(lost_rank))
        counts[lost_rank] = saved["position"]["samples"]

    all_counts = ChainMap(*world.gather(counts))
    return [all_counts[rank] for rank in range(n_saved)]


def find_reports_to_compare(
    assignment: Assignment, attempt: Attempt, store: CheckpointStore, run: TrainingRun
) -> RepeatedReports | None:
    """Return the reports that an attempt repeats, if their differences can be explained."""
    checkpoint = assignment.checkpoint
    is_of_other_trial = checkpoint and checkpoint.rpartition("/")[0] != store.storage.path
    task = type(run.task)
    # A cell of a notebook may have been edited since.
    is_from_notebook = task.__module__ == MAIN and not hasattr(sys.modules[MAIN], "__file__")
    has_unknown_code = assignment.source.main_classes is not None or is_from_notebook
    # Ray Data begins with the first rows after a resume.
    if is_of_other_trial or has_unknown_code or may_use_ray_data(task):
        return None
    return find_repeated_reports(
        RunFolder(assignment.location), attempt, run.experiment, assignment.source.continued_from
    )
