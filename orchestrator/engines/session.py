"""A session: an attempt of a run, or of runs that share a training, in one worker process."""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import partial

from hooks.loop_services import Display
from orchestrator.disk.hang_reports import HangReports
from orchestrator.disk.sweep_folder import CHECKPOINTS_TO_EXPLOIT
from orchestrator.engines import ray_data
from orchestrator.engines.assigned_run import AssignedRun
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.attempt_loop import make_loop
from orchestrator.engines.attempt_recorder import AttemptRecorder
from orchestrator.engines.hang_watch import HangWatch
from orchestrator.engines.rank_termination import END_PROCESS, RankTermination
from orchestrator.engines.recorded_loop import RecordedLoop
from orchestrator.engines.run_attempt import RunAttempt
from orchestrator.engines.shared_checkpoints import choose_common_checkpoints
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.loop.data.phases import DataOf
from orchestrator.loop.model.torch_settings import thread_count, torch_threads
from orchestrator.loop.report import Report, produce_within
from orchestrator.loop.sharing.failed_run import call_for_each_run
from orchestrator.loop.world import World


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
        data_of: DataOf = ray_data.data_of,
        end_hung: RankTermination | None = END_PROCESS,
    ) -> None:
        self.world = world
        self._stop_requested = stop_requested
        self._data_of = data_of
        self._end_hung = end_hung
        self._leader = AssignedRun(assignment, world, display, resolved)
        followers = [AssignedRun(follower, world, display) for follower in assignment.followers]
        self._runs = [self._leader, *followers]
        """The runs that train together."""
        self._training: RecordedLoop | None = None
        """The loop, once it is ready to train."""

    def reports(self) -> Generator[Report, None, None]:
        """Train from the assignment's checkpoint or the newest one, or evaluate the target; yield
        each report."""
        threads = thread_count(self._leader.resolved.experiment)
        yield from produce_within(partial(torch_threads, threads), self._train())

    def _train(self) -> Generator[Report, None, None]:
        with ExitStack() as resources:
            self._training = self._begin(resources)
            yield from self._training.reports()

    def _begin(self, resources: ExitStack) -> RecordedLoop:
        """Begin an attempt of each run, and return their loop, which has restored its
        checkpoints."""
        call_for_each_run(AssignedRun.prepare_checkpoints, self._runs)
        choose_common_checkpoints(self._runs, self.world)
        begin = partial(RunAttempt.begin, resources=resources)
        attempts = call_for_each_run(begin, self._runs)

        watch = resources.enter_context(self._make_watch(attempts[0]))
        loop = make_loop(attempts, self._data_of, self._stop_requested)
        recorders = call_for_each_run(AttemptRecorder, attempts, loop.runs)
        training = RecordedLoop(loop, recorders, watch)
        training.restore()
        watch.follow(loop.state)
        return training

    def _make_watch(self, attempt: RunAttempt) -> HangWatch:
        """Return the watch of this rank, which reports in the leader's folder."""
        leader = self._leader
        reports = HangReports(leader.folder, attempt.record.number, self.world.world_size)
        return HangWatch(reports, self.world, leader.resolved.experiment.hang, self._end_hung)

    # Its end and its checkpoints, which the caller decides

    def end_run(self, run_index: int) -> None:
        """End a run at its last report; training may continue for the others."""
        assert self._training is not None
        self._training.loop.request_end(run_index)

    def save(self) -> str:
        """Write a checkpoint between two reports for the run's sweep; return its path. Collective."""
        assert self._training is not None
        store = self._leader.store
        name = self._training.loop.save()
        assert name is not None
        if self.world.is_master:
            store.retain_newest("sweep", name, CHECKPOINTS_TO_EXPLOIT)
        return store.get_path(name)
