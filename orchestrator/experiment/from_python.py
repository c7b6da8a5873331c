"""An experiment made in Python: its classes, objects and values as those of a file."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator.errors import (
    ConfigError,
    Problem,
    collect_problems,
    raise_problems,
    shorten_value,
)
from orchestrator.experiment.changed_values import find_changed_values
from orchestrator.experiment.fields.plain_data import (
    Convert,
    convert_all,
    convert_by_key,
    convert_fields,
    to_class_name,
    to_config,
    to_entry,
    to_type,
)
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.task import Task
from orchestrator.user_code.import_folders import list_import_folders


def convert_values(
    values: Mapping[str, Any], others: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the values that Python code gives to an experiment as those of a file.

    The name defaults to that of the task's class. `others` are the values that the experiment has
    already, as those of a file. Raises ConfigError with the path of each value that a file cannot
    hold, or that would arrive changed in a worker.
    """
    data = _convert_sections(values)
    complete = {**others, **data}
    if complete.get("name") is None:
        data["name"] = _make_name(complete.get("task") or "experiment")
    raise_problems(find_changed_values(values, complete))
    return data


def make_source(data: Mapping[str, Any]) -> ExperimentSource:
    """Return the source of an experiment with these values.

    Classes are imported from their own folders and the current one.
    """
    return ExperimentSource.from_data(data, [Path.cwd(), *list_import_folders(data)])


def add_values(source: ExperimentSource, data: Mapping[str, Any]) -> ExperimentSource:
    """Return a source with more values over it, and the folders of the classes that they name."""
    folders = dict.fromkeys([*source.import_paths, *map(str, list_import_folders(data))])
    return replace(source.with_values(data), import_paths=tuple(folders))


def _convert_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the sections of an experiment; the fields of a task instance become its arguments.

    Raises ConfigError with the path of each value that a file cannot hold.
    """
    problems: list[Problem] = []
    others = {key: value for key, value in values.items() if key != "task"}
    data = collect_problems(problems, convert_by_key, others, "", _choose_converter) or {}
    task = None
    if "task" in values:
        task = collect_problems(problems, _convert_task, values["task"])
    if task and "task_args" in task and "task_args" in values:
        problems.append(
            Problem("task_args", "has no effect with a task instance; set its fields instead")
        )
    raise_problems(problems)
    return {**(task or {}), **data}


def _choose_converter(section: str) -> Convert:
    return _CONVERTERS.get(section, to_config)


def _make_name(task: str) -> str:
    """Return the name of a task's class in snake case."""
    class_name = task.rpartition(":")[2]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower()


def _convert_task(task: Any) -> dict[str, Any]:
    """Convert a task, its class or its class's import path to `task` and `task_args`.

    Raises ConfigError.
    """
    match task:
        case None | str():
            return {"task": task}
        case type() if issubclass(task, Task):
            return {"task": to_class_name(task, "task")}
        case Task():
            return {
                "task": to_class_name(type(task), "task"),
                "task_args": convert_fields(task, "task_args"),
            }
    raise ConfigError.at(
        "task", f"must be a task, its class, or 'module:Class', got {shorten_value(task)}"
    )


def convert_sweep(value: Any, path: str = "") -> Any:
    """Convert a sweep, which has values for other parts of the experiment; raise ConfigError."""
    converters: Mapping[str, Convert] = {
        "space": _convert_space,
        "points": partial(convert_all, convert=_convert_point),
        "repeats": _convert_repeats,
    }
    return convert_by_key(value, path, lambda key: converters.get(key, to_config))


def _convert_space(value: Any, path: str) -> Any:
    return convert_by_key(value, path, lambda swept: partial(_convert_domain, str(swept)))


def _convert_point(value: Any, path: str) -> Any:
    return convert_by_key(value, path, lambda swept: partial(_convert_swept, str(swept)))


def _convert_repeats(value: Any, path: str) -> Any:
    return convert_by_key(value, path, lambda swept: partial(_convert_list, str(swept)))


def _convert_domain(swept: str, value: Any, path: str) -> Any:
    return convert_all(value, path, partial(_convert_list, swept))


def _convert_list(swept: str, value: Any, path: str) -> Any:
    return convert_all(value, path, partial(_convert_swept, swept))


def _convert_swept(swept: str, value: Any, path: str) -> Any:
    """Convert a value of a swept path.

    A field that a hook leaves at its default stays open, as it may be swept by a path of its own.
    """
    to_open_entry = partial(to_entry, with_defaults=False)
    match swept.split("."):
        case ["task"]:
            return to_type(value, path)
        case ["hooks" | "optimizers"]:
            return convert_all(value, path, to_open_entry)
        case ["hooks" | "optimizers", _]:
            return to_open_entry(value, path)
        case ["hooks" | "optimizers" | "optimizer" | "scheduler", *_, "type"]:
            return to_type(value, path)
        case ["optimizer" | "scheduler" | "hooks" | "optimizers", *_]:
            return to_open_entry(value, path)
    return to_config(value, path)


_CONVERTERS: Mapping[str, Convert] = {
    "optimizer": to_entry,
    "scheduler": to_entry,
    "optimizers": partial(convert_all, convert=to_entry),
    "hooks": partial(convert_all, convert=to_entry),
    "sweep": convert_sweep,
}
"""How to convert the sections that may have classes or objects in them."""
