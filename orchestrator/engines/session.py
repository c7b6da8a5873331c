"""A session: one attempt of a run in one worker process, with any engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from hooks.loop_services import Display
from orchestrator.disk.artifacts import Artifacts
from orchestrator.disk.attempts import Attempt, LeadingAttempt, rank_folder, write_attempt
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder, make_checkpoint_folder
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.hang import HangReports
from orchestrator.disk.metadata import format_now
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.attempt import (
    begin_attempt,
    describe_training,
    find_reports_to_compare,
    gather_samples,
)
from orchestrator.engines.hang_watch import HangWatch, end_process
from orchestrator.engines.ray_data import data_of
from orchestrator.errors import HookyardError
from orchestrator.experiment.load import to_dict
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.loop.custom_loop import CustomLoop
from orchestrator.loop.data.phases import DataOf
from orchestrator.loop.loop import EvaluationLoop, Loop
from orchestrator.loop.model.torch_settings import thread_count, torch_threads
from orchestrator.loop.report import Report, produce_within
from orchestrator.loop.shared_training import SharedLoop, SharedTraining
from orchestrator.loop.training_run import RunContext, TrainingRun
from orchestrator.loop.world import World
from orchestrator.task import has_custom_loop

if TYPE_CHECKING:
    from orchestrator.engines.mailbox import MailboxLink

SWEEP_KEEPS = 4
"""Number of checkpoints to keep for a sweep, because another trial may exploit one later."""

_log = logging.getLogger("hookyard")


class Session:
    """An attempt of a run in one worker process, which builds and runs the loop. Used in workers.

    Rank 0 sends lines and progress to its mailbox, if it has one, otherwise to the `display`.
    `end_hung` ends this rank if it hangs and `hang.action` is `fail`. `resolved` is the
    assignment's experiment, if already resolved.
    """

    def __init__(
        self,
        assignment: Assignment,
        world: World,
        resolved: ResolvedExperiment | None = None,
        *,
        display: Display | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
        data_of: DataOf = data_of,
        end_hung: Callable[[str], None] | None = end_process,
    ) -> None:
        self.assignment = assignment
        self.world = world
        self.folder = RunFolder(assignment.location)
        self.followers: Sequence[Session] = ()
        """Sessions that share this training run; set before `reports`."""
        self._already_resolved = resolved
        self._display = display
        self._stop_requested = stop_requested
        self._data_of = data_of
        self._end_hung = end_hung
        self._link: MailboxLink | None = None
        if assignment.mailbox and world.is_master:
            from orchestrator.engines.mailbox import MailboxLink

            # Only rank 0 checks the mailbox, because the ranks agree on when to stop.
            link = MailboxLink(assignment.mailbox)
            self._link = link
            self._display = link
            self._stop_requested = lambda: link.stop_requested() or stop_requested()
        self._store: CheckpointStore | None = None
        self._attempt: Attempt | None = None
        self._loop: TrainingRun | None = None

    @cached_property
    def _resolved(self) -> ResolvedExperiment:
        return self._already_resolved or resolve(self.assignment.source)

    def prepare(self) -> CheckpointStore:
        """Resolve the experiment, and return its checkpoints; an evaluation uses those of its
        parent run."""
        if self.assignment.target:
            parent = self.folder.evaluated_run()
            self._store = CheckpointStore(
                find_checkpoint_folder(parent), parent.name, is_master=False
            )
            return self._store

        out_dir = getattr(self._resolved.hooks.get("checkpoint"), "out_dir", None)
        self._store = CheckpointStore(
            make_checkpoint_folder(self.folder, out_dir), self.folder.name, self.world.is_master
        )
        return self._store

    def reports(self) -> Generator[Report, None, None]:
        """Train from the assignment's checkpoint or the newest one, or evaluate the target; yield
        each report."""
        threads = thread_count(self._resolved.experiment)
        yield from produce_within(partial(torch_threads, threads), self._train())

    def _train(self) -> Generator[Report, None, None]:
        # A follower has begun and has its loop already: its leader did that.
        attempt = self._attempt or self._begin()
        hang_reports = HangReports(self.folder, attempt.number, self.world.world_size)
        limits = self._resolved.experiment.hang
        with HangWatch(hang_reports, self.world, limits, self._end_hung) as watch:
            loop = self._loop or self._start_loop(attempt)
            watch.follow(loop.state)
            yield from self._write_reports(loop, watch)

    def _begin(self) -> Attempt:
        store = self.prepare()
        self._attempt = begin_attempt(self.assignment, store, self.world, self._display)
        return self._attempt

    # The loop

    def _start_loop(self, attempt: Attempt) -> TrainingRun:
        """Build the loop and those of its followers, and restore their checkpoints."""
        loop = self._make_loop(attempt)
        self._restore(loop, attempt)
        if isinstance(loop, SharedLoop):
            leader = LeadingAttempt(self.folder.name, attempt.number)
            for session in self.followers:
                session._follow(loop.shared, leader)
        return loop

    def _make_loop(self, attempt: Attempt) -> TrainingRun:
        resolved = self._resolved
        parts = (resolved.task, resolved.experiment, resolved.hooks, self._make_context(attempt))
        if has_custom_loop(type(resolved.task)) and not self.assignment.target:
            return CustomLoop(*parts)

        data: dict[str, Any] = {"data_of": self._data_of, "origin": None}
        # Rank 0 reads the initial weights that were found when the run was created.
        if resolved.experiment.init and self.world.is_master:
            data["origin"] = self.folder.read_metadata().init
        if target := self.assignment.target:
            return EvaluationLoop(*parts, kind=target.phase, rewinds=target.rewinds, **data)

        resumes = attempt.checkpoint is not None
        if not self.followers:
            return Loop(*parts, resumes=resumes, **data)
        shared = SharedTraining(*parts, resumes=resumes, **data)
        return SharedLoop(shared, *parts[1:])

    def _follow(self, shared: SharedTraining, leader: LeadingAttempt) -> None:
        """Begin an attempt that shares the training of the leader."""
        attempt = replace(self._begin(), leader=leader)
        resolved = self._resolved
        context = self._make_context(attempt)
        loop = SharedLoop(shared, resolved.experiment, resolved.hooks, context)
        self._restore(loop, attempt)

    def _make_context(self, attempt: Attempt) -> RunContext:
        """Return the context in which this run's loop trains."""
        folder = self.folder
        world = self.world
        experiment = self._resolved.experiment
        self._artifacts = Artifacts(folder.storage, world.rank, world.world_size)
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
            store=self._store,
            artifacts=self._artifacts.folder,
            send_artifacts=self._artifacts.send,
            display=self._display,
            config={**to_dict(experiment), "sweep": self.assignment.sweep},
            name=folder.name,
            stop_requested=self._stop_requested,
        )

    def _restore(self, loop: TrainingRun, attempt: Attempt) -> None:
        """Restore the loop's checkpoint, and record with which data and settings it trains."""
        self._loop = loop
        self._record(describe_training(attempt, loop))
        if target := self.assignment.target:
            loop.restore(target.checkpoint)
            return
        if attempt.checkpoint is None:
            return

        assert self._store is not None
        loop.restore(attempt.checkpoint)
        samples = gather_samples(loop, self._store, attempt.checkpoint, self.world)
        if self.world.is_master and len({*samples}) > 1:
            assert self._attempt is not None
            self._record(replace(self._attempt, samples=samples))

    def _record(self, attempt: Attempt) -> None:
        self._attempt = attempt
        if self.world.is_master:
            write_attempt(self.folder.storage, attempt)

    # Its reports

    def _write_reports(self, loop: TrainingRun, watch: HangWatch) -> Generator[Report, None, None]:
        """Write the loop's reports to the run's folder, and yield them; time in the caller does not
        count as a hang."""
        assert self._attempt is not None
        assert self._store is not None
        attempt = self._attempt
        reports = loop.run()
        failure = None
        repeated = None
        if self.world.is_master:
            repeated = find_reports_to_compare(self.assignment, attempt, self._store, loop)
        try:
            for report in reports:
                if self.world.is_master:
                    self.folder.append_metrics(
                        {"attempt": attempt.number, "time": format_now(), **report.metrics}
                    )
                if repeated and (difference := repeated.find_difference(report.metrics)):
                    loop.state.show(difference)
                    repeated = None
                self._write_files(loop)
                with watch.pause():
                    yield report
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error
            raise
        finally:
            self._finish(loop, reports, failure)

    def _finish(
        self, loop: TrainingRun, reports: Generator[Report], failure: BaseException | None
    ) -> None:
        """End the loop where it is, and write the last files; an earlier `failure` takes precedence
        over new errors."""
        try:
            reports.close()
            self._write_files(loop)
        except (HookyardError, OSError) as error:
            if failure is None:
                raise
            _log.warning("rank %d could not write its last files: %s", self.world.rank, error)
        finally:
            if self._link:
                self._link.finish()
            self._artifacts.close()

    def _write_files(self, loop: TrainingRun) -> None:
        """Write `info.json`, and upload files that hooks wrote."""
        if self.world.is_master:
            self.folder.write_info(loop.state.info)
        self._artifacts.send()

    # Its end and its checkpoints, which the caller decides

    def write_end(self) -> None:
        """Record the last iteration of this run; its training may continue for other runs."""
        assert self._loop is not None
        assert self._attempt is not None
        if isinstance(self._loop, SharedLoop):
            self._loop.end_early()
        self._record(replace(self._attempt, until=self._loop.state.iteration))

    def close_loop(self) -> None:
        """Close the files of a loop that has not yielded a report, because another run of its
        training failed."""
        if self._loop is None:
            return
        try:
            self._loop.row_writer.close()
            self._artifacts.close()
        except Exception as error:  # the failure of the other run is the one to report
            _log.warning("rows or files of %s could not be closed: %s", self.folder, error)

    def save(self) -> str:
        """Write a checkpoint between two reports; return its path. Collective."""
        assert self._loop is not None
        assert self._store is not None
        path = self._loop.save()
        assert path is not None
        name = path.rpartition("/")[2]
        names = [name]
        if self.world.is_master:
            previous = self._store.index.read()["owners"].get("sweep", [])
            names = [*(other for other in previous if other != name), name]
        self._store.retain("sweep", names[-SWEEP_KEEPS:])
        return path
