"""Evaluation: losses and metrics of a run on the phases of val and test, with each set of weights.
Runs in workers."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from hooks.state import State
from orchestrator.errors import TaskError, raise_problems
from orchestrator.experiment.checks.metrics import check_phases_of_metrics, list_metrics_of_hooks
from orchestrator.experiment.checks.phases import check_loss
from orchestrator.loop.data.phase_data import PhaseData
from orchestrator.loop.data.phases import Data
from orchestrator.loop.inference import Inference, RunPass
from orchestrator.loop.model.sharded_modules import is_sharded
from orchestrator.loop.step.collective_calls import Loss, refuse_collectives
from orchestrator.loop.task_errors import make_return_error, require_type
from orchestrator.loop.world import World
from orchestrator.task import Task


class Evaluation:
    """Evaluation of a run's model on this rank: of each phase of val or test, once with each set of
    weights in `state.evaluations`."""

    def __init__(
        self, task: Task, state: State, world: World, data: Data, inference: Inference
    ) -> None:
        self._task = task
        self._state = state
        self._world = world
        self._data = data
        self._inference = inference

    # Checks at the start

    def check_data(self, phases: Iterable[str]) -> None:
        """Raise ConfigError if a hook monitors a metric of a phase without data, or data to
        evaluate has no loss."""
        check_loss(self._task, phases)
        metrics = list_metrics_of_hooks(self._state.config.get("hooks", {}))
        raise_problems(check_phases_of_metrics(metrics, self._data.loaders))

    def check_phase_names(self) -> None:
        """Raise TaskError if a phase and a set of weights have the same name: both would report
        `val/NAME/loss`."""
        for phase in self._data.phases:
            name = phase.partition("/")[2]
            if name and name in self._state.evaluations:
                provider = self._state.evaluations[name].provider
                raise TaskError(
                    f"data() has a phase '{phase}', which is the name of the hook '{provider}';"
                    " rename it"
                )

    # The phases

    def evaluate(self, kind: str) -> None:
        """Run the phases of `val` or of `test`, and put their metrics into `state.metrics`;
        collective."""
        for phase in self._data.phase_names(kind):
            loss_check = self._find_loss_check(self._data.phases[phase])
            for run_pass in self._inference.iterate_passes(phase):
                self._add_metrics(self._evaluate_weights(phase, run_pass, loss_check))

    def _add_metrics(self, metrics: Mapping[str, float]) -> None:
        """Add metrics to the state's; raises TaskError if it has one of these names."""
        known = self._state.metrics
        clash = metrics.keys() & known.keys()
        if clash:
            raise TaskError(
                f"{', '.join(sorted(clash))} would be metrics of two phases; rename one"
            )
        known |= metrics

    def _evaluate_weights(
        self, phase: str, run_pass: RunPass, loss_check: Callable[[Loss], Loss] | None
    ) -> dict[str, float]:
        """Evaluate one set of weights on a phase, and return its metrics; collective."""
        state = self._state
        iterations = self._inference.iterations
        meters = {name: meter.to(state.device) for name, meter in self._make_meters().items()}
        batches = run_pass(
            partial(iterations.evaluate, meters=meters.values(), check_loss=loss_check)
        )
        if meters:
            self._check_samples_for_meters(phase, batches)
        prefix = f"{phase}/{state.evaluation}" if state.evaluation else phase
        metrics = iterations.metrics.reduce(prefix, meters)
        if not metrics:
            self._inference.check_has_sample(phase, batches)
        return metrics

    def _check_samples_for_meters(self, phase: str, batches: int) -> None:
        """Raise TaskError if a rank has no sample, because computing the meters would hang or
        fail; collective."""
        counts = self._world.gather(batches)
        if 0 not in counts:
            return
        place = ""
        if len(counts) > 1:
            place = f" on each rank, but rank {counts.index(0)} has none"
        raise TaskError(f"meters need a {phase} sample{place}")

    def _make_meters(self) -> Mapping[str, Any]:
        method = self._task.meters
        meters = require_type(method, method(), Mapping, "a mapping of names to meters")
        for name, meter in meters.items():
            is_meter = all(hasattr(meter, part) for part in ("to", "update", "compute"))
            if isinstance(meter, type) or not is_meter:
                raise make_return_error(method, f" for '{name}'", meter, "a torchmetrics object")
        return meters

    def _find_loss_check(self, data: PhaseData) -> Callable[[Loss], Loss] | None:
        """Return a check of the loss if the ranks have unequal batches; None if the check is not
        needed. Collective."""
        state = self._state
        size = data.size
        if size is None or size % state.world_size == 0 or is_sharded(state.module):
            return None
        batches = self._world.gather(data.length())
        return partial(
            refuse_collectives, task=self._task, state=state, samples=size, batches=batches
        )
