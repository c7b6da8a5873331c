"""The hooked loop: the training, and the rounds of a run that trains, evaluates, saves and
reports."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from hooks.hook import Hook
from hooks.metrics.names import kind_of, phase_of
from hooks.plan import Plan
from hooks.position import Stage
from hooks.state import State, Weights
from orchestrator.errors import ConfigError, TaskError
from orchestrator.experiment.checks.metrics import check_phases_of_metrics
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.source import InitialWeights
from orchestrator.loop.data.phase_data import PhaseData
from orchestrator.loop.model.initial_weights import load_initial_weights
from orchestrator.loop.model.strategy import is_sharded
from orchestrator.loop.model.torch_settings import torch_settings
from orchestrator.loop.report import Report, produce_within
from orchestrator.loop.state.hooked_contents import EvaluationContents
from orchestrator.loop.step.collective_calls import Loss, refuse_collectives
from orchestrator.loop.step.iterations import IterationRunner
from orchestrator.loop.task_errors import check_type, unexpected
from orchestrator.loop.training import Training
from orchestrator.loop.training_loop import RunContext, TrainingLoop
from orchestrator.randomness import with_same_random_state
from orchestrator.task import Task, missing_loss


class HookedRun(TrainingLoop):
    """One run of a training loop: its hooks, evaluation, checkpoints and reports. Used in workers.

    Events fire in `Training` for the start and the training phases, in `IterationRunner` within an
    iteration, in `CheckpointSaver` around a checkpoint, and here for the phases of val and test,
    for reports and the end. An evaluation runs once with each set of weights in
    `state.evaluations`.
    """

    def __init__(
        self,
        training: Training,
        experiment: Experiment,
        context: RunContext,
        plan: Plan,
        state: State,
    ) -> None:
        self.training = training
        task, clock = training.task, training.clock
        super().__init__(
            task, experiment, context, plan, clock, state, training.epoch, training.contents
        )
        if training.modes:
            state.evaluations[""] = Weights(training.modes.evaluating)
        self._evaluator = IterationRunner(
            task, state, plan, clock, training.precisions, self.recorder, self.world
        )
        training.runs.append(self)

    def run(self) -> Generator[Report, None, None]:
        # Between reports, another run with other settings may be running in this process.
        return produce_within(partial(torch_settings, self.experiment), super().run())

    def _begin(self) -> None:
        self.check_data()
        self.training.begin()
        self.check_phase_names()

    def check_data(self) -> None:
        """Raise ConfigError if a hook monitors a metric of a phase without data, or data to
        evaluate has no loss."""
        evaluated = [phase for phase in self.phases() if phase != "train"]
        if evaluated and type(self.task).loss is missing_loss:
            raise ConfigError.at(
                "task",
                f"{type(self.task).__name__} needs loss(), to evaluate {', '.join(evaluated)}",
            )
        problems = check_phases_of_metrics(
            {"hooks": self.state.config.get("hooks")}, self.training.data.loaders
        )
        if problems:
            raise ConfigError(problems)

    def _close(self) -> None:
        self.training.close()

    # TrainingLoop

    def start_save(self) -> None:
        with self.training.modes.evaluating():
            super().start_save()

    def _rounds(self) -> Iterator[Report]:
        if self.cursor.stage is not Stage.TRAIN:
            self.saving.restore_randomness()
        yield from super()._rounds()
        if self.cursor.stage is not Stage.TRAIN and self._has_another_report():
            self.saving.rewind_randomness()
            self.evaluate("test")
            yield self._make_report(is_last=True)

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
        every = self.experiment.validate_every
        is_last = self.state.finished or bool(self.stopping.reasons)
        if (
            self.training.data.phase_names("val")
            and every.count
            and (is_last or every.due(self.state))
        ):
            self.evaluate("val")

    def phases(self) -> tuple[str, ...]:
        data = self.training.data
        unevaluated = [] if self.experiment.validate_every.count else data.phase_names("val")
        return tuple(phase for phase in data.phases if phase not in unevaluated)

    def _has_another_report(self) -> bool:
        return bool(self.training.data.phase_names("test")) and not self.stopping.interrupted

    # Evaluation

    def check_phase_names(self) -> None:
        """Raise TaskError if a phase and a set of weights have the same name: both would report
        `val/NAME/loss`."""
        for phase in self.training.data.phases:
            name = phase.partition("/")[2]
            if name and name in self.state.evaluations:
                provider = self.state.evaluations[name].provider
                raise TaskError(
                    f"data() has a phase '{phase}', which is the name of the hook '{provider}'; rename it"
                )

    def evaluate(self, kind: str) -> None:
        """Run the phases of `val` or of `test`, and put their metrics into `state.metrics`;
        collective."""
        for phase in self.training.data.phase_names(kind):
            self._evaluate_phase(phase)

    def _evaluate_phase(self, phase: str) -> None:
        state, cursor, data = self.state, self.cursor, self.training.data.phases[phase]
        state.phase, state.stepped = phase, False
        is_val = kind_of(phase) == "val"
        offset, train_iterations = cursor.eval_iterations.get(phase, 0), state.phase_iteration
        epoch, number = cursor.epoch_label, self._number_of_validation() if is_val else 0
        state.phase_iteration, state.phase_length = 0, data.length() * len(state.evaluations)
        state.iterations_before = cursor.val_iterations if is_val else 0
        check_loss = self._find_loss_check(data)
        self.plan.fire("on_phase_start", state)
        for label, weights in with_same_random_state(state.evaluations.items()):
            state.evaluation, before = label, state.phase_iteration
            meters = {name: meter.to(state.device) for name, meter in self._meters().items()}
            with weights(state), torch.no_grad():
                state.module.eval()
                batches, places = data.evaluation_batches(number)
                iterations = self._evaluator.evaluate(batches, meters, offset, epoch, check_loss)
                for has_batch in self._iterate_batches(places):
                    if has_batch:
                        next(iterations)
                    else:
                        state.forward(state.module, self.training.data.first_sample(phase))
            state.module.train()
            if meters:
                counts = self.world.gather(state.phase_iteration - before)
                if 0 in counts:  # computing the meters would hang or fail
                    rank = counts.index(0)
                    raise TaskError(
                        f"meters need a {phase} sample on each rank, but rank {rank} has none"
                    )
            values = self._evaluator.reduce_metrics(
                f"{phase}/{label}" if label else phase, self.world, meters
            )
            self._evaluator.samples_without_loss = 0
            if not values and not any(self.world.gather(state.phase_iteration - before)):
                raise TaskError(
                    f"the {phase} data has no sample on any rank: add some, or remove {phase} from data()"
                )
            if clash := values.keys() & state.metrics.keys():
                raise TaskError(
                    f"{', '.join(sorted(clash))} would be metrics of two phases; rename one"
                )
            state.metrics |= values
        if is_val:
            cursor.eval_iterations[phase] = offset + state.phase_iteration
            cursor.val_iterations += state.phase_iteration
        state.evaluation = ""
        self.plan.fire("on_phase_end", state)
        state.phase_iteration, state.phase_length = train_iterations, cursor.epoch.length

    def _number_of_validation(self) -> int:
        """Return how many validations that `validate_every` requests came before this one."""
        every, state = self.experiment.validate_every, self.state
        if every.count == 0:
            return 0
        done = state.step if every.unit == "steps" else state.epoch + self.cursor.epoch.has_begun
        return max(0, -(-done // every.count) - 1)

    def _find_loss_check(self, data: PhaseData) -> Callable[[Loss], Loss] | None:
        """Return a check of the loss if the ranks have unequal batches; None if the check is not
        needed. Collective."""
        state, size = self.state, data.size
        if size is None or size % state.world_size == 0 or is_sharded(state.module):
            return None
        batches = self.world.gather(data.length())
        return partial(
            refuse_collectives, task=self.task, state=state, samples=size, batches=batches
        )

    def _meters(self) -> Mapping[str, Any]:
        method = self.task.meters
        meters = check_type(method, method(), Mapping, "a mapping of names to meters")
        for name, meter in meters.items():
            if isinstance(meter, type) or not all(
                hasattr(meter, part) for part in ("to", "update", "compute")
            ):
                raise unexpected(method, f" for '{name}'", meter, "a torchmetrics object")
        return meters

    def _iterate_batches(self, places: Iterable[object]) -> Iterator[bool]:
        """Yield True for each of this rank's batches.

        A sharded model needs all ranks in each call, so a rank without a batch yields False while
        another has one.
        """
        if not is_sharded(self.state.module):
            yield from (True for _ in places)
            return
        own = iter(places)
        while True:
            has_batch = next(own, own) is not own
            if not self.world.maximum([float(has_batch)])[0]:
                return
            yield has_batch


class Loop(HookedRun):
    """Training of a task with hooks: `for report in loop.run(): ...`. Each worker has one; it does
    not depend on Ray.

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
        self._kind, self._rewinds, self._origin = kind, rewinds, origin

    def _begin(self) -> None:
        super()._begin()
        if self.experiment.init:
            lines = load_initial_weights(
                self.state.module, self.experiment, self.world, self._origin
            )
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
        self.evaluate(self._kind)
        report = self._make_report(is_last=True)
        # Hooks may restore training metrics from the checkpoint; leave them out.
        yield replace(
            report,
            metrics={
                name: value
                for name, value in report.metrics.items()
                if phase_of(name) in ("", self._kind)
            },
            is_final=True,
        )
