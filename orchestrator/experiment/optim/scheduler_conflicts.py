"""Conflicts between an optimizer and its schedulers, which set its rate and may set its momentum."""

from collections.abc import Iterator
from typing import Any

from orchestrator.errors import Problem
from orchestrator.experiment.fields.class_models import make_signature_model
from orchestrator.experiment.optim.component import FROM_TASK, Component
from orchestrator.experiment.optim.optimization import Optimization
from orchestrator.experiment.optim.optimizer import OPTIMIZERS
from orchestrator.experiment.optim.scheduler import RATES

_MOMENTA = {"momentum", "betas"}
"""Numbers of optimizers that a scheduler varies as their momentum; of `betas` the first."""


def find_unused_rate(optimization: Optimization) -> Iterator[Problem]:
    """Yield a problem if an optimizer's rate has no effect, as all its schedulers set the rate."""
    optimizer = optimization.optimizer
    if "lr" not in optimizer.arguments or optimizer.type in ("", FROM_TASK):
        return
    kinds = [
        entry.type
        for entry in optimization.schedulers.values()
        if RATES.get(entry.type) in entry.arguments
    ]
    if kinds and len(kinds) == len(optimization.schedulers):
        message = f"has no effect with {kinds[0]}, whose {RATES[kinds[0]]} sets the learning rate"
        path = f"{optimization.path}.lr"
        yield Problem(path, message, suggestion=f"{path}=null removes it")


def find_unused_momentum(optimization: Optimization) -> Iterator[Problem]:
    """Yield a problem for each scheduler that varies the momentum between bounds of its own, so that
    the optimizer's momentum has no effect."""
    optimizer = optimization.optimizer
    if "momentum" not in optimizer.arguments or optimizer.type in ("", FROM_TASK):
        return
    # torch builds no Nesterov momentum without one.
    if optimizer.arguments.get("nesterov"):
        return
    for path, entry in _list_momentum_cycles(optimization):
        yield Problem(
            f"{optimization.path}.momentum",
            f"has no effect with {entry.type}, which varies the momentum",
            suggestion=f"remove it, or set {path}.cycle_momentum=false",
        )


def find_missing_momentum(optimization: Optimization) -> Iterator[Problem]:
    """Yield a problem for each scheduler that varies a momentum which the optimizer lacks."""
    kind = optimization.optimizer.type
    cls: Any = OPTIMIZERS.get(kind)
    if cls is None or _MOMENTA & make_signature_model(cls).model_fields.keys():
        return
    for path, entry in _list_momentum_cycles(optimization):
        yield Problem(
            f"{path}.cycle_momentum",
            f"must be false: {kind} has no momentum for {entry.type} to vary",
        )


def find_overwritten_number(optimization: Optimization, key: str) -> Iterator[Problem]:
    """Yield a problem for each scheduler that sets an optimizer's number, so that a change of it
    would be lost at the scheduler's next step."""
    if key.rpartition(".")[2] not in _MOMENTA:
        return
    for path, entry in _list_momentum_cycles(optimization):
        yield Problem(
            f"{optimization.path}.{key}",
            f"cannot change, because {entry.type} sets the momentum",
            suggestion=f"set {path}.cycle_momentum=false",
        )


def _list_momentum_cycles(optimization: Optimization) -> Iterator[tuple[str, Component]]:
    """Yield the path and the entry of each scheduler that varies the momentum."""
    for path, entry in optimization.schedulers.items():
        if entry.type in ("CyclicLR", "OneCycleLR") and entry.arguments.get("cycle_momentum", True):
            yield path, entry
