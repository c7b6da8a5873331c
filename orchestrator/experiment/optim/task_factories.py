"""The task's own methods that make an optimizer or a scheduler, and the arguments that they take."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.errors import FOREIGN_KEY, UNKNOWN_KEY, ConfigError, Problem
from orchestrator.experiment.fields.class_models import make_signature_model
from orchestrator.experiment.fields.parameters import list_parameters
from orchestrator.experiment.fields.validation import validate
from orchestrator.experiment.optim.component import FROM_TASK
from orchestrator.task import Task

_PLAIN_TYPES = (int, float, str, list, tuple, dict, type(None))


def has_own_method(task: type[Task], method: str) -> bool:
    """Return whether a task defines the method, instead of having that of `Task`."""
    return getattr(task, method) is not getattr(Task, method)


def make_method_model(task: type[Task], method: str) -> Any:
    """Return a pydantic model of the arguments after the model or optimizer of a task's method."""
    return make_signature_model(getattr(task, method), skip=2)


def fill_method_defaults(
    written: Mapping[str, Any], task: type[Task], method: str, path: str
) -> dict[str, Any]:
    """Return the arguments for a method of the task, with the defaults that it declares, and `type`.

    Raises ConfigError.
    """
    if not has_own_method(task, method):
        raise ConfigError.at(
            f"{path}.type", f"'{FROM_TASK}' needs a method {task.__name__}.{method}()"
        )

    try:
        checked = validate(make_method_model(task, method), written, path)
    except ConfigError as error:
        problems = [_explain_undeclared(problem, task, method) for problem in error.problems]
        raise ConfigError(problems) from None

    # The method keeps a default that YAML cannot hold.
    arguments = {
        name: value
        for name, value in checked.model_dump(mode="json", warnings=False, fallback=str).items()
        if name in written or isinstance(getattr(checked, name), _PLAIN_TYPES)
    }
    return {"type": FROM_TASK, **arguments}


def _explain_undeclared(problem: Problem, task: type[Task], method: str) -> Problem:
    """Say of an unknown key that the method does not take it; return any other problem unchanged."""
    if problem.code not in (UNKNOWN_KEY, FOREIGN_KEY):
        return problem
    key = problem.path.rpartition(".")[2]
    suggestion = problem.suggestion
    if key in list_parameters(task):
        suggestion = f"write task_args.{key}"
    message = f"has no effect: {task.__name__}.{method}() takes no {key}"
    return replace(problem, message=message, suggestion=suggestion)
