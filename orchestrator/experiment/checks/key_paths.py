"""Suggestions for unknown keys that exist elsewhere in an experiment."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import BaseModel

from hooks import HOOKS
from orchestrator.errors import UNKNOWN_KEY, Problem
from orchestrator.experiment.fields.class_models import make_signature_model
from orchestrator.experiment.fields.known_keys import find_direct_models, map_fields_by_key
from orchestrator.experiment.fields.parameters import list_parameters
from orchestrator.experiment.optim.optimizer import OPTIMIZERS
from orchestrator.experiment.optim.scheduler import SCHEDULERS
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.dotted_paths import join
from orchestrator.task import Task

_MAX_SUGGESTIONS = 3


def suggest_path(problem: Problem, task: type[Task] | None) -> Problem:
    """Suggest the keys of this name deeper below the parent of an unknown key, if there are any."""
    if problem.code != UNKNOWN_KEY:
        return problem
    parent, dot, key = problem.path.rpartition(".")
    task_arguments = [f"task_args.{name}" for name in (list_parameters(task) if task else ())]
    candidates = [
        path
        for path in _find_deeper_paths(key, (*task_arguments, *_list_key_paths()))
        if path.startswith(f"{parent}{dot}") and path != problem.path
    ]
    if not candidates:
        return problem
    nearest = candidates[:_MAX_SUGGESTIONS]
    return replace(problem, suggestion=f"did you mean {' or '.join(map(repr, nearest))}?")


def find_key(name: str) -> str | None:
    """Return the key of this name, or the highest below other keys: `optimizer.lr` for `lr`.

    None if there is no such key, or if several are equally high.
    """
    if name in Experiment.model_fields:
        return name
    paths = _find_deeper_paths(name, _list_key_paths())
    highest = [path for path in paths if path.count(".") == paths[0].count(".")]
    return highest[0] if len(highest) == 1 else None


def _find_deeper_paths(key: str, paths: Iterable[str]) -> list[str]:
    """Return the paths of keys of this name below other keys, the highest first."""
    deeper = [path for path in paths if path.endswith(f".{key}")]
    return sorted(deeper, key=lambda path: path.count("."))


@cache
def _list_key_paths() -> tuple[str, ...]:
    """Return the dotted paths of all keys: of sections, of torch's classes, and of hooks."""
    paths = ["optimizer.groups", *_list_model_paths(Experiment)]
    paths += _list_argument_paths("optimizer", OPTIMIZERS)
    paths += _list_argument_paths("scheduler", SCHEDULERS)
    for name, cls in HOOKS.items():
        paths.append(f"hooks.{name}")
        paths += [f"hooks.{name}.{field}" for field in list_parameters(cls)]
    return tuple(dict.fromkeys(paths))


def _list_argument_paths(path: str, table: Mapping[str, Any]) -> Iterator[str]:
    for cls in table.values():
        for name in make_signature_model(cls).model_fields:
            yield f"{path}.{name}"


def _list_model_paths(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, field in map_fields_by_key(model).items():
        inner = join(path, name)
        yield inner
        for child in find_direct_models(field.annotation):
            yield from _list_model_paths(child, inner)
