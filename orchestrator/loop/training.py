"""Training: a task's model, optimizers, schedules and data, and the training phases. Runs in
workers."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from torch import nn

from hooks.checkpointing.checkpoint import Checkpoint
from hooks.hook import Hook
from hooks.plan import Plan
from hooks.state import ScheduledOptimizer, Weights
from orchestrator.errors import TaskError, raise_problems
from orchestrator.experiment.checks.metric_modes import read_meter_modes
from orchestrator.experiment.checks.optimizers import check_closure
from orchestrator.experiment.optim.closures import needs_closure
from orchestrator.experiment.optim.learning_rate import Schedule
from orchestrator.experiment.optim.optimizer import build_optimizers
from orchestrator.experiment.optim.timeline import Timeline
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.source import InitialWeights
from orchestrator.loop.data.phases import Data, build_data
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.model.frozen_weights import FrozenWeights
from orchestrator.loop.model.initial_weights import load_initial_weights
from orchestrator.loop.model.strategy import (
    build_model,
    forward_pass,
    initialize_shards,
    wrap_model,
)
from orchestrator.loop.model.torch_settings import (
    Precision,
    apply_settings,
    settings_without_effect,
)
from orchestrator.loop.plan import make_plan
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.span_clock import clock_for
from orchestrator.loop.state.cursor import EpochProgress
from orchestrator.loop.state.hooked_contents import HookedContents
from orchestrator.loop.state.saved_optimizers import SavedOptimizers
from orchestrator.loop.state.unsaved import UnsavedState
from orchestrator.loop.step.auto_microbatching import MicrobatchRunner
from orchestrator.loop.step.changes import Changes
from orchestrator.loop.step.closure import ClosureRunner
from orchestrator.loop.step.iterations import IterationRunner
from orchestrator.loop.step.optimizer_modes import OptimizerModes
from orchestrator.loop.step.stages import StepContext
from orchestrator.loop.step.turns import TurnRunner
from orchestrator.loop.step.weights import WeighedBatches
from orchestrator.loop.stopping import StopCoordinator
from orchestrator.loop.task_errors import ROW_COLUMNS
from orchestrator.loop.world import World
from orchestrator.randomness import random_state, seed_all
from orchestrator.task import Task, has_turns, has_weights, hide_progress, show_progress
from orchestrator.units import format_count

Pause = Literal["last iteration", "checkpoint", "stop check"]
"""Why `Training.iterate` pauses. Text is compared faster than the members of an enumeration."""


class Training:
    """The model, optimizers, schedules and data of a task, and the iterations of a training phase.
    One in each worker process.

    It knows no run: a loop saves, evaluates and reports. `hooks` and `context` belong to its only
    run, or to the first of several runs that share it. With `resumes`, a checkpoint replaces the
    initial weights, which were found at `origin` when the run was created. `make_training` makes
    one, with the seeds of the experiment.
    """

    def __init__(
        self,
        task: Task,
        experiment: Experiment,
        hooks: Mapping[str, Hook],
        context: RunContext,
        *,
        make_data: Callable[[Task, Experiment, World], Data] = build_data,
        origin: InitialWeights | None = None,
        resumes: bool = False,
        contents: type[HookedContents] = HookedContents,
    ) -> None:
        self.task = task
        self.experiment = experiment
        self.world = context.world
        self.recorder = context.recorder
        self.clock = clock_for(self.world.device)
        self.plan = make_plan(hooks, self.world, self.clock)

        self.data = make_data(task, experiment, self.world)
        self.precisions = {
            name: Precision(experiment.precision, self.world.device, experiment.scaler.model_dump())
            for name in experiment.optimizations
        }
        timeline = self._make_timeline()
        self.schedules = {
            name: Schedule.make(optimization, type(task), timeline)
            for name, optimization in experiment.optimizations.items()
        }

        module, model, lines = self._build_model(origin, resumes)
        self.lines = lines
        """Lines about the model, for the user."""
        self.state = self._make_state(module, model, context)
        self._unsaved: UnsavedState | None = None
        self.changes = Changes(experiment, task, self.plan, self.state, timeline)
        self.iterations = self._make_runner()
        self.epoch = self._make_epoch()
        self.modes = OptimizerModes(self.state.optimizers)
        if self.modes:
            self.state.evaluations[""] = Weights(self.modes.evaluating)
        self.contents = contents(
            self.state,
            self.iterations,
            self.data,
            SavedOptimizers(self.state, self.changes, self.schedules, self.modes),
            self._find_frozen_weights(origin),
        )
        self.last_iteration = context.last_iteration
        self.stopping = StopCoordinator(self.state, self.world, self.clock, context.stop_requested)
        self.after_phase: dict[str, Any] | None = None
        """Random state at the end of the last phase."""
        self._batches: Iterator[object] | None = None
        """Remaining training batches of the epoch; None between two epochs."""

    # Building

    def _make_timeline(self) -> Timeline:
        experiment = self.experiment
        steps_per_epoch = -(-self.data.train.length() // experiment.micro_batches)
        return Timeline.from_hooks(
            self.plan.hooks, experiment.epochs, experiment.steps, steps_per_epoch
        )

    def _build_model(
        self, origin: InitialWeights | None, resumes: bool
    ) -> tuple[nn.Module, nn.Module, list[str]]:
        """Return the task's model, the wrapper that shares it among ranks, and lines about both."""
        experiment = self.experiment
        on_meta = experiment.workers.meta_device and self.world.world_size > 1
        module = apply_settings(build_model(self.task, on_meta), experiment, self.world)
        model = wrap_model(module, self.task, experiment, self.world)
        if on_meta:
            initialize_shards(module, experiment.seed, self.world)

        lines = [] if resumes else load_initial_weights(module, experiment, self.world, origin)
        if self.world.world_size == 1:
            lines += settings_without_effect(experiment)
        return module, model, lines

    def _make_state(self, module: nn.Module, model: nn.Module, context: RunContext) -> LoopState:
        optimizers = build_optimizers(self.experiment.optimizations, self.task, module)
        schedulers = {
            name: schedule.build(self.task, optimizers[name])
            for name, schedule in self.schedules.items()
        }
        raise_problems(
            problem
            for optimizer in optimizers.values()
            for problem in check_closure(type(optimizer), self.experiment, self.plan.hooks)
        )

        first = next(iter(optimizers))
        return LoopState(
            **context.state_fields(self.experiment),
            model=model,
            module=module,
            optimizer=optimizers[first],
            scheduler=schedulers[first],
            scaler=self.precisions[first].scaler,
            several={
                name: ScheduledOptimizer(
                    optimizers[name], schedulers[name], self.precisions[name].scaler
                )
                for name in optimizers
                if name
            },
            loaders=self.data.loaders,
            fresh_batches=self.data.fresh_batches,
            forward=self.precisions[first].with_autocast(forward_pass(self.task, model, module)),
            samples_in=self.task.batch_size,
            max_epochs=self.experiment.epochs,
            max_steps=self.experiment.steps,
            accumulate=self.experiment.micro_batches,
            full_batches=self.data.train.by_index or self.experiment.loader.drop_last,
            clock=self.clock,
            loop_columns=ROW_COLUMNS,
            meter_modes=read_meter_modes(self.task),
        )

    def _make_runner(self) -> IterationRunner:
        runner = _choose_runner(self.task, self.experiment, self.state)
        return runner(
            StepContext(
                task=self.task,
                state=self.state,
                plan=self.plan,
                clock=self.clock,
                precisions=self.precisions,
                recorder=self.recorder,
                world=self.world,
            )
        )

    def _find_frozen_weights(self, origin: InitialWeights | None) -> FrozenWeights | None:
        """Return the weights that checkpoints leave out; None if they hold all."""
        hooks = self.plan.hooks.values()
        if any(isinstance(hook, Checkpoint) and hook.weights == "trainable" for hook in hooks):
            return FrozenWeights(self.state.module, self.experiment, origin)
        return None

    def _make_epoch(self) -> EpochProgress:
        train = self.data.train
        samples_per_iteration = self.experiment.batch_size * self.world.world_size
        return EpochProgress(
            self.state, train.length, samples_per_iteration if train.by_index else 0
        )

    # A training phase: begin, iterate, complete and end

    def begin(self) -> None:
        """Fire `on_start`, and show which state no checkpoint holds."""
        self.plan.fire("on_start", self.state)
        self._unsaved = UnsavedState(self.task, self.state, self.data, self.plan)
        self.show(self._unsaved.find_at_start())

    def use_plan(self, plan: Plan) -> None:
        """Fire events by another plan from now on."""
        self.plan = plan
        self.iterations.plan = plan

    def begin_phase(self) -> None:
        """Begin a phase, in an epoch that it may continue."""
        state = self.state
        self.changes.advance()
        state.begin_training_phase(self.epoch.length)

        state.module.train()
        state.model.train()
        self.modes.train()
        self.plan.fire("on_phase_start", state)
        if self._batches is None:
            self._batches = self.data.train.begin(state.epoch, self.epoch.consumed())

    def iterate(self) -> Iterator[Pause]:
        """Train until the phase ends. Pause between two steps if a checkpoint is requested or a
        check for a stop is due, and after the last iteration, even within a step; the caller ends a
        phase early by not continuing."""
        state = self.state
        data = self.data.train
        fetch_ahead = data.fetch_ahead
        assert self._batches is not None
        batches = self._batches
        if has_weights(type(self.task)):
            batches = weighed = WeighedBatches(self.task, state, batches, fetch_ahead)
            fetch_ahead = weighed.fetch_ahead
        iterations = self.iterations.train(batches)
        last_step = self._last_step_of_phase()

        # A run resumed with different ranks or batches may have no iteration left in its epoch.
        has_ended = self._has_phase_ended(last_step)
        while not has_ended:
            if data.stops_when_exhausted and not fetch_ahead():
                self._stop_at_end_of_data()
                return
            next(iterations)
            if state.iteration >= self.last_iteration:
                yield "last iteration"
            has_ended = self._has_phase_ended(last_step)
            if has_ended or not state.at_step_boundary:
                # A checkpoint cannot hold the gradients between the micro-batches of a step.
                continue
            if state.checkpoint_reasons:
                yield "checkpoint"
            if state.iteration >= self.stopping.next_check:
                yield "stop check"
            if self.changes.pending:
                self.changes.advance()
        if not state.finished and not data.has_more():
            self._stop_at_end_of_data()

    def complete_phase(self) -> dict[str, float]:
        """Count the epoch if it has ended; put the metrics of the phase into the state, and return
        them. Collective."""
        state = self.state
        self.show_unsaved_state()
        if state.phase_iteration >= state.phase_length:
            self.epoch.complete()
            self._batches = None
        metrics = self.iterations.metrics.reduce("train")
        state.metrics |= metrics
        return metrics

    def end_phase(self) -> None:
        """Leave training mode and fire `on_phase_end`."""
        self.state.end_training_phase()
        # A run without an end or a stop here would not leave training mode, which changes bits.
        self.modes.evaluate(keep=not self._ends_as_planned())
        self.plan.fire("on_phase_end", self.state)
        self.after_phase = random_state()

    def close(self) -> None:
        hide_progress(self.task)
        self._batches = None
        self.data.close()

    def _last_step_of_phase(self) -> float:
        """Return the step at which this training phase ends, unless its epoch ends earlier."""
        state = self.state
        if state.ended_early:
            return state.step
        every = self.experiment.validate_every
        last = math.inf if state.max_steps is None else float(state.max_steps)
        if not self.data.phase_names("val") or every.unit != "steps" or every.count == 0:
            return last
        return min(last, (state.step // every.count + 1) * every.count)

    def _has_phase_ended(self, last_step: float) -> bool:
        state = self.state
        return state.phase_iteration >= state.phase_length or state.step >= last_step

    def _ends_as_planned(self) -> bool:
        """Return whether a longer run would end a phase here too: with an epoch, or for a
        validation."""
        validates = bool(self.data.phase_names("val"))
        return self.state.epoch_completed or (
            validates and self.experiment.validate_every.due(self.state)
        )

    def _stop_at_end_of_data(self) -> None:
        """End training, because a rank has no batch left; discard the gradients of an incomplete
        step."""
        state = self.state
        if state.step == 0:
            raise TaskError(
                "the train dataset ended before the first step"
                f" (batches: {state.iteration}, accumulate: {state.accumulate})"
            )
        state.end_early()
        state.module.zero_grad()
        if state.is_master:
            state.show(
                f"the training data is used up after {format_count(state.step, 'step')}; the run"
                " ends there"
            )

    # Lines for the user

    def show_unsaved_state(self) -> None:
        """Show once, at the first checkpoint or the end of the first phase, which state no
        checkpoint holds."""
        if self._unsaved is not None:
            self.show(self._unsaved.find_changes())
            self._unsaved = None

    def show(self, lines: Iterable[str]) -> None:
        """Show lines once, not on each rank."""
        if self.world.is_master:
            for line in lines:
                self.state.show(line)


def make_training(
    task: Task,
    experiment: Experiment,
    hooks: Mapping[str, Hook],
    context: RunContext,
    **options: Any,
) -> Training:
    """Make a training with the seeds of the experiment, and show its progress to the task.

    All ranks build the same model. From then on, each has its own random numbers. `options` are
    those of `Training`.
    """
    seed_all(experiment.seed)
    training = Training(task, experiment, hooks, context, **options)
    show_progress(task, training.state)
    training.show(training.lines)
    seed_all(experiment.seed + context.world.rank)
    return training


def _choose_runner(task: Task, experiment: Experiment, state: LoopState) -> type[IterationRunner]:
    if has_turns(type(task)):
        return TurnRunner
    if state.optimizer is not None and needs_closure(type(state.optimizer)):
        return ClosureRunner
    return MicrobatchRunner if experiment.accumulate == "auto" else IterationRunner
