"""Stops before a NaN reaches the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from hooks.hook import Hook, Priority
from hooks.interval import Interval, Steps
from hooks.parts.unread_fields import refuse_unread
from hooks.state import State


@dataclass
class NanGuard(Hook):
    """Looks at loss and gradients before each optimizer step, and acts when they are not finite.

    The gradients are averaged over ranks, so all ranks see the same norm and agree without communication; the loss is
    this rank's own and names the culprit. On a hit it records nonfinite = 1 and writes the batch, the output and the
    values to `nonfinite/step-<step>-rank-<rank>.pt` in the run's artifacts; with accumulation, or with an interval
    above 1, that is the last micro-batch. Under fp16 infinite gradients are ordinary (the scaler skips the step
    itself), so only the loss counts. Each check waits for the device. What it has seen survives a restart. Raises
    FloatingPointError. Source: VISSL CheckNanLossHook and CheckNanModelOutputHook, which look after the fact.
    """

    action: Literal["raise", "skip", "stop"] = "raise"
    """Fails the run, leaves out the step, or asks for an orderly end; none of them updates the weights."""
    patience: Annotated[int, Ge(0)] = 10
    """With `skip`: how many hits in a row are skipped before the next one raises."""
    every: Steps = Interval(1, "steps")
    """Optimizer steps between checks; in between, values are summed on the device, and a hit is found late."""
    dumps: Annotated[int, Ge(0)] = 1
    """How many hits each rank writes out at most."""

    priority: ClassVar[Priority] = Priority.VERY_HIGH
    waits_for_device: ClassVar[frozenset[str]] = frozenset({"on_gradients"})
    mutable: ClassVar[frozenset[str]] = frozenset({"action", "patience", "every", "dumps"})

    def __post_init__(self) -> None:
        if self.action != "skip":
            refuse_unread(self, "action: skip", "patience")
        if self.action == "skip" and self.every.count > 1:
            raise ValueError(
                f"action=skip must look at each step before it is made; every={self.every} has to be 1 step"
            )
        self._sum: Tensor | float = 0.0  # not finite as soon as one of its terms is not
        self._hits_in_a_row = 0
        self._dumped = 0

    def on_loss(self, state: State) -> None:
        if state.phase == "train" and state.loss is not None:
            self._sum = self._sum + _number(state.loss)

    def on_gradients(self, state: State) -> None:
        if state.scaler is None:
            self._sum = self._sum + _number(state.gradient_norm())
        if (state.step + 1) % self.every.count:
            return
        finite = math.isfinite(self._sum)
        self._sum = 0.0
        if finite:
            self._hits_in_a_row = 0
            return
        self._hits_in_a_row += 1
        state.record(nonfinite=1)
        loss = math.nan if state.loss is None else state.loss.item()
        norm = state.gradient_norm().item()
        self._dump(state, loss, norm)
        self._act(state, loss, norm)

    def _act(self, state: State, loss: float, norm: float) -> None:
        reason = f"not finite at step {state.step + 1} on rank {state.rank}: loss={loss}, gradient norm={norm}" + (
            "" if not math.isfinite(loss) or state.world_size == 1 else " (the loss of another rank may be the cause)"
        )
        if self.action == "raise" or (self.action == "skip" and self._hits_in_a_row > self.patience):
            raise FloatingPointError(reason)
        if not math.isfinite(norm):  # the norm is the same on all ranks, as skipping must be
            state.skip_update(reason)
        if self.action == "stop":
            state.request_stop(reason)

    def _dump(self, state: State, loss: float, norm: float) -> None:
        if self._dumped == self.dumps:
            return
        self._dumped += 1
        folder = state.artifacts / "nonfinite"
        folder.mkdir(parents=True, exist_ok=True)
        evidence = {
            "step": state.step + 1,
            "iteration": state.iteration + 1,
            "epoch": state.epoch,
            "loss": loss,
            "gradient_norm": norm,
            "batch": state.batch,
            "output": state.output,
        }
        torch.save(evidence, folder / f"step-{state.step + 1}-rank-{state.rank}.pt")

    def rank_state_dict(self) -> dict[str, Any]:
        return {"sum": self._sum, "hits_in_a_row": self._hits_in_a_row, "dumped": self._dumped}

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self._sum, self._hits_in_a_row, self._dumped = state["sum"], state["hits_in_a_row"], state["dumped"]


def _number(value: Tensor) -> Tensor | float:
    """A value as cheap as its device allows: at hand on the CPU, left where it is elsewhere."""
    return value.item() if value.device.type == "cpu" else value.detach()
