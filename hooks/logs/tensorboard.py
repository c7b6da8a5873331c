"""TensorBoard."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from hooks.duration import Duration
from hooks.hook import Cleanup
from hooks.interval import Interval, StepsOrNever, at_interval
from hooks.logs.shared.curves import CurveLogger
from hooks.logs.shared.readings import current_row, flatten
from hooks.logs.shared.window_statistics import LookBack
from hooks.matrix import find_image
from hooks.media import MediaEntry, measure_png, read_table
from hooks.metrics.names import PHASES
from hooks.model.eval_mode import evaluating, first_batch
from hooks.needs import Needs
from hooks.private_torch import tree_flatten, tree_leaves, tree_unflatten
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

    every: Annotated[LookBack, Needs("axis: step or iteration or samples")] = Interval(
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

    state_fields: ClassVar[tuple[str, ...]] = ("_newest",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._writer: SummaryWriter | None = None
        self._newest: tuple[int, list[bytes]] = (0, [])
        """The newest value of the axis, with the points there, which a resumed run draws again."""
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
        x = self._axis_value(state)
        has_points = folder.exists()
        self._writer = SummaryWriter(str(folder), purge_step=x, flush_secs=int(self.flush))
        self._restore_newest(x if has_points else None)
        if state.media is not None:
            # What is at this value of the axis or after it has been deleted, too.
            state.media.follow(self._draw_media, lambda entry: self._media_value(entry) >= x)
        _, start, _ = hparams(flatten(state.config), {})
        self._write(start)  # now, because the run may be killed
        self._writer.flush()
        if self.graph:
            self._draw_graph(self._writer, state)

    @at_interval("every")
    def on_step(self, state: State) -> None:
        if self.axis != "epoch":
            super().on_step(state)
        elif state.phase == "train":
            self._windows.update(current_row(state))

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
        self._write(Summary(value=drawn), self._axis_value(state))
        if metrics:
            self._writer.flush()

    def on_end(self, state: State) -> None:
        from torch.utils.tensorboard.summary import hparams

        if self._writer is not None:
            # SummaryWriter.add_hparams would open a second file, and TensorBoard stops reading the
            # first one then.
            experiment, _, end = hparams(flatten(state.config), self._metrics)
            self._write(experiment)
            self._write(end)
        super().on_end(state)

    def _axis_value(self, state: State) -> int:
        return int(getattr(state, _COUNTERS[self.axis]))

    def _media_value(self, entry: MediaEntry) -> int:
        counters = {"epoch": entry.epoch + 1}  # where the points of an epoch are
        return counters.get(self.axis) or int(getattr(entry, self.axis))

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
        file_writer: Any = self._writer.file_writer
        file_writer.add_summary(summary, self._media_value(entry))

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
        x = self._axis_value(state) + coming[self.axis]
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
                self._write(drawn, x)

    def _draw_graph(self, writer: SummaryWriter, state: State) -> None:
        try:
            add_graph(writer, state)
        except Exception as error:  # tracing may fail in any way, and training works all the same
            logger.warning(
                "TensorBoard has no graph of the model: torch cannot trace it: %s",
                str(error).strip().split("\n")[0],
            )

    def _restore_newest(self, x: int | None) -> None:
        """Draw again what a checkpoint's run had drawn at `x` by then, because all points from `x`
        on are deleted."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        newest_x, drawn = self._newest
        self._newest = (0, [])
        if newest_x == x:
            for summary in drawn:
                self._write(Summary.FromString(summary), x)

    def _write(self, summary: Any, x: int | None = None) -> None:
        assert self._writer is not None
        if x is not None:
            drawn = self._newest[1] if self._newest[0] == x else []
            self._newest = (x, [*drawn, summary.SerializeToString()])
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
    return "\n".join(f"| {' | '.join(map(_escape, row))} |" for row in cells)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


class Forward(nn.Module):
    """The task's forward pass of a batch whose tensors are passed one by one, as tracing needs it.

    The name of the class is that of the graph's outermost node.
    """

    def __init__(self, state: State, batch: Any) -> None:
        super().__init__()
        # A copy has no compiled code, which torch does not trace.
        self.model = deepcopy(state.module) if state.config.get("compile") else state.module
        self._forward = state.forward
        self._leaves, self._structure = tree_flatten(batch)

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(leaf for leaf in self._leaves if isinstance(leaf, Tensor))

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        """Put the tensors into the batch, and return the tensors of the output."""
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        output = self._forward(self.model, tree_unflatten(leaves, self._structure))
        return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


def add_graph(writer: SummaryWriter, state: State) -> None:
    """Trace the forward pass of a training batch in eval mode and draw it; raises what the model
    raises."""
    # torch warns of each value that becomes a constant, and prints errors before it raises them.
    with (
        evaluating(state),
        warnings.catch_warnings(action="ignore"),
        redirect_stdout(io.StringIO()),
    ):
        traced = Forward(state, first_batch(state))
        writer.add_graph(traced, traced.tensors(), use_strict_trace=False)
