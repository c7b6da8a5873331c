"""`hookyard hooks [NAME]`"""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from orchestrator.cli.completion import hook_names
from orchestrator.cli.options import AsJson
from orchestrator.cli.output import print_json, print_table

if TYPE_CHECKING:
    from hooks import Hook


def hooks(
    name: Annotated[
        str | None,
        typer.Argument(help="A hook's name, or module:Class; all hooks without it.", autocompletion=hook_names),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Lists the hooks, or shows one with its parameters."""
    from hooks import HOOKS
    from hooks.import_path import extend_import_path
    from orchestrator.config.components import hook_class

    if name is None:
        described = [describe(key, cls) for key, cls in sorted(HOOKS.items())]
        return print_json(described) if as_json else _list(described)
    extend_import_path([Path.cwd()])
    one = describe(name, hook_class(name))
    return print_json(one) if as_json else _show(one)


def describe(name: str, cls: type[Hook]) -> dict[str, Any]:
    """A hook class as plain data: what it is for, where it runs, its parameters."""
    from hooks import EVENTS
    from hooks.hook import Hook
    from hooks.plan import priority_label
    from orchestrator.config.components import DEFAULT_HOOKS

    return {
        "name": name,
        "class": f"{cls.__module__}:{cls.__qualname__}",
        "source": inspect.getsourcefile(cls),
        "doc": inspect.getdoc(cls) or "",
        "default": name in DEFAULT_HOOKS,
        "priority": priority_label(int(cls.priority)),
        "ranks": str(cls.ranks),
        "collective": cls.collective,
        "best_effort": cls.best_effort,
        "waits_for_device": [event for event in EVENTS if event in cls.waits_for_device],
        "events": [event for event in EVENTS if getattr(cls, event) is not getattr(Hook, event)],
        "parameters": _parameters(cls),
    }


def _parameters(cls: type[Hook]) -> list[dict[str, Any]]:
    from orchestrator.config.python.parameters import field_docs, fields_model, parameters

    defaults = {
        key: field.get_default(call_default_factory=True) for key, field in fields_model(cls).model_fields.items()
    }
    hints, docs = get_type_hints(cls, include_extras=True), field_docs(cls)
    return [
        {
            "name": field.name,
            "type": _type_text(hints[field.name]),
            "required": field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            "default": _plain(defaults[field.name]),
            "doc": " ".join(docs.get(field.name, "").split()),
        }
        for field in parameters(cls).values()
    ]


def _type_text(hint: Any) -> str:
    """A type as one would say it: `float >= 0 < 1`, `near | far`, `list[int > 0] | null`."""
    base, within = get_origin(hint), get_args(hint)
    if base is Annotated:
        return " ".join([_type_text(within[0]), *filter(None, map(_limit_text, within[1:]))])
    if base in (Union, UnionType):
        return " | ".join(map(_type_text, within))
    if base is Literal:
        return " | ".join(map(str, within))
    if hint in (NoneType, ...):
        return "null" if hint is NoneType else "..."
    name = getattr(base or hint, "__name__", str(hint))
    return f"{name}[{', '.join(map(_type_text, within))}]" if within else name


def _limit_text(limit: Any) -> str:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    return " ".join(
        f"{sign} {getattr(limit, key)}" for key, sign in signs.items() if getattr(limit, key, None) is not None
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, list, dict)) or value is None else str(value)


def _list(described: list[dict[str, Any]]) -> None:
    rows = [(one["name"], one["ranks"], ", ".join(one["events"]), _first_line(one["doc"])) for one in described]
    print_table(("hook", "ranks", "events", "what it does"), rows)


def _first_line(doc: str) -> str:
    return " ".join(doc.partition("\n\n")[0].split())


def _show(one: dict[str, Any]) -> None:
    typer.echo(f"{one['name']}  {one['class']}\n\n{one['doc']}\n")
    ranks = (
        f"{one['ranks']}{', collective' if one['collective'] else ''}{', best effort' if one['best_effort'] else ''}"
    )
    facts = {"ranks": ranks, "priority": one["priority"], "events": ", ".join(one["events"]), "source": one["source"]}
    if one["waits_for_device"]:
        facts["waits"] = f"for the device in {', '.join(one['waits_for_device'])}"
    for key, value in facts.items():
        typer.echo(f"{key + ':':10}{value}")
    typer.echo("")
    rows = [
        (p["name"], p["type"], "(required)" if p["required"] else p["default"], p["doc"]) for p in one["parameters"]
    ]
    print_table(("parameter", "type", "default", "what it is"), rows) if rows else typer.echo("no parameters")
