"""An attempt of one run in a worker process: where it continues, and its records in the run's
folder."""

from __future__ import annotations

import logging
import sys
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

import torch

from hooks.loop_services import Display
from orchestrator.disk.artifacts import Artifacts
from orchestrator.disk.attempts import (
    Attempt,
    DataOrder,
    Host,
    LeadingAttempt,
    rank_folder,
    write_attempt,
)
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.files import name_rank_file
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.hang import FOLDER as HANG_REPORTS
from orchestrator.disk.media import MediaWriter
from orchestrator.disk.metadata import format_now
from orchestrator.disk.process import is_pid_alive
from orchestrator.disk.repeated_reports import (
    RepeatedReports,
    compute_fingerprints,
    find_repeated_reports,
)
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.ray_data import can_use_ray_data
from orchestrator.errors import UsageError
from orchestrator.experiment.load import to_dict
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.loop.hooked_run import HookedRun
from orchestrator.loop.report import Report
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.training_run import TrainingRun
from orchestrator.loop.world import World
from orchestrator.units import format_count
from orchestrator.user_code import MAIN

_ORDER_KEYS = ("seed", "batch_size", "loader", "task", "task_args")
"""Keys of an experiment that decide the order of its samples."""

_log = logging.getLogger("hookyard")


class RunAttempt:
    """An attempt of one run in a worker process: its experiment, checkpoints, record and files.

    `resolved` is the assignment's experiment, if already resolved.
    """

    def __init__(
        self,
        assignment: Assignment,
        world: World,
        display: Display | None,
        resolved: ResolvedExperiment | None = None,
    ) -> None:
        self.assignment = assignment
        self.world = world
        self.folder = RunFolder(assignment.location)
        self._display = display
        self._already_resolved = resolved

    @cached_property
    def resolved(self) -> ResolvedExperiment:
        return self._already_resolved or resolve(self.assignment.source)

    @cached_property
    def store(self) -> CheckpointStore:
        """The run's checkpoints; an evaluation uses those of its parent run."""
        if self.assignment.target:
            parent = self.folder.parent_run
            return CheckpointStore(find_checkpoint_folder(parent), parent.name, is_master=False)
        hooks = self.resolved.experiment.hooks
        checkpoints = find_checkpoint_folder(self.folder, {"hooks": hooks})
        return CheckpointStore(checkpoints, self.folder.name, self.world.is_master)

    @cached_property
    def _artifacts(self) -> Artifacts:
        return Artifacts(self.folder.storage, self.world.rank, self.world.world_size)

    # Its beginning

    def begin(self) -> Attempt:
        """Begin at the assignment's checkpoint or the newest one; collective."""
        world = self.world
        host = Host(
            world.rank,
            world.node,
            world.local_rank,
            str(world.device),
            torch.__version__,
            torch.get_num_threads(),
        )
        hosts = world.gather(host)
        checkpoint = None if self.assignment.target else self._choose_checkpoint()
        record: Attempt = world.broadcast(partial(self._record_start, checkpoint, hosts))
        self._record = record
        return record

    def _choose_checkpoint(self) -> str | None:
        """Return the checkpoint to continue from, after removing what a killed process left
        behind."""
        store = self.store
        world = self.world

        def show_skipped(reason: str) -> None:
            if self._display is not None:
                self._display.line(f"left out: {reason}")
            elif world.is_master:
                _log.warning("left out: %s", reason)

        world.broadcast(partial(_recover, store))
        if self.assignment.checkpoint is None:
            return store.find_latest(show_skipped, world)
        checkpoint: str = world.broadcast(partial(store.reset_to, self.assignment.checkpoint))
        return checkpoint

    def _record_start(self, checkpoint: str | None, hosts: Sequence[Host]) -> Attempt:
        """Record the start, and show where the run continues. Called on rank 0."""
        assignment = self.assignment
        folder = self.folder
        folder.storage.delete(HANG_REPORTS)
        is_assigned = assignment.checkpoint or assignment.source.continued_from
        if checkpoint and not is_assigned and not folder.read_attempts():
            raise UsageError(
                f"{self.store.get_path(checkpoint)} belongs to an earlier run; move it away, or choose"
                " another out_dir or name"
            )
        position = self.store.read_position(checkpoint) if checkpoint else None
        attempt = folder.begin_attempt(checkpoint, position, hosts, len(hosts))
        if self._display is not None and attempt.number:
            self._display.line(_describe_resume(checkpoint, hosts))
        return attempt

    @property
    def checkpoint(self) -> str | None:
        """Checkpoint from which the attempt continues."""
        target = self.assignment.target
        return target.checkpoint if target else self._record.checkpoint

    def make_context(self, stop_requested: Callable[[], bool]) -> RunContext:
        """Return the context in which this run trains."""
        folder = self.folder
        world = self.world
        attempt = self._record
        experiment = self.resolved.experiment
        if attempt.number:
            self._artifacts.fetch()
        recorder = Recorder(
            folder.storage,
            rank_folder(attempt.number, world.rank),
            {"rank": world.rank, "node": world.node, "attempt": attempt.number},
            upload_interval_s=experiment.upload_every,
        )
        return RunContext(
            world=world,
            recorder=recorder,
            media=self._open_media(),
            store=self.store,
            artifacts=self._artifacts.folder,
            send_artifacts=self._artifacts.send,
            display=self._display,
            config={**to_dict(experiment), "sweep": self.assignment.sweep},
            name=folder.name,
            stop_requested=stop_requested,
        )

    def _open_media(self) -> MediaWriter:
        """Return the writer of rank 0, which continues where the checkpoint was saved."""
        if not self.world.is_master:
            return MediaWriter()
        checkpoint = self._record.checkpoint
        kept = self.store.read_manifest(checkpoint).get("media", 0) if checkpoint else 0
        return MediaWriter(self.folder.storage, kept)

    # Its record

    @property
    def as_leader(self) -> LeadingAttempt:
        """This attempt, as the one that trains for others."""
        return LeadingAttempt(self.folder.name, self._record.number)

    def record_training(self, run: TrainingRun, leader: LeadingAttempt | None) -> None:
        """Record with which data and settings the run trains, and who trains for it."""
        settings = to_dict(run.experiment)
        order = None
        if isinstance(run, HookedRun):
            values = {name: settings[name] for name in _ORDER_KEYS}
            order = DataOrder(values, run.training.data.sizes())
        record = replace(
            self._record,
            leader=leader,
            epoch_iterations=run.cursor.epoch.length or None,
            order=order,
            settings=compute_fingerprints(settings),
            meter_modes=run.state.meter_modes,
        )
        self._write(record)

    def record_samples(self, run: TrainingRun) -> None:
        """Record the training samples of all ranks that saved the restored checkpoint, in their
        order; collective."""
        checkpoint = self._record.checkpoint
        if checkpoint is None:
            return
        world = self.world
        n_saved = self.store.read_manifest(checkpoint)["world_size"]
        saved_ranks = range(world.rank, n_saved, world.world_size)
        counts = {}
        if saved_ranks:
            counts[world.rank] = run.state.samples
        # Ranks that no longer exist have left rows, too.
        for lost_rank in saved_ranks[1:]:
            saved = self.store.load(checkpoint, name_rank_file(lost_rank))
            counts[lost_rank] = saved["position"]["samples"]

        all_counts = ChainMap(*world.gather(counts))
        samples = [all_counts[rank] for rank in range(n_saved)]
        if len({*samples}) > 1:
            self._write(replace(self._record, samples=samples))

    def record_end(self, run: TrainingRun) -> None:
        """Record the last iteration of the run; its training may continue for other runs."""
        self._write(replace(self._record, until=run.state.iteration))

    def _write(self, record: Attempt) -> None:
        self._record = record
        if self.world.is_master:
            write_attempt(self.folder.storage, record)

    def find_reports_to_compare(self, run: TrainingRun) -> RepeatedReports | None:
        """Return the reports that this attempt repeats, if their differences can be explained; None
        on other ranks than the first."""
        if not self.world.is_master:
            return None
        assignment = self.assignment
        checkpoint = assignment.checkpoint
        is_of_other_trial = checkpoint and checkpoint.rpartition("/")[0] != self.store.storage.path
        task = type(run.task)
        # A cell of a notebook may have been edited since.
        is_from_notebook = task.__module__ == MAIN and not hasattr(sys.modules[MAIN], "__file__")
        has_unknown_code = assignment.source.main_classes is not None or is_from_notebook
        # Ray Data begins with the first rows after a resume.
        if is_of_other_trial or has_unknown_code or can_use_ray_data(task):
            return None
        return find_repeated_reports(
            self.folder, self._record, run.experiment, assignment.source.continued_from
        )

    # Its reports and files

    def write_report(self, report: Report) -> None:
        if self.world.is_master:
            self.folder.append_metrics(
                {"attempt": self._record.number, "time": format_now(), **report.metrics}
            )

    def write_files(self, run: TrainingRun) -> None:
        """Write `info.json`, and upload files that hooks wrote."""
        if self.world.is_master:
            with run.own_fields:
                info = run.state.info
            self.folder.write_info(info)
        self._artifacts.send()

    def close(self) -> None:
        """Remove the temporary folder of files that hooks wrote."""
        self._artifacts.close()


def _recover(store: CheckpointStore) -> None:
    store.recover()
    # An `out_dir` is outside the folder that the driver cleans.
    store.storage.delete_leftovers(is_pid_alive)


def _describe_resume(checkpoint: str | None, hosts: Sequence[Host]) -> str:
    start = "Started from scratch (no checkpoint)"
    if checkpoint:
        start = f"Resumed from {checkpoint}"
    nodes = ", ".join(dict.fromkeys(host.node for host in hosts))
    return f"{start} with {format_count(len(hosts), 'rank')} on {nodes}"
