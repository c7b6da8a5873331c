"""Programs of a model that run without its code: torch.export's, or TorchScript, which torch
deprecates."""

import copy
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hooks.model.activation_checkpointing import keep_activations
from hooks.model.eval_mode import get_first_batch
from hooks.model.layers import list_tensors
from hooks.private_torch import tree_map
from hooks.state import State


@dataclass(frozen=True)
class ModelCall:
    """Call of the model with its arguments."""

    module: nn.Module
    arguments: tuple[Any, ...]
    named: dict[str, Any]

    @classmethod
    def capture(cls, state: State) -> "ModelCall":
        """Run the forward pass of a training batch, and return the call of the model in it."""
        calls: list[ModelCall] = []

        def catch(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            calls.append(cls(module, arguments, named))

        with state.module.register_forward_pre_hook(catch, with_kwargs=True, prepend=True):
            state.forward(state.module, get_first_batch(state))
        if not calls:
            raise ValueError(
                "the task's forward pass calls parts of the model instead of the model,"
                " so it cannot be exported"
            )
        call = calls[0]
        if not call.list_tensors():
            raise ValueError("the model is called without a tensor, so it cannot be exported")
        return call

    @property
    def batch_size(self) -> int:
        return len(self.list_tensors()[0])

    def list_tensors(self) -> list[Tensor]:
        return list_tensors((self.arguments, self.named))

    def run(self, program: Callable[..., Any]) -> Any:
        return program(*self.arguments, **self.named)

    def on_cpu(self) -> "ModelCall":
        """Return the call of a copy on the CPU."""
        call = self._map(Tensor.cpu)
        return replace(call, module=keep_activations(copy.deepcopy(self.module)).cpu())

    def double(self) -> "ModelCall":
        """Return the call with each sample twice."""

        def double(tensor: Tensor) -> Tensor:
            if not _is_batched(tensor, self.batch_size):
                return tensor
            return torch.cat([tensor, tensor])

        return self._map(double)

    def _map(self, change: Callable[[Tensor], Tensor]) -> "ModelCall":
        arguments, named = tree_map(
            lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf,
            (self.arguments, self.named),
        )
        return replace(self, arguments=arguments, named=named)


def export_pt2(call: ModelCall, path: Path, *, dynamic_batch: bool) -> Any:
    """Write the model as a program of torch.export; return what the file's program returns.

    The file is written for the CPU, so that any machine can load it, and the program runs on the
    model's device, because devices round differently.
    """
    from torch.export.passes import move_to_device_pass

    shapes = torch.export.ShapesCollection()
    for tensor in call.list_tensors():
        if dynamic_batch and _is_batched(tensor, call.batch_size):
            shapes[tensor] = {0: torch.export.Dim("batch")}
    dynamic = shapes.dynamic_shapes(call.module, call.arguments, call.named)
    program = torch.export.export(call.module, call.arguments, call.named, dynamic_shapes=dynamic)
    torch.export.save(move_to_device_pass(program, "cpu"), path)

    device = call.list_tensors()[0].device
    return call.run(move_to_device_pass(torch.export.load(path), device).module())


def export_torchscript(call: ModelCall, path: Path, kind: Literal["trace", "script"]) -> Any:
    """Write the model as TorchScript; return what the file's program returns.

    The model is to be on the CPU, because a trace fixes the device of its constants.
    """
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        if kind == "script":
            program = torch.jit.script(call.module)
        else:
            # Not strict, so that outputs may be dicts and lists.
            program = torch.jit.trace(call.module, **_make_example(call), strict=False)
        torch.jit.save(program, path)
        return call.run(torch.jit.load(path))


def _is_batched(tensor: Tensor, batch_size: int) -> bool:
    return tensor.ndim > 0 and len(tensor) == batch_size


def _make_example(call: ModelCall) -> dict[str, Any]:
    """Return the arguments as torch.jit.trace takes them: all by name if one is passed by name."""
    if not call.named:
        return {"example_inputs": call.arguments}
    signature = inspect.signature(call.module.forward)
    bound = signature.bind(*call.arguments, **call.named)
    return {"example_kwarg_inputs": dict(bound.arguments)}
