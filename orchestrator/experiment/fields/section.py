"""The base of every section of an experiment file."""

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict

from orchestrator.experiment.fields.model import FileModel
from orchestrator.experiment.fields.plain_data import to_config
from orchestrator.experiment.fields.validation import validate_with


class Model(FileModel):
    """The base of every part: unknown keys are errors, fields cannot be changed, each field's doc
    sits under it.

    A part created in Python may hold classes and objects; raises ConfigError where it is wrong.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
    )

    def __init__(self, **values: Any) -> None:
        self._read(self._convert(values))

    # Without this mark of its own, pydantic would also call `__init__` for the parts of a file.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def _convert(cls, values: Mapping[str, Any]) -> Any:
        """Convert the values of a part that is created in Python to those of a file."""
        return to_config(values)

    def _read(self, data: Mapping[str, Any]) -> None:
        """Set the fields to the values of a file; raise ConfigError."""
        super_init = super().__init__
        validate_with(lambda values: super_init(**values), type(self), data, "")
