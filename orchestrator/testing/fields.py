"""Values for a hook's fields, drawn by their types and bounds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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
"""How far from its lower bound a number is drawn that has no upper one: larger ones only make a small loop slow."""


PARTS = 16
"""Into how many parts a number's range is cut: values that people can read, the bounds among them."""


def hypothesis() -> Any:
    """The module; raises ImportError with what to install."""
    try:
        import hypothesis
    except ImportError:
        raise ImportError(
            "check_hook draws fields with hypothesis, which is not installed: pip install 'hookyard[testing]'"
        ) from None
    return hypothesis


def for_each(examples: int, call: Callable[..., None], *strategies: SearchStrategy[Any]) -> None:
    """Calls with so many sets of drawn arguments, the same each time."""
    library = hypothesis()
    settings = library.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(library.HealthCheck),
        phases=[library.Phase.generate],
    )

    def called(arguments: tuple[Any, ...]) -> None:
        call(*arguments)

    settings(library.given(library.strategies.tuples(*strategies))(called))()


def values_of(
    cls: type[Hook], given: Mapping[str, Any], among: Collection[str] | None = None
) -> SearchStrategy[dict[str, Any]]:
    """Values of all fields, or of those among some, for which any can be drawn and none is given; as an experiment file
    says them."""
    hints = get_type_hints(cls, include_extras=True)
    names = [name for name in parameters(cls) if name not in given and (among is None or name in among)]
    drawn = {name: _values(hints[name]) for name in names}
    strategies: Any = hypothesis().strategies
    made: SearchStrategy[dict[str, Any]] = strategies.fixed_dictionaries(
        {name: one for name, one in drawn.items() if one is not None}
    )
    return made


def _values(hint: Any, bounds: Sequence[Any] = ()) -> Any:
    """A strategy for a type with bounds; None where nothing of use can be drawn, as of text and mappings."""
    strategies: Any = hypothesis().strategies
    kind, within = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _values(within[0], [*bounds, *_unpacked(within[1:])])
    if kind in (Union, UnionType):
        drawn = [one for member in within if member is not NoneType and (one := _values(member, bounds)) is not None]
        return strategies.one_of([strategies.none()] * (NoneType in within) + drawn) if drawn else None
    if kind is Literal:
        return strategies.sampled_from(within)
    if hint is bool:
        return strategies.booleans()
    if hint is Interval:
        units = next((bound for bound in bounds if isinstance(bound, Units)), EPOCHS_OR_STEPS)
        counts = strategies.integers(units.ge, units.ge + 5)
        return strategies.builds(lambda count, unit: f"{count} {unit}", counts, strategies.sampled_from(units.names))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return strategies.sampled_from([one.value for one in hint])
    if hint in (int, float):
        return _numbers(hint, bounds)
    if kind in (list, tuple, set, frozenset):
        return _lists(kind, within, bounds)
    return None


def _numbers(kind: type, bounds: Sequence[Any]) -> Any:
    strategies: Any = hypothesis().strategies
    least, most, above, below = _limit(bounds, "ge"), _limit(bounds, "le"), _limit(bounds, "gt"), _limit(bounds, "lt")
    low = max((one for one in (least, above) if one is not None), default=None)
    high = min((one for one in (most, below) if one is not None), default=None)
    if low is None:
        low = -REACH if high is None else high - REACH
    if high is None:
        high = low + REACH
    if kind is int:
        return strategies.integers(int(low) + (low == above), min(int(high) - (high == below), int(low) + REACH))
    steps = strategies.integers(int(low == above), PARTS - int(high == below))
    return steps.map(lambda step: low + (high - low) * step / PARTS)


def _lists(kind: type, within: Sequence[Any], bounds: Sequence[Any]) -> Any:
    strategies: Any = hypothesis().strategies
    if kind is tuple and within and within[-1] is not ...:
        parts = [_values(one) for one in within]
        return None if None in parts else strategies.tuples(*parts).map(list)
    member = _values(within[0]) if within else None
    least = int(_limit(bounds, "min_length") or 0)
    most = int(_limit(bounds, "max_length") or least + 2)
    return None if member is None else strategies.lists(member, min_size=least, max_size=most)


def _unpacked(bounds: Sequence[Any]) -> list[Any]:
    """With what pydantic's `Field` holds in place of it."""
    return [inner for one in bounds for inner in (one.metadata if isinstance(one, FieldInfo) else [one])]


def _limit(bounds: Sequence[Any], name: str) -> Any:
    return next((getattr(one, name) for one in bounds if getattr(one, name, None) is not None), None)
