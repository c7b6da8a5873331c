"""Loss spikes: steps with a loss far above the recent ones are skipped."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from hooks.hook import NEEDS_WHOLE_BATCHES, Hook, Priority, Setup
from hooks.parts import coalesced_collectives as coalesced
from hooks.state import State


@dataclass
class LossSpike(Hook):
    """Protection from loss spikes: skips an optimizer step whose loss is not finite or far above the recent ones.

        loss_spike: {threshold: 6, window: 128}

    The loss of a step is the mean over its micro-batches and ranks. It is a spike if it lies more than `threshold`
    standard deviations above the mean of the last `window` losses without spikes. All ranks skip the step together, at
    the cost of one all-reduce of a number and a wait for the device in each step. A `nan_guard` beside it needs
    `action: skip`. Records `loss_spike` = 1.

    Each rank writes `loss_spikes/iteration=<iteration>_rank=<rank>.json`: the losses and, for each micro-batch, its
    iteration and the indices of its samples, if the sampler has `set_epoch` and so can give them again. Source:
    OLMo-core SkipStepOptimizer, Lightning SpikeDetection.
    """

    threshold: Annotated[float, Gt(0)] = 6.0
    """Standard deviations above the mean from which a loss is a spike."""
    window: Annotated[int, Ge(2)] = 128
    """Number of losses for mean and deviation."""
    warmup: Annotated[int, Ge(2)] = 64
    """Number of losses before a finite loss can be a spike, at most `window`."""
    patience: Annotated[int, Ge(0)] = 10
    """Number of spikes in a row that are skipped; the next one is an error."""

    priority: ClassVar[Priority] = Priority.VERY_HIGH
    waits_for_device: ClassVar[frozenset[str]] = frozenset({"on_gradients"})
    collective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.warmup > self.window:
            raise ValueError(f"warmup={self.warmup} must be at most window={self.window}")
        self._losses: deque[float] = deque(maxlen=self.window)
        self._spikes_in_a_row = 0
        self._parts: list[Tensor] = []
        self._fetched_from: int | None = None
        """Iteration of the epoch from which this process fetches its batches."""

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(
            several_optimizers="it compares one loss, and each turn has its own",
            splits_batches=NEEDS_WHOLE_BATCHES,
            closure=NEEDS_WHOLE_BATCHES,
        )

    def on_phase_start(self, state: State) -> None:
        if state.phase == "train" and (self._fetched_from is None or state.phase_iteration == 0):
            self._fetched_from = state.phase_iteration

    def on_backward(self, state: State) -> None:
        if state.loss is not None:
            self._parts.append(state.loss.detach())

    def on_gradients(self, state: State) -> None:
        own = torch.stack(self._parts).double().mean()
        loss = own.clone()
        coalesced.average([loss])
        value = loss.item()
        if self._is_spike(value):
            self._skip(state, value, own.item())
        else:
            self._losses.append(value)
            self._spikes_in_a_row = 0
        self._parts.clear()

    def _is_spike(self, loss: float) -> bool:
        if not math.isfinite(loss):
            return True
        if len(self._losses) < self.warmup:
            return False
        mean, deviation = _mean_and_deviation(self._losses)
        return loss - mean > self.threshold * deviation

    def _skip(self, state: State, loss: float, own: float) -> None:
        mean, deviation = _mean_and_deviation(self._losses)
        self._spikes_in_a_row += 1
        state.record(loss_spike=1)
        self._write(state, {"loss": loss, "rank_loss": own, "mean": mean, "standard_deviation": deviation})
        reason = (
            f"loss {loss:.6g} at step {state.step + 1}, and the recent mean is {mean:.6g} with a standard deviation of"
            f" {deviation:.3g}"
        )
        if self._spikes_in_a_row > self.patience:
            raise ArithmeticError(
                f"{reason}: spike {self._spikes_in_a_row} in a row, and patience is {self.patience}; see loss_spikes/"
            )
        state.skip_update(reason)

    def _write(self, state: State, losses: dict[str, float]) -> None:
        iterations = range(state.iteration + 2 - len(self._parts), state.iteration + 2)
        indices = self._indices(state)
        about = {
            "rank": state.rank,
            "epoch": state.epoch,
            "step": state.step + 1,
            **{name: value if math.isfinite(value) else str(value) for name, value in losses.items()},
            "batches": [{"iteration": i, "indices": next(indices, None)} for i in iterations],
        }
        folder = state.artifacts / "loss_spikes"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"iteration={state.iteration + 1:08d}_rank={state.rank}.json").write_text(json.dumps(about, indent=1))

    def _indices(self, state: State) -> Iterator[list[int]]:
        """Return the sample indices of this step's batches, or nothing if reading the sampler could change it."""
        batches: Any = getattr(state.loaders.get("train"), "batch_sampler", None)
        if not hasattr(getattr(batches, "sampler", None), "set_epoch"):
            return iter(())
        first = state.phase_iteration + 1 - len(self._parts) - (self._fetched_from or 0)
        return (list(batch) for batch in islice(iter(batches), first, first + len(self._parts)))

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self._losses), "spikes_in_a_row": self._spikes_in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._losses.extend(state["losses"])
        self._spikes_in_a_row = state["spikes_in_a_row"]


def _mean_and_deviation(values: Collection[float]) -> tuple[float, float]:
    """Return mean and unbiased standard deviation, as torch.std_mean; NaN for fewer than two values."""
    count = len(values)
    if count < 2:
        return math.nan, math.nan
    mean = fmean(values)
    return mean, math.dist(tuple(values), (mean,) * count) / math.sqrt(count - 1)
