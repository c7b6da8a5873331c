"""The recorder of an attempt: what a run's folder says about it while it trains. Used in workers."""

import sys
from collections import ChainMap
from dataclasses import replace

from orchestrator.disk.attempts import (
    Attempt,
    DataOrder,
    LeadingAttempt,
    compute_fingerprints,
    write_attempt,
)
from orchestrator.disk.checkpoints.files import name_rank_file
from orchestrator.disk.info import write_info
from orchestrator.disk.metadata import format_now
from orchestrator.engines.ray_data import can_use_ray_data
from orchestrator.engines.repeated_reports import RepeatedReports, find_repeated_reports
from orchestrator.engines.run_attempt import RunAttempt
from orchestrator.experiment.load import to_dict
from orchestrator.loop.hooked_run import HookedRun
from orchestrator.loop.report import Report
from orchestrator.loop.training_run import TrainingRun
from orchestrator.user_code.named_classes import MAIN

_ORDER_KEYS = ("seed", "batch_size", "loader", "task", "task_args")
"""Keys of an experiment that decide the order of its samples."""


class AttemptRecorder:
    """Writes the record, the reports and the files of an attempt, whose loop trains `run`."""

    def __init__(self, attempt: RunAttempt, run: TrainingRun) -> None:
        assigned = attempt.assigned
        self._run = run
        self._assignment = assigned.assignment
        self._world = assigned.world
        self._folder = assigned.folder
        self._store = assigned.store
        self._artifacts = attempt.artifacts
        self._record = attempt.record
        self._repeated_reports: RepeatedReports | None = None

    # Its record

    def record_training(self, leader: LeadingAttempt | None = None) -> None:
        """Record with which data and settings the run trains, and who trains for it."""
        run = self._run
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
        world = self._world
        n_saved = self._store.read_manifest(checkpoint)["world_size"]
        saved_ranks = range(world.rank, n_saved, world.world_size)
        counts = {}
        if saved_ranks:
            counts[world.rank] = self._run.state.samples
        # Ranks that no longer exist have left rows, too.
        for lost_rank in saved_ranks[1:]:
            saved = self._store.load(checkpoint, name_rank_file(lost_rank))
            counts[lost_rank] = saved["position"]["samples"]

        all_counts = ChainMap(*world.gather(counts))
        samples = [all_counts[rank] for rank in range(n_saved)]
        if len({*samples}) > 1:
            self._write(replace(self._record, samples=samples))

    def record_end(self) -> None:
        """Record the last iteration of the run; its training may continue for other runs."""
        self._write(replace(self._record, until=self._run.state.iteration))

    def _write(self, record: Attempt) -> None:
        self._record = record
        if self._world.is_master:
            write_attempt(self._folder.storage, record)

    # Its reports and files

    def prepare_reports(self) -> None:
        """Read the reports that this attempt repeats, to compare them with its own."""
        self._repeated_reports = self._find_repeated_reports()

    def _find_repeated_reports(self) -> RepeatedReports | None:
        """Return the reports that this attempt repeats, if their differences can be explained; None
        on other ranks than the first."""
        if not self._world.is_master:
            return None
        assignment = self._assignment
        checkpoint = assignment.checkpoint
        is_of_other_trial = checkpoint and checkpoint.rpartition("/")[0] != self._store.storage.path
        task = type(self._run.task)
        # A cell of a notebook may have been edited since.
        is_from_notebook = task.__module__ == MAIN and not hasattr(sys.modules[MAIN], "__file__")
        has_unknown_code = assignment.source.main_definitions is not None or is_from_notebook
        # Ray Data begins with the first rows after a resume.
        if is_of_other_trial or has_unknown_code or can_use_ray_data(task):
            return None
        return find_repeated_reports(
            self._folder, self._record, self._run.experiment, assignment.source.continued_from
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
        if self._world.is_master:
            self._folder.append_report(
                {"attempt": self._record.number, "time": format_now(), **report.metrics}
            )

    def write_files(self) -> None:
        """Write `info.json`, and upload files that hooks wrote."""
        if self._world.is_master:
            with self._run.own_fields:
                info = self._run.state.info
            write_info(self._folder.storage, info)
        self._artifacts.send()
