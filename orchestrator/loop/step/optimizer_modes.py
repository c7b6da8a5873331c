"""Optimizers with a training mode and an evaluation mode, as schedule-free ones have."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hooks.distributed import sharded_tensors as shards
from hooks.optimizer_name import OptimizerName
from hooks.state import State, Weights


class OptimizerModes:
    """The optimizers with methods `train` and `eval`, by name.

    They train in training mode. In evaluation mode, which they begin with, the model has the
    weights to validate, save and export: schedule-free optimizers compute gradients at one point,
    and average the weights at another.
    """

    def __init__(self, optimizers: Mapping[OptimizerName, Optimizer]) -> None:
        self._optimizers: dict[OptimizerName, Any] = {
            name: optimizer for name, optimizer in optimizers.items() if _has_modes(optimizer)
        }
        self._is_training = False
        self._kept: dict[OptimizerName, list[Tensor]] = {}
        """Weights with which training continues.

        A change of modes and back does not give the same bits.
        """

    def __bool__(self) -> bool:
        return bool(self._optimizers)

    def attach(self, state: State) -> None:
        """Let a run validate in evaluation mode, if any optimizer has one."""
        if self:
            state.evaluations[""] = Weights(self.evaluating)

    @torch.no_grad()
    def train(self) -> None:
        """Enter training mode, with the kept weights if there are any."""
        self._is_training = True
        for name, optimizer in self._optimizers.items():
            optimizer.train()
            if name in self._kept:
                parameters = _list_parameters(optimizer)
                for parameter, kept in zip(parameters, self._kept[name], strict=True):
                    parameter.copy_(shards.shard_like(kept, parameter))
        self._kept = {}

    def evaluate(self, *, keep: bool = False) -> None:
        """Enter evaluation mode; with `keep`, training will go on as if it had never been left."""
        self._is_training = False
        for name, optimizer in self._optimizers.items():
            if keep:
                parameters = _list_parameters(optimizer)
                self._kept[name] = [parameter.detach().clone() for parameter in parameters]
            with torch.no_grad():
                optimizer.eval()

    @contextmanager
    def evaluating(self, state: object = None) -> Iterator[None]:
        """Enter evaluation mode within a training phase.

        On exit, training continues as if it had never been left.
        """
        if not self or not self._is_training:
            yield
            return
        self.evaluate(keep=True)
        try:
            yield
        finally:
            self.train()

    def get_kept_weights(self, name: OptimizerName) -> list[Tensor] | None:
        """Return an optimizer's kept weights for a checkpoint, in the order of its groups."""
        return self._kept.get(name)

    def restore(self, name: OptimizerName, kept: Sequence[Tensor] | None) -> None:
        """Keep the weights of a checkpoint until training continues."""
        if kept is not None:
            self._kept[name] = list(kept)


def _has_modes(optimizer: Optimizer) -> bool:
    return all(callable(getattr(optimizer, mode, None)) for mode in ("train", "eval"))


def _list_parameters(optimizer: Optimizer) -> list[Tensor]:
    return list(chain.from_iterable(group["params"] for group in optimizer.param_groups))
