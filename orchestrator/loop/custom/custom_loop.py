"""The loop around a task's own `train`: rounds, rows, reports and checkpoints. Runs in workers."""

from collections.abc import Iterator, Mapping
from enum import Enum, auto

from hooks.hook import Hook
from hooks.metrics.names import find_phase
from hooks.position import Stage
from orchestrator.errors import TaskError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.base_loop import BaseLoop
from orchestrator.loop.custom.custom_report import average_round_ends
from orchestrator.loop.custom.custom_run import CustomRun, build_custom_run
from orchestrator.loop.custom.task_training import TaskTraining
from orchestrator.loop.report import Report
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.stopping import StopCoordinator
from orchestrator.task import Task, detach_progress
from orchestrator.user_code.failures import find_source_location


class TrainOutcome(Enum):
    """What the task's `train` has come to, when it has yielded or returned."""

    ROUND_COMPLETE = auto()
    """A round is trained; its report follows."""
    STOPPED = auto()
    """`train` has returned because the run stops. There is no complete round, but a last report
    says why."""
    FINISHED = auto()
    """`train` has returned with nothing left to report."""


class CustomLoop(BaseLoop[CustomRun]):
    """Loop around the task's own `train`. A round is an epoch, and ends with a report.

    It fires the events of the run, of a phase and of a checkpoint, and `on_step` with each row.
    """

    def __init__(
        self, task: Task, experiment: Experiment, hooks: Mapping[str, Hook], context: RunContext
    ) -> None:
        self._run = build_custom_run(task, experiment, hooks, context)
        super().__init__([self._run])
        self._stopping = StopCoordinator(
            self.state, self.world, self._run.clock, context.stop_requested
        )
        self._training = TaskTraining(self._run, self._stopping)

    def _begin(self) -> None:
        self._run.plan.fire("on_start", self.state)

    # A round

    def _produce_reports(self) -> Iterator[Report]:
        run = self._run
        while True:
            if run.cursor.stage in (Stage.REPORTED, Stage.TRAIN):
                if run.is_finished():
                    return
                outcome = self._train()
                if outcome is TrainOutcome.STOPPED:
                    yield run.report(is_final=True)
                if outcome is not TrainOutcome.ROUND_COMPLETE:
                    return
                run.save_if_requested()

            yield self._finish_round()
            if run.ends_here() or self._is_end_requested(run):
                return
            run.agree_to_stop()  # a hook may have requested it in on_report
            if run.decision:
                run.save_stop()
                run.cursor.begin_train_phase()
                yield run.report(is_final=True)
                return

    def _train(self) -> TrainOutcome:
        """Run the task's `train` up to its next report, or to its end."""
        self._run.cursor.begin_train_phase()
        own_end = self._training.run_round()
        end = average_round_ends(own_end, self._run.task.train, self.world)
        if end.has_returned:
            outcome = self._end_train()
            if outcome is not TrainOutcome.ROUND_COMPLETE:
                return outcome
        self._training.complete_round(end.metrics)
        return TrainOutcome.ROUND_COMPLETE

    def _end_train(self) -> TrainOutcome:
        """End training, because `train` has returned. Steps after its last `yield` form a last
        round. Collective.

        Raises TaskError if `train` has trained nothing.
        """
        run = self._run
        state = self.state
        if self._stopping.is_stop_requested():
            run.agree_to_stop()
        steps, unreported = self.world.maximum([float(state.step), float(state.phase_iteration)])
        if not steps and not run.decision:
            raise TaskError(
                f"train() ended without a report or a row{find_source_location(run.task.train)}"
            )
        if run.decision.is_interruption or (run.decision and not unreported):
            return TrainOutcome.STOPPED

        if not unreported:
            self._save_last_report()
            return TrainOutcome.FINISHED

        if run.decision:
            state.request_checkpoint("stop")
        elif not state.finished:
            state.end_early()
        return TrainOutcome.ROUND_COMPLETE

    def _save_last_report(self) -> None:
        """Save the end of a `train` that has made no step since its last `yield`, if a hook saves
        the end of training; collective."""
        run = self._run
        if run.checkpoints.saves_end:
            self.state.end_training_phase()
            run.cursor.end_round()
            run.save_unless_saved()

    def _finish_round(self) -> Report:
        """Validate, save and stop if they are due, and return the report."""
        run = self._run
        if run.cursor.stage is Stage.TRAINED:
            self._fire_validation()
            run.cursor.end_validation()
            run.save_if_requested()

        run.agree_to_stop()
        run.save_stop()
        return run.report(is_final=run.ends_here())

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
        self._training.close()
        detach_progress(self._run.task)
