"""Sharpness-aware minimization, by the recipe that most of its implementations share (Foret et al.,
2021)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class SAM(Optimizer):
    """A step moves the weights uphill by `rho`, takes the gradients there, and updates the weights
    where they were."""

    def __init__(
        self, params: Any, base_optimizer: type[Optimizer], rho: float = 0.05, **kwargs: Any
    ) -> None:
        super().__init__(params, {"rho": rho, **kwargs})
        make: Any = base_optimizer
        self.base_optimizer: Optimizer = make(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False) -> None:
        norms = [
            p.grad.norm(p=2)
            for group in self.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        norm = torch.stack(norms).norm(p=2)
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old_p"] = p.data.clone()
                    p.add_(p.grad * scale.to(p))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad: bool = False) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:  # type: ignore[override]
        assert closure is not None, "SAM requires closure, but it was not provided"
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.base_optimizer.param_groups = self.param_groups


class SharpSGD(SAM):
    """SAM around SGD, with arguments that a file can hold, as in docs/guides/schedules.md."""

    def __init__(self, params: Any, lr: float, momentum: float = 0.9, rho: float = 0.05) -> None:
        super().__init__(params, torch.optim.SGD, rho=rho, lr=lr, momentum=momentum)
