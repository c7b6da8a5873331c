"""The JSON Schema of experiment files, for editors: every key, every hook and its parameters, with
their docs."""

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import PydanticOmit

from hooks import HOOKS, Hook, Priority
from orchestrator.experiment.fields.parameters import get_field_docs, make_fields_model
from orchestrator.experiment.optim.parameter_groups import Groups
from orchestrator.experiment.optim.schedule import PhaseBounds, WarmUp
from orchestrator.experiment.sections.experiment import Experiment

DIALECT = "https://json-schema.org/draft/2020-12/schema"
IMPORT_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
OFF = {"anyOf": [{"type": "null"}, {"type": "boolean"}]}


class _Lenient(GenerateJsonSchema):
    """A generator that leaves out types without a JSON form."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        raise PydanticOmit


def make_experiment_schema(hooks: Mapping[str, type[Hook]] = HOOKS) -> dict[str, Any]:
    """Return the schema of experiment and sweep files (JSON Schema 2020-12), with an entry for each
    of `hooks`."""
    models: dict[str, type[BaseModel]] = {
        name: make_fields_model(cls) for name, cls in hooks.items()
    }
    extra_keys: list[type[BaseModel]] = [Groups, PhaseBounds, WarmUp]
    all_models: list[type[BaseModel]] = [Experiment, *dict.fromkeys(models.values()), *extra_keys]
    references, shared = models_json_schema(
        [(model, "validation") for model in all_models], schema_generator=_Lenient
    )
    definitions: dict[str, Any] = shared["$defs"]
    schema: dict[str, Any] = definitions.pop(_name(references[Experiment, "validation"]))
    for name, model in models.items():
        definitions[f"hook_{name}"] = _make_hook_schema(
            hooks[name], definitions[_name(references[model, "validation"])]
        )
    inner = {
        model: definitions.pop(_name(references[model, "validation"])) for model in all_models[1:]
    }
    groups, *scheduler_keys = (inner[model]["properties"] for model in extra_keys)
    for keys in scheduler_keys:
        definitions["Component"]["properties"] |= keys
    kinds = [
        {"if": {"properties": {"type": {"const": name}}}, "then": {"$ref": f"#/$defs/hook_{name}"}}
        for name in hooks
    ]
    named = {"anyOf": [{"enum": list(hooks)}, {"type": "string", "pattern": IMPORT_PATH}]}
    definitions["hook"] = {"type": "object", "properties": {"type": named}, "allOf": kinds}
    properties = schema["properties"]
    properties["hooks"] |= {
        "properties": {name: _make_entry(name) for name in hooks},
        "additionalProperties": _make_entry(None),
    }
    properties["optimizer"] = {
        "type": "object",
        "description": properties["optimizer"]["description"],
        "properties": groups,
    }
    properties["base"] = {
        "type": ["string", "array"],
        "items": {"type": "string"},
        "description": "Files that this one extends, relative to it.",
    }
    lengths = [
        {"required": [key], "properties": {key: {"type": "integer"}}} for key in ("epochs", "steps")
    ]
    complete = {"required": ["name", "task"], "oneOf": lengths}
    schema |= {
        "$schema": DIALECT,
        "$defs": definitions,
        "anyOf": [{"required": ["base"]}, complete],
    }
    del schema["required"]
    return schema


def _name(reference: Mapping[str, Any]) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _make_hook_schema(cls: type[Hook], model: Mapping[str, Any]) -> dict[str, Any]:
    levels = [name for level in Priority for name in (level.name, level.name.lower())]
    common = {
        "type": {
            "type": "string",
            "description": "The hook's class: a name of `hookyard hooks`, or module:Class.",
        },
        "priority": {
            "anyOf": [{"type": "integer", "minimum": 0, "maximum": 100}, {"enum": levels}],
            "description": "Order among the hooks of an event: the lowest value runs first.",
        },
    }
    docs = get_field_docs(cls)
    described = {
        name: {**field, "description": docs[name]} if name in docs else field
        for name, field in model.get("properties", {}).items()
    }
    return {
        **model,
        "properties": {**common, **described},
        "description": inspect.getdoc(cls) or "",
    }


def _make_entry(name: str | None) -> dict[str, Any]:
    """Return the schema of a hook's entry: off, on, or the parameters of its `type`, by default of
    its name."""
    typed = {"$ref": "#/$defs/hook"}
    if name is None:
        return {"anyOf": [*OFF["anyOf"], {**typed, "required": ["type"]}]}
    settings = {
        "type": "object",
        "if": {"required": ["type"]},
        "then": typed,
        "else": {"$ref": f"#/$defs/hook_{name}"},
    }
    return {"anyOf": [*OFF["anyOf"], settings]}
