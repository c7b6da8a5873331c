"""What hooks have in common that watch the model's layers now and then."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.utils.hooks import RemovableHandle

from hooks.hook import Priority
from hooks.interval import Interval, StepsOrNever, paced_by
from hooks.parts.layer_table import LayerMeasurement
from hooks.parts.leaf_modules import leaf_modules, uncompiled
from hooks.state import State


@dataclass
class LayerMonitor(LayerMeasurement):
    """The part of a hook that watches leaf modules in the forward passes of some training iterations.

    Every rank watches its own; no communication. A hook brings `watch`, which puts module hooks on a layer, and `read`,
    which takes what they saw. They are there only in the iterations that are measured; a compiled model runs those
    uncompiled.
    """

    every: StepsOrNever = Interval(100, "steps")
    """Optimizer steps between two measurements; of such a step each micro-batch is measured."""

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH

    def __post_init__(self) -> None:
        super().__post_init__()
        self._watching = ExitStack()

    @abstractmethod
    def watch(self, name: str, layer: nn.Module, state: State) -> None:
        """Puts module hooks on a layer, each by `until_read`."""

    @abstractmethod
    def read(self, state: State) -> None:
        """Takes what the module hooks saw, once the forward pass is over."""

    def until_read(self, handle: RemovableHandle) -> None:
        """Takes a module hook away when the forward pass is over."""
        self._watching.enter_context(handle)

    @paced_by("every")
    def on_batch(self, state: State) -> None:
        self._watching.enter_context(uncompiled())
        for name, layer in leaf_modules(state.module):
            self.watch(name, layer, state)

    @paced_by("every")
    def on_forward(self, state: State) -> None:
        self._watching.close()
        self.read(state)

    def release(self) -> None:
        self._watching.close()
