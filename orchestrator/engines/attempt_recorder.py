"""The recorder of an attempt: what a run's folder says about it while it trains. Used in workers."""

import json
import zlib
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.disk.attempts import Attempt, DataOrder, LeadingAttempt, write_attempt
from orchestrator.disk.checkpoints.files import name_rank_file
from orchestrator.disk.info import write_info
from orchestrator.disk.timestamps import format_now
from orchestrator.engines.repeated_reports import (
    RepeatedReports,
    can_explain_difference,
    find_repeated_reports,
)
from orchestrator.engines.run_attempt import RunAttempt
from orchestrator.experiment.load import to_dict
from orchestrator.loop.hooked_run import HookedRun
from orchestrator.loop.report import Report
from orchestrator.loop.training_run import TrainingRun

_ORDER_KEYS = ("seed", "batch_size", "loader", "task", "task_args")
"""Keys of an experiment that decide the order of its samples."""


class AttemptRecorder:
    """Writes the record, the reports and the files of an attempt, whose loop trains `run`."""

    def __init__(self, attempt: RunAttempt, run: TrainingRun) -> None:
        assigned = attempt.assigned
        self.checkpoint = attempt.checkpoint
        """The checkpoint to restore, if there is one."""
        self._run = run
        self._assignment = assigned.assignment
        self._world = assigned.world
        self._folder = assigned.folder
        self._store = assigned.store
        self._artifacts = attempt.artifacts
        self._record = attempt.record
        self._repeated_reports: RepeatedReports | None = None

    # Its record

    @property
    def as_leader(self) -> LeadingAttempt:
        """This attempt, as the one that trains for others."""
        return LeadingAttempt(self._folder.name, self._record.number)

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
            settings=_compute_fingerprints(settings),
            meter_modes=run.state.meter_modes,
        )
        self._write(record)

    def record_samples(self) -> None:
        """Record the training samples of all ranks that saved the restored checkpoint, in their
        order; collective."""
        checkpoint = self._record.checkpoint
        if checkpoint is None:
            return
        saved_world_size = self._store.read_manifest(checkpoint)["world_size"]
        own_counts = self._count_samples(checkpoint, saved_world_size)
        counts = ChainMap(*self._world.gather(own_counts))
        samples = [counts[rank] for rank in range(saved_world_size)]
        if len({*samples}) > 1:
            self._write(replace(self._record, samples=samples))

    def _count_samples(self, checkpoint: str, saved_world_size: int) -> dict[int, int]:
        """Return the samples of this rank, and of its share of the ranks that no longer exist."""
        world = self._world
        counts = {}
        for rank in range(world.rank, saved_world_size, world.world_size):
            if rank == world.rank:
                counts[rank] = self._run.state.samples
                continue
            saved = self._store.load(checkpoint, name_rank_file(rank))
            counts[rank] = saved["position"]["samples"]
        return counts

    def record_end(self) -> None:
        """Record the last iteration of the run, if it has ended while the training continues for
        other runs."""
        ended_at = self._run.ended_at
        if ended_at is None or self._record.until is not None:
            return
        self._write(replace(self._record, until=ended_at))
        self.write_files()

    def _write(self, record: Attempt) -> None:
        self._record = record
        if self._world.is_master:
            write_attempt(self._folder.storage, record)

    # Its reports and files

    def read_repeated_reports(self) -> None:
        """Read the reports that this attempt repeats, to compare them with its own. Only the first
        rank compares them."""
        assignment = self._assignment
        run = self._run
        if self._world.is_master and can_explain_difference(assignment, self._store, run.task):
            self._repeated_reports = find_repeated_reports(
                self._folder, self._record, run.experiment, assignment.source.continued_from
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
            write_info(self._folder.storage, self._run.info)
        self._artifacts.send()


def _compute_fingerprints(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return a number for each section of a resolved experiment, to compare the section by."""
    texts = {name: json.dumps(section, sort_keys=True) for name, section in settings.items()}
    return {name: zlib.crc32(text.encode()) for name, text in texts.items()}
