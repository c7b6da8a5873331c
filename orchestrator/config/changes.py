"""What may change while a run goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.config.complete import completed, problems_with, seen_from, single
from orchestrator.config.components import hook_class
from orchestrator.config.experiment import Experiment
from orchestrator.errors import Problem


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


def change_problems(data: Mapping[str, Any], known: Sequence[Problem]) -> list[Problem]:
    """Tries each change of a run under way in the experiment, and refuses what cannot change in flight."""
    given = data.get("changes")
    if known or not given:
        return []
    experiment = completed(single(data))
    problems = []
    for index, change in enumerate(experiment.changes):
        for name, value in change.set.items():
            path = f"changes.{index}.set.{name}"
            message = unchangeable(name, experiment)
            if message:
                problems.append(Problem(path, message))
                continue
            found = problems_with({name: value}, single(data))
            problems.extend(Problem(path, seen_from(name, problem), suggestion=problem.suggestion) for problem in found)
    return problems
