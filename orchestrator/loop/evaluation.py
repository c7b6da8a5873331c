"""Evaluation: a phase of val or test. Runs in workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from hooks.metrics.names import kind_of
from hooks.plan import Plan
from hooks.state import State
from orchestrator.errors import TaskError
from orchestrator.loop.data.phases import Data
from orchestrator.loop.model.strategy import is_sharded
from orchestrator.loop.state.cursor import RunCursor
from orchestrator.loop.step.iterations import IterationRunner
from orchestrator.loop.step.task_errors import check_type, unexpected
from orchestrator.loop.world import World
from orchestrator.randomness import with_same_random_state
from orchestrator.task import Task


class Evaluation:
    """Evaluation on the phases of val or test, once with each set of weights in `state.evaluations`."""

    def __init__(
        self,
        task: Task,
        state: State,
        plan: Plan,
        iterations: IterationRunner,
        cursor: RunCursor,
        data: Data,
        world: World,
    ) -> None:
        self._task, self._state, self._plan, self._iterations = task, state, plan, iterations
        self._cursor, self._data, self._world = cursor, data, world

    def check_names(self) -> None:
        """Raise TaskError if a phase and a set of weights have the same name: both would report `val/NAME/loss`."""
        for phase in self._data.phases:
            name = phase.partition("/")[2]
            if name and name in self._state.evaluations:
                provider = self._state.evaluations[name].provider
                raise TaskError(
                    f"data() has a phase '{phase}', and the hook '{provider}' validates as {phase} too: rename one of"
                    " them"
                )

    def run(self, kind: str) -> None:
        """Run the phases of `val` or of `test`, and put their metrics into `state.metrics`; collective."""
        for phase in self._data.phase_names(kind):
            self._run(phase)

    def _run(self, phase: str) -> None:
        state, cursor, data = self._state, self._cursor, self._data.phases[phase]
        state.phase, state.stepped = phase, False
        is_val = kind_of(phase) == "val"
        offset, train_iterations = cursor.eval_iterations.get(phase, 0), state.phase_iteration
        epoch = cursor.epoch_label
        state.phase_iteration, state.phase_length = 0, data.length() * len(state.evaluations)
        state.iterations_before = cursor.val_iterations if is_val else 0
        self._plan.fire("on_phase_start", state)
        for label, weights in with_same_random_state(state.evaluations.items()):
            state.evaluation, before = label, state.phase_iteration
            meters = {name: meter.to(state.device) for name, meter in self._meters().items()}
            with weights(state), torch.no_grad():
                state.module.eval()
                batches, places = data.evaluation_batches()
                iterations = self._iterations.evaluate(batches, meters, offset, epoch)
                for has_batch in self._iterate_batches(places):
                    if has_batch:
                        next(iterations)
                    else:
                        state.forward(state.module, self._data.first_sample(phase))
            state.module.train()
            if meters and not data.by_index:
                self._check_each_rank_has_samples(phase, before)
            values = self._iterations.reduce_metrics(f"{phase}/{label}" if label else phase, self._world, meters)
            if not values:
                raise TaskError(f"the {phase} data has no sample on any rank: add some, or remove {phase} from data()")
            if clash := values.keys() & state.metrics.keys():
                raise TaskError(
                    f"{', '.join(sorted(clash))} would be metrics of {phase} and of another phase: rename the phase or"
                    " the metric"
                )
            state.metrics |= values
        if is_val:
            cursor.eval_iterations[phase] = offset + state.phase_iteration
            cursor.val_iterations += state.phase_iteration
        state.evaluation = ""
        self._plan.fire("on_phase_end", state)
        state.phase_iteration, state.phase_length = train_iterations, cursor.epoch.length

    def _check_each_rank_has_samples(self, phase: str, before: int) -> None:
        """Raise TaskError on all ranks if a rank has no samples, because computing its meters would hang or fail."""
        counts = self._world.gather(self._state.phase_iteration - before)
        if 0 in counts:
            raise TaskError(
                f"the task has meters, which need a {phase} sample on each rank, and the stream has none for rank"
                f" {counts.index(0)}"
            )

    def _meters(self) -> Mapping[str, Any]:
        method = self._task.meters
        meters = check_type(method, method(), Mapping, "a mapping of names to meters")
        for name, meter in meters.items():
            if isinstance(meter, type) or not all(hasattr(meter, part) for part in ("to", "update", "compute")):
                raise unexpected(method, f" for '{name}'", meter, "a torchmetrics object")
        return meters

    def _iterate_batches(self, places: Iterable[object]) -> Iterator[bool]:
        """Yield True for each of this rank's batches.

        A sharded model needs all ranks in each call, so a rank without a batch yields False while another has one.
        """
        if not is_sharded(self._state.module):
            yield from (True for _ in places)
            return
        own = iter(places)
        while True:
            has_batch = next(own, own) is not own
            if not self._world.maximum([float(has_batch)])[0]:
                return
            yield has_batch
