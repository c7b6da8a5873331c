"""What may change while a run goes on."""

from __future__ import annotations

from orchestrator.config.components import hook_class
from orchestrator.config.experiment import Experiment


def unchangeable(path: str, experiment: Experiment) -> str | None:
    """Why a setting cannot change while the run goes on; None where it can: fields that a hook calls mutable, and
    numbers of the optimizer."""
    group, _, rest = path.partition(".")
    if group == "optimizer" and rest and rest != "type" and "." not in rest:
        return None
    name, _, field = rest.partition(".")
    if group != "hooks" or not field:
        return "cannot change in flight; fields of hooks and numbers of the optimizer can"
    entry = experiment.hooks.get(name)
    if not isinstance(entry, dict):
        return f"there is no hook '{name}' that is on"
    mutable = sorted(hook_class(entry["type"]).mutable)
    if field in mutable:
        return None
    return f"cannot change in flight; of '{name}' {', '.join(mutable) or 'nothing'} can"
