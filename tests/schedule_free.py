"""Schedule-Free SGD, as its authors publish it (Defazio et al., 2024; the package schedulefree)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class ScheduleFreeSGD(Optimizer):
    """Gradients at y, which lies between the SGD iterates z and their average x; x is evaluated and
    saved.

    In training mode the parameters are y, in evaluation mode x.
    """

    def __init__(self, params: Any, lr: float = 1.0, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "k": 0, "train_mode": False})

    def eval(self) -> None:
        self._switch(False)

    def train(self) -> None:
        self._switch(True)

    @torch.no_grad()
    def _switch(self, mode: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] == mode:
                continue
            weight = 1 - group["momentum"] if mode else 1 - 1 / group["momentum"]
            for p in group["params"]:
                if "z" in self.state[p]:
                    p.lerp_(end=self.state[p]["z"], weight=weight)
            group["train_mode"] = mode

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if not group["train_mode"]:
                raise RuntimeError("Optimizer was not in train mode when step is called.")
            share = 1 / (group["k"] + 1)
            for p in group["params"]:
                if p.grad is None:
                    continue
                if "z" not in self.state[p]:
                    self.state[p]["z"] = torch.clone(p)
                z = self.state[p]["z"]
                p.lerp_(end=z, weight=share)
                p.add_(p.grad, alpha=group["lr"] * (group["momentum"] * (1 - share) - 1))
                z.sub_(p.grad, alpha=group["lr"])
            group["k"] += 1
