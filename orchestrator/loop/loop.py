"""The loop of a task with hooks: each epoch in order. Runs in workers.

`Loop._produce_reports` is an epoch: train, validate, report, save, stop. The batches of a training phase
are in `training.py`, those of an evaluation in `evaluation.py`. What a run owns, and how it begins,
ends and fails, is in `training_run.py`.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hooks.hook import Hook
from hooks.metrics.names import phase_of
from hooks.plan import Plan
from hooks.position import Stage
from hooks.state import Weights
from orchestrator.errors import TaskError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.source import InitialWeights
from orchestrator.loop.evaluation import Evaluation
from orchestrator.loop.model.initial_weights import load_initial_weights
from orchestrator.loop.model.torch_settings import torch_settings
from orchestrator.loop.report import Report, produce_within
from orchestrator.loop.state.hooked_contents import EvaluationContents
from orchestrator.loop.stopping import INTERRUPTED, Stop
from orchestrator.loop.training import Training
from orchestrator.loop.training_run import RunContext, TrainingRun
from orchestrator.task import Task


class Loop(TrainingRun):
    """Training of a task with hooks: `for report in loop.run(): ...`. Each worker has one.

    It makes its own `Training`, with these `options`, unless it is one of several runs that share a
    `training`; then it has its own `plan`.
    """

    def __init__(
        self,
        task: Task,
        experiment: Experiment,
        hooks: Mapping[str, Hook],
        context: RunContext | None = None,
        *,
        training: Training | None = None,
        plan: Plan | None = None,
        **options: Any,
    ) -> None:
        context = context or RunContext()
        self.training = training or Training(task, experiment, hooks, context, **options)
        super().__init__(
            task,
            experiment,
            context,
            plan or self.training.plan,
            self.training.clock,
            self.training.state,
            self.training.epoch,
            self.training.contents,
        )
        if self.training.modes:
            self.state.evaluations[""] = Weights(self.training.modes.evaluating)
        self.evaluation = Evaluation(self, self.training)

    @property
    def runs(self) -> Sequence["Loop"]:
        """All runs of the training."""
        return [self]

    def run(self) -> Generator[Report, None, None]:
        # Between reports, another run with other settings may be running in this process.
        return produce_within(partial(torch_settings, self.experiment), super().run())

    def _begin(self) -> None:
        self.evaluation.check_data(self.phases())
        self.training.begin()
        self.evaluation.check_phase_names()

    def _close(self) -> None:
        self.training.close()

    # An epoch, or a part of one

    def _produce_reports(self) -> Iterator[Report]:
        cursor = self.cursor
        if cursor.stage is not Stage.TRAIN:
            self.random_states.continue_training()

        while True:
            if cursor.stage in (Stage.REPORTED, Stage.TRAIN):
                if self.is_finished():
                    break
                self.stop = self._train()
                if self.stop.is_interruption:  # within the phase
                    yield self.make_report(run_ends=True, is_final=True)
                    return
                cursor.stage = Stage.TRAINED
                self.random_states.after_training = self.training.after_phase
                self.save_if_requested()

            if cursor.stage is Stage.TRAINED:
                if self._is_validation_due():
                    self.evaluation.evaluate("val")
                cursor.stage = Stage.VALIDATED
                self.save_if_requested()

            self.agree_to_stop()
            self.save_stop()
            run_ends = bool(self.stop) or self.is_finished()
            yield self.make_report(run_ends=run_ends, is_final=run_ends and not self._is_test_due())
            if self.stop:
                break

        if self._is_test_due():
            self.random_states.rewind()
            self.evaluation.evaluate("test")
            yield self.make_report(run_ends=True, is_final=True)

    def _train(self) -> Stop:
        """Train until the phase ends or the run is interrupted; return whether the run stops
        here."""
        training = self.training
        stopping = training.stopping
        state = training.state
        for run in self.runs:
            run.cursor.begin_train_phase()
        training.begin_phase()
        for run in self.runs:
            run.random_states.continue_training()

        stop = Stop()
        saves_in_background = any(run.saving.background for run in self.runs)
        for _ in training.iterate():  # up to a step where a checkpoint or a check for a stop is due
            if state.checkpoint_reasons:
                self._save_requested()
            if state.iteration < stopping.next_check:
                continue
            if saves_in_background:
                for run in self.runs:
                    run.finish_if_written()
            if not stopping.is_stop_requested():
                continue

            stop = stopping.agree()
            if stop.is_interruption:
                training.modes.evaluate(keep=True)
                for run in self.runs:
                    run.save_unless_saved(INTERRUPTED)
                return stop
            if stop:
                state.request_checkpoint("stop")
                break

        metrics = training.complete_phase()
        for run in self.runs:
            run.add_metrics(metrics)
        training.end_phase()
        return stop

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        """Add metrics of the training phase to those of the next report."""
        self.state.metrics |= metrics

    def _is_validation_due(self) -> bool:
        every = self.experiment.validate_every
        if not self.training.data.phase_names("val") or not every.count:
            return False
        return self.state.finished or bool(self.stop) or every.due(self.state)

    def _is_test_due(self) -> bool:
        """Return whether a test follows the end of training."""
        return bool(self.training.data.phase_names("test")) and not self.stop.is_interruption

    def phases(self) -> tuple[str, ...]:
        data = self.training.data
        unevaluated = [] if self.experiment.validate_every.count else data.phase_names("val")
        return tuple(phase for phase in data.phases if phase not in unevaluated)

    # Checkpoints

    def _save_requested(self) -> None:
        """Save the checkpoints that hooks have requested within a training phase; collective."""
        self.training.show_unsaved_state()
        for run in self.runs:
            run.save_if_requested()

    def start_save(self) -> None:
        with self.training.modes.evaluating():
            super().start_save()


class EvaluationLoop(Loop):
    """Loop that evaluates a restored checkpoint once on the phases of a `kind`, `val` or `test`,
    and yields one report.

    Initial weights of the experiment replace the checkpoint's, and no averages are evaluated.
    """

    def __init__(
        self,
        task: Task,
        experiment: Experiment,
        hooks: Mapping[str, Hook],
        context: RunContext,
        *,
        kind: str,
        rewinds: bool = True,
        origin: InitialWeights | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            task, experiment, hooks, context, resumes=True, contents=EvaluationContents, **options
        )
        self._kind = kind
        self._rewinds = rewinds
        self._origin = origin

    def _begin(self) -> None:
        super()._begin()
        if not self.experiment.init:
            return
        lines = load_initial_weights(self.state.module, self.experiment, self.world, self._origin)
        self.state.evaluations = {"": Weights()}
        if self.world.is_master:
            for line in lines:
                self.state.show(line)

    def _produce_reports(self) -> Iterator[Report]:
        data = self.training.data
        if not data.phase_names(self._kind):
            raise TaskError(
                f"data() of {type(self.task).__name__} gives {', '.join(data.phases)}, and no"
                f" {self._kind} to evaluate"
            )
        self.state.metrics = {}
        self.cursor.eval_iterations = {}
        self.cursor.stage = Stage.VALIDATED
        if self._rewinds:
            self.random_states.rewind()
        self.evaluation.evaluate(self._kind)

        report = self.make_report(run_ends=bool(self.stop) or self.is_finished(), is_final=True)
        # Hooks may restore training metrics from the checkpoint; leave them out.
        metrics = {
            name: value
            for name, value in report.metrics.items()
            if phase_of(name) in ("", self._kind)
        }
        yield replace(report, metrics=metrics)
