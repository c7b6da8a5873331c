"""Inference: passes of the model, in evaluation mode, over a phase of val or test. Runs in workers.

`evaluation.py` and `prediction.py` say what becomes of the outputs.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice, repeat
from typing import Any

import torch

from hooks.interval import Interval
from hooks.metrics.names import get_kind
from hooks.state import Weights
from orchestrator.errors import TaskError
from orchestrator.loop.data.phases import Data
from orchestrator.loop.model.sharded_modules import is_sharded
from orchestrator.loop.saving.cursor import RunCursor
from orchestrator.loop.step.inference_runner import InferenceRunner
from orchestrator.loop.step.stages import StepContext
from orchestrator.randomness import with_same_random_state

Iterate = Callable[[Iterator[Any], int, int], Iterator[None]]
"""Function that runs an iteration at each `next`: `InferenceRunner.evaluate` or `predict` with what
they do to outputs. It takes the batches, the offset of their rows and the epoch."""
RunPass = Callable[[Iterate], int]
"""Function that makes one pass, and returns the number of this rank's batches; collective."""


class Inference:
    """Passes of a run's model over phases of val and test on this rank, each with one of the sets
    of weights in `state.evaluations`.

    A pass uses all batches of a phase, or at most `max_batches`.
    """

    def __init__(
        self,
        context: StepContext,
        data: Data,
        cursor: RunCursor,
        *,
        validate_every: Interval,
        max_batches: int | None = None,
    ) -> None:
        self._world = context.world
        self._state = context.state
        self._plan = context.plan
        self._data = data
        self._cursor = cursor
        self._validate_every = validate_every
        self._max_batches = max_batches
        self.iterations = InferenceRunner(context)

    def iterate_passes(self, phase: str) -> Iterator[RunPass]:
        """Begin a phase, yield a pass for each set of weights, and end the phase. The caller makes
        each pass before the next one; collective."""
        state = self._state
        cursor = self._cursor
        is_val = get_kind(phase) == "val"
        iterations_before = cursor.val_iterations if is_val else 0
        # These read the counters of the training phase.
        run_pass = partial(
            self._run_pass,
            phase,
            number=self._number_of_validation() if is_val else 0,
            offset=cursor.eval_iterations.get(phase, 0),
            epoch=cursor.epoch_label,
        )

        length = self._data.phases[phase].length() * len(state.evaluations)
        with state.evaluation_phase(phase, length, iterations_before):
            self._plan.fire("on_phase_start", state)
            for weights in with_same_random_state(state.iterate_evaluations()):
                yield partial(run_pass, weights)
            if is_val:
                cursor.count_validation(phase, state.phase_iteration)
            self._plan.fire("on_phase_end", state)

    def check_has_sample(self, phase: str, batches: int) -> None:
        """Raise TaskError if a pass had no batch on any rank; collective."""
        if not any(self._world.gather(batches)):
            raise TaskError(
                f"the {phase} data has no sample: add some, or remove {phase} from data()"
            )

    def _run_pass(
        self,
        phase: str,
        weights: Weights,
        iterate: Iterate,
        *,
        number: int,
        offset: int,
        epoch: int,
    ) -> int:
        """Make a pass, and return the number of this rank's batches; collective.

        `number` is that of this validation, `offset` the iterations of the phase's earlier ones in
        this epoch.
        """
        state = self._state
        before = state.phase_iteration
        with weights(state), torch.no_grad():
            state.module.eval()
            batches, places = self._data.phases[phase].evaluation_batches(number)
            iterations = iterate(batches, offset, epoch)
            for has_batch in self._iterate_batches(islice(places, self._max_batches)):
                if has_batch:
                    next(iterations)
                else:
                    state.forward(state.module, self._data.first_sample(phase))
        state.module.train()
        return state.phase_iteration - before

    def _number_of_validation(self) -> int:
        """Return how many validations that `validate_every` requests came before this one."""
        every = self._validate_every
        state = self._state
        if every.count == 0:
            return 0
        begun_epochs = state.epoch + 1 if self._cursor.epoch.has_begun else state.epoch
        done = state.step if every.unit == "steps" else begun_epochs
        return max(0, (done - 1) // every.count)

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
