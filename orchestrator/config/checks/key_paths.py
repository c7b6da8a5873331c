"""The dotted paths of all keys of an experiment, and suggestions for a key in the wrong place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import BaseModel

from hooks import HOOKS
from orchestrator.config.optim.optimizer import OPTIMIZERS
from orchestrator.config.optim.scheduler import SCHEDULERS
from orchestrator.config.python.parameters import parameters, signature_model
from orchestrator.config.python.wording import UNKNOWN_KEY, models_in
from orchestrator.config.sections.experiment import Experiment
from orchestrator.config.text.reader import join
from orchestrator.errors import Problem
from orchestrator.task import Task

_MAX_PLACES = 3


@cache
def key_paths() -> tuple[str, ...]:
    """Return the dotted path of each key that a model of the experiment declares."""
    return tuple(dict.fromkeys(_model_paths(Experiment)))


def _model_paths(model: type[BaseModel], path: str = "", above: tuple[type[BaseModel], ...] = ()) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = join(path, name)
        yield inner
        for child in models_in(field.annotation):
            if child not in above:
                yield from _model_paths(child, inner, (*above, child))


def suggest_place(problem: Problem, data: Mapping[str, Any], task: type[Task] | None) -> Problem:
    """Suggest where an unknown key belongs: below its own parent first, else anywhere."""
    parent, _, key = problem.path.rpartition(".")
    is_hook = parent == "hooks" and key not in HOOKS and ":" not in key
    has_advice = problem.suggestion and not problem.suggestion.startswith(("did you mean", "known:"))
    if (problem.message != UNKNOWN_KEY and not is_hook) or has_advice:
        return problem
    paths = [path for path in dict.fromkeys(_all_paths(data, task)) if path.rpartition(".")[2] == key]
    near = [path for path in paths if path.startswith(f"{parent}.")] if parent else []
    places = sorted(near or ([] if is_hook else paths), key=lambda path: path.count("."))[:_MAX_PLACES]
    if not places:
        return problem
    quoted = " or ".join(f"'{path}'" for path in places)
    return replace(problem, suggestion=f"did you mean {quoted}?")


def _all_paths(data: Mapping[str, Any], task: type[Task] | None) -> Iterator[str]:
    """Yield the paths of all keys that an experiment may have, with the arguments of the classes that it names."""
    yield from (f"task_args.{name}" for name in (parameters(task) if task else ()))
    yield from _argument_paths("optimizer", data.get("optimizer"), OPTIMIZERS, "SGD")
    yield "optimizer.groups"
    yield from key_paths()
    yield from _argument_paths("scheduler", data.get("scheduler"), SCHEDULERS)
    several = data.get("optimizers")
    for name, entry in several.items() if isinstance(several, dict) else ():
        yield from _argument_paths(f"optimizers.{name}", entry, OPTIMIZERS)
    hooks = data.get("hooks")
    entries = hooks if isinstance(hooks, dict) else {}
    for name in dict.fromkeys([*entries, *HOOKS]):
        entry = entries.get(name)
        kind = entry.get("type", name) if isinstance(entry, dict) else name
        if isinstance(kind, str) and kind in HOOKS:
            yield from (f"hooks.{name}.{field}" for field in parameters(HOOKS[kind]))


def _argument_paths(path: str, entry: Any, table: Mapping[str, Any], default: str | None = None) -> Iterator[str]:
    kind = entry.get("type", default) if isinstance(entry, dict) else default
    if isinstance(kind, str) and kind in table:
        yield from (f"{path}.{name}" for name in signature_model(table[kind]).model_fields)
