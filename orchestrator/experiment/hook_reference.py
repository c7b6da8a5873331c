"""A description of a hook's class, for the reference and `hookyard hooks`."""

import dataclasses
import inspect
from types import NoneType
from typing import Any, get_type_hints

from hooks import EVENTS, Hook
from hooks.event_plan import format_priority
from orchestrator.experiment.fields.class_models import make_fields_model
from orchestrator.experiment.fields.parameters import get_field_docs, list_parameters
from orchestrator.experiment.fields.type_names import format_type
from orchestrator.experiment.make_hooks import DEFAULT_HOOKS

_PLAIN_TYPES = (bool, int, float, str, list, dict, NoneType)
"""Types of defaults that JSON can hold; others become text."""


def describe_hook(name: str, cls: type[Hook]) -> dict[str, Any]:
    """Describe a hook class as plain data: its purpose, ranks, events and parameters."""
    return {
        "name": name,
        "class": f"{cls.__module__}:{cls.__qualname__}",
        "source": inspect.getsourcefile(cls),
        "doc": inspect.getdoc(cls) or "",
        "default": name in DEFAULT_HOOKS,
        "priority": format_priority(int(cls.priority)),
        "ranks": str(cls.ranks),
        "collective": cls.collective,
        "best_effort": cls.best_effort,
        "mutable": sorted(cls.mutable),
        "waits_for_device": [event for event in EVENTS if event in cls.waits_for_device],
        "events": [event for event in EVENTS if getattr(cls, event) is not getattr(Hook, event)],
        "parameters": _list_parameters(cls),
    }


def _list_parameters(cls: type[Hook]) -> list[dict[str, Any]]:
    defaults = {
        key: field.get_default(call_default_factory=True)
        for key, field in make_fields_model(cls).model_fields.items()
    }
    hints = get_type_hints(cls, include_extras=True)
    docs = get_field_docs(cls)
    parameters = []
    for name, field in list_parameters(cls).items():
        default = defaults[name]
        parameters.append(
            {
                "name": name,
                "type": format_type(hints[name]),
                "required": field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING,
                "default": default if isinstance(default, _PLAIN_TYPES) else str(default),
                "doc": " ".join(docs.get(name, "").split()),
            }
        )
    return parameters
