"""Loss spikes: steps with a loss far above the recent ones are skipped."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from hooks.distributed import collectives
from hooks.errors import TrainingFailed
from hooks.hook import Hook, Priority
from hooks.setup import NEEDS_WHOLE_BATCHES, Setup
from hooks.state import State


@dataclass
class LossSpike(Hook):
    """Skip an optimizer step whose loss is not finite or far above the recent ones.

        loss_spike: {threshold: 6, window: 128}

    The loss of a step is the mean over its micro-batches and ranks, weighted if the task has
    `weight`. It is a spike if it lies more than `threshold` standard deviations above the mean of
    the last `window` losses without spikes. All ranks skip the step together, at the cost of an
    all-reduce of two numbers and a synchronization in each step. A `nan_guard` in the same run
    needs `action: skip`. `hookyard samples` lists the step's samples.

    Columns:
        * `loss_spike`: 1 if the loss was a spike.

    Source: OLMo-core SkipStepOptimizer, Lightning SpikeDetection.
    """

    threshold: Annotated[float, Gt(0)] = 6.0
    """Number of standard deviations above the mean at which a loss is a spike."""
    window: Annotated[int, Ge(2)] = 128
    """Number of recent losses from which mean and standard deviation are computed."""
    warmup: Annotated[int, Ge(2)] = 64
    """Number of losses before a finite loss can be a spike, at most `window`."""
    patience: Annotated[int, Ge(0)] = 10
    """Maximum number of consecutive spikes that are skipped; the next one is an error."""

    priority: ClassVar[Priority] = Priority.VERY_HIGH
    waits_for_device: ClassVar[frozenset[str]] = frozenset({"on_gradients"})
    collective: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_losses", "_spikes_in_a_row")

    def __post_init__(self) -> None:
        if self.warmup > self.window:
            raise ValueError(f"warmup={self.warmup} must be at most window={self.window}")
        self._losses: list[float] = []
        self._spikes_in_a_row = 0
        self._micro_losses: list[Tensor] = []
        self._micro_weights: list[float] = []

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(
            several_optimizers="it compares one loss, and each turn has its own",
            splits_batches=NEEDS_WHOLE_BATCHES,
            closure=NEEDS_WHOLE_BATCHES,
        )

    def on_backward(self, state: State) -> None:
        if state.loss is not None:
            weight = 1.0 if state.loss_weight is None else state.loss_weight
            self._micro_losses.append(state.loss.detach())
            self._micro_weights.append(weight)

    def on_gradients(self, state: State) -> None:
        losses = torch.stack(self._micro_losses).double()
        weights = torch.tensor(self._micro_weights, dtype=torch.float64, device=losses.device)
        self._micro_losses.clear()
        self._micro_weights.clear()
        sums = torch.stack([(losses * weights).sum(), weights.sum()])
        collectives.sum_across_ranks([sums], state.world_size)
        total, weight = sums.tolist()

        if weight == 0:  # a step without anything to average trains nothing
            return
        loss = total / weight
        if self._is_spike(loss):
            self._skip(state, loss)
        else:
            self._losses = [*self._losses, loss][-self.window :]
            self._spikes_in_a_row = 0

    def _is_spike(self, loss: float) -> bool:
        if not math.isfinite(loss):
            return True
        if len(self._losses) < self.warmup:
            return False
        mean, deviation = self._compute_statistics()
        return loss - mean > self.threshold * deviation

    def _skip(self, state: State, loss: float) -> None:
        self._spikes_in_a_row += 1
        state.record(loss_spike=1)
        mean, deviation = self._compute_statistics()
        reason = (
            f"loss {loss:.6g} at step {state.step + 1}, and the recent mean is {mean:.6g}"
            f" with a standard deviation of {deviation:.3g}"
        )
        if self._spikes_in_a_row > self.patience:
            raise TrainingFailed(
                f"{reason}: spike {self._spikes_in_a_row} in a row, and patience is {self.patience}"
            )
        state.skip_update(reason)

    def _compute_statistics(self) -> tuple[float, float]:
        """Return mean and unbiased standard deviation of the recent losses; NaN for fewer than
        two."""
        losses = self._losses[-self.window :]
        if len(losses) < 2:
            return math.nan, math.nan
        deviation, mean = torch.std_mean(torch.tensor(losses, dtype=torch.float64))
        return mean.item(), deviation.item()
