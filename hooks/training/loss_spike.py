"""Leaves out steps whose loss is far above the usual."""

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
    """Leaves out an optimizer step whose loss is not finite or lies far above the last ones, and notes its batches.

    The loss of a step is the mean over its micro-batches and over ranks; it is a spike where it is more than
    `threshold` standard deviations above the mean of the last `window` losses that were none. All ranks leave out the
    step together: one all-reduce of one number for each step, and a wait for the device. A nan_guard beside it has to
    skip, too, or it fails the run first. The window survives a restart. Records loss_spike = 1.

    Each rank writes `loss_spikes/iteration=<iteration>_rank=<rank>.json` in the run's artifacts: the losses and, for
    each micro-batch, its iteration and the places of its samples in the data set, where the sampler can tell them again
    (one with `set_epoch`). Raises ArithmeticError after too many spikes in a row.
    Source: OLMo-core SkipStepOptimizer (mean and deviations), Lightning SpikeDetection (the record of batches).
    """

    threshold: Annotated[float, Gt(0)] = 6.0
    """How many standard deviations above the mean a loss must lie to be a spike."""
    window: Annotated[int, Ge(2)] = 128
    """How many losses the mean and the deviation are taken of."""
    warmup: Annotated[int, Ge(2)] = 64
    """How many losses there must be before one can be far above them, at most `window`; not finite is a spike at
    once."""
    patience: Annotated[int, Ge(0)] = 10
    """How many spikes in a row are left out before the next one is an error."""

    priority: ClassVar[Priority] = Priority.VERY_HIGH
    waits_for_device: ClassVar[frozenset[str]] = frozenset({"on_gradients"})
    collective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.warmup > self.window:
            raise ValueError(
                f"warmup={self.warmup} losses cannot be seen in a window of {self.window}; make warmup smaller"
            )
        self._losses: deque[float] = deque(maxlen=self.window)
        self._spikes_in_a_row = 0
        self._parts: list[Tensor] = []
        self._fetched_from: int | None = (
            None  # the iteration of the epoch from which on this process fetches its batches
        )

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
            self._leave_out(state, value, own.item())
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

    def _leave_out(self, state: State, loss: float, own: float) -> None:
        mean, deviation = _mean_and_deviation(self._losses)
        self._spikes_in_a_row += 1
        state.record(loss_spike=1)
        self._note(state, {"loss": loss, "rank_loss": own, "mean": mean, "standard_deviation": deviation})
        reason = (
            f"loss {loss:.6g} at step {state.step + 1}, where {mean:.6g} with a standard deviation of {deviation:.3g}"
            " was usual"
        )
        if self._spikes_in_a_row > self.patience:
            raise ArithmeticError(
                f"{reason}: spike {self._spikes_in_a_row} in a row, {self.patience} are left out; see loss_spikes/"
            )
        state.skip_update(reason)

    def _note(self, state: State, losses: dict[str, float]) -> None:
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
        """The places of the samples of this step's batches; empty where going through the sampler could change it."""
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
    """The mean and the unbiased standard deviation, as torch.std_mean gives them; NaN where there are too few
    values."""
    count = len(values)
    if count < 2:
        return math.nan, math.nan
    mean = fmean(values)
    return mean, math.dist(tuple(values), (mean,) * count) / math.sqrt(count - 1)
