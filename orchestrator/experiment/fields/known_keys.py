"""The keys and the values that a model allows at a place, for suggestions."""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orchestrator.experiment.fields.field_errors import get_child

_MAX_KEYS = 20
"""Maximum number of keys in a message."""


def map_fields_by_key(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model by their keys in a file."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def find_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that an annotation names, including its branches."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from find_models(inner)


def find_direct_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a field holds itself, including its branches: not those in its mappings
    and lists, where a key or an index comes before the keys of a model."""
    if get_origin(annotation) in (dict, list):
        return
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from find_direct_models(inner)


def list_known_keys(
    model: type[BaseModel], location: Iterable[int | str], values: Any
) -> list[str]:
    """Return the keys of the model at a location; none if the values there are no model's."""
    owner, _ = _find(model, location, values)
    return [] if owner is None else list(map_fields_by_key(owner))


def format_keys(keys: Sequence[str], model_name: str = "") -> str:
    """Return the known keys as text, or where they are listed if there are many."""
    if not keys:
        return "the value has no keys"
    if len(keys) > _MAX_KEYS:
        return "`hookyard schema` lists the keys"
    known = f"known to {model_name}" if model_name else "known"
    return f"{known}: {', '.join(sorted(keys))}"


def list_allowed_words(
    model: type[BaseModel], location: Iterable[int | str], values: Any
) -> list[str]:
    """Return the strings that the field at a location takes, if it takes only some."""
    _, annotation = _find(model, location, values)
    return [word for word in _find_words(annotation) if isinstance(word, str)]


def _find(
    model: type[BaseModel], location: Iterable[int | str], values: Any
) -> tuple[type[BaseModel] | None, Any]:
    """Return the model and the annotation of the field at a location."""
    current: type[BaseModel] | None = model
    annotation: Any = None
    for part in location:
        if current is None:
            break
        field = map_fields_by_key(current).get(str(part))
        values = get_child(values, part)
        if field is None:
            # A key of a mapping, or an index of a list, whose values are models that the field
            # before has named.
            continue
        annotation = field.annotation
        current = _choose_model(list(find_models(annotation)), values)
    return current, annotation


def _choose_model(models: list[type[BaseModel]], values: Any) -> type[BaseModel] | None:
    """Return the branch of a union that the values name by their `type`, or the first."""
    if not models:
        return None
    kind = values.get("type") if isinstance(values, dict) else None
    for model in models:
        field = model.model_fields.get("type")
        if field is not None and field.default == kind:
            return model
    return models[0]


def _find_words(annotation: Any) -> Iterator[Any]:
    """Yield the values that an annotation names: of literals, of enums, and of models' `type`."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
        return
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        for member in annotation:
            yield member.value
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        kind = annotation.model_fields.get("type")
        if kind is not None:
            yield kind.default
    for inner in get_args(annotation):
        yield from _find_words(inner)
