"""The gradients of the parameters that are trained, in the model's order, and their norm."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hooks.distributed import sharded_tensors as shards
from hooks.optimizer_name import OptimizerName
from hooks.parameter_names import join_names
from hooks.private_torch import foreach_norm


class _Trained(NamedTuple):
    """Parameters of some optimizers."""

    ids: list[int]
    """Ids in the order of the optimizers, which show whether an optimizer has other parameters
    now."""
    in_model_order: list[nn.Parameter]


class Gradients:
    """This rank's gradients, or shards of them, of the parameters that optimizers train, and their
    norm.

    They are in the order of `module.parameters()`, so that sums over them are those of a plain
    loop, bit for bit. The 2-norm is kept until `forget_norm`.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module = module
        self._device = device
        self._are_sharded = any(map(shards.is_sharded, module.parameters()))
        self._trained: dict[tuple[OptimizerName, ...], _Trained] = {}
        """Parameters by the names of their optimizers, because finding their order takes long."""
        self._norm: Tensor | None = None

    def collect(self, optimizers: Mapping[OptimizerName, Optimizer]) -> list[Tensor]:
        """Return the gradients that exist; without optimizers, those of the whole module."""
        parameters = self._order_parameters(optimizers) or self._module.parameters()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if self._are_sharded:
            return [shards.get_local(gradient) for gradient in gradients]
        return gradients

    def norm(self, optimizers: Mapping[OptimizerName, Optimizer], norm_type: float) -> Tensor:
        """Return the norm over all ranks, on the device; raises TypeError if a gradient is sparse
        and torch has no norm of it. Collective if the module is sharded."""
        if norm_type != 2.0:
            return self._compute_norm(optimizers, norm_type)
        if self._norm is None:
            self._norm = self._compute_norm(optimizers, norm_type)
        return self._norm

    def forget_norm(self) -> None:
        """Compute the norm anew when it is next asked for, because the gradients change."""
        self._norm = None

    def list_sparse(self) -> list[str]:
        """Return the names of the module's parameters whose gradients are sparse tensors."""
        return [
            name
            for name, parameter in self._module.named_parameters()
            if parameter.grad is not None and parameter.grad.is_sparse
        ]

    def _order_parameters(
        self, optimizers: Mapping[OptimizerName, Optimizer]
    ) -> list[nn.Parameter]:
        """Return the parameters of optimizers in the model's order."""
        parameters: list[nn.Parameter] = []
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                parameters += group["params"]

        names = tuple(optimizers)
        ids = list(map(id, parameters))
        known = self._trained.get(names)
        if known is None or known.ids != ids:
            known = _Trained(ids, order_like_model(self._module, parameters))
            self._trained[names] = known
        return known.in_model_order

    def _compute_norm(
        self, optimizers: Mapping[OptimizerName, Optimizer], norm_type: float
    ) -> Tensor:
        gradients = self.collect(optimizers)
        try:
            if self._are_sharded:
                return shards.compute_norm(gradients, norm_type, self._device)
            return total_norm(gradients, norm_type)
        except NotImplementedError:
            names = self.list_sparse()
            if not names:
                raise
            raise TypeError(
                f"the gradient of {join_names(names)} is sparse, and this torch has no norm of sparse"
                " gradients, neither here nor in clip_grad_norm_. Build the layer with"
                " sparse=False, or remove this hook"
            ) from None


def order_like_model(module: nn.Module, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Return the parameters in the order of `module.parameters()`; others, such as those of a loss,
    come last."""
    remaining = {id(parameter): parameter for parameter in parameters}
    ordered = []
    for parameter in module.parameters():
        if remaining.pop(id(parameter), None) is not None:
            ordered.append(parameter)
    return [*ordered, *remaining.values()]


def total_norm(gradients: list[Tensor], norm_type: float) -> Tensor:
    """Compute torch's get_total_norm without its sorting, which takes longer than the norm of a
    small model."""
    kinds = {(gradient.device, gradient.dtype) for gradient in gradients}
    if len(kinds) != 1:
        return torch.nn.utils.get_total_norm(gradients, norm_type)

    norms = torch.stack(foreach_norm(gradients, norm_type))
    total: Tensor = torch.linalg.vector_norm(norms, norm_type)
    return total
