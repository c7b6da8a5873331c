"""Building a training from its task and experiment: data, model, optimizers and schedules. Runs in
workers."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from torch import nn
from torch.optim import Optimizer

from hooks.event_plan import Plan
from hooks.hook import Hook
from hooks.optimizer_name import OptimizerName
from hooks.state import ScheduledOptimizer
from orchestrator.errors import Problem, raise_problems
from orchestrator.experiment.checks.metric_modes import read_meter_modes
from orchestrator.experiment.checks.optimizers import check_closure
from orchestrator.experiment.optim.building import build_optimizers
from orchestrator.experiment.optim.learning_rate import Schedule
from orchestrator.experiment.optim.optimization import Optimization
from orchestrator.experiment.optim.timeline import Timeline
from orchestrator.experiment.optimizations import list_optimizations
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.origins import InitialWeights
from orchestrator.loop.data.phases import Data, build_data
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.model.construction import build_model, initialize_shards
from orchestrator.loop.model.frozen_weights import FrozenWeights
from orchestrator.loop.model.initial_weights import load_initial_weights
from orchestrator.loop.model.model_settings import (
    apply_settings,
    describe_settings_without_effect,
)
from orchestrator.loop.model.precision import Precision
from orchestrator.loop.model.strategy import forward_pass, wrap_model
from orchestrator.loop.rank_plan import make_plan
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.saving.cursor import EpochProgress
from orchestrator.loop.saving.hooked_contents import HookedContents
from orchestrator.loop.saving.saved_model import SavedModel
from orchestrator.loop.saving.saved_optimizers import SavedOptimizers
from orchestrator.loop.saving.saving_settings import SavingSettings
from orchestrator.loop.spans.clock import SpanClock, make_clock
from orchestrator.loop.step.changes import Changes
from orchestrator.loop.step.number_changes import NumberChanges
from orchestrator.loop.step.optimizer_modes import OptimizerModes
from orchestrator.loop.step.runners import choose_runner
from orchestrator.loop.step.stages import StepContext
from orchestrator.loop.stopping import StopCoordinator
from orchestrator.loop.task_errors import ROW_COLUMNS
from orchestrator.loop.training import Training
from orchestrator.loop.world import World
from orchestrator.randomness import seed_all
from orchestrator.task import Task, attach_progress

MakeData = Callable[[Task, Experiment, World], Data]
"""Function that makes the data of a task for a rank."""
Optimizers = Mapping[OptimizerName, ScheduledOptimizer]
"""The optimizers by name, each with its scheduler and scaler; a single one has the name None."""
Precisions = Mapping[OptimizerName, Precision]
"""The precision of each optimizer's steps."""
_T = TypeVar("_T")


class _Model(NamedTuple):
    """The task's model, and how training calls it."""

    module: nn.Module
    wrapper: nn.Module
    """The wrapper that shares the module among ranks, or the module itself."""
    forward: Callable[[nn.Module, Any], Any]
    """The task's forward pass at the run's precision."""


def build_training(
    task: Task,
    experiment: Experiment,
    hooks: Mapping[str, Hook],
    context: RunContext,
    *,
    make_data: MakeData = build_data,
    origin: InitialWeights | None = None,
    resumes: bool = False,
    contents: type[HookedContents] = HookedContents,
) -> Training:
    """Build a training with the seeds of the experiment, and show its progress to the task;
    collective.

    Args:
        task: The task.
        experiment: The resolved experiment.
        hooks: The hooks by name, of the only run of the training, or of the first of several runs
            that share it.
        context: The surroundings of the same run.
        make_data: Function that makes the data of the task for this rank.
        origin: The initial weights that were found when the run was created; None to find them now.
        resumes: Whether a checkpoint replaces the initial weights, which are not loaded then.
        contents: Class of the contents of checkpoints.

    Returns:
        The training. All ranks have the same model, and each has its own random numbers.

    Raises:
        RankMismatch: Ranks have different collective hooks.
        ConfigError: A setting does not fit the task, the model or the data.
        TaskError: A method of the task failed.
    """
    # Before the model, so that all ranks initialize it alike.
    seed_all(experiment.seed)
    world = context.world
    clock = make_clock(world.device)
    plan = make_plan(hooks, world, clock)
    data = make_data(task, experiment, world)
    optimizations = list_optimizations(experiment)
    precisions = _make_precisions(experiment, optimizations, world)
    timeline = _make_timeline(experiment, plan, data)
    schedules = _make_schedules(task, optimizations, timeline)

    model = _build_model(task, experiment, world, _first(precisions))
    lines: list[str] = []
    if not resumes:
        lines += load_initial_weights(model.module, experiment, world, origin)
    if world.world_size == 1:
        lines += describe_settings_without_effect(experiment)

    unscheduled = build_optimizers(optimizations, task, model.module)
    # A task may also freeze parameters in `optimizer()`.
    frozen = _find_frozen_weights(experiment, plan, model.module, origin)
    # Schedulers change the numbers of the optimizers to which they are added.
    numbers = NumberChanges(optimizations, unscheduled, model.module)
    optimizers = _add_schedulers(unscheduled, task, schedules, precisions)
    _check_closures(experiment, plan, optimizers)
    state = _make_state(
        task, experiment, context, clock=clock, data=data, model=model, optimizers=optimizers
    )
    changes = Changes(experiment, plan, state, timeline, numbers)
    modes = OptimizerModes(state.optimizers)
    modes.attach(state)

    step_context = StepContext(
        task=task,
        state=state,
        plan=plan,
        clock=clock,
        precisions=precisions,
        recorder=context.recorder,
        world=world,
    )
    iterations = choose_runner(task, experiment, state.optimizer)(step_context)
    saved_model = SavedModel(state, frozen)
    saved_optimizers = SavedOptimizers(state, changes, schedules, modes)
    training = Training(
        task=task,
        experiment=experiment,
        world=world,
        recorder=context.recorder,
        plan=plan,
        clock=clock,
        data=data,
        precisions=precisions,
        state=state,
        changes=changes,
        modes=modes,
        iterations=iterations,
        epoch=_make_epoch(experiment, data, state, context.limits.epoch_iterations),
        contents=contents(state, iterations, data, saved_model, saved_optimizers),
        stopping=StopCoordinator(state, world, clock, context.stop_requested),
        last_iteration=context.limits.last_iteration,
    )
    # The task's progress is the state, so there is none before.
    attach_progress(task, state)
    training.show(lines)
    # Last, so that a rank's numbers do not depend on how many the building took.
    seed_all(experiment.seed + world.rank)
    return training


# Precisions and schedules


def _make_precisions(
    experiment: Experiment, names: Iterable[OptimizerName], world: World
) -> Precisions:
    return {
        name: Precision(experiment.precision, world.device, experiment.scaler.model_dump())
        for name in names
    }


def _make_timeline(experiment: Experiment, plan: Plan, data: Data) -> Timeline:
    steps_per_epoch = -(-data.train.length() // experiment.micro_batches)
    return Timeline.from_hooks(plan.hooks, experiment.epochs, experiment.steps, steps_per_epoch)


def _make_schedules(
    task: Task, optimizations: Mapping[OptimizerName, Optimization], timeline: Timeline
) -> dict[OptimizerName, Schedule]:
    return {
        name: Schedule.make(optimization, type(task), timeline)
        for name, optimization in optimizations.items()
    }


# Model and optimizers


def _build_model(task: Task, experiment: Experiment, world: World, precision: Precision) -> _Model:
    """Build the task's model on this rank's device, wrapped for training; collective."""
    on_meta = experiment.workers.meta_device and world.world_size > 1
    module = apply_settings(build_model(task, on_meta), experiment, world)
    wrapper = wrap_model(module, task, experiment, world)
    if on_meta:
        initialize_shards(module, experiment.seed, world)
    forward = precision.with_autocast(forward_pass(task, wrapper, module))
    return _Model(module, wrapper, forward)


def _find_frozen_weights(
    experiment: Experiment, plan: Plan, module: nn.Module, origin: InitialWeights | None
) -> FrozenWeights | None:
    """Return the weights that checkpoints leave out; None if they hold all."""
    if SavingSettings.read(plan).leaves_out_frozen:
        return FrozenWeights(module, experiment, origin)
    return None


def _add_schedulers(
    optimizers: Mapping[OptimizerName, Optimizer],
    task: Task,
    schedules: Mapping[OptimizerName, Schedule],
    precisions: Precisions,
) -> Optimizers:
    """Add its scheduler and its scaler to each optimizer."""
    return {
        name: ScheduledOptimizer(
            optimizer, schedules[name].build(task, optimizer), precisions[name].scaler
        )
        for name, optimizer in optimizers.items()
    }


def _check_closures(experiment: Experiment, plan: Plan, optimizers: Optimizers) -> None:
    """Raise ConfigError if an optimizer that evaluates the loss several times does not fit the
    experiment."""
    problems: list[Problem] = []
    for entry in optimizers.values():
        problems += check_closure(type(entry.optimizer), experiment, plan.hooks)
    raise_problems(problems)


# State and iterations


def _make_state(
    task: Task,
    experiment: Experiment,
    context: RunContext,
    *,
    clock: SpanClock,
    data: Data,
    model: _Model,
    optimizers: Optimizers,
) -> LoopState:
    first = _first(optimizers)
    return LoopState(
        **context.make_state_fields(experiment),
        model=model.wrapper,
        module=model.module,
        forward=model.forward,
        optimizer=first.optimizer,
        scheduler=first.scheduler,
        scaler=first.scaler,
        several={name: entry for name, entry in optimizers.items() if name},
        loaders=data.loaders,
        fresh_batches=data.fresh_batches,
        samples_in=task.batch_size,
        full_batches=data.train.by_index or experiment.loader.drop_last,
        max_epochs=experiment.epochs,
        max_steps=experiment.steps,
        accumulate=experiment.micro_batches,
        clock=clock,
        loop_columns=ROW_COLUMNS,
        meter_modes=read_meter_modes(task),
    )


def _make_epoch(
    experiment: Experiment, data: Data, state: LoopState, max_iterations: float
) -> EpochProgress:
    train = data.train
    samples_per_iteration = experiment.batch_size * state.world_size if train.by_index else 0
    return EpochProgress(state, train.length, samples_per_iteration, max_iterations)


def _first(by_optimizer: Mapping[OptimizerName, _T]) -> _T:
    return next(iter(by_optimizer.values()))
