"""Training: the training phases of a task, and the iterations in them. Runs in workers.

`building.py` builds a training, with its model, optimizers and data.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hooks.event_plan import Plan
from hooks.optimizer_name import OptimizerName
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.errors import TaskError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.data.phases import Data
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.model.precision import Precision
from orchestrator.loop.saving.cursor import EpochProgress
from orchestrator.loop.saving.hooked_contents import HookedContents
from orchestrator.loop.spans.clock import SpanClock
from orchestrator.loop.step.changes import Changes
from orchestrator.loop.step.optimizer_modes import OptimizerModes
from orchestrator.loop.step.training_runner import TrainingRunner
from orchestrator.loop.step.weights import WeighedBatches
from orchestrator.loop.stopping import StopCoordinator
from orchestrator.loop.world import World
from orchestrator.randomness import random_state
from orchestrator.task import Task, detach_progress, has_weights
from orchestrator.units import format_count

Pause = Literal["last iteration", "checkpoint", "stop check"]
"""Why `Training.iterate` pauses. Text is compared faster than the members of an enumeration."""


@dataclass(eq=False, kw_only=True)
class Training:
    """The model, optimizers, schedules and data of a task, and the iterations of a training phase.
    One in each worker process.

    It knows no run: a loop saves, evaluates and reports. `build_training` builds one, with the seeds
    of the experiment.
    """

    task: Task
    experiment: Experiment
    world: World
    recorder: Recorder
    plan: Plan
    clock: SpanClock
    data: Data
    precisions: Mapping[OptimizerName, Precision]
    """The precision of each optimizer's steps."""
    state: LoopState
    """The state, with model, optimizers and schedulers."""
    changes: Changes
    modes: OptimizerModes
    iterations: TrainingRunner
    epoch: EpochProgress
    contents: HookedContents
    stopping: StopCoordinator
    last_iteration: float
    """Iteration after which training pauses."""
    after_phase: dict[str, Any] | None = None
    """Random state at the end of the last phase."""
    _batches: Iterator[object] | None = None
    """Remaining training batches of the epoch; None between two epochs."""

    # A training phase: begin, iterate, complete and end

    def begin(self) -> None:
        """Fire `on_start`."""
        self.plan.fire("on_start", self.state)

    def use_plan(self, plan: Plan) -> None:
        """Fire events by another plan from now on."""
        self.plan = plan
        self.iterations.use_plan(plan)

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
            weighed = WeighedBatches(self.task, state, batches, fetch_ahead)
            fetch_ahead = weighed.fetch_ahead
            batches = weighed
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
        detach_progress(self.task)
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

    def show(self, lines: Iterable[str]) -> None:
        """Show lines once, not on each rank."""
        if self.world.is_master:
            for line in lines:
                self.state.show(line)
