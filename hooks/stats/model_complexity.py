"""Size of the model, and cost of a forward pass."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import nn

from hooks.counts import format_count
from hooks.hook import Hook, Ranks
from hooks.model.eval_mode import evaluating, get_first_batch
from hooks.model.forward_cost import measure_cost
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
        counts = {"parameters": self._count_parameters, "FLOPs": self._count_operations}
        for quantity, count in counts.items():
            try:
                count(state)
            except Exception as error:  # counting may fail in any way; training does not need it
                state.show(
                    f"model_complexity: cannot count the {quantity} of the model:"
                    f" {type(error).__name__}: {error}"
                )
                return

    def _count_parameters(self, state: State) -> None:
        parameters, trainable = _count(state.module)
        state.info["parameters"] = parameters
        state.info["trainable_parameters"] = trainable
        state.show(f"model: {format_count(parameters, 'parameter')} ({trainable:,} trainable)")

    def _count_operations(self, state: State) -> None:
        costs = self._measure(state)
        whole = costs[""]
        state.info.update(whole)
        self._write(state, costs)
        state.show(
            f"forward pass of a sample: {format_count(whole['flops_per_sample'], 'FLOP')}"
            f" ({format_count(whole['macs_per_sample'], 'MAC')})"
            f" and {format_count(whole['activations_per_sample'], 'activation')}"
        )

    def _measure(self, state: State) -> dict[str, dict[str, int]]:
        """Return the cost of a sample by module name, `""` for the model."""
        batch = get_first_batch(state)
        samples = state.samples_in(batch)
        with evaluating(state):
            costs = measure_cost(state.module, lambda: state.forward(state.module, batch))
        return {name: cost.divide(samples) for name, cost in costs.items()}

    def _write(self, state: State, costs: Mapping[str, Mapping[str, int]]) -> None:
        """Write a row for each module, down to `max_depth`."""
        state.artifacts.mkdir(parents=True, exist_ok=True)
        with (state.artifacts / FILE).open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["module", "type", "parameters", "trainable_parameters", *costs[""]])
            for name, module in state.module.named_modules():
                depth = name.count(".") + 1 if name else 0
                if depth > self.max_depth:
                    continue
                kind = type(module).__name__
                table.writerow([name, kind, *_count(module), *costs[name].values()])


def _count(module: nn.Module) -> tuple[int, int]:
    """Return the numbers of all and of trainable parameters, shared ones once."""
    parameters = list(module.parameters())
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    return sum(map(torch.numel, parameters)), sum(map(torch.numel, trainable))
