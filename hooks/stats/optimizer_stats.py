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
from hooks.parts.layer_table import LayerMeasurement
from hooks.private_torch import foreach_norm, foreach_sub_
from hooks.state import State


@dataclass
class OptimizerStats(LayerMeasurement, Hook):
    """Measures what an optimizer step works with and does: 2-norms of parameters, gradients, moments and the update.

    Runs on the master: after the gradients are averaged, all ranks do the same. Gradients are those the optimizer gets:
    accumulated, unscaled and clipped. The update is the difference that the step made to the parameters, so that weight
    decay and the learning rate are in it; parameters are those after the step. The row has `param_norm`,
    `step_grad_norm`, `update_norm`, `update_ratio` (update to parameters) and, for each kind of moment that the
    optimizer keeps, such as `exp_avg`, `exp_avg_sq` or `momentum_buffer`, `exp_avg_norm` and so on. The same columns
    for each parameter go to Parquet files under `optimizer/` (`pandas.read_parquet`: rank, epoch, iteration, step,
    layer ...) and to `state.info["optimizer"]`; not a number where a parameter has none, such as a frozen one's
    gradient.

    Where optimizers take turns, the columns are of each one's parameters, with its name.

    Only a measured step pays: a copy of the trainable parameters until it is done, and a few fused operations. Nothing
    waits for the device before the phase ends. Source: Composer OptimizerMonitor.
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
            name: torch.linalg.vector_norm(torch.stack(there))
            for name, values in norms.items()
            if (there := _there(values))
        }
        state.record(**totals, update_ratio=totals["update_norm"] / totals["param_norm"])
        columns = {name: _column(values, state.device) for name, values in norms.items()}
        columns["update_ratio"] = columns["update_norm"] / columns["param_norm"]
        self.keep(state, list(self._parameters), columns, step=state.step + 1)

    def release(self) -> None:
        """Gives the copy back; one whose step was left out has waited for it."""
        self._before, self._gradient_norms = [], []


def _norms(tensors: Iterable[Tensor | None]) -> list[Tensor | None]:
    """The norm of each tensor there is, all in a few operations."""
    values = [tensor.coalesce().values() if tensor is not None and tensor.is_sparse else tensor for tensor in tensors]
    there = _there(values)
    norms = iter(foreach_norm(there) if there else ())
    return [None if value is None else next(norms) for value in values]


def _there(values: Iterable[Tensor | None]) -> list[Tensor]:
    return [value for value in values if value is not None]


def _column(norms: Sequence[Tensor | None], device: torch.device) -> Tensor:
    missing = torch.full((), math.nan, device=device)
    return torch.stack([missing if norm is None else norm.to(device, torch.float32) for norm in norms])


def _moments(optimizer: torch.optim.Optimizer | None, parameters: Sequence[Tensor]) -> dict[str, list[Tensor | None]]:
    """What the optimizer keeps in the shape of each parameter, by kind."""
    kept: list[Mapping[str, Any]] = [optimizer.state.get(p, {}) if optimizer is not None else {} for p in parameters]
    kinds = dict.fromkeys(
        kind
        for p, entries in zip(parameters, kept, strict=True)
        for kind, value in entries.items()
        if kind != "step" and isinstance(value, Tensor) and value.shape == p.shape
    )
    return {kind: [entries.get(kind) for entries in kept] for kind in kinds}
