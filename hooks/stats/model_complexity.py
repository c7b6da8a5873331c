"""How large the model is, and what a forward pass costs."""

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
from hooks.parts.eval_mode import evaluating, one_batch
from hooks.private_torch import CPU_ATTENTION
from hooks.state import State

FILE = "model_complexity.csv"


@dataclass
class ModelComplexity(Hook):
    """Counts the model's parameters, and the FLOPs, MACs and activations of a forward pass, once as the run begins.

    Runs on the master, with a real training batch, in eval mode; weights, buffers, random states and the training order
    stay as they are. MACs are the multiply-adds of matrix products, convolutions and attention, and FLOPs twice as
    many; activations are the elements that linear layers and convolutions (Conv1d, Conv2d, Conv3d) put out. Puts
    `parameters`, `trainable_parameters`, `flops_per_sample`, `macs_per_sample` and `activations_per_sample` into
    `state.info`, shows them in a line, and writes `model_complexity.csv`, with a row for each module down to
    `max_depth`. A model that cannot be counted gives a note, and the run goes on. Source: ClassyVision and VISSL
    ModelComplexityHook, whose FLOPs are MACs (and a few more, of norms and pooling), Lightning ModelSummary,
    torch.utils.flop_counter.
    """

    max_depth: Annotated[int, Ge(0)] = 2
    """How deep modules are nested that have a row of their own; 0 is the whole model alone."""

    ranks: ClassVar[Ranks] = Ranks.MASTER

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(fsdp="it runs the model on the master alone", custom_loop=NEEDS_MODEL)

    def on_start(self, state: State) -> None:
        try:
            self._count(state)
        except Exception as error:  # a model may refuse to be counted for any reason, and trains all the same
            state.show(f"model_complexity: the model cannot be counted further: {type(error).__name__}: {error}")

    def _count(self, state: State) -> None:
        module = state.module
        state.info["parameters"], state.info["trainable_parameters"] = _parameters(module)
        batch = one_batch(state)
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
    """What a forward pass costs in one module and all below it."""

    flops: int = 0
    activations: int = 0
    entered: list[int] = field(default_factory=list)
    """The FLOPs so far as each call began that is under way."""

    def per_sample(self, samples: int) -> dict[str, int]:
        """What it costs by name; torch counts a multiply-add as two FLOPs."""
        totals = {"flops": self.flops, "macs": self.flops / 2, "activations": self.activations}
        return {f"{name}_per_sample": round(total / samples) for name, total in totals.items()}


@contextmanager
def _counting(module: nn.Module, flops: FlopCounterMode) -> Iterator[dict[str, _Cost]]:
    """Counts by module name while it is open; `""` is the whole, and has every module's activations."""
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
    """torch's fused transformer layers hide what they do from the counter, and from hooks on what is in them."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


_MISSING = {CPU_ATTENTION: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)}
"""The FLOPs of an operator that torch's table lacks."""


def _parameters(module: nn.Module) -> tuple[int, int]:
    """All and trainable ones, each counted once however often it is used."""
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
    """Three digits and a prefix of the unit: `1.23 M`."""
    for prefix in ("", " k", " M", " G", " T"):
        if value < 999.5:
            return f"{value:.3g}{prefix}"
        value /= 1000
    return f"{value:.3g} P"
