"""Classes of torch and methods of the task, as optimizers and schedulers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeVar

from torch import nn
from torch.optim import Optimizer

from orchestrator.errors import FOREIGN_KEY, UNKNOWN_KEY, ConfigError, Problem
from orchestrator.experiment.fields.field_values import list_parameters
from orchestrator.experiment.fields.parameters import check, make_signature_model
from orchestrator.experiment.optim.component import FROM_TASK
from orchestrator.experiment.yaml.document import join
from orchestrator.task import Task
from orchestrator.user_code import find_class

T = TypeVar("T")

_PLAIN_TYPES = (int, float, str, list, tuple, dict, type(None))


def find_subclasses(module: ModuleType, base: type[T]) -> dict[str, type[T]]:
    """Return the public subclasses of a class in a module, by name."""
    subclasses: dict[str, type[T]] = {}
    for name, value in vars(module).items():
        if name.startswith("_") or not isinstance(value, type):
            continue
        if issubclass(value, base) and value is not base:
            subclasses[name] = value
    return subclasses


# Classes


class _ArgumentsChecked(Exception):
    """Raised once the class has checked its arguments and begins to use the parameters."""


class NoParameters:
    """A placeholder for an optimizer's parameters."""

    def __iter__(self) -> Iterator[nn.Parameter]:
        raise _ArgumentsChecked


class NoOptimizer(Optimizer):
    """A placeholder for a scheduler's optimizer; creating a real one imports torch's compiler,
    which takes seconds."""

    def __init__(self) -> None:
        pass

    def __getattribute__(self, name: str) -> Any:
        raise _ArgumentsChecked


def check_component(
    kind: str,
    arguments: Mapping[str, Any],
    base: type[T],
    table: Mapping[str, type[T]],
    first: NoParameters | NoOptimizer,
    path: str,
    extra_keys: tuple[str, ...] = (),
) -> None:
    """Check names and types of arguments, and for torch's own classes also values.

    Raises ConfigError.

    Values are checked by the class itself, up to its first use of the parameters. `extra_keys` are
    allowed too.
    """
    cls: Any = find_class(kind, base, table, join(path, "type"))
    check(make_signature_model(cls, extra_keys=extra_keys), arguments, path)
    if cls in table.values():
        with suppress(_ArgumentsChecked):
            build_component(cls, first, kind, arguments, path)


def build_component(
    cls: Callable[..., Any], first: Any, kind: str, arguments: Mapping[str, Any], path: str
) -> Any:
    """Build an optimizer over parameters or a scheduler over an optimizer.

    Raises ConfigError with the class's error.
    """
    try:
        return cls(first, **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError.at(path, f"{kind} raised: {error}") from error


# Methods of the task


def has_own_method(task: type[Task], method: str) -> bool:
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
        checked = check(make_method_model(task, method), written, path)
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
    if problem.code not in (UNKNOWN_KEY, FOREIGN_KEY):
        return problem
    key = problem.path.rpartition(".")[2]
    hint = f"write task_args.{key}" if key in list_parameters(task) else problem.suggestion
    return replace(
        problem,
        message=f"has no effect: {task.__name__}.{method}() takes no {key}",
        suggestion=hint,
    )
