"""The state of a run that hooks read and change."""

import logging
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hooks.images import copy_image
from hooks.loop_services import Checkpoints, Clock, Display, Media
from hooks.media import Encode, Kind, MediaEntry, copy_table, draw_figure
from hooks.metrics.direction import Mode
from hooks.metrics.monitored import find_monitored_metrics
from hooks.metrics.names import find_evaluation_label, find_phase
from hooks.model.gradients import Gradients
from hooks.optimizer_name import OptimizerName
from hooks.position import Position, Stage
from hooks.recent import Recent, RecentRows
from hooks.row_values import copy_row_value

logger = logging.getLogger("hookyard")


@dataclass(frozen=True)
class Weights:
    """Weights to validate with: `with weights(state):` swaps them into the model, and restores the
    raw weights."""

    applied: "Callable[[State], AbstractContextManager[Any]]" = nullcontext
    provider: str = ""
    """Name of the hook that provides the weights, and saves them under `model`; empty for the raw
    weights."""

    def __call__(self, state: "State") -> AbstractContextManager[Any]:
        return self.applied(state)


class ScheduledOptimizer(NamedTuple):
    """An optimizer of several, with what belongs to it."""

    optimizer: torch.optim.Optimizer
    scheduler: Any = None
    """Its learning-rate scheduler."""
    scaler: torch.amp.GradScaler | None = None
    """Its loss scaler, with `precision: fp16`."""


@dataclass(slots=True)
class State:
    """The state of a run, which hooks read and change. The loop makes one in each worker process. In
    a task it is `self.progress`.

    Counters count completed units, so in `on_step` and later they include the current iteration.
    `iteration` counts micro-batches, `step` optimizer steps, `samples` this rank's training
    samples, `epoch` passes over the data.
    """

    # Process
    rank: int = 0
    """Global rank of this process."""
    world_size: int = 1
    """Number of ranks."""
    local_rank: int = 0
    """Rank among the processes of this node."""
    node: str = ""
    """The host of this rank."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """The device on which this rank trains."""

    # Model, optimizers and data
    model: nn.Module = field(default_factory=nn.Module)
    """The wrapper that shares the model among ranks, or the model itself; `state.forward` calls it
    in training."""
    module: nn.Module = field(default_factory=nn.Module)
    """The task's model, unwrapped, with its own names."""
    optimizer: torch.optim.Optimizer | None = None
    """The optimizer; of several, the one whose turn it is, or the first."""
    scheduler: Any = None
    """Its learning-rate scheduler."""
    scaler: torch.amp.GradScaler | None = None
    """Its loss scaler, with `precision: fp16`."""
    several: Mapping[str, ScheduledOptimizer] = field(default_factory=dict)
    """Optimizer, scheduler and scaler by name, if several optimizers take turns."""
    turn: OptimizerName = None
    """Name of the current turn's optimizer, from `on_forward` to `on_update`; None between turns."""
    loaders: Mapping[str, Any] = field(default_factory=dict)
    """Loader of each phase, such as `train`, `val` or `val/noisy`."""
    fresh_batches: Callable[..., Any] = lambda phase, *, shuffled=False: iter(())
    """`fresh_batches("train")` iterates once over this rank's batches, on the device, without
    affecting training. With `shuffled=True` they are in a shuffled order, the same each time."""
    forward: Callable[[nn.Module, Any], Any] = lambda model, batch: model(batch[0])
    """The task's forward pass at the run's precision: `state.forward(model, batch)`."""
    samples_in: Callable[[Any], int] = lambda batch: len(batch[0])
    """Number of samples in a batch, as the task counts them."""

    # Position
    phase: str = ""
    """`train`, `val` or `test`, or a named phase such as `val/noisy`."""
    epoch: int = 0
    """Completed passes over the training data, so the number of the current one, from 0."""
    iteration: int = 0
    """Completed micro-batches of training."""
    step: int = 0
    """Completed optimizer steps."""
    step_iteration: int = 0
    """The iteration that made the last optimizer step; the iterations after it made no update."""
    samples: int = 0
    """Completed training samples of this rank."""
    world_samples: int = 0
    """Training samples of all ranks, assuming batches as large as this rank's."""
    phase_iteration: int = 0
    """Iterations completed in this phase."""
    iterations_before: int = 0
    """Iterations completed in earlier phases of this kind (train, val or test)."""
    phase_length: int = 0
    """Iterations of this phase on this rank; 0 if unknown (evaluation of an iterable dataset)."""
    elapsed_s: float = 0.0
    """Seconds since the phase began, in `on_phase_start`. They are 0, except with a custom loop,
    whose phase is known to have begun only at its first row."""
    max_epochs: int | None = None
    """Epochs of the run; None if its length is in steps."""
    max_steps: int | None = None
    """Optimizer steps of the run; None if its length is in epochs."""
    ended_early: bool = False
    """True if training has ended before these epochs or steps: the training data is used up, or the
    task's own loop has returned."""
    accumulate: int = 1
    """Micro-batches in an optimizer step."""
    full_batches: bool = True
    """True if every training batch, except an epoch's last, is full on every rank; not guaranteed
    for an iterable dataset."""
    stepped: bool = False
    """True if the current iteration made an optimizer step; False if its update was skipped."""
    at_step_boundary: bool = True
    """False between the micro-batches of an optimizer step; True after its last one, even if the
    update was skipped."""
    between_phases: bool = False
    """True from the end of a training phase until the next one begins."""
    epoch_completed: bool = False
    """True if the last training phase completed its epoch."""

    # The current iteration
    batch: Any = None
    """The current batch, on the device from `on_batch` on."""
    batch_size: int = 0
    """Samples in the current batch."""
    output: Any = None
    """What the task's forward pass returned; a hook may replace it in `on_forward`."""
    loss: Tensor | None = None
    """The task's loss; a hook may change it in `on_loss`, before the backward pass."""
    loss_weight: float | None = None
    """How much the loss counts among those of other batches and ranks; None if the task does not
    say."""
    row: dict[str, Any] = field(default_factory=dict)
    """The columns recorded for this iteration; write with `record`."""
    loop_columns: frozenset[str] = frozenset()
    """Columns that the loop records; hooks cannot use these names."""
    recent: Recent = field(default_factory=RecentRows)
    """The last rows of this rank in all phases, oldest first; excludes the current iteration."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the phases since the last report, such as `val/accuracy`, across all ranks."""
    meter_modes: Mapping[str, Mode] = field(default_factory=dict)
    """`max` or `min` for each meter of the task that says whether higher is better."""

    # Results
    name: str = ""
    """The run's name."""
    artifacts: Path = field(default_factory=Path)
    """A local folder; files written here end up in the run's folder."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The resolved experiment, as in experiment.yaml. Read only."""
    checkpoints: Checkpoints | None = None
    """The checkpoints of the run."""
    media: Media | None = None
    """The images, figures and tables of the run; write with `record_image` and so on."""
    clock: Clock | None = None
    """The times of each iteration's spans."""
    display: Display | None = None
    """The terminal or the notebook; `show` prints a line on it."""
    info: MutableMapping[str, Any] = field(default_factory=dict)
    """Facts about the run by name, such as its number of parameters; any hook may write and read
    them."""
    evaluation: str = ""
    """Label of the weights in the current evaluation."""
    evaluations: dict[str, Weights] = field(default_factory=lambda: {"": Weights()})
    """Weights of each validation by label: `""` for `val/accuracy`, `"ema"` for
    `val/ema/accuracy`."""

    # Requests of hooks; the loop reads and clears them
    checkpoint_reasons: list[str] = field(default_factory=list)
    """Reasons given to `request_checkpoint`, until the loop has acted."""
    stop_reasons: list[str] = field(default_factory=list)
    """Reasons given to `request_stop`, until the loop has acted."""
    pause_reasons: list[str] = field(default_factory=list)
    """Reasons given to `request_pause`, until the loop has acted."""
    skip_reasons: list[str] = field(default_factory=list)
    """Reasons given to `skip_update`, until the loop has acted."""
    _gradients: Gradients = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._gradients = Gradients(self.module, self.device)

    @property
    def scheduled_optimizers(self) -> Mapping[Any, ScheduledOptimizer]:
        """Each optimizer by name, with its scheduler and scaler; a single one has the name None."""
        if self.several:
            return self.several
        if self.optimizer is None:
            return {}
        return {None: ScheduledOptimizer(self.optimizer, self.scheduler, self.scaler)}

    @property
    def optimizers(self) -> dict[OptimizerName, torch.optim.Optimizer]:
        """The optimizers by name; a single one has the name None."""
        return {name: part.optimizer for name, part in self.scheduled_optimizers.items()}

    @property
    def schedulers(self) -> dict[OptimizerName, Any]:
        """The scheduler of each optimizer, or None."""
        return {name: part.scheduler for name, part in self.scheduled_optimizers.items()}

    @property
    def scalers(self) -> dict[OptimizerName, torch.amp.GradScaler | None]:
        """The loss scaler of each optimizer, or None."""
        return {name: part.scaler for name, part in self.scheduled_optimizers.items()}

    def column(self, name: str) -> str:
        """Return the name of a column in the current turn: `grad_norm_d` in the turn of `d`.

        Args:
            name: The name without the optimizer.

        Returns:
            The name; with a single optimizer it is unchanged.
        """
        return f"{name}_{self.turn}" if self.turn else name

    @property
    def is_master(self) -> bool:
        """True on global rank 0. A hook that runs only there declares `ranks` instead of checking
        this."""
        return self.rank == 0

    @property
    def main_metric(self) -> str:
        """The first metric that the experiment names as monitored; empty if it names none, or only
        `best: auto`."""
        for monitored in find_monitored_metrics(self.config):
            if not monitored.is_auto:
                return monitored.metrics[0]
        return ""

    def find_evaluated_weights(self, metric: str = "") -> Weights:
        """Return the weights that a metric was computed with.

        Args:
            metric: The metric; by default the main metric.

        Returns:
            The weights. `with weights(state):` puts them into the model, for drawing or exporting
            it.
        """
        label = find_evaluation_label(metric or self.main_metric, self.evaluations)
        return Weights() if label is None else self.evaluations[label]

    @property
    def epoch_number(self) -> int:
        """Number of the epoch for text, from 1: the one in progress, or else the one just
        completed."""
        return self.epoch if self.epoch_completed else self.epoch + 1

    @property
    def finished(self) -> bool:
        """True if all of the run's epochs or steps are completed, or training has ended early."""
        if self.ended_early:
            return True
        if self.max_steps is not None:
            return self.step >= self.max_steps
        return self.max_epochs is not None and self.epoch >= self.max_epochs

    def computes(self, metric: str) -> bool:
        """Return whether the current phase computes a metric: `val/noisy/loss` in `val/noisy`, but not
        in `val`.

        Args:
            metric: Name of the metric.

        Returns:
            Whether `metrics` has it at the end of the phase.
        """
        return find_phase(metric, [*self.loaders, self.phase]) == self.phase

    @property
    def position(self) -> Position:
        """This point of the run, to compare with others; an evaluation does not change it."""
        stage = Stage.TRAINED if self.between_phases else Stage.TRAIN
        return Position(self.epoch, self.step, self.step_iteration, self.iteration, stage=stage)

    @property
    def milestone(self) -> str:
        """Name for a checkpoint at this point: `epoch-0003` between two epochs, otherwise
        `step_name`."""
        if self.epoch and self.phase_iteration == 0:
            return f"epoch-{self.epoch:04d}"
        return self.step_name

    @property
    def step_name(self) -> str:
        """Name of this point: `step-00000100`; after skipped updates
        `step-00000100-iteration-00000123`."""
        name = f"step-{self.step:08d}"
        if self.iteration == self.step_iteration:
            return name
        return f"{name}-iteration-{self.iteration:08d}"

    def record(self, **columns: Any) -> None:
        """Add columns to this iteration's row.

        Tensors are copied and stay on their device, so nothing waits for it. During an optimizer's
        turn, columns end in its name: `grad_norm_d`.

        Args:
            **columns: Numbers, or tensors of one element.

        Raises:
            ValueError: If the loop records a column of this name, or a value is not one number; then
                no column is added.

        Example:
            ```python
            def on_forward(self, state):
                state.record(confidence=state.output.softmax(1).amax(1).mean())
            ```
        """
        copies: dict[str, Any] = {}
        for name, value in columns.items():
            column = self.column(name)
            if not self.loop_columns.isdisjoint((name, column)):
                raise ValueError(
                    f"the loop records the column `{column}`; use another name, such as `own_{name}`"
                )
            copies[column] = copy_row_value(name, value)
        self.row.update(copies)

    def record_image(self, name: str, tensor: Tensor) -> None:
        """Write an image, or a batch of images as a grid, into the run's folder.

        Only rank 0 writes; on other ranks this does nothing. It waits for the device to copy the
        tensor, so call it only now and then. A thread encodes and writes. Reports and the live page
        show the image, and loggers send it.

        Args:
            name: The name, which may have parts: `samples/first`. The phase is put in front of it,
                as in the name of a metric: `val/samples/first`. Of two images with the same name in
                one step, the last one is kept.
            tensor: The image of shape (H, W), (C, H, W) or (N, C, H, W), with 1 (gray), 3 (RGB) or
                4 (RGBA) channels C. Floats from 0 to 1, or uint8 from 0 to 255; floats beyond are
                clipped. Of a batch, the first 64 are shown, 8 in a row.

        Raises:
            ValueError: If the shape, the type or the name is wrong, a value is not finite, or the
                name is that of a figure or a table.

        Example:
            ```python
            def on_forward(self, state):
                if state.phase == "val" and state.phase_iteration == 0:
                    state.record_image("samples", state.batch[0])
            ```
        """
        if self.is_master:
            self.add_media("image", name, copy_image(name, tensor))

    def record_figure(self, name: str, figure: Any) -> None:
        """Write a figure into the run's folder, as `record_image` does with an image.

        The figure is drawn at once, because Matplotlib must not draw in two threads. Close it
        afterwards.

        Args:
            name: The name, as of `record_image`.
            figure: A Matplotlib figure, or another object with `savefig(file, format="png")`.

        Raises:
            ValueError: If the object or the name is wrong, or the name is that of another kind.
        """
        if self.is_master:
            self.add_media("figure", name, draw_figure(name, figure))

    def record_table(self, name: str, frame: Any) -> None:
        """Write a table into the run's folder as CSV, as `record_image` does with an image.

        Args:
            name: The name, as of `record_image`.
            frame: A pandas DataFrame. An index that only counts the rows is left out.

        Raises:
            ValueError: If the object or the name is wrong, or the name is that of another kind.
        """
        if self.is_master:
            self.add_media("table", name, copy_table(name, frame))

    def add_media(self, kind: Kind, name: str, encode: Encode) -> None:
        """Add a file at the current position. Called by the loop, and by `record_image` and so on.

        Args:
            kind: Kind of the content.
            name: Name of the entry, without the phase.
            encode: Function that returns the content of the file, for a thread.

        Raises:
            ValueError: If the name is wrong, or is that of another kind.
        """
        if not isinstance(name, str) or not name:
            raise ValueError(f"the name of a {kind} must be a text, got {name!r}")
        parts = (self.phase, self.evaluation, name)
        entry = MediaEntry(
            "/".join(filter(None, parts)),
            kind,
            self.phase,
            self.epoch_number - 1,
            self.step,
            self.iteration,
            self.world_samples,
        )
        if self.media is not None:
            self.media.put(entry, encode)

    def show(self, line: str) -> None:
        """Show a line of plain text on the display, or log it if there is none.

        Args:
            line: The text.
        """
        if self.display is None:
            logger.info("%s", line)
        else:
            self.display.line(line)

    def request_checkpoint(self, reason: str) -> None:
        """Request a checkpoint, which the loop saves at the end of a step's micro-batches. Every rank
        must make the same request.

        Args:
            reason: Why, for the log.
        """
        self.checkpoint_reasons.append(str(reason))

    def request_stop(self, reason: str) -> None:
        """Request the end of the run, on any rank. All ranks stop at the same step, at the latest at
        the end of the phase.

        Args:
            reason: Why, for the log and the result.
        """
        self.stop_reasons.append(str(reason))

    def request_pause(self, reason: str) -> None:
        """Request a checkpoint and the end of the run as `interrupted`, so that it can be resumed.

        Args:
            reason: Why, for the log.
        """
        self.pause_reasons.append(str(reason))

    def skip_update(self, reason: str) -> None:
        """Skip this optimizer step. Call it in `on_gradients`, on every rank.

        Args:
            reason: Why the weights stay as they are.
        """
        self.skip_reasons.append(str(reason))

    def gradients(self) -> list[Tensor]:
        """Return this rank's gradients, or shards of them, of the parameters that the optimizer trains
        now.

        They are in the order of `module.parameters()`, so that sums over them are those of a plain
        loop, bit for bit.

        Returns:
            The gradients of parameters that have one.
        """
        return self._gradients.collect(self._list_active_optimizers())

    def _list_active_optimizers(self) -> Mapping[OptimizerName, torch.optim.Optimizer]:
        """Return the optimizer whose turn it is by name, or all between turns."""
        if self.turn and self.optimizer:
            return {self.turn: self.optimizer}
        return self.optimizers

    def gradient_norm(self, norm_type: float = 2.0) -> Tensor:
        """Return the global gradient norm; the 2-norm is computed once per step. Every rank must call
        this.

        Args:
            norm_type: Order of the norm.

        Returns:
            The norm, on the device.

        Raises:
            TypeError: If a gradient is sparse, because torch before 2.14 has no norm of it.
        """
        return self._gradients.norm(self._list_active_optimizers(), norm_type)

    def list_sparse_gradients(self) -> list[str]:
        """Look for gradients that are sparse tensors, such as those of a sparse embedding.

        Returns:
            The names of the parameters that have one, as `named_parameters` gives them.
        """
        return self._gradients.list_sparse()

    def forget_gradients(self) -> None:
        """Discard the cached gradient norm; call this after changing gradients."""
        self._gradients.forget_norm()
