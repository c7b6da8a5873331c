"""An attempt of one run in a worker process: what it reads from and writes to the run's folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from hooks.loop_services import Display
from orchestrator.disk.artifacts import Artifacts
from orchestrator.disk.attempts import Attempt, LeadingAttempt, rank_folder, write_attempt
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder, make_checkpoint_folder
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.metadata import format_now
from orchestrator.disk.repeated_reports import RepeatedReports
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.attempt import (
    begin_attempt,
    describe_training,
    find_reports_to_compare,
    gather_samples,
)
from orchestrator.experiment.load import to_dict
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.loop.report import Report
from orchestrator.loop.training_run import RunContext, TrainingRun
from orchestrator.loop.world import World

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
            parent = self.folder.evaluated_run()
            return CheckpointStore(find_checkpoint_folder(parent), parent.name, is_master=False)
        out_dir = getattr(self.resolved.hooks.get("checkpoint"), "out_dir", None)
        return CheckpointStore(
            make_checkpoint_folder(self.folder, out_dir), self.folder.name, self.world.is_master
        )

    @cached_property
    def _artifacts(self) -> Artifacts:
        return Artifacts(self.folder.storage, self.world.rank, self.world.world_size)

    # Its beginning

    def begin(self) -> Attempt:
        """Begin the attempt at a checkpoint; collective."""
        self._record = begin_attempt(self.assignment, self.store, self.world, self._display)
        return self._record

    @property
    def checkpoint(self) -> str | None:
        """Checkpoint from which the attempt continues."""
        target = self.assignment.target
        return target.checkpoint if target else self._record.checkpoint

    @property
    def as_leader(self) -> LeadingAttempt:
        """This attempt, as the one that trains for others."""
        return LeadingAttempt(self.folder.name, self._record.number)

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
            store=self.store,
            artifacts=self._artifacts.folder,
            send_artifacts=self._artifacts.send,
            display=self._display,
            config={**to_dict(experiment), "sweep": self.assignment.sweep},
            name=folder.name,
            stop_requested=stop_requested,
        )

    def describe(self, run: TrainingRun, leader: LeadingAttempt | None) -> None:
        """Record with which data and settings the run trains, and who trains for it."""
        self._write(replace(describe_training(self._record, run), leader=leader))

    def describe_restored(self, run: TrainingRun) -> None:
        """Record the samples that the ranks of the restored checkpoint had trained; collective."""
        if self.assignment.target or self._record.checkpoint is None:
            return
        samples = gather_samples(run, self.store, self._record.checkpoint, self.world)
        if len({*samples}) > 1:
            self._write(replace(self._record, samples=samples))

    def find_reports_to_compare(self, run: TrainingRun) -> RepeatedReports | None:
        """Return the reports that this attempt repeats; None on other ranks than the first."""
        if not self.world.is_master:
            return None
        return find_reports_to_compare(self.assignment, self._record, self.store, run)

    def _write(self, record: Attempt) -> None:
        self._record = record
        if self.world.is_master:
            write_attempt(self.folder.storage, record)

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

    def write_end(self, run: TrainingRun) -> None:
        """Record the last iteration of the run; its training may continue for other runs."""
        self._write(replace(self._record, until=run.state.iteration))

    def close(self) -> None:
        """Remove the temporary folder of files that hooks wrote."""
        self._artifacts.close()
