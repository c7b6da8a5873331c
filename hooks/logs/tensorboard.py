"""TensorBoard."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import Tensor

from hooks.duration import Duration
from hooks.hook import Cleanup
from hooks.interval import Interval, StepsOrNever, at_interval
from hooks.logs.shared.curves import CurveLogger
from hooks.logs.shared.hyperparameters import flatten_config
from hooks.logs.shared.newest_points import NewestPoints
from hooks.logs.shared.window_logger import LookBack
from hooks.media import MediaEntry
from hooks.metrics.names import PHASES
from hooks.model.graph import add_graph
from hooks.needs import Needs
from hooks.setup import NEEDS_MODEL, Setup
from hooks.state import State

logger = logging.getLogger("hookyard")

FOLDER = "tensorboard"
_HYPER = "hp/"
"""Prefix of metrics in the table of hyperparameters."""
_FIRST = "Loss"
"""The group of losses; TensorBoard opens the first groups by ASCII, capitals first."""
_COUNTERS = {
    "step": "step",
    "iteration": "iteration",
    "epoch": "epoch_number",
    "samples": "world_samples",
}
"""Counter of each axis."""


@dataclass
class TensorBoard(Cleanup, CurveLogger):
    """Write curves, metrics, hyperparameters, and recorded images and tables for TensorBoard, under
    `tensorboard/`.

        tensorboard: {every: 100 iterations, histograms: 500 steps, graph: true}

    A point of training holds the means of `train/loss`, gradient norms and times (`perf/`) since
    the last point, and the newest value of each other numeric column: `train/lr`, sizes under
    `memory/`. Peaks of memory are those since the last point. Metrics keep their names, except that
    a phase's mean `train/loss` is `train/phase_loss`. Losses also appear as `Loss/train` and
    `Loss/val`, which TensorBoard opens first, and metrics as `hp/<metric>`, for the table of
    hyperparameters. Mappings of tensors in `state.info` are drawn as `activations/<layer>/mean`. A
    resumed run deletes the points after its checkpoint, at the checkpoint's step too. Runs on the
    master. Source: MMEngine TensorboardVisBackend, VISSL SSLTensorboardHook.
    """

    every: Annotated[LookBack, Needs("axis", "step", "iteration", "samples")] = Interval(
        50, "iterations"
    )
    """Iterations between points; the end of a phase adds one."""
    axis: Literal["step", "iteration", "epoch", "samples"] = "step"
    """Horizontal axis: optimizer steps, iterations, epochs from 1, or samples of all ranks. Over
    epochs, training has one point for each, and every validation within an epoch is at its
    number."""
    histograms: StepsOrNever = Interval(0, "steps")
    """Optimizer steps between histograms of updated parameters and of the optimizer's gradients; 0
    means never."""
    graph: bool = False
    """Graph of the model, traced with a training batch at the start; a failure is only a
    warning."""
    flush: Duration = 120.0
    """Maximum seconds until a point is written; the end of a phase also writes all points."""

    state_fields: ClassVar[tuple[str, ...]] = ("_newest",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._newest = NewestPoints()
        self._metrics: dict[str, float] = {}
        """Newest value of each metric in the table of hyperparameters."""
        self._resources = ExitStack()
        """What to close: the event file, once it is open."""

    def unsuitable(self, setup: Setup) -> str:
        if not (self.histograms.count or self.graph):
            return ""
        return setup.explain(
            fsdp="histograms and graph need the whole model on the master", custom_loop=NEEDS_MODEL
        )

    def on_start(self, state: State) -> None:
        from hooks.logs.shared.event_file import EventFile  # imports TensorBoard, which takes long

        x = self._get_x(state)
        folder = state.artifacts / FOLDER
        self._file = EventFile(folder, x, self._newest, flush_s=int(self.flush))
        self._resources.callback(self._file.close)
        if state.media is not None:
            # What is at this value of the axis or after it has been deleted, too.
            state.media.follow(self._draw_media, lambda entry: self._get_media_x(entry) >= x)

        self._file.begin(flatten_config(state.config))
        if self.graph:
            self._draw_graph(state)

    @at_interval("histograms")
    def on_gradients(self, state: State) -> None:
        optimized = set(map(id, state.gradients()))
        gradients = {
            f"gradients/{name}": parameter.grad
            for name, parameter in state.module.named_parameters()
            if parameter.grad is not None and id(parameter.grad) in optimized
        }
        self._draw_histograms(gradients, state)

    @at_interval("histograms")
    def on_update(self, state: State) -> None:
        parameters = {
            f"parameters/{name}": parameter for name, parameter in state.module.named_parameters()
        }
        self._draw_histograms(parameters, state)

    def is_point_due(self, state: State) -> bool:
        return self.axis != "epoch" or state.epoch_completed

    def draw(self, state: State, points: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        table = {}
        for name, value in metrics.items():
            metric = "train/loss" if name == "train/phase_loss" else name
            table[_HYPER + metric] = value
        self._metrics |= table

        values = {**points, **metrics, **table}
        if not values:
            return
        curves = {}
        for phase in (*PHASES, *state.loaders):
            loss = f"{phase}/loss"
            if loss in values:
                curves[f"{_FIRST}/{phase}"] = values[loss]
        curves |= values
        self._file.draw_curves(curves, self._get_x(state))
        if metrics:
            self._file.flush()

    def on_end(self, state: State) -> None:
        self._file.end(flatten_config(state.config), self._metrics)
        super().on_end(state)

    def close(self) -> None:
        self._resources.close()

    def _get_x(self, state: State) -> int:
        """Return the current value of the axis."""
        return int(getattr(state, _COUNTERS[self.axis]))

    def _get_media_x(self, entry: MediaEntry) -> int:
        """Return the value of the axis at which an image, a figure or a table is drawn."""
        if self.axis == "epoch":
            return entry.epoch + 1  # an entry counts epochs from 0
        return int(getattr(entry, self.axis))

    def _draw_media(self, entry: MediaEntry, data: bytes) -> None:
        self._file.draw_media(entry, data, self._get_media_x(entry))

    def _draw_histograms(self, tensors: Mapping[str, Tensor], state: State) -> None:
        """Draw histograms at the current step, which is not counted yet."""
        coming = {
            "step": 1,
            "iteration": 1,
            "samples": state.batch_size * state.world_size,
            "epoch": 0,
        }
        self._file.draw_histograms(tensors, self._get_x(state) + coming[self.axis])

    def _draw_graph(self, state: State) -> None:
        try:
            add_graph(self._file.writer, state)
        except Exception as error:  # tracing may fail in any way, and training works all the same
            logger.warning(
                "TensorBoard has no graph of the model: torch cannot trace it: %s",
                str(error).strip().split("\n")[0],
            )
