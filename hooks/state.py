"""The state: all that a hook may see and change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hooks.metrics.direction import find_monitored_metrics
from hooks.metrics.names import phase_of
from hooks.parts import sharded_tensors as shards
from hooks.private_torch import foreach_norm
from hooks.recent_rows import KeptRows, Recent

logger = logging.getLogger("hookyard")


class Checkpoints(Protocol):
    """The run's stored checkpoints, as far as a hook may manage them; only the master's calls have an effect."""

    def retain(self, owner: str, names: Sequence[str]) -> None:
        """Says which checkpoints `owner` wants kept; one that no owner wants any more is deleted."""

    def mark(self, name: str, *labels: str, metric: str = "") -> None:
        """Points labels such as `best` at a stored checkpoint, which is the best of a metric."""

    def find_evaluated_weights(self, label: str) -> str:
        """Return where a checkpoint holds its evaluated weights: `model`, or `ema/model`."""

    def publish(self, name: str, parts: Mapping[str, str], folder: str, config: Mapping[str, Any]) -> str:
        """Write `<folder>/<run>-<hash>.pt` with parts of a stored checkpoint and return its path. `parts` maps the name
        of each to its place in the checkpoint: `optimizer`, or `ema/model`, an entry of one; `meta` is the manifest
        with `config`."""

    def names(self) -> list[str]:
        """The stored checkpoints, oldest first."""


class Display(Protocol):
    """Where rank 0's words go: this terminal, or the driver's, and the run's log."""

    def line(self, text: str) -> None:
        """Shows one line of plain text and keeps it in the log."""

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None:
        """Moves a progress bar; one bar per label, gone when `completed` reaches `total`."""


class Clock(Protocol):
    """The phase clock of the loop: where the time of each iteration went."""

    recording: bool
    """When True, the loop puts the spans of each iteration into its row."""


@dataclass(frozen=True)
class Weights:
    """What a validation runs with: `with weights(state):` puts it into the model and takes it out again."""

    applied: Callable[[State], AbstractContextManager[Any]] = nullcontext
    lender: str = ""
    """The hook that lends it, and keeps it as `model` in its record of each checkpoint; empty for the raw weights."""

    def __call__(self, state: State) -> AbstractContextManager[Any]:
        return self.applied(state)


def evaluation_of(metric: str, labels: Container[str]) -> str | None:
    """Which of the evaluations, by label, gives a metric; None of a metric of training, which sees the raw weights."""
    phase, *places = metric.split("/")[:-1] or [""]
    if phase == "train":
        return None
    # Of a phase with a name of its own, such as val/noisy, it stands behind that.
    return next((place for place in places[:2] if place in labels), "")


@dataclass(slots=True)
class State:
    """What a hook may see and change. One in each worker process, made by the loop.

    Counters (`epoch`, `step`, `iteration`, `samples`) say what has been completed: inside `on_step` and later they
    include the present iteration. `iteration` counts micro-batches, `step` optimizer steps, `samples` this rank's
    training samples, `epoch` whole passes over the training data.
    """

    # Who
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    node: str = ""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    # What is trained
    model: nn.Module = field(default_factory=nn.Module)
    """What shares the model among ranks, or the model itself where nothing does: `state.forward` calls it in
    training."""
    module: nn.Module = field(default_factory=nn.Module)
    """The task's own model, unwrapped: parameters, buffers and names as the task made them."""
    optimizer: torch.optim.Optimizer | None = None
    """What trains; of several, that whose turn it is, and between turns the first. So are scheduler and scaler."""
    scheduler: Any = None
    scaler: torch.amp.GradScaler | None = None
    several: Mapping[str, tuple[torch.optim.Optimizer, Any, torch.amp.GradScaler | None]] = field(default_factory=dict)
    """Optimizer, scheduler and scaler by name, where optimizers take turns; `optimizers` and `schedulers` have a single
    one too."""
    turn: str = ""
    """The name of the optimizer whose turn it is, from `on_forward` to `on_update`; empty between turns, and where
    there is one."""
    loaders: Mapping[str, Any] = field(default_factory=dict)
    """Phase name, such as `train`, `val` or `val/noisy`, to loader; `fresh_batches` gives batches without disturbing
    them."""
    fresh_batches: Callable[..., Any] = lambda phase, *, shuffled=False: iter(())
    """`fresh_batches("train")` iterates over this rank's data once, on the device, outside the training order; with
    `shuffled=True` in an order that is the same each time but not the dataset's."""
    forward: Callable[[nn.Module, Any], Any] = lambda model, batch: model(batch[0])
    """The task's forward pass under the run's precision: `state.forward(model, batch)`."""
    samples_in: Callable[[Any], int] = lambda batch: len(batch[0])
    """How many samples a batch holds, as the task counts them."""

    # Where in the run
    phase: str = ""
    """`train`, `val` or `test`, or with the name of one of several: `val/noisy`."""
    epoch: int = 0
    iteration: int = 0
    step: int = 0
    samples: int = 0
    world_samples: int = 0
    """Training samples of all ranks, whose batches are taken to be as large as this rank's."""
    phase_iteration: int = 0
    """Iterations completed in the present phase."""
    iterations_before: int = 0
    """Iterations of its kind (train, val or test) that the run had completed before the present phase."""
    phase_length: int = 0
    """Iterations the present phase has on this rank; 0 where an evaluation of a stream cannot know."""
    max_epochs: int | None = None
    max_steps: int | None = None
    accumulate: int = 1
    full_batches: bool = True
    """Whether all training batches but an epoch's last are full on every rank; those of a stream need not be."""
    stepped: bool = False
    """Whether the present iteration made an optimizer step."""
    epoch_completed: bool = False
    """Whether the training phase that ended last completed its epoch."""

    # The present iteration
    batch: Any = None
    batch_size: int = 0
    output: Any = None
    loss: Tensor | None = None
    row: dict[str, Any] = field(default_factory=dict)
    """The columns recorded for this iteration; write with `record`."""
    recent: Recent = field(default_factory=KeptRows)
    """The last rows of this rank, oldest first, of all phases and without the present one: what a hook that shows
    something now and then looks back on, so that it need not be called at every iteration."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The values of the phases since the last report, such as `train/loss` and `val/accuracy`, over all ranks."""

    # Where results go
    name: str = ""
    """The run's name."""
    artifacts: Path = field(default_factory=Path)
    """A local folder; what is written here ends up in the run's folder."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The resolved experiment, as written to experiment.yaml. Read only."""
    checkpoints: Checkpoints | None = None
    clock: Clock | None = None
    display: Display | None = None
    info: MutableMapping[str, Any] = field(default_factory=dict)
    """What is known of the run beside its rows and metrics, such as its parameters' number: any hook may write and read
    it; plain values by name."""
    evaluation: str = ""
    """The label of the weights that the present evaluation runs with."""
    evaluations: dict[str, Weights] = field(default_factory=lambda: {"": Weights()})
    """What each validation runs with, by label: `""` gives `val/accuracy`, `"ema"` gives `val/ema/accuracy`."""

    # What hooks asked for; the loop reads and clears these
    checkpoint_reasons: list[str] = field(default_factory=list)
    stop_reasons: list[str] = field(default_factory=list)
    pause_reasons: list[str] = field(default_factory=list)
    skip_reasons: list[str] = field(default_factory=list)
    _gradient_norm: Tensor | None = None
    _parameters: list[nn.Parameter] | None = None
    _sharded: bool = False

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """What trains, by name; the name of a single one is empty."""
        return {name: optimizer for name, (optimizer, _, _) in self.several.items()} or (
            {"": self.optimizer} if self.optimizer else {}
        )

    @property
    def schedulers(self) -> dict[str, Any]:
        """The scheduler of each optimizer, None where it has none."""
        return {name: scheduler for name, (_, scheduler, _) in self.several.items()} or {"": self.scheduler}

    @property
    def scalers(self) -> dict[str, torch.amp.GradScaler | None]:
        """What scales the loss of each optimizer."""
        return {name: scaler for name, (_, _, scaler) in self.several.items()} or {"": self.scaler}

    def take_turn(self, name: str, parameters: list[nn.Parameter] | None) -> None:
        """Makes an optimizer the one whose turn it is, with the parameters that it trains; for the loop. Without these,
        no turn is under way."""
        self.turn, self._parameters, self._gradient_norm = name if parameters else "", parameters, None
        self.optimizer, self.scheduler, self.scaler = self.several[name]

    def column(self, name: str) -> str:
        """What a column of the present row is called: with the name of the optimizer whose turn it is, where there are
        several."""
        return f"{name}_{self.turn}" if self.turn else name

    @property
    def is_master(self) -> bool:
        """Whether this is global rank 0. To run on the master alone, declare `ranks`; do not ask here."""
        return self.rank == 0

    @property
    def main_metric(self) -> str:
        """The first metric that the experiment monitors; empty if it monitors none."""
        return next((monitored.metrics[0] for monitored in find_monitored_metrics(self.config)), "")

    def evaluated_weights(self, metric: str = "") -> Weights:
        """What gave a metric, or where none is said that by which the experiment judges first: other weights than the
        raw ones where a hook validates with its own."""
        label = evaluation_of(metric or self.main_metric, self.evaluations)
        return Weights() if label is None else self.evaluations[label]

    @property
    def finished(self) -> bool:
        """Whether all of the run's epochs or steps are completed."""
        if self.max_steps is not None:
            return self.step >= self.max_steps
        return self.max_epochs is not None and self.epoch >= self.max_epochs

    def gives(self, metric: str) -> bool:
        """Whether the present phase is the one that gives a metric: val/noisy gives `val/noisy/loss`, and val does
        not."""
        return phase_of(metric, [*self.loaders, self.phase]) == self.phase

    @property
    def milestone(self) -> str:
        """What a checkpoint of this moment is called: `epoch-0003` between two epochs, else `step-00000100`."""
        return f"epoch-{self.epoch:04d}" if self.epoch and self.phase_iteration == 0 else f"step-{self.step:08d}"

    def record(self, **columns: Any) -> None:
        """Adds columns to this iteration's row: numbers, or tensors of one element, which are taken as they are now and
        stay on their device. What is kept is no view and has no graph, so that nothing else lives on for it. In the
        turn of one of several optimizers its name is added to theirs: `grad_norm_d`."""
        for name, value in columns.items():
            self.row[self.column(name) if self.turn else name] = (
                value.detach().clone() if isinstance(value, Tensor) else value
            )

    def show(self, line: str) -> None:
        """Shows a line of plain text on the display; where there is none, the logger `hookyard` has it."""
        if self.display is None:
            logger.info("%s", line)
        else:
            self.display.line(line)

    def request_checkpoint(self, reason: str) -> None:
        """Asks for a checkpoint at the loop's next place for one. Every rank must ask alike (decide from the counters
        and from `metrics`, which agree over ranks)."""
        self.checkpoint_reasons.append(reason)

    def request_stop(self, reason: str) -> None:
        """Asks for the run to end. Any rank may; the loop agrees on it over ranks, soon, and at the latest at the end
        of the phase."""
        self.stop_reasons.append(reason)

    def request_pause(self, reason: str) -> None:
        """As `request_stop`, for a run that is not done: it is saved, ends as interrupted, and can be resumed."""
        self.pause_reasons.append(reason)

    def skip_update(self, reason: str) -> None:
        """In `on_gradients`: leaves out this optimizer step. Every rank must ask alike."""
        self.skip_reasons.append(reason)

    def gradients(self) -> list[Tensor]:
        """The gradients there are, in the order of the module's parameters; where ranks share the model out among them,
        this rank's parts; where optimizers take turns, those of the present one."""
        if self._parameters is None:
            self._parameters = list(self.module.parameters())
            self._sharded = any(map(shards.is_sharded, self._parameters))
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        return [shards.local(gradient) for gradient in gradients] if self._sharded else gradients

    def gradient_norm(self, norm_type: float = 2.0) -> Tensor:
        """The global norm of the gradients; the 2-norm is computed once per step, and is valid from `on_gradients` to
        the step's end. Every rank must ask alike: with `strategy: fsdp` it is a collective."""
        if norm_type != 2.0:
            return self._norm(norm_type)
        if self._gradient_norm is None:
            self._gradient_norm = self._norm(norm_type)
        return self._gradient_norm

    def _norm(self, norm_type: float) -> Tensor:
        gradients = self.gradients()
        if not self._sharded:
            return _norm(gradients, norm_type)
        # A rank may have nothing of a small tensor, and nothing has no largest element.
        norm = _norm([gradient for gradient in gradients if gradient.numel()], norm_type)
        return shards.norm_of_parts(norm.to(self.device), norm_type)

    def forget_gradients(self) -> None:
        """Drops what `gradient_norm` remembered: call after changing gradients, as the loop does after each step."""
        self._gradient_norm = None


def _norm(gradients: list[Tensor], norm_type: float) -> Tensor:
    """As torch's get_total_norm, whose sorting by device and dtype costs a small model more than the norm itself."""
    if not gradients or any(g.device != gradients[0].device or g.dtype != gradients[0].dtype for g in gradients):
        return torch.nn.utils.get_total_norm(gradients, norm_type)
    total: Tensor = torch.linalg.vector_norm(torch.stack(foreach_norm(gradients, norm_type)), norm_type)
    return total
