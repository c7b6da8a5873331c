"""Norms of parameters, gradients and updates."""

from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from hooks.hook import Hook, Priority, Ranks
from hooks.interval import Interval, StepsOrNever, at_interval
from hooks.private_torch import foreach_sub_
from hooks.setup import Setup
from hooks.state import State


@dataclass
class OptimizerStats(Hook):
    """Measure the norms of parameters, gradients and updates over all trained parameters, in some
    optimizer steps.

        optimizer_stats: {every: 100 steps}

    If optimizers take turns, columns have their names. Only a measured step costs: a copy of the
    parameters and a few fused operations. Runs on the master, because all ranks are equal.

    Columns:
        * `param_norm`: Euclidean norm of the parameters after the step.
        * `step_grad_norm`: Norm of the gradients that the optimizer gets.
        * `update_norm`: Norm of the change, with weight decay and learning rate.
        * `update_ratio`: `update_norm` by `param_norm`.

    Source: Composer OptimizerMonitor.
    """

    every: StepsOrNever = Interval(100, "steps")
    """Optimizer steps between measurements."""

    priority: ClassVar[Priority] = Priority.VERY_LOW
    ranks: ClassVar[Ranks] = Ranks.MASTER

    def __post_init__(self) -> None:
        self._old_parameters: list[Tensor] = []

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(fsdp="it computes norms of unsharded parameters, on the master only")

    @at_interval("every")
    @torch.no_grad()
    def on_gradients(self, state: State) -> None:
        self._old_parameters = [parameter.clone() for parameter in _list_trained_parameters(state)]
        gradients = [
            gradient.coalesce().values() if gradient.is_sparse else gradient
            for gradient in state.gradients()
        ]
        state.record(step_grad_norm=get_total_norm(gradients))

    @at_interval("every")
    @torch.no_grad()
    def on_update(self, state: State) -> None:
        parameters = _list_trained_parameters(state)
        foreach_sub_(self._old_parameters, parameters)
        param_norm = get_total_norm(parameters)
        update_norm = get_total_norm(self._old_parameters)
        self._old_parameters = []
        state.record(
            param_norm=param_norm,
            update_norm=update_norm,
            update_ratio=update_norm / param_norm,
        )

    def on_phase_end(self, state: State) -> None:
        # A skipped step leaves its copy.
        self._old_parameters = []


def _list_trained_parameters(state: State) -> list[Tensor]:
    assert state.optimizer is not None
    groups = state.optimizer.param_groups
    parameters = chain.from_iterable(group["params"] for group in groups)
    return [parameter for parameter in parameters if parameter.requires_grad]
