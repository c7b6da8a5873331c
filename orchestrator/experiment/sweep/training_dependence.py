"""Reasons why trials that differ in hooks cannot share a training, because it depends on them."""

from collections.abc import Sequence

from hooks import EVENTS, HOOKS, Checkpoint, Hook, ParamScheduler, PreciseBatchNorm
from hooks.metrics.names import find_phase
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.task import has_custom_loop

_INDEPENDENT_EVENTS = (
    "on_load",
    "on_start",
    "on_backward",
    "on_gradients",
    "on_update",
    "on_end",
    "on_exception",
)
"""Events that do not depend on how often a run validates or saves, or on the results."""


def explain_hook(name: str, hook: Hook | None) -> str | None:
    """Return why trials that differ in a hook cannot share a training run; None if they can."""
    if hook is None:
        return None
    if isinstance(hook, Checkpoint) and hook.weights == "trainable":
        return f"the checkpoints of hooks.{name} have only the trainable weights"
    if not hook.observes:
        return f"hooks.{name} does not declare `observes`"
    return None


def explain_training(resolved: ResolvedExperiment) -> str | None:
    """Return why a training may depend on what differs between its trials; None if it does not."""
    reason = _explain_settings(resolved)
    if reason is not None:
        return reason
    averages = [
        name for name, hook in resolved.hooks.items() if hook.observes and hook.keeps_record
    ]
    for name, hook in resolved.hooks.items():
        effect = _explain_effect(name, hook, averages)
        if effect is not None:
            return effect
    return None


def _explain_settings(resolved: ResolvedExperiment) -> str | None:
    """Return why the settings or the task exclude a shared training; None if they do not."""
    if resolved.experiment.changes:
        return "changes sets values of hooks and the optimizer during training"
    if has_custom_loop(type(resolved.task)):
        return f"{type(resolved.task).__name__} trains in its own train()"
    if resolved.experiment.accumulate == "auto":
        return "accumulate: auto depends on free memory"
    return None


def _explain_effect(name: str, hook: Hook, averages: Sequence[str]) -> str | None:
    """Return how a hook may affect training in a way that differs between trials; None if it does
    not. `averages` are the names of hooks that average weights."""
    if hook.observes:
        return None
    if isinstance(hook, PreciseBatchNorm):
        if not averages:
            return None
        weights = f"the weights of hooks.{averages[0]}, which may differ between trials"
        return f"hooks.{name} takes statistics of {weights}"
    if isinstance(hook, ParamScheduler):
        if not hook.monitor or find_phase(hook.monitor) == "train":
            return None
        return f"hooks.{name} steps the scheduler by {hook.monitor}, which differs between trials"
    if HOOKS.name_of(type(hook)):
        return None
    return _explain_own_hook(name, hook)


def _explain_own_hook(name: str, hook: Hook) -> str | None:
    """Return which event of a user's hook may affect training; None if none does."""
    for event in EVENTS:
        if event not in _INDEPENDENT_EVENTS and hook.handles(event):
            declaration = f"`observes: ClassVar[bool] = True` in {type(hook).__name__}"
            effect = f"may affect training in {event}"
            return f"hooks.{name} {effect}; if it does not, declare {declaration}"
    return None
