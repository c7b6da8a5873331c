"""Values for the fields of a hook, drawn by type and bounds with hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from hooks.hook import Hook
from hooks.interval import EPOCHS_OR_STEPS, Interval, Units
from orchestrator.config.python.parameters import parameters

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

REACH = 8
"""Width of a range that has one bound only: larger values would make a small loop slow."""
PARTS = 16
"""Steps of a float's range, so that drawn values are short and include the bounds."""


def import_hypothesis() -> Any:
    """Import hypothesis; raise ImportError with the command that installs it."""
    try:
        import hypothesis
    except ImportError:
        raise ImportError(
            "check_hook draws fields with hypothesis, which is not installed: pip install 'hookyard[testing]'"
        ) from None
    return hypothesis


def for_each(examples: int, call: Callable[..., None], *strategies: SearchStrategy[Any]) -> None:
    """Call with a number of drawn sets of arguments, the same in each process."""
    hypothesis = import_hypothesis()
    settings = hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )

    def call_with(arguments: tuple[Any, ...]) -> None:
        call(*arguments)

    settings(hypothesis.given(hypothesis.strategies.tuples(*strategies))(call_with))()


def field_values(
    cls: type[Hook], fixed: Collection[str], names: Collection[str] | None = None
) -> SearchStrategy[dict[str, Any]]:
    """Return a strategy for the fields that are not fixed, as an experiment file writes them.

    Without `names`, all fields are drawn whose type allows it.
    """
    hints = get_type_hints(cls, include_extras=True)
    drawn = [name for name in parameters(cls) if name not in fixed and (names is None or name in names)]
    strategies = {name: strategy for name in drawn if (strategy := _strategy(hints[name])) is not None}
    fields: SearchStrategy[dict[str, Any]] = import_hypothesis().strategies.fixed_dictionaries(strategies)
    return fields


def _strategy(hint: Any, bounds: Sequence[Any] = ()) -> Any:
    """Return a strategy for a type with bounds; None for text, mappings and others."""
    strategies = import_hypothesis().strategies
    base, arguments = get_origin(hint), get_args(hint)
    if base is Annotated:
        inner = [
            part for bound in arguments[1:] for part in (bound.metadata if isinstance(bound, FieldInfo) else [bound])
        ]
        return _strategy(arguments[0], [*bounds, *inner])
    if base in (Union, UnionType):
        members = [_strategy(member, bounds) for member in arguments if member is not NoneType]
        usable = [member for member in members if member is not None]
        return strategies.one_of([strategies.none()] * (NoneType in arguments) + usable) if usable else None
    if base is Literal:
        return strategies.sampled_from(arguments)
    if hint is bool:
        return strategies.booleans()
    if hint is Interval:
        units = next((bound for bound in bounds if isinstance(bound, Units)), EPOCHS_OR_STEPS)
        counts = strategies.integers(units.ge, units.ge + 5)
        return strategies.builds(lambda count, unit: f"{count} {unit}", counts, strategies.sampled_from(units.names))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return strategies.sampled_from([member.value for member in hint])
    if hint in (int, float):
        return _numbers(hint, bounds)
    if base is tuple and arguments and arguments[-1] is not ...:
        parts = [_strategy(part) for part in arguments]
        return None if None in parts else strategies.tuples(*parts).map(list)
    if base in (list, tuple, set, frozenset) and arguments and (member := _strategy(arguments[0])) is not None:
        min_size = int(_bound(bounds, "min_length") or 0)
        return strategies.lists(member, min_size=min_size, max_size=int(_bound(bounds, "max_length") or min_size + 2))
    return None


def _numbers(kind: type, bounds: Sequence[Any]) -> Any:
    strategies = import_hypothesis().strategies
    ge, le, gt, lt = (_bound(bounds, name) for name in ("ge", "le", "gt", "lt"))
    low = max((bound for bound in (ge, gt) if bound is not None), default=None)
    high = min((bound for bound in (le, lt) if bound is not None), default=None)
    if low is None:
        low = -REACH if high is None else high - REACH
    if high is None:
        high = low + REACH
    if kind is int:
        return strategies.integers(int(low) + (low == gt), min(int(high) - (high == lt), int(low) + REACH))
    steps = strategies.integers(int(low == gt), PARTS - int(high == lt))
    return steps.map(lambda step: low + (high - low) * step / PARTS)


def _bound(bounds: Sequence[Any], name: str) -> Any:
    return next((getattr(bound, name) for bound in bounds if getattr(bound, name, None) is not None), None)
