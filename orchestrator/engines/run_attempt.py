"""An attempt of one run in a worker process, and its records in the run's folder."""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from orchestrator.disk.artifacts import Artifacts, open_artifacts
from orchestrator.disk.attempts import (
    Attempt,
    DataOrder,
    LeadingAttempt,
    compute_fingerprints,
    rank_folder,
    write_attempt,
)
from orchestrator.disk.checkpoints.files import name_rank_file
from orchestrator.disk.media import MediaWriter
from orchestrator.disk.metadata import format_now
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.engines.assigned_run import AssignedRun
from orchestrator.engines.ray_data import can_use_ray_data
from orchestrator.engines.repeated_reports import RepeatedReports, find_repeated_reports
from orchestrator.experiment.load import to_dict
from orchestrator.loop.hooked_run import HookedRun
from orchestrator.loop.report import Report
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.training_run import TrainingRun
from orchestrator.user_code.named_classes import MAIN

_ORDER_KEYS = ("seed", "batch_size", "loader", "task", "task_args")
"""Keys of an experiment that decide the order of its samples."""


class RunAttempt:
    """An attempt of one run that has begun: its record, rows, reports and files. Used in workers.

    `record` is what the run's folder says about the attempt so far.
    """

    run: TrainingRun
    """The run that trains, once its loop is made."""

    def __init__(self, run: AssignedRun, record: Attempt) -> None:
        self.assignment = run.assignment
        self.world = run.world
        self.folder = run.folder
        self.resolved = run.resolved
        self.store = run.store
        self._display = run.display
        self._record = record
        self._repeated_reports: RepeatedReports | None = None

    @property
    def number(self) -> int:
        """Number of the attempt, from 0."""
        return self._record.number

    @cached_property
    def _artifacts(self) -> Artifacts:
        return open_artifacts(self.folder.storage, self.world.rank, self.world.world_size)

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
        return LeadingAttempt(self.folder.name, self.number)

    def record_training(self, leader: LeadingAttempt | None) -> None:
        """Record with which data and settings the run trains, and who trains for it."""
        run = self.run
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

    def record_samples(self) -> None:
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
            counts[world.rank] = self.run.state.samples
        # Ranks that no longer exist have left rows, too.
        for lost_rank in saved_ranks[1:]:
            saved = self.store.load(checkpoint, name_rank_file(lost_rank))
            counts[lost_rank] = saved["position"]["samples"]

        all_counts = ChainMap(*world.gather(counts))
        samples = [all_counts[rank] for rank in range(n_saved)]
        if len({*samples}) > 1:
            self._write(replace(self._record, samples=samples))

    def record_end(self) -> None:
        """Record the last iteration of the run; its training may continue for other runs."""
        self._write(replace(self._record, until=self.run.state.iteration))

    def _write(self, record: Attempt) -> None:
        self._record = record
        if self.world.is_master:
            write_attempt(self.folder.storage, record)

    # Its reports and files

    def prepare_reports(self) -> None:
        """Read the reports that this attempt repeats, to compare them with its own."""
        self._repeated_reports = self._find_repeated_reports()

    def _find_repeated_reports(self) -> RepeatedReports | None:
        """Return the reports that this attempt repeats, if their differences can be explained; None
        on other ranks than the first."""
        if not self.world.is_master:
            return None
        assignment = self.assignment
        checkpoint = assignment.checkpoint
        is_of_other_trial = checkpoint and checkpoint.rpartition("/")[0] != self.store.storage.path
        task = type(self.run.task)
        # A cell of a notebook may have been edited since.
        is_from_notebook = task.__module__ == MAIN and not hasattr(sys.modules[MAIN], "__file__")
        has_unknown_code = assignment.source.main_definitions is not None or is_from_notebook
        # Ray Data begins with the first rows after a resume.
        if is_of_other_trial or has_unknown_code or can_use_ray_data(task):
            return None
        return find_repeated_reports(
            self.folder, self._record, self.run.experiment, assignment.source.continued_from
        )

    def find_difference(self, report: Report) -> str | None:
        """Describe how a report differs from the one that it repeats; only the first difference of
        an attempt."""
        if self._repeated_reports is None:
            return None
        difference = self._repeated_reports.find_difference(report.metrics)
        if difference:
            self._repeated_reports = None
        return difference

    def write_report(self, report: Report) -> None:
        if self.world.is_master:
            self.folder.append_metrics(
                {"attempt": self.number, "time": format_now(), **report.metrics}
            )

    def write_files(self) -> None:
        """Write `info.json`, and upload files that hooks wrote."""
        if self.world.is_master:
            with self.run.own_fields:
                info = self.run.state.info
            self.folder.write_info(info)
        self._artifacts.send()

    def close(self) -> None:
        """Remove the temporary folder of files that hooks wrote."""
        self._artifacts.close()
