"""Moving averages of the weights."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
from hooks.model import power_average
from hooks.model.averaged_buffers import AveragedBuffers
from hooks.model.averaged_parameters import AveragedParameters
from hooks.model.snapshots import Snapshots
from hooks.needs import Needs
from hooks.optimizer_name import OptimizerName
from hooks.setup import Setup
from hooks.state import State, Weights

Std = Annotated[float, Gt(0), Le(power_average.LARGEST_STD)]


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
    std: Annotated[Std | Annotated[list[Std], MinLen(1)] | None, Needs("average: power")] = None
    """Width of each `power` average: the standard deviation of the weights' age, as a fraction of
    the training so far. Two values, such as [0.05, 0.10], are enough to compute averages of other
    widths."""
    snapshots: Annotated[Interval, Needs("average: power")] = Interval(1)
    """Interval of the checkpoints that `power` keeps as snapshots; 0 means none."""
    keep_snapshots: Annotated[int, Ge(2), Needs("average: power"), Needs("snapshots")] = 32
    """Maximum number of snapshots; beyond it, every second one is deleted and the interval
    doubles."""
    gamma: Annotated[float, Gt(0), Needs("average: annealing")] = 100
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
        Literal["copy", "ema"], Needs("average: exponential or annealing or stochastic")
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
    state_fields: ClassVar[tuple[str, ...]] = (
        "_updates",
        "_first_steps",
        "_last_steps",
        "_stds",
        "_snapshots",
    )

    def __post_init__(self) -> None:
        if self.average in ("stochastic", "power") and self.decay not in (0, EMA.decay):
            raise ValueError(
                f"decay={self.decay} has no effect with average: {self.average}; remove it"
            )
        self._stds = self._check_stds()
        self._exponents = [power_average.compute_exponent(std) for std in self._stds]
        self._snapshots = Snapshots(self.snapshots, self.keep_snapshots)
        self._updates: Counter[OptimizerName] = Counter()
        """Number of updates by optimizer name; None stands for a single optimizer, or for the buffers
        with several."""
        self._first_steps: dict[OptimizerName, int] = {}
        """Step of the first update, by the same names."""
        self._last_steps: dict[OptimizerName, int] = {}
        """Step of the last update, by the same names."""
        self._is_applied = False
        self._averages: list[AveragedParameters] = []
        """Empty before the first update; validation uses the first average."""
        self._buffers: AveragedBuffers | None = None
        self._rank_buffers: dict[str, Tensor] = {}
        """Averages of this rank's buffers, from the restored checkpoint."""

    def _check_stds(self) -> list[float]:
        if self.average != "power":
            return []
        if self.std is None:
            raise ValueError("average: power needs std, such as std: [0.05, 0.10]")
        stds = self.std if isinstance(self.std, list) else [self.std]
        if len({*stds}) < len(stds):
            raise ValueError(f"std has duplicate values: {stds}")
        return stds

    def unsuitable(self, setup: Setup) -> str:
        saver = setup.hooks.get("checkpoint")
        if self._stds and getattr(saver, "weights", "all") == "trainable":
            return (
                "average: power keeps snapshots of all weights; set hooks.checkpoint.weights to all"
            )
        return ""

    # Events

    def on_load(self, state: State, checkpoint: Mapping[str, Any]) -> None:
        entry = checkpoint.get(self._label)
        if entry is None:
            return
        if self._updates:
            self._init_averages(state.module)
            values = {**entry["model"], **entry["exact"], **self._rank_buffers}
            self._averages[0].restore(values)
            if self._buffers is not None:
                self._buffers.restore(values)
        for std, further in zip(self._stds[1:], self._averages[1:], strict=False):
            further.restore(entry["further"][str(std)])
        if self._stds:
            self._snapshots.restore(state, self._label, checkpoint["name"])

    def on_start(self, state: State) -> None:
        self._require_device()
        if self.begin == Interval(0, "steps") and not self._averages:
            self._init_averages(state.module)
            for name in {None, *state.optimizers}:
                self._count_update(name, state.step)
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
        if not self._averages:
            done = step if self.begin.unit == "steps" else state.epoch
            if done < self.begin.count:
                return
            self._init_averages(state.module)

        coefficients = self._compute_coefficients(state.turn, step)
        self._count_update(state.turn, step)
        for average, coefficient in zip(self._averages, coefficients, strict=True):
            average.update(coefficient, state)
        if self._buffers is not None:
            self._update_buffers(self._buffers, coefficients[0], state.turn, step)

    @at_interval("snapshots")
    def on_step(self, state: State) -> None:
        self._request_snapshot(state)

    def on_phase_end(self, state: State) -> None:
        if state.phase != "train":
            return
        # Each rank has averaged the buffers of its own batches, which may have enlarged some.
        if self._buffers is not None and state.world_size > 1:
            collectives.average_in_fp64(collectives.select_equal(self._buffers.to_dict()))
        if self.snapshots.unit == "epochs":
            self._request_snapshot(state)

    def on_saved(self, state: State, path: str) -> None:
        self._snapshots.finish_save(state, self._label, get_checkpoint_name(path))

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self._snapshots.begin_save()
        with self.applied(state):
            # Clone shards: restoring the raw weights overwrites their memory.
            model = {
                name: tensor.clone() if shards.is_sharded(tensor) else tensor
                for name, tensor in state.module.state_dict().items()
            }
        further = self._make_power_entry(state.module) if self._stds else {"decay": self.decay}
        exact = self._full_precision_averages(model)
        checkpoint[self._label] = {"model": model, "exact": exact, **further}

    def _full_precision_averages(self, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the averages whose dtype differs from the weights' dtype."""
        averages: dict[str, Tensor] = {}
        if self._averages:
            averages |= self._averages[0].to_dict()
        if self._buffers is not None:
            averages |= self._buffers.to_dict()
        return {
            name: average
            for name, average in averages.items()
            if average.dtype != model[name].dtype
        }

    def _make_power_entry(self, module: nn.Module) -> dict[str, Any]:
        """Return the averages of all stds but the first, and for each state-dict key the name of
        its average.

        Key and name differ for tied parameters.
        """
        parameters = self._averages[0].parameters if self._averages else {}
        names = {id(parameter): name for name, parameter in parameters.items()}
        averaged = {
            key: names[id(parameter)]
            for key, parameter in module.named_parameters(remove_duplicate=False)
            if id(parameter) in names
        }
        further = {
            str(std): average.to_dict()
            for std, average in zip(self._stds[1:], self._averages[1:], strict=False)
        }
        return {"averaged": averaged, "further": further}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["stds"] != self._stds:
            saved = ", ".join(map(str, state["stds"])) or "none"
            own = ", ".join(map(str, self._stds)) or "none"
            raise SettingError(
                f"std: must be {saved}, as in the checkpoint, got {own};"
                " `hookyard average` computes other values from its snapshots"
            )
        super().load_state_dict(state)

    def rank_state_dict(self) -> dict[str, Any]:
        return {} if self._buffers is None else {"buffers": self._buffers.to_dict()}

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self._rank_buffers = state["buffers"]

    # The averages

    @property
    def _label(self) -> str:
        return self.name or "ema"

    def weight(self, updates: int) -> float:
        """Return the coefficient of the new values after `updates` earlier updates; a subclass may
        override it."""
        if self.average == "stochastic":
            return 1 / (updates + 1)
        return 1 - self.decay

    def _compute_coefficients(self, name: OptimizerName, step: int) -> list[float]:
        """Return the coefficient of the new values in each average, for the update at a step."""
        if self._exponents:
            last_step = self._last_steps.get(name, 0)
            return [
                power_average.compute_update_coefficient(last_step, step, exponent)
                for exponent in self._exponents
            ]
        updates = self._updates[name]
        if not updates:
            return [1.0]
        weight = self.weight(updates)
        if self.average == "annealing":
            steps = step - self._first_steps[name]
            weight = max(weight, self.gamma / (self.gamma + steps))
        return [weight]

    def _count_update(self, name: OptimizerName, step: int) -> None:
        self._updates[name] += 1
        self._first_steps.setdefault(name, step)
        self._last_steps[name] = step

    def _update_buffers(
        self, buffers: AveragedBuffers, coefficient: float, turn: OptimizerName, step: int
    ) -> None:
        """Update the averages of the buffers once per step, in its first turn if there are
        several."""
        if turn is None:
            buffers.update(coefficient)
        elif self._last_steps.get(None) != step:
            coefficient = self._compute_coefficients(None, step)[0]
            self._count_update(None, step)
            buffers.update(coefficient)

    def _init_averages(self, module: nn.Module) -> None:
        """Initialize the averages from the weights."""
        self._require_device()
        self._averages = [
            AveragedParameters(module, self.device) for _ in range(max(len(self._stds), 1))
        ]
        if self.buffers == "ema":
            self._buffers = AveragedBuffers(module, self.device)

    def _require_device(self) -> None:
        if self.device is not None:
            require_device(self.device, "device")

    def _request_snapshot(self, state: State) -> None:
        if self._stds and self._averages:
            self._snapshots.request_if_due(state, self._label)

    # Use of the averages

    @contextmanager
    def applied(self, state: State) -> Iterator[None]:
        """Put the averages into `state.module`, and restore the raw weights on exit, even after an
        error.

        Swaps tensors, and copies shards. Has no effect before the first update. Raises RuntimeError
        when nested.
        """
        if self._is_applied:
            raise RuntimeError("applied() cannot be nested: the model already uses the averages")
        if not self._averages:
            yield
            return
        self._is_applied = True
        try:
            with ExitStack() as stack:
                stack.enter_context(self._averages[0].applied())
                if self._buffers is not None:
                    stack.enter_context(self._buffers.applied())
                yield
        finally:
            self._is_applied = False
