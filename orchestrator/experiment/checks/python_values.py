"""Values that Python code gives in mappings, and that would change in a file."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.errors import Problem, shorten_value
from orchestrator.experiment.components import find_hook_class
from orchestrator.experiment.fields.field_values import LostValue, convert_value
from orchestrator.experiment.fields.parameters import list_parameters
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.task import Task
from orchestrator.user_code.named_classes import find_class


def find_changed_values(given: Mapping[str, Any], experiment: Experiment) -> Iterator[Problem]:
    """Yield a problem for each given value that would arrive changed in the task or a hook."""
    # `find_class` only looks the class up, so it may be abstract.
    task: type = find_class(experiment.task, Task, {})  # type: ignore[type-abstract]
    hooks = {
        f"hooks.{name}": find_hook_class(entry["type"])
        for name, entry in experiment.hooks.items()
        if isinstance(entry, Mapping)
    }
    classes = {"task_args": task, **hooks}
    for path, field_path, value in _list_values(given):
        owner, _, name = field_path.rpartition(".")
        cls = classes.get(owner)
        if cls is None or name not in list_parameters(cls):
            continue
        try:
            convert_value(cls, name, value)
        except LostValue as error:
            # Other reasons may be those of a class or an object, which is written by name.
            if error.suggestion:
                yield Problem(
                    path, f"{error}, got {shorten_value(value)}", suggestion=error.suggestion
                )


def _list_values(given: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the place of each value, the dotted path that it is for, and the value."""
    for name, value in _as_mapping(given.get("task_args")).items():
        yield f"task_args.{name}", f"task_args.{name}", value
    for hook, entry in _as_mapping(given.get("hooks")).items():
        for name, value in _as_mapping(entry).items():
            yield f"hooks.{hook}.{name}", f"hooks.{hook}.{name}", value

    sweep = _as_mapping(given.get("sweep"))
    for path, domain in _as_mapping(sweep.get("space")).items():
        for kind in ("choice", "grid", "fan_out"):
            for value in _as_list(_as_mapping(domain).get(kind)):
                yield f"sweep.space.{path}", path, value
    for index, point in enumerate(_as_list(sweep.get("points"))):
        for path, value in _as_mapping(point).items():
            yield f"sweep.points.{index}.{path}", path, value


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
