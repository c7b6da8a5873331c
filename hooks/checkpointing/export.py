"""Export of the model to a file that runs without this project."""

import logging
import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from hooks.errors import SettingError
from hooks.hook import Hook, Priority, Ranks
from hooks.interval import Interval, at_interval
from hooks.model.eval_mode import evaluating
from hooks.model.layers import list_tensors
from hooks.model.programs import ModelCall, export_pt2, export_torchscript
from hooks.needs import Needs
from hooks.position import Position
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
    dynamic_batch: Annotated[bool, Needs("format", "pt2")] = True
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
        _choose_weights(state, self.weights)

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
        with _choose_weights(state, self.weights):
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
                self._write_program(ModelCall.capture(state), partial, folder / name)
            shutil.rmtree(folder / name, ignore_errors=True)
            os.replace(partial, folder / name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _write_program(self, call: ModelCall, folder: Path, name: Path) -> None:
        """Write the program into a folder; raise ValueError if its outputs differ from the
        model's."""
        file = "raw_model" if self.weights == "raw" else "model"
        if call.batch_size == 1:
            # torch would fix a size of one.
            call = call.double()
        if self.format == "pt2":
            exported = export_pt2(call, folder / f"{file}.pt2", dynamic_batch=self.dynamic_batch)
        else:
            call = call.on_cpu()
            exported = export_torchscript(call, folder / f"{file}.pt", self.format)
        self._compare(list_tensors(call.run(call.module)), list_tensors(exported), name)

    def _compare(self, ours: list[Tensor], theirs: list[Tensor], name: Path) -> None:
        """Raise ValueError if outputs of the model and of its export differ."""
        our_shapes = [tuple(tensor.shape) for tensor in ours]
        their_shapes = [tuple(tensor.shape) for tensor in theirs]
        if our_shapes != their_shapes:
            raise ValueError(
                f"export of {name}: the model's outputs have shapes {our_shapes},"
                f" the file's {their_shapes}"
            )
        for index, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            same_kind = their.to(our)
            if torch.allclose(
                same_kind, our, rtol=self.tolerance, atol=self.tolerance, equal_nan=True
            ):
                continue
            difference = (same_kind.double() - our.double()).abs().max().item()
            raise ValueError(
                f"export of {name}: output {index} differs from the model's by up to"
                f" {difference:.3g}, more than the tolerance of {self.tolerance:g};"
                " the file was not kept"
            )


def _choose_weights(state: State, weights: str) -> AbstractContextManager[Any]:
    """Return the context that swaps the weights into the model; raises ValueError if no hook
    provides them."""
    if weights == "raw":
        return nullcontext()
    if weights == "evaluated":
        return state.find_evaluated_weights()(state)
    averages = {
        average.provider: average for average in state.evaluations.values() if average.provider
    }
    if weights not in averages:
        allowed = ", ".join(["evaluated", "raw", *averages])
        add = "" if averages else "; for averages, add the hook ema with evaluate: ema or both"
        raise SettingError(f"weights: must be one of {allowed}, got '{weights}'{add}")
    return averages[weights](state)
