"""Moving averages of the weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen
from torch import Tensor, nn

from hooks.device import Device, require_device
from hooks.distributed import collectives
from hooks.distributed import sharded_tensors as shards
from hooks.errors import SettingError
from hooks.hook import Hook
from hooks.interval import Interval, Steps, at_interval
from hooks.loop_services import get_checkpoint_name
from hooks.model.power_average import LARGEST_STD, compute_update_coefficient
from hooks.model.snapshots import Snapshots
from hooks.model.weight_averages import Updates, WeightAverages
from hooks.needs import Needs
from hooks.setup import Setup
from hooks.state import State, Weights

Std = Annotated[float, Gt(0), Le(LARGEST_STD)]


@dataclass
class EMA(Hook):
    """Average the weights during training, and validate with the averages: average = decay *
    average + (1 - decay) * weight.

        ema: {decay: 0.999, evaluate: both}

    The first update is a copy; with `begin: 0 steps`, the average starts from the initial weights,
    as in VISSL, ClassyVision and iMIX. Averages of bf16 and fp16 weights are fp32; integers are not
    averaged. Training continues with the raw weights, which a checkpoint stores as `model`; it
    stores the averages under the hook's name. Without averages in the checkpoint, a resumed run
    begins new ones, whose first update is a copy too. With several optimizers, each optimizer's
    parameters are averaged when that optimizer steps.

    With `average: power` the hook keeps one average per `std`, and validates with the first. It
    keeps checkpoints as snapshots, from which `hookyard average` computes an average with any other
    std. Source: MMEngine EMAHook, VISSL EmaHook, torch.optim.swa_utils.AveragedModel, Karras et al.
    (2024).
    """

    decay: Annotated[float, Ge(0), Lt(1)] = 0.999
    """Weight of the old average at each update. Leave it at the default (or 0) if `average` has no
    decay."""
    average: Literal["exponential", "annealing", "stochastic", "power"] = "exponential"
    """`annealing` raises the decay from 0; `stochastic` is the plain mean of the weights (SWA);
    `power` multiplies the average by (1 - 1/t)^(g+1) at step t, so that its width is a fraction of
    the training so far."""
    std: Annotated[Std | Annotated[list[Std], MinLen(1)] | None, Needs("average", "power")] = None
    """Width of each `power` average: the standard deviation of the weights' age, as a fraction of
    the training so far. Two values, such as [0.05, 0.10], are enough to compute averages of other
    widths."""
    snapshots: Annotated[Interval, Needs("average", "power")] = Interval(1)
    """Interval of the checkpoints that `power` keeps as snapshots; 0 means none. Once there are
    some, a resume can only set it to 0, which keeps them and makes no more."""
    keep_snapshots: Annotated[int, Ge(2), Needs("average", "power"), Needs("snapshots")] = 32
    """Maximum number of snapshots; beyond it, every second one is deleted and the interval
    doubles."""
    gamma: Annotated[float, Gt(0), Needs("average", "annealing")] = 100
    """Time constant of `annealing`: n steps after the first update, the decay is min(decay, n /
    (gamma + n))."""
    every: Steps = Interval(1, "steps")
    """Optimizer steps between updates: with `2 steps` they are at steps 2, 4, 6, ..., counted from
    the beginning of the run and not from `begin`."""
    begin: Interval = Interval(0)
    """Epochs before the first update, or number of the optimizer step whose weights it copies. If
    `every` skips that step, the first update follows it: with `begin: 3 steps` and `every: 2 steps`
    it is at step 4. `0 steps` copies the initial weights. Until the first update, validation uses
    the raw weights."""
    buffers: Annotated[
        Literal["copy", "ema"], Needs("average", "exponential", "annealing", "stochastic")
    ] = "copy"
    """Buffers for validation: the model's (`copy`), or averages of the floating-point ones, also
    across ranks (`ema`)."""
    evaluate: Literal["ema", "raw", "both"] = "ema"
    """Weights for val and test; `both` gives val/accuracy for the raw weights and
    val/ema/accuracy."""
    device: Device | None = None
    """Device of the averages: cpu, cuda or a GPU such as cuda:1; by default the device of the
    weights. Keeping averages of GPU weights on the CPU synchronizes once per update."""

    observes: ClassVar[bool] = True
    collective: ClassVar[bool] = True
    keeps_record: ClassVar[bool] = True
    mutable: ClassVar[frozenset[str]] = frozenset({"decay", "gamma", "every"})

    def __post_init__(self) -> None:
        if self.average in ("stochastic", "power") and self.decay not in (0, EMA.decay):
            raise ValueError(
                f"decay={self.decay} has no effect with average: {self.average}; remove it"
            )
        self._stds = _list_stds(self.std) if self.average == "power" else []
        """Widths of the `power` averages."""
        self._snapshots = Snapshots(self.snapshots, self.keep_snapshots)
        self._averages: WeightAverages | None = None
        """None before the first update."""
        self._restored_updates: dict[str, Any] | None = None
        """Updates of the averages in the restored checkpoint; None if it has none."""
        self._restored_buffers: dict[str, Tensor] = {}
        """Averages of this rank's buffers in the restored checkpoint."""

    def unsuitable(self, setup: Setup) -> str:
        saver = setup.hooks.get("checkpoint")
        if self.average == "power" and getattr(saver, "weights", "all") == "trainable":
            return (
                "average: power keeps snapshots of all weights; set hooks.checkpoint.weights to all"
            )
        return ""

    # Events

    def on_load(self, state: State, checkpoint: Mapping[str, Any]) -> None:
        entry = checkpoint.get(self._label)
        if entry is None:
            return
        if self._restored_updates is not None:
            self._averages = self._make_averages(state.module)
            values = {**entry["model"], **entry["exact"], **self._restored_buffers}
            self._averages.restore(values, entry["further"], self._restored_updates)
        if self.average == "power":
            self._snapshots.restore(state, self._label, checkpoint["name"])

    def on_start(self, state: State) -> None:
        self._require_device()
        if self.begin == Interval(0, "steps") and self._averages is None:
            self._averages = self._make_averages(state.module)
            self._averages.count_copies(state)
        if self.evaluate == "raw":
            return
        label = self._label if self.evaluate == "both" else ""
        if state.evaluations.get(label, Weights()).provider:
            raise SettingError(
                "evaluate: another hook already sets the weights for validation; set both or raw"
            )
        state.evaluations[label] = Weights(self.applied, self._label)

    def on_update(self, state: State) -> None:
        step = state.step + 1
        if step % self.every.count:
            return
        if self._averages is None:
            done = step if self.begin.unit == "steps" else state.epoch
            if done < self.begin.count:
                return
            self._averages = self._make_averages(state.module)
        self._averages.update(step, self._compute_coefficients, state)

    @at_interval("snapshots")
    def on_step(self, state: State) -> None:
        self._request_snapshot(state)

    def on_phase_end(self, state: State) -> None:
        if state.phase != "train":
            return
        averages = self._averages
        # Each rank has averaged the buffers of its own batches, which may have enlarged some.
        if averages is not None and averages.buffers is not None and state.world_size > 1:
            collectives.average_in_fp64(collectives.select_equal(averages.buffers.to_dict()))
        if self.snapshots.unit == "epochs":
            self._request_snapshot(state)

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self._snapshots.begin_save()
        with self.applied(state):
            # Clone shards: restoring the raw weights overwrites their memory.
            model = {
                name: tensor.clone() if shards.is_sharded(tensor) else tensor
                for name, tensor in state.module.state_dict().items()
            }
        entry = {"model": model, "exact": {}, "further": {}, "averaged": {}}
        if self._averages is not None:
            entry["exact"] = self._averages.select_exact(model)
            entry["further"] = self._averages.get_further()
            entry["averaged"] = self._averages.map_keys()
        checkpoint[self._label] = {**entry, "decay": self.decay}

    def on_saved(self, state: State, path: str) -> None:
        self._snapshots.finish_save(state, self._label, get_checkpoint_name(path))

    def state_dict(self) -> dict[str, Any]:
        return {
            "updates": None if self._averages is None else self._averages.list_updates(),
            "stds": self._stds,
            "snapshots": self._snapshots.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["stds"] != self._stds:
            saved = ", ".join(map(str, state["stds"])) or "none"
            own = ", ".join(map(str, self._stds)) or "none"
            raise SettingError(
                f"std: must be {saved}, as in the checkpoint, got {own};"
                " `hookyard average` computes other values from its snapshots"
            )
        self._restored_updates = state["updates"]
        self._snapshots.load_state_dict(state["snapshots"])

    def rank_state_dict(self) -> dict[str, Any]:
        if self._averages is None or self._averages.buffers is None:
            return {}
        return {"buffers": self._averages.buffers.to_dict()}

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self._restored_buffers = state["buffers"]

    # The averages

    @property
    def _label(self) -> str:
        return self.name or "ema"

    def compute_coefficient(self, updates: int) -> float:
        """Return the coefficient of the new values after `updates` earlier updates, with `average:
        exponential` or `annealing`; a subclass may override it."""
        return 1 - self.decay

    def _compute_coefficients(self, updates: Updates, step: int) -> list[float]:
        """Return the coefficient of the new values in each average, for the update at a step."""
        if self.average == "power":
            before = updates.last_step
            return [compute_update_coefficient(before, step, std) for std in self._stds]
        if self.average == "stochastic":
            return [1 / (updates.count + 1)]
        if updates.count == 0:
            return [1.0]
        coefficient = self.compute_coefficient(updates.count)
        if self.average == "annealing":
            steps = step - updates.first_step
            coefficient = max(coefficient, self.gamma / (self.gamma + steps))
        return [coefficient]

    def _make_averages(self, module: nn.Module) -> WeightAverages:
        """Return averages that begin as copies of the weights."""
        self._require_device()
        further = [str(std) for std in self._stds[1:]]
        return WeightAverages(
            module, self.device, further=further, has_buffers=self.buffers == "ema"
        )

    def _require_device(self) -> None:
        if self.device is not None:
            require_device(self.device, "device")

    def _request_snapshot(self, state: State) -> None:
        if self.average == "power" and self._averages is not None:
            self._snapshots.request_if_due(state, self._label)

    # Use of the averages

    @contextmanager
    def applied(self, state: State) -> Iterator[None]:
        """Put the averages into `state.module`, and restore the raw weights on exit, even after an
        error.

        Swaps tensors, and copies shards. Has no effect before the first update. Raises RuntimeError
        when nested.
        """
        if self._averages is None:
            yield
        else:
            with self._averages.applied():
                yield


def _list_stds(std: float | list[float] | None) -> list[float]:
    """Return the widths of the `power` averages; raises ValueError if there are none, or equal
    ones."""
    if std is None:
        raise ValueError("average: power needs std, such as std: [0.05, 0.10]")
    stds = std if isinstance(std, list) else [std]
    if len({*stds}) < len(stds):
        raise ValueError(f"std has duplicate values: {stds}")
    return stds
