"""Arguments that a config gives to a class: their names, types and ranges."""

import ast
import collections.abc
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from types import GenericAlias
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError

from hooks.needs import Needs
from orchestrator.errors import ConfigError, Problem, raise_problems
from orchestrator.experiment.fields.field_errors import without_refused_nulls
from orchestrator.experiment.fields.field_values import (
    list_lost_defaults,
    list_parameters,
    read_type_hints,
)
from orchestrator.experiment.fields.messages import convert_errors
from orchestrator.experiment.fields.model import create_fields_model
from orchestrator.experiment.yaml.document import join
from orchestrator.experiment.yaml.source import to_plain_data
from orchestrator.user_code import catch_user_errors

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def construct(cls: type[T], values: Mapping[str, Any], path: str) -> tuple[T, dict[str, Any]]:
    """Create a dataclass instance from values, and return it with all its parameters as plain data.

    Leaves out defaults that a file cannot hold, so that the class sets them again.
    Raises ConfigError with every problem: those of single values below `path`, the class's own
    error at `path`.
    """
    model = make_fields_model(cls, path)
    checked = check(model, values, path)
    raise_problems(check_needs(checked, checked, path))
    arguments = {name: getattr(checked, name) for name in checked.model_fields_set}
    # Mypy takes classes for unhashable.
    lost = list_lost_defaults(cls) - checked.model_fields_set  # type: ignore[arg-type]
    with catch_user_errors(path):
        return cls(**arguments), checked.model_dump(
            mode="json", warnings=False, exclude=lost, fallback=str
        )


def check(model: type[M], values: Mapping[str, Any], path: str) -> M:
    """Validate values as those of a file: a number in quotes is a string, `true` is not a number.

    Null means the default unless the field allows null. Raises ConfigError.
    """
    return check_with(model.model_validate, model, values, path)


def check_with(
    validate: Callable[[dict[str, Any]], T],
    model: type[BaseModel],
    values: Mapping[str, Any],
    path: str,
) -> T:
    """Return what `validate` makes of the values, and convert its errors.

    A refused null means the default, so the values are validated again without it. Raises
    ConfigError with the problems of the values, which are those of a `model` at `path`.
    """
    plain = to_plain_data(values, path)
    try:
        return validate(plain)
    except ValidationError as error:
        rest = without_refused_nulls(error, plain)
        if rest != plain:
            return check_with(validate, model, rest, path)
        raise ConfigError(convert_errors(error, model, plain, path)) from None


def check_needs(model: BaseModel, settings: BaseModel, path: str = "") -> Iterator[Problem]:
    """Yield a problem for each field that differs from its default and has an unmet need."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        field_path = join(path, name)
        needs = [item for item in field.metadata if isinstance(item, Needs)]
        unmet = [need for need in needs if not need.is_met(settings)]
        if unmet:
            message = f"has no effect {unmet[0].describe_unmet(settings)}; remove it"
            default = field.get_default(call_default_factory=True)
            for key in find_changed_keys(value, default, field_path):
                yield Problem(key, message)
        elif isinstance(value, BaseModel):
            yield from check_needs(value, settings, field_path)


def find_changed_keys(value: Any, default: Any, path: str) -> Iterator[str]:
    """Yield the path of each key that differs from its default, field by field."""
    if isinstance(value, BaseModel) and isinstance(default, BaseModel):
        for name in type(value).model_fields:
            yield from find_changed_keys(
                getattr(value, name), getattr(default, name), join(path, name)
            )
    elif value != default:
        yield path


def get_field_docs(cls: type) -> dict[str, str]:
    """Return the docstring below each field, inherited ones included."""
    docs: dict[str, str] = {}
    for parent in reversed(cls.__mro__):
        docs.update(_get_own_field_docs(parent))
    return docs


@cache
def _get_own_field_docs(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
    docs = {}
    for pair in pairwise(body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                docs[name] = inspect.cleandoc(text)
    return docs


def make_fields_model(cls: type, path: str = "") -> type[BaseModel]:
    """Return a pydantic model with a dataclass's fields: types, constraints and defaults.

    `get_field_docs` gives their docs, as reading a class's source takes longer than all the rest.
    """
    with catch_user_errors(
        path, f"the fields of {cls.__module__}.{cls.__qualname__} cannot be read"
    ):
        if "__dataclass_fields__" not in cls.__dict__:
            own = inspect.get_annotations(cls)
            declared = [name for name, hint in own.items() if "ClassVar" not in str(hint)]
            if declared:
                message = f"{cls.__module__}.{cls.__qualname__} declares {', '.join(declared)}"
                raise ConfigError.at(
                    path, f"{message} but is not a dataclass", "put @dataclass above the class"
                )
        return _make_fields_model(cls)


@cache
def _make_fields_model(cls: type) -> type[BaseModel]:
    hints = read_type_hints(cls)
    return create_fields_model(
        cls, {name: (hints[name], field) for name, field in list_parameters(cls).items()}
    )


@cache
def make_signature_model(
    cls: Callable[..., Any], skip: int = 1, extra_keys: tuple[str, ...] = ()
) -> type[BaseModel]:
    """Return a pydantic model of the arguments of a class or function.

    The model has the arguments after the first `skip`, and `extra_keys`. An argument without
    annotation takes the type of its default if that is a number.
    """
    arguments = list(inspect.signature(cls).parameters.values())[skip:]
    # Mypy warns of subclasses with another `__init__`, but this is the one that is called.
    hints = evaluate_annotations(cls.__init__ if isinstance(cls, type) else cls)  # type: ignore[misc]
    fields: dict[str, Any] = dict.fromkeys(extra_keys, (Any, None))
    for argument in arguments:
        is_named = argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY)
        # The position of a scheduler is restored from a checkpoint.
        if is_named and argument.name != "last_epoch":
            fields[argument.name] = _describe_argument(argument, hints)
    has_var_keyword = any(argument.kind is argument.VAR_KEYWORD for argument in arguments)
    return create_fields_model(cls, fields, "allow" if has_var_keyword else "forbid")


def _describe_argument(argument: inspect.Parameter, hints: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the type and the default of an argument."""
    default = ... if argument.default is argument.empty else argument.default
    default_type = type(default) if type(default) in (int, float) else Any
    hint = hints.get(argument.name, default_type)
    if get_origin(hint) is collections.abc.Iterable:
        # Pydantic would check its elements only when they are used.
        hint = GenericAlias(list, get_args(hint))
    return hint, default


def evaluate_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function as types; empty if one cannot be evaluated."""
    try:
        return get_type_hints(function, localns=vars(collections.abc), include_extras=True)
    except Exception:  # annotations are evaluated here and may name anything
        return {}
