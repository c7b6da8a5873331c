"""Keys written in the wrong place of an experiment, and the places where they belong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hooks import HOOKS
from orchestrator.config.checks.key_tree import key_paths
from orchestrator.config.components import DEFAULT_HOOKS
from orchestrator.config.optim.optimizer import OPTIMIZERS
from orchestrator.config.optim.scheduler import SCHEDULERS
from orchestrator.config.python.parameters import parameters, signature_model
from orchestrator.config.sections.experiment import Experiment
from orchestrator.errors import Problem
from orchestrator.task import Task

_MOST = 3
"""Places that are suggested."""


def with_place(problem: Problem, data: Mapping[str, Any], task: type[Task] | None) -> Problem:
    """Return the problem of an unknown key with the places that have such a key: below its own first, else anywhere."""
    parent, _, key = problem.path.rpartition(".")
    is_no_hook = parent == "hooks" and key not in HOOKS and ":" not in key
    advises = problem.suggestion and not problem.suggestion.startswith(("did you mean", "known:"))
    if (problem.message != "unknown key" and not is_no_hook) or advises:
        return problem
    paths = [path for path in dict.fromkeys(_all_paths(data, task)) if path.rpartition(".")[2] == key]
    near = [path for path in paths if path.startswith(f"{parent}.")] if parent else []
    places = sorted(near or ([] if is_no_hook else paths), key=lambda path: path.count("."))[:_MOST]
    if not places:
        return problem
    quoted = " or ".join(f"'{path}'" for path in places)
    return replace(problem, suggestion=f"did you mean {quoted}?")


def _all_paths(data: Mapping[str, Any], task: type[Task] | None) -> Iterator[str]:
    """Yield the paths of all keys that an experiment may have, with the arguments of what it names."""
    yield from (f"task_args.{name}" for name in (parameters(task) if task else ()))
    yield from _arguments("optimizer", data, OPTIMIZERS, Experiment.model_fields["optimizer"].default.type)
    yield "optimizer.groups"
    yield from key_paths()
    yield from _arguments("scheduler", data, SCHEDULERS, None)
    several = data.get("optimizers")
    for name, entry in several.items() if isinstance(several, dict) else ():
        yield from _arguments(f"optimizers.{name}", {f"optimizers.{name}": entry}, OPTIMIZERS, None)
    written = data.get("hooks")
    entries = written if isinstance(written, dict) else {}
    names = dict.fromkeys([*entries, *DEFAULT_HOOKS, *HOOKS])
    for name in names:
        entry = entries.get(name)
        kind = entry.get("type", name) if isinstance(entry, dict) else name
        if isinstance(kind, str) and kind in HOOKS:
            yield from (f"hooks.{name}.{field}" for field in parameters(HOOKS[kind]))


def _arguments(key: str, data: Mapping[str, Any], table: Mapping[str, Any], default: str | None) -> Iterator[str]:
    entry = data.get(key)
    kind = entry.get("type", default) if isinstance(entry, dict) else default
    if isinstance(kind, str) and kind in table:
        yield from (f"{key}.{name}" for name in signature_model(table[kind]).model_fields)
