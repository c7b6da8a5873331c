"""Validation of plain data by a pydantic model, with problems in the words of a config."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.field_errors import without_refused_nulls
from orchestrator.experiment.fields.messages import convert_errors
from orchestrator.experiment.yaml.dotted_paths import join
from orchestrator.experiment.yaml.plain_values import to_plain_data
from orchestrator.user_code.failures import catch_user_errors

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], values: Mapping[str, Any], path: str) -> M:
    """Validate values as those of a file: a number in quotes is a string, `true` is not a number.

    Null means the default unless the field allows null. Raises ConfigError.
    """
    return validate_with(model.model_validate, model, values, path)


def validate_with(
    read: Callable[[dict[str, Any]], T],
    model: type[BaseModel],
    values: Mapping[str, Any],
    path: str,
) -> T:
    """Return what `read` makes of the values, and convert its errors.

    A refused null means the default, so the values are validated again without it. Raises
    ConfigError with the problems of the values, which are those of a `model` at `path`.
    """
    plain = to_plain_data(values, path)
    try:
        return read(plain)
    except ValidationError as error:
        rest = without_refused_nulls(error, plain)
        if rest != plain:
            return validate_with(read, model, rest, path)
        raise ConfigError(convert_errors(error, model, plain, path)) from None
    except Exception:  # of a validator of the user's, which pydantic passes on
        with catch_user_errors(join(path, _find_raising_key(read, plain))):
            raise


def _find_raising_key(read: Callable[[dict[str, Any]], Any], values: Mapping[str, Any]) -> str:
    """Return the key whose value makes `read` raise another error than pydantic's."""
    for key, value in values.items():
        try:
            read({key: value})
        except ValidationError:
            continue
        except Exception:
            return key
    return ""
