"""Size of the model, and cost of a forward pass."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from hooks.hook import NEEDS_MODEL, Hook, Ranks, Setup
from hooks.parts.eval_mode import evaluating, first_batch
from hooks.private_torch import CPU_ATTENTION
from hooks.state import State

FILE = "model_complexity.csv"


@dataclass
class ModelComplexity(Hook):
    """Number of parameters, and FLOPs, MACs and activations of a forward pass, counted once at the start.

        model_complexity: {max_depth: 2}

    Runs on the master with a training batch in eval mode, without effect on training. MACs are the multiply-adds of
    matrix products, convolutions and attention; FLOPs are twice as many; activations are the output elements of linear
    layers and convolutions. The hook sets `parameters`, `trainable_parameters`, `flops_per_sample`, `macs_per_sample`
    and `activations_per_sample` in `state.info`, shows them, and writes a row for each module to
    `model_complexity.csv`. A model that cannot be counted gives a note. Source: ClassyVision and VISSL
    ModelComplexityHook, Lightning ModelSummary, torch.utils.flop_counter.
    """

    max_depth: Annotated[int, Ge(0)] = 2
    """Depth of the modules with a row of their own; 0 is the whole model only."""

    ranks: ClassVar[Ranks] = Ranks.MASTER

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(fsdp="it runs the model on the master alone", custom_loop=NEEDS_MODEL)

    def on_start(self, state: State) -> None:
        try:
            self._count(state)
        except Exception as error:  # counting may fail in any way, and training works all the same
            state.show(f"model_complexity: cannot count the whole model: {type(error).__name__}: {error}")

    def _count(self, state: State) -> None:
        module = state.module
        state.info["parameters"], state.info["trainable_parameters"] = _parameters(module)
        batch = first_batch(state)
        with (
            evaluating(state),
            _without_fused_attention(),
            FlopCounterMode(display=False, custom_mapping=_MISSING) as flops,
        ):
            with _counting(module, flops) as costs:
                state.forward(module, batch)
            costs[""].flops = flops.get_total_flops()
        samples = state.samples_in(batch)
        state.info.update(costs[""].per_sample(samples))
        self._write(state, costs, samples)
        state.show(_summary(state.info))

    def _write(self, state: State, costs: dict[str, _Cost], samples: int) -> None:
        columns = ("module", "type", "parameters", "trainable_parameters", *costs[""].per_sample(samples))
        state.artifacts.mkdir(parents=True, exist_ok=True)
        with (state.artifacts / FILE).open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(columns)
            for name, module in state.module.named_modules():
                if _depth(name) > self.max_depth:
                    continue
                table.writerow(
                    [name, type(module).__name__, *_parameters(module), *costs[name].per_sample(samples).values()]
                )


@dataclass
class _Cost:
    """Cost of a forward pass in a module and its parts."""

    flops: int = 0
    activations: int = 0
    entered: list[int] = field(default_factory=list)
    """FLOPs so far at the start of each call that is running."""

    def per_sample(self, samples: int) -> dict[str, int]:
        """Return the cost by name; torch counts a multiply-add as two FLOPs."""
        totals = {"flops": self.flops, "macs": self.flops / 2, "activations": self.activations}
        return {f"{name}_per_sample": round(total / samples) for name, total in totals.items()}


@contextmanager
def _counting(module: nn.Module, flops: FlopCounterMode) -> Iterator[dict[str, _Cost]]:
    """Count by module name; `""` is the whole model, with the activations of all modules."""
    costs = {name: _Cost() for name, _ in module.named_modules()}
    open_calls: list[_Cost] = []

    def watch(child: nn.Module, cost: _Cost) -> tuple[Any, Any]:
        def enter(_: nn.Module, inputs: Any) -> None:
            open_calls.append(cost)
            cost.entered.append(flops.get_total_flops())

        def leave(_: nn.Module, inputs: Any, output: Any) -> None:
            open_calls.pop()
            flops_before = cost.entered.pop()
            if not cost.entered:  # a module that calls itself counts once
                cost.flops += flops.get_total_flops() - flops_before
            if not isinstance(child, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
                return
            for paying in {id(each): each for each in (costs[""], cost, *open_calls)}.values():
                paying.activations += output.numel()

        return child.register_forward_pre_hook(enter), child.register_forward_hook(leave)

    with ExitStack() as handles:
        for name, child in module.named_modules():
            for handle in watch(child, costs[name]):
                handles.enter_context(handle)
        yield costs


@contextmanager
def _without_fused_attention() -> Iterator[None]:
    """Turn off torch's fused transformer layers, which hide their work from counters and module hooks."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


_MISSING = {CPU_ATTENTION: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)}
"""FLOPs of an operator that torch's table lacks."""


def _parameters(module: nn.Module) -> tuple[int, int]:
    """Return the numbers of all and of trainable parameters, shared ones once."""
    parameters = list(module.parameters())
    return sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad)


def _depth(name: str) -> int:
    return name.count(".") + 1 if name else 0


def _summary(info: Mapping[str, Any]) -> str:
    shown = {name: readable(value) for name, value in info.items() if isinstance(value, int)}
    return (
        f"model: {shown['parameters']} parameters ({shown['trainable_parameters']} trainable),"
        f" {shown['flops_per_sample']} FLOPs ({shown['macs_per_sample']} MACs) and {shown['activations_per_sample']}"
        " activations per sample in a forward pass"
    )


def readable(value: float) -> str:
    """Return a number with three digits and a prefix: `1.23 M`."""
    for prefix in ("", " k", " M", " G", " T"):
        if value < 999.5:
            return f"{value:.3g}{prefix}"
        value /= 1000
    return f"{value:.3g} P"
