"""Check for NaN and infinity before each optimizer step."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from hooks.distributed import sharded_tensors as shards
from hooks.errors import TrainingFailed
from hooks.hook import Hook, Priority
from hooks.interval import Interval, Steps
from hooks.needs import Needs
from hooks.optimizer_name import OptimizerName
from hooks.state import State


@dataclass
class NanGuard(Hook):
    """Check loss and gradients before each optimizer step, so that no NaN reaches the weights.

        nan_guard: {action: skip, patience: 10}

    The gradient norm is the same on all ranks, so ranks agree without communication; each rank has
    its own loss. If a check fails, the hook writes the last micro-batch, its output, the values and
    the rank's weights to `nonfinite/iteration-<iteration>-rank-<rank>.pt`. With fp16, infinite
    gradients are normal (the scaler skips the step), so only the loss counts. Each check
    synchronizes.

    Columns:
        * `nonfinite`: 1 if a loss or a gradient was not finite.

    Source: VISSL CheckNanLossHook and CheckNanModelOutputHook.
    """

    action: Literal["raise", "skip", "stop"] = "raise"
    """Response, without an update: `raise` fails the run, `skip` skips the step, `stop` ends the
    run normally."""
    patience: Annotated[int, Ge(0), Needs("action", "skip")] = 10
    """Maximum number of consecutive failed checks that `skip` tolerates; the next one fails the
    run."""
    every: Steps = Interval(1, "steps")
    """Optimizer steps between checks; a check covers all steps since the last one."""
    dumps: Annotated[int, Ge(0)] = 1
    """Maximum number of failed checks for which each rank writes a dump."""

    priority: ClassVar[Priority] = Priority.VERY_HIGH
    waits_for_device: ClassVar[frozenset[str]] = frozenset({"on_gradients"})
    mutable: ClassVar[frozenset[str]] = frozenset({"action", "patience", "every", "dumps"})
    rank_state_fields: ClassVar[tuple[str, ...]] = ("_sums", "_hits_in_a_row", "_dumped")

    def __post_init__(self) -> None:
        if self.action == "skip" and self.every.count > 1:
            raise ValueError(f"action: skip needs every: 1 step, got every: {self.every}")
        self._sums: dict[OptimizerName, Tensor | float] = {}
        """Sum of each optimizer's losses and norms since its last check; not finite once any term
        is not."""
        self._hits_in_a_row: Counter[OptimizerName] = Counter()
        """Consecutive failed checks of each optimizer."""
        self._dumped = 0

    def on_loss(self, state: State) -> None:
        if state.phase == "train" and state.loss is not None:
            self._add(state.loss, state)

    def on_gradients(self, state: State) -> None:
        if state.scaler is None:
            self._add(state.gradient_norm(), state)
        if (state.step + 1) % self.every.count:
            return
        if math.isfinite(self._sums.pop(state.turn, 0.0)):
            self._hits_in_a_row[state.turn] = 0
            return
        self._hits_in_a_row[state.turn] += 1
        state.record(nonfinite=1)
        loss = math.nan if state.loss is None else state.loss.item()
        norm = state.gradient_norm().item()
        self._dump(state, loss, norm)
        self._act(state, loss, norm)

    def _add(self, value: Tensor, state: State) -> None:
        self._sums[state.turn] = self._sums.get(state.turn, 0.0) + _to_number(value)

    def _act(self, state: State, loss: float, norm: float) -> None:
        reason = f"step {state.step + 1} has loss={loss:.6g} and gradient norm={norm:.6g}"
        if math.isfinite(loss) and state.world_size > 1:
            reason += " (the loss of another rank may be the cause)"
        is_too_often = self.action == "skip" and self._hits_in_a_row[state.turn] > self.patience
        if self.action == "raise" or is_too_often:
            raise TrainingFailed(
                f"{reason}. Lower the learning rate; `hookyard replay` repeats the iteration"
            )
        # The norm is the same on all ranks, as skipping must be.
        if not math.isfinite(norm):
            state.skip_update(reason)
        if self.action == "stop":
            where = f" on rank {state.rank}" if state.world_size > 1 else ""
            state.request_stop(f"{reason}{where}")

    def _dump(self, state: State, loss: float, norm: float) -> None:
        if self._dumped == self.dumps:
            return
        self._dumped += 1
        folder = state.artifacts / "nonfinite"
        folder.mkdir(parents=True, exist_ok=True)
        model = {
            name: shards.get_local(tensor) for name, tensor in state.module.state_dict().items()
        }
        contents = {
            "step": state.step + 1,
            "iteration": state.iteration + 1,
            "epoch": state.epoch,
            "loss": loss,
            "gradient_norm": norm,
            "batch": state.batch,
            "output": state.output,
            "model": model,
        }
        name = state.column(f"iteration-{state.iteration + 1}")
        torch.save(contents, folder / f"{name}-rank-{state.rank}.pt")


def _to_number(value: Tensor) -> Tensor | float:
    """Return a value as a number on the CPU, and elsewhere as a tensor that can be summed: a few
    losses in fp16 would overflow."""
    if value.device.type == "cpu":
        return value.item()
    return value.detach().to(torch.promote_types(value.dtype, torch.float32))
