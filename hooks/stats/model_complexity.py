"""Size of the model, and cost of a forward pass."""

import csv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
from torch.utils.hooks import RemovableHandle

from hooks.hook import Hook, Ranks
from hooks.model.eval_mode import evaluating, first_batch
from hooks.private_torch import CPU_ATTENTION
from hooks.setup import NEEDS_MODEL, Setup
from hooks.state import State

FILE = "model_complexity.csv"


@dataclass
class ModelComplexity(Hook):
    """Count the parameters, and the FLOPs, MACs and activations of a forward pass, once at the
    start.

        model_complexity: {max_depth: 2}

    Runs on the master with a training batch in eval mode, without effect on training. MACs are the
    multiply-adds of matrix products, convolutions and attention; FLOPs are twice as many;
    activations are the output elements of linear layers and convolutions. The hook sets
    `parameters`, `trainable_parameters`, `flops_per_sample`, `macs_per_sample` and
    `activations_per_sample` in `state.info`, shows them, and writes a row for each module to
    `model_complexity.csv`. A model that cannot be counted gives its parameters and a note. Source:
    ClassyVision and VISSL ModelComplexityHook, Lightning ModelSummary, torch.utils.flop_counter.
    """

    max_depth: Annotated[int, Ge(0)] = 2
    """Maximum depth of modules with their own row; 0 means only the whole model."""

    ranks: ClassVar[Ranks] = Ranks.MASTER

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(fsdp="it runs the model on the master alone", custom_loop=NEEDS_MODEL)

    def on_start(self, state: State) -> None:
        try:
            self._count(state)
        except Exception as error:  # counting may fail in any way; training does not need it
            if "parameters" in state.info:
                state.show(_summarize_parameters(state.info))
            state.show(
                "model_complexity: cannot count the FLOPs of the model:"
                f" {type(error).__name__}: {error}"
            )

    def _count(self, state: State) -> None:
        module = state.module
        state.info["parameters"], state.info["trainable_parameters"] = _parameters(module)
        batch = first_batch(state)
        samples = state.samples_in(batch)
        counter = FlopCounterMode(display=False, custom_mapping=_MISSING)
        with (
            evaluating(state),
            _without_fused_layers(module),
            counter,
            _counting(module, counter) as costs,
        ):
            state.forward(module, batch)
        whole = costs[""]
        # Also of a task that calls only submodules of the model.
        whole.flops = counter.get_total_flops()
        state.info.update(whole.per_sample(samples))
        self._write(state, costs, samples)
        state.show(_summary(state.info))

    def _write(self, state: State, costs: "Mapping[str, _Cost]", samples: int) -> None:
        columns = ["module", "type", "parameters", "trainable_parameters"]
        columns += costs[""].per_sample(samples)
        state.artifacts.mkdir(parents=True, exist_ok=True)
        with (state.artifacts / FILE).open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(columns)
            for name, module in state.module.named_modules():
                depth = name.count(".") + 1 if name else 0
                if depth > self.max_depth:
                    continue
                per_sample = costs[name].per_sample(samples).values()
                table.writerow([name, type(module).__name__, *_parameters(module), *per_sample])


@dataclass
class _Cost:
    """Cost of a forward pass in a module and its submodules."""

    flops: int = 0
    activations: int = 0

    def per_sample(self, samples: int) -> dict[str, int]:
        """Return the cost by name; torch counts a multiply-add as two FLOPs."""
        totals = {"flops": self.flops, "macs": self.flops / 2, "activations": self.activations}
        return {f"{name}_per_sample": round(total / samples) for name, total in totals.items()}


@contextmanager
def _counting(module: nn.Module, counter: FlopCounterMode) -> Iterator[dict[str, _Cost]]:
    """Count by module name, `""` for the model, in the forward passes within this context."""
    costs = {name: _Cost() for name, _ in module.named_modules()}

    def watch(name: str, layer: nn.Module) -> tuple[RemovableHandle, RemovableHandle]:
        flops_before: list[int] = []

        def enter(_: nn.Module, inputs: Any) -> None:
            flops_before.append(counter.get_total_flops())

        def leave(_: nn.Module, inputs: Any, output: Any) -> None:
            costs[name].flops += counter.get_total_flops() - flops_before.pop()
            if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
                for container in {"", *accumulate(name.split("."), "{}.{}".format)}:
                    costs[container].activations += output.numel()

        return layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)

    with ExitStack() as handles:
        for name, layer in module.named_modules():
            for handle in watch(name, layer):
                handles.enter_context(handle)
        yield costs


@contextmanager
def _without_fused_layers(module: nn.Module) -> Iterator[None]:
    """Turn off torch's fused transformer layers, and the fused LSTMs of cuDNN and oneDNN, which
    hide their work from counters and module hooks."""
    fastpath = torch.backends.mha.get_fastpath_enabled()
    is_recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())
    libraries: tuple[Any, ...] = (
        (torch.backends.cudnn, torch.backends.mkldnn) if is_recurrent else ()
    )
    # Not by their `flags`, which set other options too.
    before = [library.enabled for library in libraries]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for library in libraries:
            library.enabled = False
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        for library, enabled in zip(libraries, before, strict=True):
            library.enabled = enabled


_MISSING = {CPU_ATTENTION: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)}
"""FLOPs of an operator that torch's table lacks."""


def _parameters(module: nn.Module) -> tuple[int, int]:
    """Return the numbers of all and of trainable parameters, shared ones once."""
    parameters = list(module.parameters())
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    return sum(map(torch.numel, parameters)), sum(map(torch.numel, trainable))


def _summarize_parameters(info: Mapping[str, Any]) -> str:
    return f"model: {info['parameters']:,} parameters ({info['trainable_parameters']:,} trainable)"


def _summary(info: Mapping[str, Any]) -> str:
    shown = {name: f"{value:,}" for name, value in info.items() if isinstance(value, int)}
    return (
        f"{_summarize_parameters(info)},"
        f" {shown['flops_per_sample']} FLOPs ({shown['macs_per_sample']} MACs)"
        f" and {shown['activations_per_sample']} activations per sample in a forward pass"
    )
