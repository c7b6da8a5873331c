"""A session: an attempt of a run, or of runs that share a training, in one worker process."""

import logging
from collections.abc import Callable, Generator, Sequence
from functools import partial

from hooks.loop_services import Display
from orchestrator.disk.hang_reports import HangReports
from orchestrator.disk.sweep_folder import CHECKPOINTS_TO_EXPLOIT
from orchestrator.engines.assigned_run import AssignedRun
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.attempt_loop import make_loop
from orchestrator.engines.attempt_recorder import AttemptRecorder
from orchestrator.engines.hang_watch import END_PROCESS, HangWatch, RankTermination
from orchestrator.engines.ray_data import data_of
from orchestrator.engines.run_attempt import RunAttempt
from orchestrator.engines.shared_checkpoints import choose_common_checkpoints
from orchestrator.errors import HookyardError
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.loop.custom.custom_loop import CustomLoop
from orchestrator.loop.data.phases import DataOf
from orchestrator.loop.loop import HookedLoop
from orchestrator.loop.model.torch_settings import thread_count, torch_threads
from orchestrator.loop.report import Report, produce_within
from orchestrator.loop.sharing.failed_run import mark_failed_run
from orchestrator.loop.world import World

_log = logging.getLogger("hookyard")


class Session:
    """An attempt of a run in one worker process, which builds and runs the loop. Used in workers.

    With followers, runs share the training and report in turn. Training continues until the last of
    them ends; if one fails, all end, and the error is marked with its index.

    Lines and progress go to the `display`. `end_hung` ends this rank if it hangs and `hang.action`
    is `fail`. `resolved` is the assignment's experiment, if already resolved.
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
        end_hung: RankTermination | None = END_PROCESS,
    ) -> None:
        self.assignment = assignment
        self.world = world
        self._stop_requested = stop_requested
        self._data_of = data_of
        self._end_hung = end_hung
        self.runs = [AssignedRun(assignment, world, display, resolved)]
        """The runs that are to share the training, the leader first."""
        self.runs += [AssignedRun(follower, world, display) for follower in assignment.followers]
        self._recorders: list[AttemptRecorder] = []
        """The recorder of each run's attempt, once the loop is made."""
        self._loop: CustomLoop | HookedLoop | None = None
        self._runs_to_end: set[int] = set()

    def reports(self) -> Generator[Report, None, None]:
        """Train from the assignment's checkpoint or the newest one, or evaluate the target; yield
        each report."""
        threads = thread_count(self.runs[0].resolved.experiment)
        yield from produce_within(partial(torch_threads, threads), self._train())

    def _train(self) -> Generator[Report, None, None]:
        if self.is_shared:
            choose_common_checkpoints(self.runs, self.world)
        attempts = [RunAttempt(run, run.begin()) for run in self.runs]
        try:
            yield from self._train_attempts(attempts)
        finally:
            for attempt in attempts:
                attempt.close()

    def _train_attempts(self, attempts: Sequence[RunAttempt]) -> Generator[Report, None, None]:
        leader = self.runs[0]
        hang_reports = HangReports(leader.folder, attempts[0].record.number, self.world.world_size)
        limits = leader.resolved.experiment.hang
        with HangWatch(hang_reports, self.world, limits, self._end_hung) as watch:
            loop = make_loop(attempts, self._stop_requested, self._data_of)
            self._loop = loop
            self._recorders = [
                AttemptRecorder(attempt, run)
                for attempt, run in zip(attempts, loop.runs, strict=True)
            ]
            self._restore(loop, attempts)
            watch.follow(loop.state)
            yield from self._write_reports(loop, watch)

    @property
    def is_shared(self) -> bool:
        """True if several runs share the training."""
        return len(self.runs) > 1

    def _restore(self, loop: CustomLoop | HookedLoop, attempts: Sequence[RunAttempt]) -> None:
        """Restore the checkpoints of the runs, and record with which data and settings they
        train."""
        leader, *followers = self._recorders
        leader.record_training()
        for follower in followers:
            follower.record_training(attempts[0].as_leader)
        names = [attempt.checkpoint for attempt in attempts if attempt.checkpoint]
        if not names:
            return
        loop.restore(*names)
        for recorder in self._recorders:
            recorder.record_samples()

    # The reports

    def _write_reports(
        self, loop: CustomLoop | HookedLoop, watch: HangWatch
    ) -> Generator[Report, None, None]:
        """Write the loop's reports to the runs' folders, and yield them; time in the caller does not
        count as a hang."""
        reports = loop.run()
        failure = None
        index = 0
        for recorder in self._recorders:
            recorder.prepare_reports()
        try:
            for report in reports:
                index = report.run_index
                self._write_report(loop, report)
                with watch.pause():
                    yield report
                if self.is_shared and (report.is_final or index in self._runs_to_end):
                    self._end_run(loop, index)
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error
            if self.is_shared and isinstance(error, Exception):
                mark_failed_run(error, index)
            raise
        finally:
            self._finish(reports, failure)

    def _write_report(self, loop: CustomLoop | HookedLoop, report: Report) -> None:
        """Write a report and the files of its run, and show how it differs from one that it
        repeats."""
        recorder = self._recorders[report.run_index]
        recorder.write_report(report)
        if difference := recorder.find_difference(report):
            loop.state.show(difference)
        recorder.write_files()

    def _end_run(self, loop: CustomLoop | HookedLoop, index: int) -> None:
        """End one of several runs; training may continue for the others."""
        recorder = self._recorders[index]
        loop.end_run(index)
        recorder.record_end()
        recorder.write_files()

    def _finish(self, reports: Generator[Report], failure: BaseException | None) -> None:
        """End the loop where it is, and write the last files; an earlier `failure` takes precedence
        over new errors."""
        try:
            reports.close()
            for recorder in self._recorders:
                recorder.write_files()
        except (HookyardError, OSError) as error:
            if failure is None:
                raise
            _log.warning("rank %d could not write its last files: %s", self.world.rank, error)

    # Its end and its checkpoints, which the caller decides

    def end_run(self, run_index: int) -> None:
        """End one of several runs at its last report."""
        self._runs_to_end.add(run_index)

    def save(self) -> str:
        """Write a checkpoint between two reports for the run's sweep; return its path. Collective."""
        assert self._loop is not None
        store = self.runs[0].store
        name = self._loop.save()
        assert name is not None
        if self.world.is_master:
            store.retain_newest("sweep", name, CHECKPOINTS_TO_EXPLOIT)
        return store.get_path(name)
