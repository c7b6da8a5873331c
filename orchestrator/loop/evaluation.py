"""Evaluation: the phases of val and test of a run, with each set of weights. Runs in workers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, ClassVar

import torch

from hooks.metrics.names import get_kind
from hooks.state import Weights
from orchestrator.errors import TaskError, raise_problems
from orchestrator.experiment.checks.data import check_loss
from orchestrator.experiment.checks.metrics import check_phases_of_metrics, list_metrics_of_hooks
from orchestrator.loop.data.phase_data import PhaseData
from orchestrator.loop.model.strategy import is_sharded
from orchestrator.loop.step.collective_calls import Loss, refuse_collectives
from orchestrator.loop.step.iterations import IterationRunner
from orchestrator.loop.step.stages import StepContext
from orchestrator.loop.task_errors import check_type, unexpected
from orchestrator.loop.training import Training
from orchestrator.loop.training_run import TrainingRun
from orchestrator.randomness import with_same_random_state


class Evaluation:
    """Evaluation of a run's model on this rank: of each phase of val or test, once with each set of
    weights in `state.evaluations`."""

    verb: ClassVar[str] = "evaluate"

    def __init__(self, run: TrainingRun, training: Training) -> None:
        self._task = run.task
        self._experiment = run.experiment
        self._world = run.world
        self._state = run.state
        self._plan = run.plan
        self._cursor = run.cursor
        self._data = training.data
        self._max_batches: int | None = None
        self._iterations = self._make_runner(
            StepContext(
                task=run.task,
                state=run.state,
                plan=run.plan,
                clock=run.clock,
                precisions=training.precisions,
                recorder=run.recorder,
                world=run.world,
            )
        )

    def shorten(self, batches: int) -> None:
        """Evaluate at most this number of batches of each phase, with each set of weights."""
        self._max_batches = batches

    def _make_runner(self, context: StepContext) -> IterationRunner:
        return IterationRunner(context)

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
            self._evaluate_phase(phase)

    def _evaluate_phase(self, phase: str) -> None:
        state = self._state
        cursor = self._cursor
        is_val = get_kind(phase) == "val"
        # These read the counters of the training phase.
        number = self._number_of_validation() if is_val else 0
        iterate = partial(
            self._iterations.evaluate,
            offset=cursor.eval_iterations.get(phase, 0),
            epoch=cursor.epoch_label,
            check_loss=self._find_loss_check(self._data.phases[phase]),
        )

        length = self._data.phases[phase].length() * len(state.evaluations)
        iterations_before = cursor.val_iterations if is_val else 0
        with state.evaluation_phase(phase, length, iterations_before):
            self._plan.fire("on_phase_start", state)
            for weights in with_same_random_state(state.iterate_evaluations()):
                self._add_metrics(self._evaluate_weights(phase, weights, iterate, number))
            if is_val:
                cursor.count_validation(phase, state.phase_iteration)
            self._plan.fire("on_phase_end", state)

    def _add_metrics(self, metrics: Mapping[str, float]) -> None:
        """Add metrics to the state's; raises TaskError if it has one of these names."""
        known = self._state.metrics
        if clash := metrics.keys() & known.keys():
            raise TaskError(
                f"{', '.join(sorted(clash))} would be metrics of two phases; rename one"
            )
        known |= metrics

    def _evaluate_weights(
        self, phase: str, weights: Weights, iterate: Callable[..., Iterator[None]], number: int
    ) -> dict[str, float]:
        """Evaluate one set of weights on a phase, and return its metrics; collective.

        `iterate` evaluates batches one by one; `number` is that of this validation.
        """
        state = self._state
        before = state.phase_iteration
        meters = {name: meter.to(state.device) for name, meter in self._make_meters().items()}
        with weights(state), torch.no_grad():
            state.module.eval()
            batches, places = self._data.phases[phase].evaluation_batches(number)
            iterations = iterate(batches, meters)
            for has_batch in self._iterate_batches(islice(places, self._max_batches)):
                if has_batch:
                    next(iterations)
                else:
                    state.forward(state.module, self._data.first_sample(phase))
        state.module.train()

        count = state.phase_iteration - before
        if meters:
            self._check_samples_for_meters(phase, count)
        prefix = f"{phase}/{state.evaluation}" if state.evaluation else phase
        metrics = self._iterations.metrics.reduce(prefix, meters)
        if not metrics and not any(self._world.gather(count)):
            raise TaskError(
                f"the {phase} data has no sample: add some, or remove {phase} from data()"
            )
        return metrics

    def _check_samples_for_meters(self, phase: str, count: int) -> None:
        """Raise TaskError if a rank has no sample, because computing the meters would hang or
        fail; collective."""
        counts = self._world.gather(count)
        if 0 in counts:
            place = (
                "" if len(counts) == 1 else f" on each rank, but rank {counts.index(0)} has none"
            )
            raise TaskError(f"meters need a {phase} sample{place}")

    def _make_meters(self) -> Mapping[str, Any]:
        method = self._task.meters
        meters = check_type(method, method(), Mapping, "a mapping of names to meters")
        for name, meter in meters.items():
            is_meter = all(hasattr(meter, part) for part in ("to", "update", "compute"))
            if isinstance(meter, type) or not is_meter:
                raise unexpected(method, f" for '{name}'", meter, "a torchmetrics object")
        return meters

    def _number_of_validation(self) -> int:
        """Return how many validations that `validate_every` requests came before this one."""
        every = self._experiment.validate_every
        state = self._state
        if every.count == 0:
            return 0
        begun_epochs = state.epoch + 1 if self._cursor.epoch.has_begun else state.epoch
        done = state.step if every.unit == "steps" else begun_epochs
        return max(0, (done - 1) // every.count)

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

    def _iterate_batches(self, places: Iterable[object]) -> Iterator[bool]:
        """Yield True for each of this rank's batches.

        A sharded model needs all ranks in each call, so a rank without a batch yields False while
        another has one.
        """
        own = (True for _ in places)
        if not is_sharded(self._state.module):
            yield from own
            return
        for has_batch in chain(own, repeat(False)):
            if not self._world.maximum([float(has_batch)])[0]:
                return
            yield has_batch
