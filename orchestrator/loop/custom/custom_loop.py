"""The loop around a task's own `train`: rounds, rows, reports and checkpoints. Runs in workers."""

from collections.abc import Generator, Iterator, Mapping
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
from orchestrator.loop.custom.custom_report import ENDED, average_report
from orchestrator.loop.custom.custom_run import CustomRun
from orchestrator.loop.custom.stop_polling import StopPolling
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.plan import make_plan
from orchestrator.loop.report import Report
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.span_clock import SpanClock
from orchestrator.loop.state.cursor import EpochProgress
from orchestrator.loop.step.columns import make_columns, make_numbers
from orchestrator.loop.stopping import StopCoordinator
from orchestrator.loop.task_errors import COLUMNS, check_type
from orchestrator.randomness import seed_all
from orchestrator.task import Task, attach_progress, detach_progress
from orchestrator.training_session import Part, TrainingSession
from orchestrator.user_code import find_source_location


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
            **context.state_fields(experiment),
            max_epochs=experiment.epochs,
            max_steps=experiment.steps,
            loop_columns=frozenset(COLUMNS),
        )
        attach_progress(task, state)
        contents = CheckpointedParts(state)
        epoch = EpochProgress(state)
        self._run = CustomRun(task, experiment, context, plan, clock, state, epoch, contents)
        super().__init__([self._run])
        self._arguments = {name: state.config[name] for name in list_train_parameters(type(task))}
        self._stopping = StopCoordinator(state, self.world, clock, context.stop_requested)
        self.should_stop = StopPolling(self._stopping, self._run).should_stop
        """Function that tells the session whether training has to end."""
        self._training: Generator[Any, None, None] | None = None
        """The task's generator, once it has begun."""
        self._training_began = 0.0
        """Moment at which the generator began."""
        self._iteration_ended = 0.0
        """Moment at which the last iteration ended."""
        self._has_round_begun = False

    def _begin(self) -> None:
        self._run.plan.fire("on_start", self.state)

    # A round

    def _produce_reports(self) -> Iterator[Report]:
        cursor = self._run.cursor
        while True:
            if cursor.stage in (Stage.REPORTED, Stage.TRAIN):
                if self._run.is_finished():
                    return
                self._train()
                if cursor.stage is Stage.TRAIN:  # the generator has ended, or the run stops
                    if self._run.stop:
                        yield self._run.make_report(run_ends=True, is_final=True)
                    return
                self._run.save_if_requested()

            if cursor.stage is Stage.TRAINED:
                self._fire_validation()
                cursor.stage = Stage.VALIDATED
                self._run.save_if_requested()

            self._run.agree_to_stop()
            self._run.save_stop()
            run_ends = bool(self._run.stop) or self._run.is_finished()
            yield self._run.make_report(run_ends=run_ends, is_final=run_ends)
            if self._run.stop:
                return

    def _train(self) -> None:
        """Run the task's generator up to its next report, or to its end."""
        self._run.cursor.stage = Stage.TRAIN
        report = self._advance_generator()
        metrics = average_report(report, self._run.task.train, self.world)
        if metrics is not None or self._ends_with_steps():
            self._complete_round(metrics or {})
        elif not self._run.stop and self._run.saves_last():
            self._save_last_report()

    def _advance_generator(self) -> Any:
        """Begin a round, and return what the task's generator yields at its end; `ENDED` if the
        generator has ended."""
        self._has_round_begun = False
        if self._training is None:
            # The first round begins once the task has built its model.
            self._training = self._start_generator()
        else:
            self._begin_round()
        report = next(self._training, ENDED)
        self._ensure_first_round_begun()
        return report

    def _start_generator(self) -> Generator[Any, None, None]:
        train = self._run.task.train
        returned: Any = train(TrainingSession(self), **self._arguments)
        training: Generator[Any, None, None] = check_type(
            train, returned, Generator, "a generator of reports"
        )
        self._training_began = perf_counter()
        return training

    def _complete_round(self, metrics: dict[str, float]) -> None:
        """End the training phase with the metrics of its report; a round has at least one row."""
        state = self.state
        if state.phase_iteration == 0:
            self.record({}, 1)
        state.metrics = metrics
        self._run.cursor.epoch.complete()
        state.end_training_phase()
        self._run.plan.fire("on_phase_end", state)
        self._run.cursor.stage = Stage.TRAINED

    def _ends_with_steps(self) -> bool:
        """Return whether the generator made steps after its last `yield`, which form a last round;
        collective.

        Raises TaskError if it has trained nothing.
        """
        state = self.state
        if self._stopping.is_stop_requested():
            self._run.stop = self._stopping.agree()
        steps, unreported = self.world.maximum([float(state.step), float(state.phase_iteration)])
        if not steps and not self._run.stop:
            raise TaskError(
                f"train() ended without a report or a row{find_source_location(self._run.task.train)}"
            )
        if not unreported or self._run.stop.is_interruption:
            return False
        if self._run.stop:
            state.request_checkpoint("stop")
        elif not state.finished:
            state.end_early()
        return True

    def _save_last_report(self) -> None:
        """Save the end of a generator that has made no step since its last `yield`; collective."""
        self.state.end_training_phase()
        self._run.cursor.stage = Stage.REPORTED
        self._run.save_unless_saved("last")
        self._run.cursor.stage = Stage.TRAIN

    def _ensure_first_round_begun(self) -> None:
        """Begin the first round, unless session.restore() has done so. The task has told only now
        that it trains, so its round and the first iteration began with the generator."""
        if not self._has_round_begun:
            self._begin_round(perf_counter() - self._training_began)
            self._iteration_ended = self._training_began

    def _begin_round(self, elapsed_s: float = 0.0) -> None:
        """Begin a round, from which this many seconds have passed. The task has built its model."""
        assert not self._has_round_begun
        state = self.state
        if self._run.contents.pending_checkpoint is not None:
            raise TaskError(
                "train() must call session.restore() before training, to continue from"
                f" '{self._run.contents.pending_checkpoint}'{find_source_location(self._run.task.train)}"
            )
        self._has_round_begun = True
        state.begin_training_phase()
        state.elapsed_s = elapsed_s
        self._run.plan.fire("on_phase_start", state)
        state.elapsed_s = 0.0
        self._run.recorder.begin(
            {"phase": "train", "epoch": state.epoch}, make_columns((), self._run.clock.columns)
        )
        self._iteration_ended = self._run.clock.restart()

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
        if self._training is not None:
            self._training.close()
        detach_progress(self._run.task)

    # For the session

    def restore_parts(self, parts: Mapping[str, Part], per_rank: Mapping[str, Part]) -> bool:
        """Restore the parts of checkpoints; returns whether there was a checkpoint."""
        has_restored = self._run.contents.name(parts, per_rank)
        if not self._has_round_begun:
            self._begin_round()
        if self.world.rank:
            # All ranks have built the same parts. From here on, each rank draws its own random
            # numbers; rank 0 draws those that it would draw in one process without Hookyard.
            seed_all(self._run.experiment.seed + self.world.rank)
        self._run.random_states.continue_training()
        return has_restored

    def record(self, columns: Mapping[str, Any], batch_size: int) -> None:
        """End an iteration with a row, and fire `on_step`."""
        state = self.state
        self._ensure_first_round_begun()
        if type(batch_size) is not int or batch_size < 0:
            raise TaskError(
                f"session.record() got batch_size={batch_size!r}; expected the number of samples,"
                " a non-negative int"
            )
        state.batch_size = batch_size
        state.stepped = True
        state.complete_iteration(batch_size)
        state.record(**columns)
        self._run.plan.fire("on_step", state)
        # Saving does not count as part of an iteration.
        clock = self._run.clock
        times = clock.close(state.row, self._iteration_ended + clock.checkpoint_s, ())
        self._iteration_ended = times[-1]
        clock.checkpoint_s = 0.0
        numbers = make_numbers(
            state.iteration, state.step, state.samples, state.batch_size, (), times
        )
        self._run.recorder.append(state.row, numbers)
        state.row = {}

    def save_here(self) -> None:
        """Write a checkpoint in the middle of a round, or between two rounds if this one has no row
        yet."""
        self._run.cursor.stage = Stage.TRAIN if self.state.phase_iteration else Stage.REPORTED
        self._run.start_save()
        self._run.cursor.stage = Stage.TRAIN
