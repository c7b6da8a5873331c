"""Export of the model to a file that runs without this project."""

import copy
import inspect
import logging
import os
import shutil
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Gt
from torch import Tensor, nn

from hooks.errors import SettingError
from hooks.hook import Hook, Priority, Ranks
from hooks.interval import Interval, at_interval
from hooks.model.activation_checkpointing import keep_activations
from hooks.model.eval_mode import evaluating, first_batch
from hooks.model.layers import tensors
from hooks.needs import Needs
from hooks.position import Position
from hooks.private_torch import tree_map
from hooks.setup import NEEDS_MODEL, Setup
from hooks.state import State

logger = logging.getLogger("hookyard")

Format = Literal["pt2", "trace", "script"]


@dataclass
class Export(Hook):
    """Export the model as a program that runs without its code: torch.export's `model.pt2`, or
    TorchScript.

        export: {every: 5 epochs}

    The model is exported in eval mode and full precision, with the arguments of its call in the
    task's forward pass of a training batch. The file is read back and its outputs compared with the
    model's before it gets its name, `<artifacts>/<hook's name>/epoch-0003/model.<format>`. All
    ranks enter the context of averaged weights; the master writes. Source: ClassyVision
    TorchscriptHook, composer ExportForInferenceCallback.
    """

    format: Format = "pt2"
    """Format: `pt2` is torch.export; `trace` and `script` are TorchScript, which torch
    deprecates."""
    every: Interval = Interval(0)
    """Interval between exports; the end of training adds one."""
    weights: str = "evaluated"
    """Weights to export. `evaluated`: the validated ones, so the averages of `ema` if it evaluates;
    `raw`: the training weights, written as `raw_model`; or the name of a hook that validates with
    averages, such as `ema`."""
    dynamic_batch: Annotated[bool, Needs("format: pt2")] = True
    """Dynamic batch size, the first dimension of the arguments; TorchScript always has it."""
    tolerance: Annotated[float, Gt(0)] = 1e-4
    """Maximum absolute and relative difference between the outputs of model and export."""

    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.VERY_LOW
    ranks: ClassVar[Ranks] = Ranks.ALL
    collective: ClassVar[bool] = True
    evaluates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._exported_at: Position | None = None

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(fsdp="it runs the model on the master alone", custom_loop=NEEDS_MODEL)

    def on_start(self, state: State) -> None:
        if self.format != "pt2":
            logger.warning("export: torch deprecates TorchScript; use format: pt2")
        _context(state, self.weights)

    @at_interval("every")
    def on_step(self, state: State) -> None:
        self._export(state)

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train" and self.every.unit == "epochs" and self.every.due(state):
            self._export(state)

    def on_end(self, state: State) -> None:
        if self._exported_at != state.position:
            self._export(state)

    def _export(self, state: State) -> None:
        self._exported_at = state.position
        with _context(state, self.weights):
            if state.is_master:
                self._write(state)

    def _write(self, state: State) -> None:
        name = state.milestone
        folder = state.artifacts / (self.name or "export")
        partial = folder / f".{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            with evaluating(state):
                call = _call(state)
                path = partial / ("raw_model.pt" if self.weights == "raw" else "model.pt")
                if self.format == "pt2":
                    reload = _write_pt2(call, path.with_suffix(".pt2"), self.dynamic_batch)
                else:
                    call = call.on_cpu()
                    reload = _write_torchscript(call, path, self.format)
                self._compare(call.run(call.module), reload(), folder / name)
            shutil.rmtree(folder / name, ignore_errors=True)
            os.replace(partial, folder / name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _compare(self, expected: Any, exported: Any, name: Path) -> None:
        ours = tensors(expected)
        theirs = tensors(exported)
        our_shapes = [tuple(tensor.shape) for tensor in ours]
        their_shapes = [tuple(tensor.shape) for tensor in theirs]
        if our_shapes != their_shapes:
            raise ValueError(
                f"export of {name}: the model's outputs have shapes {our_shapes},"
                f" the file's {their_shapes}"
            )
        for index, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            their = their.to(our)
            if not torch.allclose(
                their, our, rtol=self.tolerance, atol=self.tolerance, equal_nan=True
            ):
                difference = (their.double() - our.double()).abs().max().item()
                raise ValueError(
                    f"export of {name}: output {index} differs from the model's by up to"
                    f" {difference:.3g}, more than the tolerance of {self.tolerance:g};"
                    " the file was not kept"
                )


@dataclass(frozen=True)
class _Call:
    """Call of the model with its arguments."""

    module: nn.Module
    arguments: tuple[Any, ...]
    named: dict[str, Any]

    def run(self, program: Callable[..., Any]) -> Any:
        return program(*self.arguments, **self.named)

    def on_cpu(self) -> "_Call":
        """Return the call of a copy on the CPU, because a trace fixes the device of its
        constants."""
        arguments, named = tree_map(
            lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf,
            (self.arguments, self.named),
        )
        return _Call(keep_activations(copy.deepcopy(self.module)).cpu(), arguments, named)

    def tensors(self) -> list[Tensor]:
        return tensors((self.arguments, self.named))


def _call(state: State) -> _Call:
    """Run the forward pass and capture the model's arguments; double a batch of one, whose size
    torch would fix."""
    calls: list[_Call] = []

    def catch(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls.append(_Call(module, arguments, named))

    with state.module.register_forward_pre_hook(catch, with_kwargs=True, prepend=True):
        state.forward(state.module, first_batch(state))
    if not calls:
        raise ValueError(
            "the task's forward pass calls parts of the model instead of the model,"
            " so it cannot be exported"
        )
    call = calls[0]
    if not call.tensors():
        raise ValueError("the model is called without a tensor, so it cannot be exported")
    if len(call.tensors()[0]) != 1:
        return call
    arguments, named = tree_map(
        lambda leaf: torch.cat([leaf, leaf]) if _is_batched(leaf, 1) else leaf,
        (call.arguments, call.named),
    )
    return _Call(call.module, arguments, named)


def _is_batched(leaf: Any, samples: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == samples


def _context(state: State, weights: str) -> AbstractContextManager[Any]:
    """Return the context that swaps the weights into the model; raises ValueError if no hook
    provides them."""
    if weights == "raw":
        return nullcontext()
    if weights == "evaluated":
        return state.find_evaluated_weights()(state)
    averages = {weights.provider: weights for weights in state.evaluations.values()}
    averages.pop("", None)
    if weights not in averages:
        allowed = ", ".join(["evaluated", "raw", *averages])
        add = "" if averages else "; for averages, add the hook ema with evaluate: ema or both"
        raise SettingError(f"weights: must be one of {allowed}, got '{weights}'{add}")
    return averages[weights](state)


def _write_pt2(call: _Call, path: Path, dynamic_batch: bool) -> Callable[[], Any]:
    """Write for the CPU, so that any machine can load it; return a function that reads the file and
    runs it on the model's device, as devices round differently."""
    from torch.export.passes import move_to_device_pass

    shapes = torch.export.ShapesCollection()
    samples = len(call.tensors()[0])
    for tensor in call.tensors() if dynamic_batch else ():
        if _is_batched(tensor, samples):
            shapes[tensor] = {0: torch.export.Dim("batch")}
    dynamic = shapes.dynamic_shapes(call.module, call.arguments, call.named)
    program = torch.export.export(call.module, call.arguments, call.named, dynamic_shapes=dynamic)
    torch.export.save(move_to_device_pass(program, "cpu"), path)
    device = call.tensors()[0].device
    return lambda: call.run(move_to_device_pass(torch.export.load(path), device).module())


def _make_example(call: _Call) -> dict[str, Any]:
    """Return the arguments as torch.jit.trace takes them: all by name if one is passed by name."""
    if not call.named:
        return {"example_inputs": call.arguments}
    signature = inspect.signature(call.module.forward)
    bound = signature.bind(*call.arguments, **call.named)
    return {"example_kwarg_inputs": dict(bound.arguments)}


def _write_torchscript(call: _Call, path: Path, format: Format) -> Callable[[], Any]:
    """Write for the CPU, where the model is; return a function that reads the file and runs it."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        if format == "script":
            program = torch.jit.script(call.module)
        else:
            # Not strict, so that outputs may be dicts and lists.
            program = torch.jit.trace(call.module, **_make_example(call), strict=False)
        torch.jit.save(program, path)
        loaded = torch.jit.load(path)
    return lambda: call.run(loaded)
