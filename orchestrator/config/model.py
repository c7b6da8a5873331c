"""The base of every part of an experiment file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """The base of every part: unknown keys are errors, values cannot be changed, each field's doc sits under it."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )
