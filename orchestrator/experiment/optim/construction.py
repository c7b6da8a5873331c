"""The arguments of optimizers' and schedulers' classes: their values, and the objects made of them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any, TypeVar

from torch import nn
from torch.optim import Optimizer

from orchestrator.errors import ConfigError

T = TypeVar("T")


def find_subclasses(module: ModuleType, base: type[T]) -> dict[str, type[T]]:
    """Return the public subclasses of a class in a module, by name."""
    subclasses: dict[str, type[T]] = {}
    for name, value in vars(module).items():
        if name.startswith("_") or not isinstance(value, type):
            continue
        if issubclass(value, base) and value is not base:
            subclasses[name] = value
    return subclasses


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


def check_values(
    cls: Callable[..., Any],
    placeholder: NoParameters | NoOptimizer,
    arguments: Mapping[str, Any],
    path: str,
) -> None:
    """Let a class of torch check the values of its arguments, up to its first use of `placeholder`.

    Raises ConfigError with the class's error.
    """
    with suppress(_ArgumentsChecked):
        build_component(cls, placeholder, arguments, path)


def build_component(
    cls: Callable[..., Any], first: Any, arguments: Mapping[str, Any], path: str
) -> Any:
    """Build an optimizer over parameters or a scheduler over an optimizer, which are `first`.

    Raises ConfigError with the class's error.
    """
    try:
        return cls(first, **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError.at(path, f"{cls.__name__} raised: {error}") from error
