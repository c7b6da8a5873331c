"""Evaluation: a phase of val or test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from hooks.metrics.names import kind_of
from hooks.plan import Plan
from hooks.state import State
from orchestrator.errors import RunError
from orchestrator.loop.data.phases import Data
from orchestrator.loop.model.strategy import is_sharded
from orchestrator.loop.state.cursor import TrainingCursor
from orchestrator.loop.step.iterations import Iterations
from orchestrator.loop.step.task_errors import check_type, unexpected
from orchestrator.loop.world import World
from orchestrator.randomness import drawn_alike
from orchestrator.task import Task


class Evaluation:
    """Evaluates the model on all data of the phases of a kind, one after the other, once with each set of weights that
    hooks registered in `state.evaluations`. Worker process."""

    def __init__(
        self,
        task: Task,
        state: State,
        plan: Plan,
        iterations: Iterations,
        cursor: TrainingCursor,
        data: Data,
        world: World,
    ) -> None:
        self._task, self._state, self._plan, self._iterations = task, state, plan, iterations
        self._cursor, self._data, self._world = cursor, data, world

    def refuse_two_of_a_name(self) -> None:
        """Raises RunError where a phase is called as weights are that hooks validate with: both would give
        `val/NAME/loss`."""
        for phase in self._data.phases:
            name = phase.partition("/")[2]
            if name and name in self._state.evaluations:
                lender = self._state.evaluations[name].lender
                raise RunError(
                    f"data() gives '{phase}', and the hook '{lender}' validates as {phase} too; call one of them"
                    " otherwise"
                )

    def run(self, kind: str) -> None:
        """Runs the phases of `val` or of `test` and puts their values into `state.metrics`; collective."""
        for phase in self._data.phase_names(kind):
            self._run(phase)

    def _run(self, phase: str) -> None:
        state, cursor = self._state, self._cursor
        data = self._data.phases[phase]
        state.phase, state.stepped = phase, False
        validates = kind_of(phase) == "val"
        begun, trained = cursor.eval_iterations.get(phase, 0), state.phase_iteration
        epoch = cursor.epoch_label
        state.phase_iteration, state.phase_length = 0, data.length() * len(state.evaluations)
        state.iterations_before = cursor.val_iterations if validates else 0
        self._plan.fire("on_phase_start", state)
        for label, weights in drawn_alike(state.evaluations.items()):
            state.evaluation, before = label, state.phase_iteration
            meters = {name: meter.to(state.device) for name, meter in self._meters().items()}
            with weights(state), torch.no_grad():
                state.module.eval()
                batches, places = data.once()
                iterations = self._iterations.evaluate(batches, meters, begun, epoch)
                for is_there in self._together(places):
                    if is_there:
                        next(iterations)
                    else:
                        state.forward(state.module, self._data.first_sample(phase))
            state.module.train()
            if meters and not data.by_index:
                self._refuse_a_rank_without_samples(phase, before)
            values = self._iterations.reduce(f"{phase}/{label}" if label else phase, self._world, meters)
            if not values:
                raise RunError(
                    f"the {phase} data has no sample on any rank, and there is nothing to measure; leave {phase} out of"
                    " data(), or give it some"
                )
            if twice := values.keys() & state.metrics.keys():
                raise RunError(
                    f"{', '.join(sorted(twice))} would be metrics of {phase} and of another phase too; call its data,"
                    " or the metric, otherwise"
                )
            state.metrics |= values
        if validates:
            cursor.eval_iterations[phase] = begun + state.phase_iteration
            cursor.val_iterations += state.phase_iteration
        state.evaluation = ""
        self._plan.fire("on_phase_end", state)
        state.phase_iteration, state.phase_length = trained, cursor.epoch_length

    def _refuse_a_rank_without_samples(self, phase: str, before: int) -> None:
        """Raises RunError on all ranks where the meters of one have seen nothing, and would wait or fail."""
        counts = self._world.gather(self._state.phase_iteration - before)
        if 0 in counts:
            raise RunError(
                f"the task has meters, which need a {phase} sample on each rank, and the stream has none for rank"
                f" {counts.index(0)}"
            )

    def _meters(self) -> Mapping[str, Any]:
        """The task's meters; raises RunError where they are none."""
        method = self._task.meters
        meters = check_type(method, method(), Mapping, "a mapping of names to meters")
        for name, meter in meters.items():
            if isinstance(meter, type) or not all(hasattr(meter, part) for part in ("to", "update", "compute")):
                raise unexpected(method, f" for '{name}'", meter, "a torchmetrics object")
        return meters

    def _together(self, places: Iterable[object]) -> Iterator[bool]:
        """True for each of this rank's batches. Where the model is sharded, False after them for each that another rank
        still has: a call of the model needs everybody's shards."""
        if not is_sharded(self._state.module):
            yield from (True for _ in places)
            return
        here = iter(places)
        while True:
            is_there = next(here, here) is not here
            if not self._world.maximum([float(is_there)])[0]:
                return
            yield is_there
