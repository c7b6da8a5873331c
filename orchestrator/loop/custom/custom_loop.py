"""The loop around a task's own `train`: rounds, rows, reports and checkpoints. Runs in workers."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from time import perf_counter
from typing import Any

from hooks.hook import Hook
from hooks.metrics.names import find_phase
from hooks.position import Stage
from orchestrator.errors import TaskError
from orchestrator.experiment.checks.train_method import list_train_parameters
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.base_loop import BaseLoop
from orchestrator.loop.custom.custom_contents import CheckpointedParts
from orchestrator.loop.custom.custom_report import RoundEnd, average_round_ends, convert_report
from orchestrator.loop.custom.custom_round import CustomRound
from orchestrator.loop.custom.custom_run import CustomRun
from orchestrator.loop.custom.stop_polling import StopPolling
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.plan import make_plan
from orchestrator.loop.report import Report
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.span_clock import SpanClock
from orchestrator.loop.state.cursor import EpochProgress
from orchestrator.loop.stopping import StopCoordinator
from orchestrator.loop.task_errors import COLUMNS, require_type
from orchestrator.loop.training_run import RunParts
from orchestrator.randomness import seed_all
from orchestrator.task import Task, attach_progress, detach_progress
from orchestrator.training_session import Part, TrainingSession
from orchestrator.user_code.failures import find_source_location


class CustomLoop(BaseLoop[CustomRun]):
    """Loop around the task's own `train`. A round is an epoch, and ends with a report.

    It fires the events of the run, of a phase and of a checkpoint, and `on_step` with each row.
    """

    def __init__(
        self, task: Task, experiment: Experiment, hooks: Mapping[str, Hook], context: RunContext
    ) -> None:
        clock = SpanClock()
        plan = make_plan(hooks, context.world, clock)
        seed_all(experiment.seed)
        state = LoopState(
            **context.make_state_fields(experiment),
            max_epochs=experiment.epochs,
            max_steps=experiment.steps,
            loop_columns=frozenset(COLUMNS),
        )
        attach_progress(task, state)
        parts = RunParts(task, clock, state, EpochProgress(state), CheckpointedParts(state))
        self._run = CustomRun(parts, experiment, context, plan)
        super().__init__([self._run])
        self._stopping = StopCoordinator(state, self.world, clock, context.stop_requested)
        self.should_stop = StopPolling(self._stopping, self._run).should_stop
        """Function that tells the session whether training has to end."""
        self._round_ends = self._run_train()
        """The task's `train`, which runs until the end of a round at each `next`."""
        self._train_began = 0.0
        """Moment at which `train` was called."""
        self._round: CustomRound | None = None
        """The round under way; None until the task tells that the first one has begun."""

    def _begin(self) -> None:
        self._run.plan.fire("on_start", self.state)

    # A round

    def _produce_reports(self) -> Iterator[Report]:
        run = self._run
        cursor = run.cursor
        while True:
            if cursor.stage in (Stage.REPORTED, Stage.TRAIN):
                if run.is_finished():
                    return
                is_complete = self._train()
                if not is_complete:
                    if run.stop:
                        yield run.make_report(run_ends=True, is_final=True)
                    return
                run.save_if_requested()

            if cursor.stage is Stage.TRAINED:
                self._fire_validation()
                cursor.stage = Stage.VALIDATED
                run.save_if_requested()

            run.agree_to_stop()
            run.save_stop()
            run_ends = bool(run.stop) or run.is_finished()
            yield run.make_report(run_ends=run_ends, is_final=run_ends)
            if run.stop:
                return

    def _train(self) -> bool:
        """Run the task's `train` up to its next report, or to its end; return whether a round is
        complete there."""
        self._run.cursor.stage = Stage.TRAIN
        end = average_round_ends(next(self._round_ends), self._run.task.train, self.world)
        if end.has_returned and not self._end_train():
            return False
        self._ensure_round().complete(end.metrics)
        return True

    def _run_train(self) -> Generator[RoundEnd, None, None]:
        """Run the task's `train`, and yield how each round ends."""
        train = self._run.task.train
        names = list_train_parameters(type(self._run.task))
        arguments = {name: self.state.config[name] for name in names}
        self._train_began = perf_counter()
        returned: Any = train(TrainingSession(self), **arguments)
        reports: Generator[Any, None, None] = require_type(
            train, returned, Generator, "a generator of reports"
        )
        with closing(reports):
            for report in reports:
                self._ensure_round()
                yield RoundEnd(convert_report(report, train))
                self._round = CustomRound(self._run)
        self._ensure_round()
        yield RoundEnd({}, has_returned=True)

    def _ensure_round(self) -> CustomRound:
        """Return the round under way.

        The first one begins when the task has built its model: with session.restore(), or with the
        first row or report. It then includes the time since `train` was called.
        """
        if self._round is None:
            self._round = CustomRound(self._run, perf_counter() - self._train_began)
        return self._round

    def _end_train(self) -> bool:
        """End training, because `train` has returned; return whether it made steps after its last
        `yield`, which form a last round. Collective.

        Raises TaskError if `train` has trained nothing.
        """
        run = self._run
        state = self.state
        if self._stopping.is_stop_requested():
            run.stop = self._stopping.agree()
        steps, unreported = self.world.maximum([float(state.step), float(state.phase_iteration)])
        if not steps and not run.stop:
            raise TaskError(
                f"train() ended without a report or a row{find_source_location(run.task.train)}"
            )
        if run.stop.is_interruption:
            return False
        if not unreported:
            if not run.stop and run.saves_last():
                self._save_last_report()
            return False

        if run.stop:
            state.request_checkpoint("stop")
        elif not state.finished:
            state.end_early()
        return True

    def _save_last_report(self) -> None:
        """Save the end of a `train` that has made no step since its last `yield`; collective."""
        self.state.end_training_phase()
        self._run.cursor.stage = Stage.REPORTED
        self._run.save_unless_saved("last")
        self._run.cursor.stage = Stage.TRAIN

    def _fire_validation(self) -> None:
        """Fire the events of the phases that the task has validated itself."""
        state = self.state
        phases = dict.fromkeys(map(find_phase, state.metrics))
        for phase in phases:
            if phase == "train":
                continue
            with state.evaluation_phase(phase):
                self._run.plan.fire("on_phase_start", state)
                self._run.plan.fire("on_phase_end", state)

    def _close(self) -> None:
        self._round_ends.close()
        detach_progress(self._run.task)

    # For the session

    def restore_parts(self, parts: Mapping[str, Part], per_rank: Mapping[str, Part]) -> bool:
        """Restore the parts of checkpoints; returns whether there was a checkpoint."""
        has_restored = self._run.contents.name(parts, per_rank)
        if self._round is None:
            self._round = CustomRound(self._run)
        if self.world.rank:
            # All ranks have built the same parts. From here on, each rank draws its own random
            # numbers; rank 0 draws those that it would draw in one process without Hookyard.
            seed_all(self._run.experiment.seed + self.world.rank)
        self._run.random_states.continue_training()
        return has_restored

    def record(self, columns: Mapping[str, Any], batch_size: int) -> None:
        """End an iteration with a row, and fire `on_step`."""
        self._ensure_round().record(columns, batch_size)

    def save_here(self) -> None:
        """Write a checkpoint in the middle of a round, or between two rounds if this one has no row
        yet."""
        self._run.save_in_train()
