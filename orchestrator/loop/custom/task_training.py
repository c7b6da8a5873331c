"""The task's own `train` under way, and what its session asks for. Runs in workers."""

from collections.abc import Generator, Mapping
from contextlib import closing
from time import perf_counter
from typing import Any

from orchestrator.experiment.checks.train_method import list_train_parameters
from orchestrator.loop.custom.custom_report import RoundEnd, convert_report
from orchestrator.loop.custom.custom_round import CustomRound
from orchestrator.loop.custom.custom_run import CustomRun
from orchestrator.loop.custom.stop_polling import StopPolling
from orchestrator.loop.stopping import StopCoordinator
from orchestrator.loop.task_errors import require_type
from orchestrator.randomness import seed_all
from orchestrator.training_session import Part, TrainingSession


class TaskTraining:
    """The task's own `train`, which runs up to the end of a round whenever the loop asks for it.

    The task's session passes its calls to it.
    """

    def __init__(self, run: CustomRun, stopping: StopCoordinator) -> None:
        self.state = run.state
        self._run = run
        self._polling = StopPolling(stopping, run)
        self._round_ends = self._run_train()
        self._called_at = 0.0
        """Moment at which `train` was called, or continued after its last report."""
        self._round: CustomRound | None = None
        """The round under way; None until the task tells that it has begun."""

    # For the loop

    def run_round(self) -> RoundEnd:
        """Run `train` up to its next report, or to its end."""
        return next(self._round_ends)

    def complete_round(self, metrics: Mapping[str, float]) -> None:
        """End the training phase of the round, with the metrics of its report."""
        self._ensure_round().complete(metrics)
        self._round = None

    def close(self) -> None:
        """End `train` where it is."""
        self._round_ends.close()

    def _run_train(self) -> Generator[RoundEnd, None, None]:
        """Run the task's `train`, and yield how each round ends."""
        train = self._run.task.train
        names = list_train_parameters(type(self._run.task))
        arguments = {name: self.state.config[name] for name in names}
        self._called_at = self._run.clock.restart()
        returned: Any = train(TrainingSession(self), **arguments)
        reports: Generator[Any, None, None] = require_type(
            train, returned, Generator, "a generator of reports"
        )
        with closing(reports):
            for report in reports:
                self._run.check_restored()
                yield RoundEnd(convert_report(report, train))
                self._called_at = self._run.clock.restart()
        self._run.check_restored()
        yield RoundEnd({}, has_returned=True)

    def _ensure_round(self) -> CustomRound:
        """Return the round under way.

        Only a row or a report tells that `train` continues, so a round begins with its first one,
        and includes the time since `train` was called or continued. The first round begins with
        `session.restore()` if the task calls it.
        """
        if self._round is None:
            self._round = CustomRound.begin(self._run, perf_counter() - self._called_at)
        return self._round

    # For the session

    def restore_parts(self, parts: Mapping[str, Part], per_rank: Mapping[str, Part]) -> bool:
        """Name the parts of checkpoints and restore them, right before training; returns whether
        there was a checkpoint."""
        contents = self._run.contents
        contents.name(parts, per_rank)
        has_restored = contents.restore_named()
        self._begin_first_round()
        self._choose_random_numbers()
        return has_restored

    def _begin_first_round(self) -> None:
        """Begin the first round here, without the time in which the task has built its parts; a
        task that has recorded a row before is in its first round already."""
        if self._round is None:
            self._run.clock.restart()
            self._round = CustomRound.begin(self._run)

    def _choose_random_numbers(self) -> None:
        """Give this rank its own random numbers, once all ranks have built the same parts, or those
        with which its checkpoint continues."""
        run = self._run
        # Rank 0 continues with the numbers that it would sample in one process without Hookyard.
        if run.world.rank:
            seed_all(run.experiment.seed + run.world.rank)
        run.random_states.continue_training()

    def record(self, columns: Mapping[str, Any], batch_size: int) -> None:
        """End an iteration with a row, and fire `on_step`."""
        self._ensure_round().record(columns, batch_size)

    def save_here(self) -> None:
        """Write a checkpoint in the middle of a round, or between two rounds if this one has no row
        yet."""
        self._run.save_in_train()

    def should_stop(self) -> bool:
        """Return whether training has to end."""
        return self._polling.should_stop()
