"""The hooked loop: the training, and the rounds of a run that trains, evaluates, saves and reports."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hooks.hook import Hook
from hooks.metrics.names import phase_of
from hooks.plan import Plan
from hooks.state import State, Weights
from orchestrator.checkpoint.position import Stage
from orchestrator.config.checks.metrics import check_phases_of_metrics
from orchestrator.config.sections.experiment import Experiment
from orchestrator.config.text.source import InitialWeights
from orchestrator.errors import ConfigError, Problem, TaskError
from orchestrator.loop.data.phases import DataOf, data_from_task
from orchestrator.loop.evaluation import Evaluation
from orchestrator.loop.model.torch_settings import torch_settings
from orchestrator.loop.report import Report, produce_within
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.state.cursor import RunCursor
from orchestrator.loop.state.hooked_contents import EvaluationContents
from orchestrator.loop.step.iterations import IterationRunner
from orchestrator.loop.training import Training, load_initial_weights
from orchestrator.loop.training_loop import TrainingLoop
from orchestrator.task import Task, missing_loss


class HookedRun(TrainingLoop):
    """One run of a training loop: its hooks, evaluation, checkpoints and reports. Used in workers.

    Events fire in `Training` for the start and the training phases, in `Evaluation` for the other phases, in
    `IterationRunner` within an iteration, in `CheckpointSaver` around a checkpoint, and here for reports and the end.
    """

    def __init__(
        self, training: Training, experiment: Experiment, context: RunContext, plan: Plan, state: State
    ) -> None:
        self.training = training
        task, clock = training.task, training.clock
        super().__init__(
            task,
            experiment,
            context,
            plan=plan,
            clock=clock,
            state=state,
            cursor=RunCursor(state, training.epoch),
            contents=training.contents,
        )
        iterations = IterationRunner(task, state, plan, clock, training.precisions, self.recorder, self.world)
        self.evaluation = Evaluation(task, state, plan, iterations, self.cursor, training.data, self.world)
        training.runs.append(self)

    def run(self) -> Generator[Report, None, None]:
        # Between reports, another run with other settings may be running in this process.
        return produce_within(partial(torch_settings, self.experiment), super().run())

    def _begin(self) -> None:
        self.check_data()
        self.training.begin()
        self.evaluation.check_names()

    def check_data(self) -> None:
        """Raise ConfigError if a hook monitors a metric of a phase without data, or data to evaluate has no loss."""
        evaluated = [phase for phase in self.phases() if phase != "train"]
        if evaluated and type(self.task).loss is missing_loss:
            message = (
                f"data() of {type(self.task).__name__} gives {', '.join(evaluated)}, and it has no loss(), with which"
                " that is evaluated; write loss(output, batch)"
            )
            raise ConfigError([Problem("task", message)])
        problems = check_phases_of_metrics({"hooks": self.state.config.get("hooks")}, self.training.data.loaders)
        if problems:
            raise ConfigError(problems)

    def _close(self) -> None:
        self.training.close()

    # TrainingLoop

    def _rounds(self) -> Iterator[Report]:
        if self.cursor.stage is not Stage.TRAIN:
            self.saving.restore_randomness()
        yield from super()._rounds()
        if self.cursor.stage is not Stage.TRAIN and self._has_another_report():
            self.saving.rewind_randomness()
            self.evaluation.run("test")
            yield self._make_report(last=True)

    def _train(self) -> None:
        self.training.train_phase()
        self._take_phase()

    def _take_phase(self) -> None:
        """Copy the stage and stop reasons of the training phase, and save if requested."""
        training, stopping = self.training, self.training.stopping
        self.cursor.stage = training.stage
        self.stopping.reasons, self.stopping.interrupted = stopping.reasons, stopping.interrupted
        if training.stage is Stage.TRAINED:
            self.saving.after_training = training.after_phase
            self.save_if_requested()

    def _validate(self) -> None:
        if self._is_validation_due():
            self.evaluation.run("val")

    def _is_validation_due(self) -> bool:
        every = self.experiment.validate_every
        if not self.training.data.phase_names("val") or every.count == 0:
            return False
        return self.state.finished or bool(self.stopping.reasons) or every.due(self.state)

    def phases(self) -> tuple[str, ...]:
        data = self.training.data
        unevaluated = [] if self.experiment.validate_every.count else data.phase_names("val")
        return tuple(phase for phase in data.phases if phase not in unevaluated)

    def _has_another_report(self) -> bool:
        return bool(self.training.data.phase_names("test")) and not self.stopping.interrupted


class Loop(HookedRun):
    """Training of a task with hooks: `for report in loop.run(): ...`. Each worker has one; it does not depend on Ray.

    It is the only run of its own `Training`. `options` are passed to `Training`.
    """

    def __init__(
        self,
        task: Task,
        experiment: Experiment,
        hooks: Mapping[str, Hook],
        context: RunContext | None = None,
        **options: Any,
    ) -> None:
        context = context or RunContext()
        training = Training(task, experiment, hooks, context, **options)
        super().__init__(training, experiment, context, training.plan, training.state)


class EvaluationLoop(Loop):
    """Loop that evaluates a restored checkpoint once on the phases of a `kind`, `val` or `test`, and yields one report.

    Initial weights of the experiment replace the checkpoint's, and no averages are evaluated.
    """

    def __init__(
        self,
        task: Task,
        experiment: Experiment,
        hooks: Mapping[str, Hook],
        context: RunContext | None = None,
        *,
        kind: str,
        rewinds: bool = True,
        data_of: DataOf = data_from_task,
        origin: InitialWeights | None = None,
    ) -> None:
        super().__init__(task, experiment, hooks, context, data_of=data_of, resumes=True, contents=EvaluationContents)
        self._kind, self._rewinds, self._origin = kind, rewinds, origin

    def _begin(self) -> None:
        super()._begin()
        if self.experiment.init:
            lines = load_initial_weights(self.state.module, self.experiment, self.world, self._origin)
            self.state.evaluations = {"": Weights()}
            for line in lines if self.world.is_master else ():
                self.state.show(line)

    def _rounds(self) -> Iterator[Report]:
        data = self.training.data
        if not data.phase_names(self._kind):
            raise TaskError(
                f"data() of {type(self.task).__name__} gives {', '.join(data.phases)}, and no {self._kind} to evaluate"
            )
        self.state.metrics, self.cursor.eval_iterations, self.cursor.stage = {}, {}, Stage.VALIDATED
        if self._rewinds:
            self.saving.rewind_randomness()
        self.evaluation.run(self._kind)
        report = self._make_report(last=True)
        # Hooks may restore training metrics from the checkpoint; leave them out.
        yield replace(
            report,
            metrics={name: value for name, value in report.metrics.items() if phase_of(name) in ("", self._kind)},
            is_final=True,
        )
