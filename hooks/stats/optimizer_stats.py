"""Norms of parameters, gradients, moments and updates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hooks.hook import Hook, Priority, Ranks, Setup
from hooks.interval import paced_by
from hooks.parts.layers import LayerMeasurement
from hooks.private_torch import foreach_norm, foreach_sub_
from hooks.state import State


@dataclass
class OptimizerStats(LayerMeasurement, Hook):
    """Norms of parameters, gradients, moments and updates of some optimizer steps, for all parameters and each.

        optimizer_stats: {every: 100 steps}

    Gradients are those that the optimizer gets; the update is the change of the parameters, with weight decay and
    learning rate; parameters are those after the step. The row has `param_norm`, `step_grad_norm`, `update_norm`,
    `update_ratio` (update to parameters) and one for each moment, such as `exp_avg_norm`. The same columns for each
    parameter go to Parquet files under `optimizer/` (`pandas.read_parquet`: rank, epoch, iteration, step, layer, ...)
    and to `state.info["optimizer"]`; NaN if a parameter has no such value. If optimizers take turns, columns have their
    names.

    Only a measured step costs: a copy of the trainable parameters and a few fused operations. Nothing waits for the
    device before the phase ends. Runs on the master, as all ranks are equal. Source: Composer OptimizerMonitor.
    """

    folder: ClassVar[str] = "optimizer"
    priority: ClassVar[Priority | int] = Priority.VERY_LOW
    ranks: ClassVar[Ranks] = Ranks.MASTER

    def __post_init__(self) -> None:
        super().__post_init__()
        self._parameters: dict[str, nn.Parameter] = {}
        self._before: list[Tensor] = []
        self._gradient_norms: list[Tensor | None] = []

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(fsdp="its norms are of whole parameters, on the master alone")

    @paced_by("every")
    @torch.no_grad()
    def on_gradients(self, state: State) -> None:
        trained = (
            {parameter for group in state.optimizer.param_groups for parameter in group["params"]}
            if state.turn and state.optimizer
            else None
        )
        self._parameters = {
            name: p
            for name, p in state.module.named_parameters()
            if p.requires_grad and (trained is None or p in trained)
        }
        self._before = [p.clone() for p in self._parameters.values()]
        self._gradient_norms = _norms([p.grad for p in self._parameters.values()])

    @paced_by("every")
    @torch.no_grad()
    def on_update(self, state: State) -> None:
        if not self._before:
            return
        parameters: list[Tensor] = list(self._parameters.values())
        foreach_sub_(self._before, parameters)
        norms = {
            "param_norm": _norms(parameters),
            "step_grad_norm": self._gradient_norms,
            "update_norm": _norms(self._before),
        }
        norms |= {f"{kind}_norm": _norms(values) for kind, values in _moments(state.optimizer, parameters).items()}
        self.release()
        totals = {
            name: torch.linalg.vector_norm(torch.stack(existing))
            for name, values in norms.items()
            if (existing := _existing(values))
        }
        state.record(**totals, update_ratio=totals["update_norm"] / totals["param_norm"])
        columns = {name: _column(values, state.device) for name, values in norms.items()}
        columns["update_ratio"] = columns["update_norm"] / columns["param_norm"]
        self.keep(state, list(self._parameters), columns, step=state.step + 1)

    def release(self) -> None:
        """Free the copy; if the step was skipped, it is still there."""
        self._before, self._gradient_norms = [], []


def _norms(tensors: Iterable[Tensor | None]) -> list[Tensor | None]:
    """Return the norm of each tensor that exists, in a few operations."""
    values = [tensor.coalesce().values() if tensor is not None and tensor.is_sparse else tensor for tensor in tensors]
    existing = _existing(values)
    norms = iter(foreach_norm(existing) if existing else ())
    return [None if value is None else next(norms) for value in values]


def _existing(values: Iterable[Tensor | None]) -> list[Tensor]:
    return [value for value in values if value is not None]


def _column(norms: Sequence[Tensor | None], device: torch.device) -> Tensor:
    missing = torch.full((), math.nan, device=device)
    return torch.stack([missing if norm is None else norm.to(device, torch.float32) for norm in norms])


def _moments(optimizer: torch.optim.Optimizer | None, parameters: Sequence[Tensor]) -> dict[str, list[Tensor | None]]:
    """Return the optimizer's values in the shape of each parameter, by kind."""
    kept: list[Mapping[str, Any]] = [optimizer.state.get(p, {}) if optimizer is not None else {} for p in parameters]
    kinds = dict.fromkeys(
        kind
        for p, entries in zip(parameters, kept, strict=True)
        for kind, value in entries.items()
        if kind != "step" and isinstance(value, Tensor) and value.shape == p.shape
    )
    return {kind: [entries.get(kind) for entries in kept] for kind in kinds}
