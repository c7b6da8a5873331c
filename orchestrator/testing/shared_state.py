"""What training and all hooks share, which one that observes leaves at each call as it finds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from hooks.state import State
from orchestrator.randomness import storable_random_state
from orchestrator.testing.trees import copied, difference


def _of_cudnn(name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: getattr(torch.backends.cudnn, name), lambda value: setattr(torch.backends.cudnn, name, value)


TORCH: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default_device": (torch.get_default_device, torch.set_default_device),
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic_debug_mode": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "detect_anomaly": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "flush_denormal": (
        lambda: float(torch.full((), 1e-40, dtype=torch.float32, device="cpu") * 2) == 0,
        torch.set_flush_denormal,
    ),
    **{f"backends.cudnn.{name}": _of_cudnn(name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")},
}
"""What is set for the whole process: how it is asked for, and how it is set."""


COUNTERS = ("epoch", "iteration", "step", "samples", "phase_iteration")


class SharedState:
    """How a call finds it; only on the CPU and on one rank, as it is copied."""

    def __init__(self, state: State) -> None:
        self._torch = {name: get() for name, (get, _) in TORCH.items()}
        self._random = storable_random_state()
        self._of_the_loop = {
            "state.batch": copied(state.batch),
            "state.output": copied(state.output),
            "state.loss": copied(state.loss),
            "state": {name: getattr(state, name) for name in COUNTERS},
            "requires_grad of parameter ": {
                name: parameter.requires_grad for name, parameter in state.module.named_parameters()
            },
            "training of module ": {name: module.training for name, module in state.module.named_modules()},
        }

    def changed_to(self, now: SharedState) -> str:
        """What is different now, with both values; empty where nothing is. Of torch it is put back, as other tests go
        on in this process."""
        for name, value in self._torch.items():
            if now._torch[name] != value:
                TORCH[name][1](value)
                return f"sets torch's {name} to {now._torch[name]}, where it was {value}"
        drawn = [kind for kind, state in self._random.items() if difference(now._random[kind], state)]
        if drawn:
            return f"draws random numbers of {' and '.join(drawn)}"
        told = (difference(now._of_the_loop[what], value, what) for what, value in self._of_the_loop.items())
        return next((f"changes what training and other hooks share: {one}" for one in told if one), "")
