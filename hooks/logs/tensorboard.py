"""Curves and hyperparameters in TensorBoard."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Gt
from torch import Tensor

from hooks.hook import NEEDS_MODEL, Hook, Priority, Ranks, Setup
from hooks.interval import STEPS_OR_NEVER, Interval, StepsOrNever, paced_by
from hooks.metrics.names import PHASES
from hooks.parts.cleanup import Cleanup
from hooks.parts.logs.curve_names import Curves
from hooks.parts.logs.hyperparameters import flatten, swept
from hooks.parts.logs.model_graph import add_graph
from hooks.parts.logs.readings import under_way
from hooks.parts.logs.window_statistics import LookBack, Size, Statistic
from hooks.parts.unread_fields import refuse_unread
from hooks.state import State

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger("hookyard")

FOLDER = "tensorboard"
_HYPER = "hp/"
"""Before the names of metrics in the table of hyperparameters."""
_FIRST = "Loss"
"""The group in which losses stand besides: TensorBoard opens those that come first by ASCII, capitals before the
others."""
_COUNTERS = {"step": "step", "iteration": "iteration", "epoch": "epoch", "samples": "world_samples"}
"""What each axis counts."""


@dataclass
class TensorBoard(Cleanup, Hook):
    """Writes curves, phase metrics and the experiment's hyperparameters for TensorBoard, under `tensorboard/`.

    Runs on the master. Each point of training holds the mean of `train/loss`, of gradient norms and of times (under
    `perf/`) since the point before, and the newest of every other numeric column: `train/lr`, sizes under `memory/`.
    There is one `every` so many iterations, and one for what is left as training's phase ends. Metrics keep
    their names, except that a phase's own mean `train/loss` is `train/phase_loss`. Losses are drawn a second time as
    `Loss/train` and `Loss/val`, the group that TensorBoard opens first; each metric is also written as `hp/<metric>`
    for the hyperparameter table, which in a sweep begins with what trials differ in and what they are judged by. What a
    hook leaves in `state.info` as a mapping of tensors, such as activation_stats, is drawn with the next point, under
    `activations/<layer>/mean` and the like.

    All share one axis, so train and val can be compared; a resumed run takes back what its checkpoint did not know, so
    that no point is there twice (a histogram at the very step of the checkpoint is lost by that). Tensors are read only
    when a point is written.
    Source: MMEngine TensorboardVisBackend, VISSL SSLTensorboardHook.
    """

    every: LookBack = Interval(50, "iterations")
    """Training iterations between two points; on the axis `epoch` there is one an epoch."""
    window: Size = "line"
    """What loss, times and gradient norms are averaged over: `line` (since the point before), a number of iterations,
    `epoch` or `global`."""
    statistics: dict[str, Statistic] = field(default_factory=dict)
    """Statistics of columns by a name of their own, such as `slowest: {column: step_s, method: max, window: epoch}`.
    One with a column's name stands in for it."""
    axis: Literal["step", "iteration", "epoch", "samples"] = "step"
    """What the curves are drawn over: optimizer steps, iterations, completed epochs, or the samples of all ranks."""
    histograms: StepsOrNever = Interval(0, "steps")
    """How often to draw the distributions of parameters and gradients, such as `500 steps`; 0 is never. Gradients are
    those the optimizer gets, parameters are those after its step."""
    graph: bool = False
    """Whether to draw the model's graph, by tracing it with a training batch as the run begins; where that fails, a
    warning says so and the run goes on."""
    flush_s: Annotated[float, Gt(0)] = 120.0
    """Seconds after which points are on disk at the latest; the end of a phase writes them in any case."""

    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.BELOW_NORMAL
    ranks: ClassVar[Ranks] = Ranks.MASTER

    def __post_init__(self) -> None:
        if self.axis == "epoch":
            refuse_unread(self, "another axis, as this one has a point an epoch", "every")
        STEPS_OR_NEVER.parse(self.histograms)
        self._curves = Curves(self.window, self.statistics)
        self._writer: SummaryWriter | None = None
        self._x = 0
        self._points: dict[str, float] = {}
        self._named: dict[str, None] = {}
        self._phases: tuple[str, ...] = PHASES

    def unsuitable(self, setup: Setup) -> str:
        if not (self.histograms.count or self.graph):
            return ""
        return setup.explain(fsdp="histograms and graph need the whole model on the master", custom_loop=NEEDS_MODEL)

    def on_start(self, state: State) -> None:
        from torch.utils.tensorboard import SummaryWriter

        x = self._axis_value(state)
        self._phases = tuple(dict.fromkeys([*PHASES, *state.loaders]))
        known = self._points if self._x == x else {}
        self._writer = SummaryWriter(str(state.artifacts / FOLDER), purge_step=x, flush_secs=self.flush_s)
        self._points = {}
        # The purge also takes the points at x itself; those that led up to the checkpoint are written again.
        self._add(known, x)
        # At once, for a run that is killed.
        _, start, _ = _session(state, ())
        self._write_summaries(start)
        if self.graph:
            self._draw_graph(self._writer, state)

    def on_phase_start(self, state: State) -> None:
        self._curves.start_phase(state)

    @paced_by("every")
    def on_step(self, state: State) -> None:
        if state.phase != "train":
            return
        if self.axis == "epoch":
            self._curves.catch_up(under_way(state))
        else:
            self._add(self._curves.point(state), self._axis_value(state))

    @paced_by("histograms")
    def on_gradients(self, state: State) -> None:
        self._add_histograms(
            "gradients", {name: p.grad for name, p in state.module.named_parameters() if p.grad is not None}, state
        )

    @paced_by("histograms")
    def on_update(self, state: State) -> None:
        self._add_histograms("parameters", dict(state.module.named_parameters()), state)

    def on_phase_end(self, state: State) -> None:
        if self.axis != "epoch" or state.epoch_completed:
            self._add(self._curves.rest(state), self._axis_value(state))
        self._add_metrics(self._curves.metrics(state), state)

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        self._add_metrics(self._curves.reported(state, metrics), state)

    def on_end(self, state: State) -> None:
        # Only now it is known which metrics there are.
        experiment, _, end = _session(state, self._named)
        self._write_summaries(experiment, end)
        super().on_end(state)

    def state_dict(self) -> dict[str, Any]:
        return {"x": self._x, "points": dict(self._points), "curves": self._curves.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._x, self._points = state["x"], dict(state["points"])
        self._curves.load_state_dict(state["curves"])

    def _axis_value(self, state: State) -> int:
        return int(getattr(state, _COUNTERS[self.axis]))

    def _add_histograms(self, group: str, tensors: Mapping[str, Tensor], state: State) -> None:
        """Draws the finite values of each tensor at the step under way, which is not counted yet."""
        if self._writer is None:
            return
        coming = {"step": 1, "iteration": 1, "samples": state.batch_size * state.world_size, "epoch": 0}
        for name, tensor in tensors.items():
            values = (tensor.detach().coalesce().values() if tensor.is_sparse else tensor.detach()).float().cpu()
            finite = values[values.isfinite()]
            if finite.numel():
                self._writer.add_histogram(f"{group}/{name}", finite, self._axis_value(state) + coming[self.axis])

    def _draw_graph(self, writer: SummaryWriter, state: State) -> None:
        try:
            add_graph(writer, state)
        except Exception as error:  # a model may fail in any way when it is traced, and trains nevertheless
            logger.warning(
                "the model's graph is not in TensorBoard, as torch cannot trace the model: %s",
                str(error).strip().split("\n")[0],
            )

    def _add_metrics(self, metrics: Mapping[str, float], state: State) -> None:
        named = {
            _HYPER + ("train/loss" if name == "train/phase_loss" else name): value for name, value in metrics.items()
        }
        self._named.update(dict.fromkeys(named))
        self._add({**metrics, **named}, self._axis_value(state))
        if self._writer is not None:
            self._writer.flush()

    def _add(self, points: Mapping[str, float], x: int) -> None:
        """Writes points at `x`, each tag once, all in one event."""
        if self._writer is None:
            return
        from tensorboard.compat.proto.summary_pb2 import Summary

        if x != self._x:
            self._x, self._points = x, {}
        losses = {f"{_FIRST}/{phase}": points[tag] for phase in self._phases if (tag := f"{phase}/loss") in points}
        new = {tag: value for tag, value in {**losses, **points}.items() if tag not in self._points}
        self._points |= new
        if new:
            self._write(Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in new.items()]), x)

    def _write_summaries(self, *summaries: Any) -> None:
        # SummaryWriter.add_hparams would open a second file, behind which TensorBoard no longer reads the first.
        if self._writer is None:
            return
        for summary in summaries:
            self._write(summary)
        self._writer.flush()

    def _write(self, summary: Any, x: int | None = None) -> None:
        assert self._writer is not None
        self._writer.file_writer.add_summary(summary, x)  # type: ignore[attr-defined]  # torch declares it as None

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _session(state: State, metrics: Iterable[str]) -> tuple[Any, Any, Any]:
    """TensorBoard's summaries of experiment, session start and session end."""
    from torch.utils.tensorboard.summary import hparams

    values = flatten(state.config)
    _, start, end = hparams(values, {})
    return _experiment(values, swept(state.config), _objective_first(state.config, metrics)), start, end


def _experiment(values: Mapping[str, Any], differing: Mapping[str, bool], metrics: Sequence[str]) -> Any:
    """The table's columns. TensorBoard takes those of the first run that it finds, and shows those first that
    differ."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.plugins.hparams.api_pb2 import (
        DATA_TYPE_FLOAT64,
        DATA_TYPE_STRING,
        Experiment,
        HParamInfo,
        MetricInfo,
        MetricName,
    )
    from tensorboard.plugins.hparams.metadata import EXPERIMENT_TAG, PLUGIN_DATA_VERSION, PLUGIN_NAME
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    numeric = {**{key: not isinstance(value, str) for key, value in values.items()}, **differing}
    keys = [
        HParamInfo(name=key, type=DATA_TYPE_FLOAT64 if number else DATA_TYPE_STRING, differs=key in differing)
        for key, number in numeric.items()
    ]
    names = [MetricInfo(name=MetricName(tag=tag), display_name=tag.removeprefix(_HYPER)) for tag in metrics]
    content = HParamsPluginData(
        experiment=Experiment(hparam_infos=keys, metric_infos=names), version=PLUGIN_DATA_VERSION
    )
    plugin = SummaryMetadata.PluginData(plugin_name=PLUGIN_NAME, content=content.SerializeToString())
    return Summary(value=[Summary.Value(tag=EXPERIMENT_TAG, metadata=SummaryMetadata(plugin_data=plugin))])


def _objective_first(config: Mapping[str, Any], metrics: Iterable[str]) -> list[str]:
    """The tags of the metrics, that of the sweep first."""
    objective = (config.get("sweep") or {}).get("metric") or ()
    wanted = [f"{_HYPER}{name}" for name in ([objective] if isinstance(objective, str) else objective)]
    return sorted(metrics, key=lambda tag: tag not in wanted)
