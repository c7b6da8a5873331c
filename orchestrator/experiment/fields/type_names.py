"""The types of fields as text, for the reference and `hookyard hooks`."""

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hooks.interval import EPOCHS_OR_STEPS, Interval, Units


def format_type(hint: Any) -> str:
    """Format a type for people: `float >= 0 and < 1`, `near | far`, `Interval in steps >= 1`."""
    base = get_origin(hint)
    arguments = get_args(hint)
    if base is Annotated:
        return _format_annotated(*arguments)
    if base in (Union, UnionType):
        return " | ".join(map(format_type, arguments))
    if base is Literal:
        return " | ".join(map(str, arguments))
    if hint is NoneType:
        return "null"
    if hint is ...:
        return "..."
    if hint is Interval:
        return _format_interval(EPOCHS_OR_STEPS)
    name = getattr(base or hint, "__name__", str(hint))
    return f"{name}[{', '.join(map(format_type, arguments))}]" if arguments else name


def _format_annotated(hint: Any, *annotations: Any) -> str:
    units = [annotation for annotation in annotations if isinstance(annotation, Units)]
    name = _format_interval(*units) if units else format_type(hint)
    bounds = [_format_bound(annotation) for annotation in annotations]
    return f"{name} {' and '.join(filter(None, bounds))}".rstrip()


def _format_interval(units: Units) -> str:
    return f"Interval in {' or '.join(units.names)}"


def _format_bound(bound: Any) -> str:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    return " ".join(
        f"{sign} {getattr(bound, key)}"
        for key, sign in signs.items()
        if getattr(bound, key, None) is not None
    )
