"""The order of parameters, and the norm of their gradients."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from hooks.private_torch import foreach_norm


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
