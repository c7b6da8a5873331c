"""Values that Python code gives in mappings, and that would change in a file."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hooks import HOOKS
from hooks.import_path import extend_import_path
from orchestrator.errors import Problem, collect_problems, shorten_value
from orchestrator.experiment.fields.field_values import LostValue, convert_value
from orchestrator.experiment.fields.parameters import list_parameters
from orchestrator.experiment.make_hooks import find_hook_class
from orchestrator.nearest_names import did_you_mean
from orchestrator.task import Task
from orchestrator.user_code.named_classes import find_class


def find_changed_values(given: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each given value that would arrive changed in the task or a hook.

    `data` is the whole experiment as a file holds it, which names the classes. They are looked up
    where the workers look them up, also in the current folder.
    """
    changeable = [entry for entry in _list_values(given) if not _is_plain(entry[-1])]
    if changeable:
        extend_import_path([Path.cwd()])
    for path, field_path, value in changeable:
        try:
            _check_arrival(field_path, value, data)
        except LostValue as error:
            # Other reasons may be those of a class or an object, which is written by name.
            if error.suggestion:
                message = f"{error}, got {shorten_value(value)}"
                yield Problem(path, message, suggestion=error.suggestion)


def _is_plain(value: Any) -> bool:
    """Return whether a file holds a value as it is."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _check_arrival(path: str, value: Any, data: Mapping[str, Any]) -> None:
    """Raise LostValue if the value of a field of the task or a hook would arrive changed."""
    match path.split("."):
        case ["task_args", name]:
            kind = data.get("task")
            cls = _find_task(kind)
        case ["hooks", hook, name] if name != "type":
            kind = _as_mapping(_as_mapping(data.get("hooks")).get(hook)).get("type", hook)
            cls = _find_hook(kind)
        case _:
            return
    if cls is None:
        raise LostValue(
            f"could change on the way to the workers, because the class '{kind}' cannot be found here",
            did_you_mean(str(kind), HOOKS) or "give the class itself instead of its name",
        )
    if name in list_parameters(cls):
        convert_value(cls, name, value)


def _find_task(name: Any) -> type | None:
    # `find_class` only looks the class up, so it may be abstract.
    return collect_problems([], find_class, name, Task, {}) if isinstance(name, str) else None


def _find_hook(name: Any) -> type | None:
    return collect_problems([], find_hook_class, name) if isinstance(name, str) else None


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
