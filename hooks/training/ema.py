"""Keeps a moving average of the weights and validates with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt, MinLen
from torch import Tensor, nn

from hooks.hook import Hook, Setup
from hooks.interval import Interval, Steps, paced_by
from hooks.parts import batch_norm_statistics as batch_statistics
from hooks.parts import coalesced_collectives as coalesced
from hooks.parts import power_average
from hooks.parts import sharded_tensors as shards
from hooks.parts.average_snapshots import Snapshots
from hooks.parts.averaged_parameters import AveragedParameters, brought, restore_average, wide_copy
from hooks.parts.unread_fields import refuse_unread
from hooks.state import State, Weights

Std = Annotated[float, Gt(0), Le(power_average.LARGEST_STD)]
Slot = tuple[nn.Module, str]
"""Where a module keeps a buffer: its table of buffers and the name; a buffer may be replaced by another tensor."""


@dataclass
class EMA(Hook):
    """Averages the weights after each optimizer step: average = decay * average + (1 - decay) * weight.

    The first update is a copy. Averages of bf16 and fp16 weights are kept in fp32, where a decay near 1 still moves
    them; integers are never averaged. Every rank does the same work on the same weights; with `strategy: fsdp` each
    averages its own shards, without communication. `applied` puts the averages into the module and takes them out
    again; the weights in training, and in the checkpoint's `model`, are always the raw ones. A checkpoint gets a record
    of its own under the hook's name: `model` (a state dict with the averages), `updates`, `decay`. Resumed without such
    a record, the average starts from the restored weights. With `average: power` there is an average for each `std`, of
    which validation runs with the first, and checkpoints are kept as snapshots, from which `hookyard average` makes
    that of any other std after training. Raises ValueError at start for buffers that cannot be recomputed. Source:
    MMEngine EMAHook, VISSL EmaHook, torch.optim.swa_utils.AveragedModel (the same numbers; this keeps its lists of
    tensors from step to step), Karras et al. (2024).
    """

    decay: Annotated[float, Ge(0), Lt(1)] = 0.999
    """How much of the average stays at each update; 0 makes it the weights themselves."""
    average: Literal["exponential", "annealing", "stochastic", "power"] = "exponential"
    """Annealing raises the decay from 0 to its value; stochastic is the plain mean of all updates (SWA), without decay;
    power keeps (1 - 1/t)^(g+1) at step t, so that an average is as wide as `std` says, however long training is."""
    std: Std | Annotated[list[Std], MinLen(1)] | None = None
    """Of `average: power`, how wide averages are, as the standard deviation of a weight's age in parts of the training
    so far. Two, such as [0.05, 0.10], are what any other is made of well."""
    snapshots: Interval = Interval(1)
    """Of `average: power`, how often a checkpoint is kept as a snapshot; 0 keeps none."""
    keep_snapshots: Annotated[int, Ge(2)] = 32
    """How many snapshots there are at most; where there would be more, every second is given up, and they come half as
    often."""
    gamma: Annotated[float, Gt(0)] = 100
    """How slowly annealing raises the decay: n steps after the copy it is min(decay, n / (gamma + n))."""
    every: Steps = Interval(1, "steps")
    """Optimizer steps between updates."""
    begin: Interval = Interval(0)
    """Epochs or optimizer steps to complete before the first update; until then validation sees the raw weights."""
    buffers: Literal["copy", "ema", "recompute"] = "copy"
    """What the averages are validated with: the model's own buffers, their averages (floating-point ones), or BatchNorm
    statistics computed anew, with the averages, over the training data: a pass for each validation or checkpoint."""
    evaluate: Literal["ema", "raw", "both"] = "ema"
    """What validation and test run with; `both` gives val/accuracy for the raw weights and val/ema/accuracy."""
    device: str | None = None
    """Where the averages are kept, such as cpu, where each update waits once for the weights of a GPU, which come over
    into as much page-locked memory; beside the weights where it is not said."""
    momentum: float | None = None
    """MMEngine's 1 - decay; refused, with the decay to write instead."""

    observes: ClassVar[bool] = True
    collective: ClassVar[bool] = True
    keeps_record: ClassVar[bool] = True
    mutable: ClassVar[frozenset[str]] = frozenset({"decay", "gamma", "every"})

    def __post_init__(self) -> None:
        if self.momentum is not None:
            decay = f"{1 - self.momentum:.10g}"
            raise ValueError(f"momentum={self.momentum} is MMEngine's 1 - decay; write decay={decay}")
        if self.average != "annealing":
            refuse_unread(self, "average: annealing", "gamma")
        if self.average == "stochastic" and self.decay:
            refuse_unread(self, "another average, as this one is the plain mean", "decay")
        self._stds = self._checked_stds()
        self._exponents = [power_average.exponent(std) for std in self._stds]
        self._snapshots = Snapshots(self.snapshots, self.keep_snapshots)
        self._kept: Mapping[str, Any] = {}
        """What the restored checkpoint knew of power averages."""
        if self.device is not None:
            torch.device(self.device)  # raises where torch knows none of that name
        self._updates = 0
        self._in_use = False
        self._averages: list[AveragedParameters] = []
        """From the first update on; validation runs with the first."""
        self._before = self._step = 0
        """The steps of the last two updates."""
        self._buffers: dict[str, tuple[Slot, Tensor]] = {}
        self._rank_buffers: dict[str, Tensor] = {}
        self._recomputed: tuple[int, list[Tensor]] | None = None

    def _checked_stds(self) -> list[float]:
        if self.average != "power":
            refuse_unread(self, "average: power", "std", "snapshots", "keep_snapshots")
            return []
        if self.std is None:
            raise ValueError("average: power needs std, such as std: [0.05, 0.10]")
        refuse_unread(self, "another average, as std says how wide these are", "decay")
        refuse_unread(self, "another average, as these are of parameters alone", "buffers")
        if not self.snapshots.count:
            refuse_unread(self, "snapshots at an interval, and snapshots is 0", "keep_snapshots")
        stds = self.std if isinstance(self.std, list) else [self.std]
        if len({*stds}) < len(stds):
            raise ValueError(f"std names an average twice, got {stds}")
        return stds

    # Events

    def on_load(self, state: State, checkpoint: Mapping[str, Any]) -> None:
        record = checkpoint.get(self._label)
        if record is not None and record["updates"]:
            self._copy_weights(state.module)
            self._restore({**record["model"], **record["exact"], **self._rank_buffers})
            self._updates = record["updates"]
            if self._stds:
                self._restore_power(record)
        if self._kept:
            self._snapshots.restore(state, self._label, self._kept["snapshots"], checkpoint.get("name", ""))

    def on_start(self, state: State) -> None:
        if self.buffers == "recompute":
            batch_statistics.refuse_sync(state.module, "buffers=recompute")
        if self.evaluate == "raw":
            return
        label = self._label if self.evaluate == "both" else ""
        if state.evaluations.get(label, Weights()).lender:
            raise ValueError("another hook validates with its weights already; set evaluate: both or evaluate: raw")
        state.evaluations[label] = Weights(self.applied, self._label)

    def on_update(self, state: State) -> None:
        step = state.step + 1
        if step % self.every.count:
            return
        # Where optimizers take turns, each turn averages what it has trained: a step is one update, whatever their
        # number.
        is_first = not state.turn or step != self._step
        if not self._updates and (step if self.begin.unit == "steps" else state.epoch) < self.begin.count:
            return
        if is_first:
            self._before, self._step = self._step, step
        if self._updates > 1 or (self._updates and is_first):
            self._average(state, is_first)
        else:
            self._copy_weights(state.module)
        self._updates += is_first

    @paced_by("snapshots")
    def on_step(self, state: State) -> None:
        self._ask_for_snapshot(state)

    def on_phase_end(self, state: State) -> None:
        if state.phase != "train":
            return
        # Each rank's are of its own batches.
        coalesced.average(average for _, average in self._buffers.values())
        if self.snapshots.unit == "epochs":
            self._ask_for_snapshot(state)

    def on_saved(self, state: State, path: str) -> None:
        self._snapshots.keep(state, self._label, path.rstrip("/").rpartition("/")[2])

    def unsuitable(self, setup: Setup) -> str:
        reason = "buffers: recompute runs the model over each rank's own batches"
        return setup.explain(fsdp=reason if self.buffers == "recompute" else "")

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self._snapshots.take()
        with self.applied(state):
            # What is in the memory of a shard now is gone when the raw weights come back.
            model = {n: t.clone() if shards.is_sharded(t) else t for n, t in state.module.state_dict().items()}
        checkpoint[self._label] = {
            "model": model,
            "updates": self._updates,
            "exact": self._exact(model),
            **(self._of_power(state.module) if self._stds else {"decay": self.decay}),
        }

    def _exact(self, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The averages that are kept in another type than the weights."""
        first = self._averages[0].whole() if self._averages else {}
        kept = {**first, **{name: average for name, (_, average) in self._buffers.items()}}
        return {name: average for name, average in kept.items() if average.dtype != model[name].dtype}

    def _of_power(self, module: nn.Module) -> dict[str, Any]:
        """What a record has of power averages: the parameter behind each name of the state dict, of tied ones the
        first, and the averages of all but the first std."""
        called = {
            id(parameter): name for name, parameter in (self._averages[0].parameters if self._averages else {}).items()
        }
        named = module.named_parameters(remove_duplicate=False)
        averaged = {name: called[id(parameter)] for name, parameter in named if id(parameter) in called}
        further = zip(self._stds[1:], self._averages[1:], strict=False)
        return {"averaged": averaged, "further": {str(std): average.whole() for std, average in further}}

    def _restore_power(self, record: Mapping[str, Any]) -> None:
        kept = self._kept.get("std", [])
        if kept != self._stds:
            raise ValueError(
                f"the checkpoint has averages of std {', '.join(map(str, kept)) or 'none'}, and {self._label}.std is"
                f" {', '.join(map(str, self._stds))}. Keep what it has, of whose snapshots `hookyard average` makes any"
                " other; or give this hook another name, under which it begins anew"
            )
        self._step = self._kept["step"]
        for std, average in zip(self._stds[1:], self._averages[1:], strict=True):
            average.restore(record["further"][str(std)])

    def state_dict(self) -> dict[str, Any]:
        if not self._stds:
            return {}
        return {"std": self._stds, "step": self._step, "updates": self._updates, "snapshots": self._snapshots.record()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._kept = state

    def rank_state_dict(self) -> dict[str, Any]:
        return {"buffers": {name: average for name, (_, average) in self._buffers.items()}} if self._buffers else {}

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self._rank_buffers = state["buffers"]

    # The averages

    @property
    def _label(self) -> str:
        return self.name or "ema"

    def weight(self, updates: int) -> float:
        """Return the share of the new weights in an update that follows so many others; a subclass may override it.

        The average becomes `average + share * (weights - average)`.
        """
        if self.average == "stochastic":
            return 1 / (updates + 1)
        if self.average == "annealing":
            return max(1 - self.decay, self.gamma / (self.gamma + updates * self.every.count))
        return 1 - self.decay

    def _average(self, state: State, is_first: bool) -> None:
        updates = self._updates if is_first else self._updates - 1
        weights = [power_average.share(self._before, self._step, one) for one in self._exponents] or [
            self.weight(updates)
        ]
        for parameters, weight in zip(self._averages, weights, strict=True):
            parameters.take(weight, state)
        if not is_first:
            return
        with torch.no_grad():
            for average, buffer in brought([(average, getattr(*slot)) for slot, average in self._buffers.values()]):
                average.lerp_(buffer.to(average), weights[0])

    def _copy_weights(self, module: nn.Module) -> None:
        """The first update; from here on the same lists of tensors are averaged."""
        self._averages = [AveragedParameters(module, self.device) for _ in range(max(len(self._stds), 1))]
        if self.buffers == "ema":
            self._buffers = {
                name: (slot, wide_copy(getattr(*slot), self.device)) for name, slot in _floating_buffers(module)
            }

    def _restore(self, values: Mapping[str, Tensor]) -> None:
        self._averages[0].restore(values)
        for name, (_, average) in self._buffers.items():
            restore_average(name, average, average, values)

    def _ask_for_snapshot(self, state: State) -> None:
        if self._stds and self._updates:
            self._snapshots.ask(state, self._label)

    # Using them

    @contextmanager
    def applied(self, state: State) -> Iterator[None]:
        """Within it `state.module` has the averages; the raw weights come back at its end, also after an error.

        Tensors are exchanged, not copied (but for shards, whose memory FSDP gathers from), and optimizer and wrappers
        keep their Parameter objects. Collective where buffers are recomputed. Before the first update nothing changes.
        Raises RuntimeError when nested.
        """
        if self._in_use:
            raise RuntimeError(
                "the averaged weights are in the model already; leave applied() before entering it again"
            )
        if not self._updates:
            yield
            return
        self._in_use = True
        first = self._averages[0]
        parameters, slots = list(first.parameters.values()), self._exchanged_buffers(state.module)
        raw_weights = [_raw(parameter) for parameter in parameters]
        raw_buffers = [getattr(*slot) for slot in slots]
        try:
            for parameter, average in zip(parameters, first.values, strict=True):
                _put(parameter, average)
            self._put_buffers(state, slots)
            yield
        finally:
            for parameter, raw in zip(parameters, raw_weights, strict=True):
                _put(parameter, raw)
            for slot, raw in zip(slots, raw_buffers, strict=True):
                setattr(*slot, raw)
            self._in_use = False

    def _exchanged_buffers(self, module: nn.Module) -> list[Slot]:
        if self.buffers == "recompute":
            return [
                (layer, name)
                for layer in batch_statistics.tracked_layers(module)
                for name, _ in layer.named_buffers(recurse=False)
            ]
        return [slot for slot, _ in self._buffers.values()]

    def _put_buffers(self, state: State, slots: list[Slot]) -> None:
        if self.buffers == "ema":
            for slot, average in self._buffers.values():
                setattr(*slot, average.to(getattr(*slot)))
        elif self.buffers == "recompute":
            if self._recomputed is None or self._recomputed[0] != self._updates:
                for slot in slots:
                    setattr(*slot, getattr(*slot).clone())
                batch_statistics.recompute(state)
                self._recomputed = self._updates, [getattr(*slot) for slot in slots]
            for slot, buffer in zip(slots, self._recomputed[1], strict=True):
                setattr(*slot, buffer)


def _raw(parameter: nn.Parameter) -> Tensor:
    """A parameter's tensor, to be put back: of a shard a copy, as its memory will hold something else."""
    return shards.local(parameter).clone() if shards.is_sharded(parameter) else parameter.data


def _put(parameter: nn.Parameter, value: Tensor) -> None:
    """Makes a tensor, of the shard's shape where there is one, the parameter's."""
    if shards.is_sharded(parameter):
        shards.local(parameter).copy_(value)
    else:
        parameter.data = value.to(parameter.data)


def _floating_buffers(module: nn.Module) -> Iterator[tuple[str, Slot]]:
    """The floating-point buffers that a checkpoint holds, each once."""
    saved = module.state_dict().keys()
    for path, buffer in module.named_buffers():
        if path in saved and buffer.is_floating_point():
            owner, _, name = path.rpartition(".")
            yield path, (module.get_submodule(owner), name)
