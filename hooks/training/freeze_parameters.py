"""Keeps parameters as they are, for a while or for ever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import MinLen
from torch import nn

from hooks.hook import CHANGES_GRADIENTS, Hook, Priority, Setup
from hooks.interval import Interval
from hooks.parameter_names import Match, compiled, matched
from hooks.state import State


@dataclass
class FreezeParameters(Hook):
    """Keeps the parameters of some names as they are, for a number of epochs or steps or for the whole run.

    At each optimizer step their gradients are taken away before any other hook sees them: they count in no norm, and
    the optimizer passes over them, with its momentum and weight decay. They are still differentiated, so that ranks
    that wait for each other's gradients need not know. Buffers, such as running statistics, go on. Every rank does
    the same; no communication. Hooks of this kind with different `until` live side by side under names of their own.
    Raises ValueError for a pattern that is none or, at start, that matches nothing. Source: VISSL
    FreezeParametersHook, whose frozen gradients count in the clipped norm.
    """

    patterns: Annotated[list[str], MinLen(1)]
    """Which names, as in `model.named_parameters()`; each must be matched as a whole, such as backbone.*"""
    until: Interval | None = None
    """How many epochs or optimizer steps to complete before they are trained; null freezes them for the whole run."""
    match: Match = "glob"
    """Whether patterns are shell-like, with * and ?, or regular expressions."""

    priority: ClassVar[Priority] = Priority.HIGHEST

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            compiled(pattern, self.match)
        self._frozen: list[nn.Parameter] = []

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(closure=CHANGES_GRADIENTS)

    def on_start(self, state: State) -> None:
        named = dict(state.module.named_parameters(remove_duplicate=False))
        frozen = matched(self.patterns, named, self.match)
        self._frozen = list({id(named[name]): named[name] for name in sorted(frozen)}.values())

    def on_gradients(self, state: State) -> None:
        if self.until is not None and self.until.reached(state):
            return
        for parameter in self._frozen:
            parameter.grad = None
        state.forget_gradients()
