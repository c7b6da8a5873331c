"""TensorBoard."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from hooks.duration import Duration
from hooks.hook import Cleanup
from hooks.interval import Interval, StepsOrNever, at_interval
from hooks.logs.shared.curves import CurveLogger
from hooks.logs.shared.hyperparameters import flatten_config
from hooks.logs.shared.readings import make_current_row
from hooks.logs.shared.window_logger import LookBack
from hooks.matrix import find_image
from hooks.media import MediaEntry, measure_png, read_table
from hooks.metrics.names import PHASES
from hooks.model.graph import add_graph
from hooks.needs import Needs
from hooks.setup import NEEDS_MODEL, Setup
from hooks.state import State

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger("hookyard")

FOLDER = "tensorboard"
MAX_ROWS = 100
"""Maximum number of rows of a recorded table."""
_HYPER = "hp/"
"""Prefix of metrics in the table of hyperparameters."""
_FIRST = "Loss"
"""The group of losses; TensorBoard opens the first groups by ASCII, capitals first."""
_COUNTERS = {"step": "step", "iteration": "iteration", "epoch": "epoch", "samples": "world_samples"}
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
    """Horizontal axis: optimizer steps, iterations, epochs (one point for each), or samples of all
    ranks."""
    histograms: StepsOrNever = Interval(0, "steps")
    """Optimizer steps between histograms of updated parameters and of the optimizer's gradients; 0
    means never."""
    graph: bool = False
    """Graph of the model, traced with a training batch at the start; a failure is only a
    warning."""
    flush: Duration = 120.0
    """Maximum seconds until a point is written; the end of a phase also writes all points."""

    state_fields: ClassVar[tuple[str, ...]] = ("_newest_x", "_newest_points")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._writer: SummaryWriter | None = None
        self._newest_x = 0
        """The newest value of the axis."""
        self._newest_points: list[bytes] = []
        """The points there, which a resumed run draws again."""
        self._metrics: dict[str, float] = {}
        """Newest value of each metric in the table of hyperparameters."""

    def unsuitable(self, setup: Setup) -> str:
        if not (self.histograms.count or self.graph):
            return ""
        return setup.explain(
            fsdp="histograms and graph need the whole model on the master", custom_loop=NEEDS_MODEL
        )

    def on_start(self, state: State) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        folder = state.artifacts / FOLDER
        x = self._get_x(state)
        is_resumed = folder.exists()
        self._writer = SummaryWriter(str(folder), purge_step=x, flush_secs=int(self.flush))
        self._draw_again(x, is_resumed=is_resumed)
        if state.media is not None:
            # What is at this value of the axis or after it has been deleted, too.
            state.media.follow(self._draw_media, lambda entry: self._get_media_x(entry) >= x)

        _, start, _ = hparams(flatten_config(state.config), {})
        self._write(start)  # now, because the run may be killed
        self._writer.flush()
        if self.graph:
            self._draw_graph(self._writer, state)

    @at_interval("every")
    def on_step(self, state: State) -> None:
        if self.axis != "epoch":
            super().on_step(state)
        elif state.phase == "train":
            self._windows.update(make_current_row(state))

    @at_interval("histograms")
    def on_gradients(self, state: State) -> None:
        optimized = set(map(id, state.gradients()))
        gradients = {
            name: parameter.grad
            for name, parameter in state.module.named_parameters()
            if parameter.grad is not None and id(parameter.grad) in optimized
        }
        self._add_histograms("gradients", gradients, state)

    @at_interval("histograms")
    def on_update(self, state: State) -> None:
        self._add_histograms("parameters", dict(state.module.named_parameters()), state)

    def make_point(self, state: State, row: Mapping[str, Any]) -> dict[str, float]:
        if self.axis != "epoch" or state.epoch_completed:
            return super().make_point(state, row)
        self._windows.update()
        return {}

    def draw(self, state: State, points: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        table = {}
        for name, value in metrics.items():
            metric = "train/loss" if name == "train/phase_loss" else name
            table[_HYPER + metric] = value
        self._metrics |= table

        values = {**points, **metrics, **table}
        if self._writer is None or not values:
            return
        from tensorboard.compat.proto.summary_pb2 import Summary

        curves = {}
        for phase in (*PHASES, *state.loaders):
            loss = f"{phase}/loss"
            if loss in values:
                curves[f"{_FIRST}/{phase}"] = values[loss]
        curves |= values
        drawn = [Summary.Value(tag=tag, simple_value=value) for tag, value in curves.items()]
        self._draw(Summary(value=drawn), self._get_x(state))
        if metrics:
            self._writer.flush()

    def on_end(self, state: State) -> None:
        from torch.utils.tensorboard.summary import hparams

        if self._writer is not None:
            # SummaryWriter.add_hparams would open a second file, and TensorBoard stops reading the
            # first one then.
            experiment, _, end = hparams(flatten_config(state.config), self._metrics)
            self._write(experiment)
            self._write(end)
        super().on_end(state)

    def _get_x(self, state: State) -> int:
        """Return the current value of the axis."""
        return int(getattr(state, _COUNTERS[self.axis]))

    def _get_media_x(self, entry: MediaEntry) -> int:
        """Return the value of the axis at which an image, a figure or a table is drawn."""
        if self.axis == "epoch":
            return entry.epoch + 1  # where the points of its epoch are
        return int(getattr(entry, self.axis))

    def _draw_media(self, entry: MediaEntry, data: bytes) -> None:
        """Draw an image, a figure or a table. Called in the thread that writes them."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard.summary import text

        if self._writer is None:
            return
        png = find_image(entry, data)
        if png is None:
            summary = text(entry.name, _format_table(read_table(data)))
        else:
            width, height = measure_png(png)
            image = Summary.Image(
                width=width, height=height, colorspace=3, encoded_image_string=png
            )
            summary = Summary(value=[Summary.Value(tag=entry.name, image=image)])
        self._write(summary, self._get_media_x(entry))

    def _add_histograms(self, group: str, tensors: Mapping[str, Tensor], state: State) -> None:
        """Draw the finite values of each tensor at the current step, which is not counted yet."""
        if self._writer is None:
            return
        from torch.utils.tensorboard.summary import histogram

        coming = {
            "step": 1,
            "iteration": 1,
            "samples": state.batch_size * state.world_size,
            "epoch": 0,
        }
        x = self._get_x(state) + coming[self.axis]
        for name, tensor in tensors.items():
            values = tensor.detach()
            if values.is_sparse:
                values = values.coalesce().values()
            if values.is_complex():  # real and imaginary parts
                values = torch.view_as_real(values.resolve_conj())
            values = values.float().cpu()
            finite = values[values.isfinite()]
            if finite.numel():
                drawn = histogram(f"{group}/{name}", finite, self._writer.default_bins)
                self._draw(drawn, x)

    def _draw_graph(self, writer: SummaryWriter, state: State) -> None:
        try:
            add_graph(writer, state)
        except Exception as error:  # tracing may fail in any way, and training works all the same
            logger.warning(
                "TensorBoard has no graph of the model: torch cannot trace it: %s",
                str(error).strip().split("\n")[0],
            )

    def _draw_again(self, x: int, *, is_resumed: bool) -> None:
        """Draw again what the run had drawn at `x` when it saved the checkpoint that it resumes
        from, because all points from `x` on are deleted."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = self._newest_points
        self._newest_points = []
        if is_resumed and self._newest_x == x:
            for point in points:
                self._draw(Summary.FromString(point), x)

    def _draw(self, summary: Any, x: int) -> None:
        """Write points at a value of the axis, and keep those at the newest value."""
        if x != self._newest_x:
            self._newest_x = x
            self._newest_points = []
        self._newest_points = [*self._newest_points, summary.SerializeToString()]
        self._write(summary, x)

    def _write(self, summary: Any, x: int | None = None) -> None:
        assert self._writer is not None
        # Torch declares the writer of the file as None.
        file_writer: Any = self._writer.file_writer
        file_writer.add_summary(summary, x)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _format_table(frame: Any) -> str:
    """Return a table in Markdown, which TensorBoard shows."""
    cells = [map(str, frame.columns), ["---"] * len(frame.columns)]
    cells += [map(str, row) for row in frame.head(MAX_ROWS).itertuples(index=False)]
    lines = [" | ".join(map(_escape, row)) for row in cells]
    return "\n".join(f"| {line} |" for line in lines)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
