"""The JSON Schema of experiment files, for editors: keys and hooks with their docs."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import PydanticOmit

from hooks import HOOKS, Hook, Priority
from orchestrator.experiment.fields.class_models import make_fields_model
from orchestrator.experiment.fields.parameters import get_field_docs
from orchestrator.experiment.optim.parameter_groups import Groups
from orchestrator.experiment.optim.scheduler_keys import PhaseBounds, WarmUp
from orchestrator.experiment.sections.experiment import Experiment

DIALECT = "https://json-schema.org/draft/2020-12/schema"
IMPORT_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
OFF = {"anyOf": [{"type": "null"}, {"type": "boolean"}]}


class _SchemaGenerator(GenerateJsonSchema):
    """A generator that adds the docs of fields, and leaves out types without a JSON form."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        raise PydanticOmit

    def model_schema(self, schema: Any) -> dict[str, Any]:
        made = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        properties = made.get("properties", {})
        docs = get_field_docs(model)
        for name, field in model.model_fields.items():
            key = field.alias or name
            if name in docs and key in properties:
                properties[key]["description"] = docs[name]
        return made


def make_experiment_schema(hooks: Mapping[str, type[Hook]] = HOOKS) -> dict[str, Any]:
    """Return the schema of experiment and sweep files, with an entry for each of `hooks`."""
    models = {name: make_fields_model(cls) for name, cls in hooks.items()}
    own, definitions = _make_model_schemas(
        [Experiment, Groups, PhaseBounds, WarmUp, *models.values()]
    )
    for name, model in models.items():
        definitions[f"hook_{name}"] = _make_hook_schema(hooks[name], own[model])
    definitions["hook"] = _make_typed_hook_schema(hooks)
    for keys in (PhaseBounds, WarmUp):
        definitions["Component"]["properties"] |= own[keys]["properties"]

    schema = own[Experiment]
    properties = schema["properties"]
    properties["hooks"] |= {
        "properties": {name: _make_entry(name) for name in hooks},
        "additionalProperties": _make_entry(None),
    }
    properties["optimizer"] = {
        "type": "object",
        "description": properties["optimizer"]["description"],
        "properties": own[Groups]["properties"],
    }
    properties["base"] = {
        "type": ["string", "array"],
        "items": {"type": "string"},
        "description": "Files that this one extends, relative to it.",
    }
    del schema["required"]
    return {**schema, "$schema": DIALECT, "$defs": definitions, "anyOf": _list_complete_forms()}


def _make_model_schemas(
    models: Sequence[type[BaseModel]],
) -> tuple[dict[type[BaseModel], dict[str, Any]], dict[str, Any]]:
    """Return the schema of each model, and the definitions that they share."""
    different = dict.fromkeys(models)
    references, shared = models_json_schema(
        [(model, "validation") for model in different], schema_generator=_SchemaGenerator
    )
    definitions: dict[str, Any] = shared["$defs"]
    own: dict[type[BaseModel], dict[str, Any]] = {}
    for model in different:
        reference = str(references[model, "validation"]["$ref"])
        own[model] = definitions.pop(reference.rpartition("/")[2])
    return own, definitions


def _list_complete_forms() -> list[dict[str, Any]]:
    """Return what a file needs at least: a base, or a name, a task and a length."""
    lengths = [
        {"required": [key], "properties": {key: {"type": "integer"}}} for key in ("epochs", "steps")
    ]
    return [{"required": ["base"]}, {"required": ["name", "task"], "oneOf": lengths}]


def _make_typed_hook_schema(names: Iterable[str]) -> dict[str, Any]:
    """Return the schema of a hook's entry with a `type`, which decides its other keys."""
    named = {"anyOf": [{"enum": list(names)}, {"type": "string", "pattern": IMPORT_PATH}]}
    kinds = [
        {"if": {"properties": {"type": {"const": name}}}, "then": {"$ref": f"#/$defs/hook_{name}"}}
        for name in names
    ]
    return {"type": "object", "properties": {"type": named}, "allOf": kinds}


def _make_hook_schema(cls: type[Hook], model: Mapping[str, Any]) -> dict[str, Any]:
    levels: list[str] = []
    for level in Priority:
        levels += [level.name, level.name.lower()]
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
    """Return the schema of a hook's entry: off, on, or the parameters of its class."""
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
