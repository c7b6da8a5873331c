"""Keeps a moving average of the weights and validates with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn

from hooks.hook import Hook
from hooks.parts import batch_norm_statistics as batch_statistics
from hooks.parts import coalesced_collectives as coalesced
from hooks.parts import sharded_tensors as shards
from hooks.parts.unread_fields import refuse_unread
from hooks.private_torch import foreach_lerp_
from hooks.rhythm import Rhythm
from hooks.state import State, Weights

Slot = tuple[nn.Module, str]
"""Where a module keeps a buffer: its table of buffers and the name; a buffer may be replaced by another tensor."""


@dataclass
class EMA(Hook):
    """Averages the weights after each optimizer step: average = decay * average + (1 - decay) * weight.

    The first update is a copy. Averages of bf16 and fp16 weights are kept in fp32, where a decay near 1 still moves
    them; integers are never averaged. Every rank does the same work on the same weights; with `strategy: fsdp` each
    averages its own shards, without communication. `applied` puts the averages into the module and takes them out
    again; the weights in training, and in the checkpoint's `model`, are always the raw ones. A checkpoint gets a record of its own under the hook's name: `model` (a state dict with the averages),
    `updates`, `decay`. Resumed without such a record, the average starts from the restored weights.
    Raises ValueError at start for buffers that cannot be recomputed. Source: MMEngine EMAHook, VISSL EmaHook,
    torch.optim.swa_utils.AveragedModel (the same numbers; this keeps its lists of tensors from step to step).
    """

    decay: Annotated[float, Ge(0), Lt(1)] = 0.999
    """How much of the average stays at each update; 0 makes it the weights themselves."""
    average: Literal["exponential", "annealing", "stochastic"] = "exponential"
    """Annealing raises the decay from 0 to its value; stochastic is the plain mean of all updates (SWA), without decay."""
    gamma: Annotated[float, Gt(0)] = 100
    """How slowly annealing raises the decay: n steps after the copy it is min(decay, n / (gamma + n))."""
    interval: Annotated[int, Ge(1)] = 1
    """Optimizer steps between updates."""
    begin: Rhythm = Rhythm(0)
    """Epochs or optimizer steps to complete before the first update; until then validation sees the raw weights."""
    buffers: Literal["copy", "ema", "recompute"] = "copy"
    """What the averages are validated with: the model's own buffers, their averages (floating-point ones), or BatchNorm
    statistics computed anew, with the averages, over the training data: a pass for each validation or checkpoint."""
    evaluate: Literal["ema", "raw", "both"] = "ema"
    """What validation and test run with; `both` gives val/accuracy for the raw weights and val/ema/accuracy."""
    device: str | None = None
    """Where the averages are kept, such as cpu, where each update waits for the weights of a GPU; beside the weights where it is not said."""
    momentum: float | None = None
    """MMEngine's 1 - decay; refused, with the decay to write instead."""

    observes: ClassVar[bool] = True
    collective: ClassVar[bool] = True
    keeps_record: ClassVar[bool] = True
    mutable: ClassVar[frozenset[str]] = frozenset({"decay", "gamma", "interval"})

    def __post_init__(self) -> None:
        if self.momentum is not None:
            decay = f"{1 - self.momentum:.10g}"
            raise ValueError(f"momentum={self.momentum} is MMEngine's 1 - decay; write decay={decay}")
        if self.average != "annealing":
            refuse_unread(self, "average: annealing", "gamma")
        if self.average == "stochastic" and self.decay:
            refuse_unread(self, "another average, as this one is the plain mean", "decay")
        if self.device is not None:
            torch.device(self.device)  # raises where torch knows none of that name
        self._updates = 0
        self._in_use = False
        self._parameters: dict[str, nn.Parameter] = {}
        self._averages: list[Tensor] = []
        """Of a sharded parameter, that of this rank's shard."""
        self._alike: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._unlike: list[tuple[Tensor, Tensor]] = []
        self._turns: dict[str, tuple[tuple[list[Tensor], list[Tensor]], list[tuple[Tensor, Tensor]]]] = {}
        self._step = 0
        """The step of the last update."""
        self._buffers: dict[str, tuple[Slot, Tensor]] = {}
        self._rank_buffers: dict[str, Tensor] = {}
        self._recomputed: tuple[int, list[Tensor]] | None = None

    # Events

    def on_load(self, state: State, checkpoint: Mapping[str, Any]) -> None:
        record = checkpoint.get(self._label)
        if record is not None and record["updates"]:
            self._copy_weights(state.module)
            self._restore({**record["model"], **record["exact"], **self._rank_buffers})
            self._updates = record["updates"]

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
        if step % self.interval:
            return
        # Where optimizers take turns, each turn averages what it has trained: a step is one update, whatever their number.
        is_first = not state.turn or step != self._step
        if self._updates > 1 or (self._updates and is_first):
            self._average(state, self._updates if is_first else self._updates - 1)
        elif self._updates or (step if self.begin.unit == "steps" else state.epoch) >= self.begin.count:
            self._copy_weights(state.module)
        else:
            return
        self._updates += is_first
        self._step = step

    def on_phase_end(self, state: State) -> None:
        """Averages the buffers' averages over ranks, as each rank's are of its own batches."""
        if state.phase == "train":
            coalesced.average(average for _, average in self._buffers.values())

    def needs_whole_model(self) -> str:
        return "buffers: recompute runs the model over each rank's own batches" if self.buffers == "recompute" else ""

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        with self.applied(state):
            # What is in the memory of a shard now is gone when the raw weights come back.
            model = {n: t.clone() if shards.is_sharded(t) else t for n, t in state.module.state_dict().items()}
        checkpoint[self._label] = {
            "model": model,
            "updates": self._updates,
            "decay": self.decay,
            "exact": self._exact(model),
        }

    def _exact(self, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The averages that are kept in another type than the weights."""
        exact = {name: average for name, average in self._named_averages() if average.dtype != model[name].dtype}
        return {name: shards.of_parts(average, self._parameters.get(name, average)) for name, average in exact.items()}

    def rank_state_dict(self) -> dict[str, Any]:
        return {"buffers": {name: average for name, (_, average) in self._buffers.items()}} if self._buffers else {}

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self._rank_buffers = state["buffers"]

    # The averages

    @property
    def _label(self) -> str:
        return self.name or "ema"

    def _weight(self, updates: int) -> float:
        """What an update after so many takes of the new weights."""
        if self.average == "stochastic":
            return 1 / (updates + 1)
        if self.average == "annealing":
            return max(1 - self.decay, self.gamma / (self.gamma + updates * self.interval))
        return 1 - self.decay

    def _average(self, state: State, updates: int) -> None:
        weight = self._weight(updates)
        (averages, parameters), unlike = self._of_turn(state) if state.turn else (self._alike, self._unlike)
        with torch.no_grad():
            if averages:
                foreach_lerp_(averages, parameters, weight)
            for average, parameter in unlike:
                average.lerp_(parameter.to(average), weight)
            if state.turn and state.step + 1 == self._step:
                return
            for (owner, name), average in self._buffers.values():
                average.lerp_(getattr(owner, name).to(average), weight)

    def _of_turn(self, state: State) -> tuple[tuple[list[Tensor], list[Tensor]], list[tuple[Tensor, Tensor]]]:
        """The averages and weights of what the optimizer trains whose turn it is."""
        if state.turn not in self._turns:
            assert state.optimizer is not None
            trained = {id(parameter) for group in state.optimizer.param_groups for parameter in group["params"]}
            alike = [(average, weight) for average, weight in zip(*self._alike, strict=True) if id(weight) in trained]
            unlike = [pair for pair in self._unlike if id(pair[1]) in trained]
            self._turns[state.turn] = ([average for average, _ in alike], [weight for _, weight in alike]), unlike
        return self._turns[state.turn]

    def _copy_weights(self, module: nn.Module) -> None:
        """The first update; from here on the same lists of tensors are averaged."""
        self._turns.clear()
        self._parameters = {n: p for n, p in module.named_parameters() if p.is_floating_point() or p.is_complex()}
        weights = [shards.local(parameter) for parameter in self._parameters.values()]
        self._averages = [self._copy(weight) for weight in weights]
        pairs = list(zip(self._averages, weights, strict=True))
        alike = [(a, p) for a, p in pairs if (a.dtype, a.device) == (p.dtype, p.device)]
        self._alike = [a for a, _ in alike], [p for _, p in alike]
        self._unlike = [(a, p) for a, p in pairs if (a.dtype, a.device) != (p.dtype, p.device)]
        if self.buffers == "ema":
            self._buffers = {name: (slot, self._copy(getattr(*slot))) for name, slot in _floating_buffers(module)}

    def _copy(self, tensor: Tensor) -> Tensor:
        wide = torch.promote_types(tensor.dtype, torch.float32)
        return tensor.detach().to(device=self.device or tensor.device, dtype=wide, copy=True)

    def _named_averages(self) -> Iterator[tuple[str, Tensor]]:
        yield from zip(self._parameters, self._averages, strict=True)
        for name, (_, average) in self._buffers.items():
            yield name, average

    def _restore(self, values: Mapping[str, Tensor]) -> None:
        for name, average in self._named_averages():
            whole = self._parameters.get(name, average)
            if name not in values or values[name].shape != whole.shape:
                found = f"has shape {tuple(values[name].shape)}" if name in values else "is missing"
                raise ValueError(f"the checkpoint's average of '{name}' {found}; the model needs {tuple(whole.shape)}")
            average.copy_(shards.local(shards.like(values[name], whole)))

    # Using them

    @contextmanager
    def applied(self, state: State) -> Iterator[None]:
        """Within it `state.module` has the averages; the raw weights come back at its end, also after an error.

        Tensors are exchanged, not copied (but for shards, whose memory FSDP gathers from), and optimizer and wrappers keep
        their Parameter objects. Collective where buffers are recomputed. Before the first update nothing changes. Raises RuntimeError when nested.
        """
        if self._in_use:
            raise RuntimeError("the averaged weights are in the model already; leave applied() before entering it again")
        if not self._updates:
            yield
            return
        self._in_use = True
        parameters, slots = list(self._parameters.values()), self._exchanged_buffers(state.module)
        raw_weights = [_raw(parameter) for parameter in parameters]
        raw_buffers = [getattr(*slot) for slot in slots]
        try:
            for parameter, average in zip(parameters, self._averages, strict=True):
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
            return [(layer, name) for layer in batch_statistics.tracked_layers(module) for name, _ in layer.named_buffers(recurse=False)]
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
