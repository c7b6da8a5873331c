"""Keys of a file and parameters of a hook as Markdown: a heading, type and default, the meaning."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hooks.interval import Interval
from hooks.needs import Needs
from orchestrator.experiment.fields.parameters import get_field_docs
from orchestrator.experiment.fields.type_names import format_type


@dataclass(frozen=True)
class Entry:
    """A key of a file, or a parameter."""

    path: str
    """Its dotted path, such as `workers.count`."""

    type: str
    """Empty for a section that only a `type` chooses."""

    default: str
    """The default, or that the key is required; empty for one of several forms."""

    meaning: str
    needs: tuple[str, ...] = ()
    """Settings without which it has no effect."""

    anchor: str = ""
    """The anchor on the page, if not the path."""

    def to_markdown(self, level: int) -> str:
        """Return a section with the path as its heading and anchor."""
        anchor = self.anchor or self.path.replace(": ", ".")
        heading = f"{'#' * level} `{self.path}` {{ #{anchor} }}"
        needs = "".join(f", only with `{need}`" for need in self.needs)
        default = f", {self.default}" if self.default else ""
        facts = f"`{self.type}`{default}{needs}\n\n" if self.type else ""
        return f"{heading}\n\n{facts}{self.meaning}\n"


def list_entries(model: type[BaseModel], prefix: str = "") -> Iterator[Entry]:
    """Yield the keys of a section of a file, and after each one those of the sections in it."""
    hints = get_type_hints(model, include_extras=True)
    docs = get_field_docs(model)
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        yield Entry(
            path,
            _format_type(hints[name]),
            _describe_default(model, field),
            docs.get(name, ""),
            tuple(str(need) for need in field.metadata if isinstance(need, Needs)),
        )
        yield from _list_inner_entries(hints[name], path)


def _describe_default(model: type[BaseModel], field: FieldInfo) -> str:
    extra = model.model_config.get("json_schema_extra")
    if isinstance(extra, dict) and extra.get("maxProperties") == 1:
        return ""
    if field.is_required():
        return "**required**"
    return f"default `{format_default(field.get_default(call_default_factory=True))}`"


def _list_inner_entries(hint: Any, path: str) -> Iterator[Entry]:
    """Yield the keys of the sections that a type names."""
    for section, steps in find_sections(hint):
        inner = path + steps
        kind = section.model_fields.get("type")
        if kind is not None and get_origin(kind.annotation) is Literal:
            yield Entry(f"{inner}: {kind.default}", "", "", inspect.getdoc(section) or "")
            for entry in list_entries(section, f"{inner}."):
                if entry.path != f"{inner}.type":
                    rest = entry.path.removeprefix(inner)
                    yield replace(entry, anchor=f"{inner}.{kind.default}{rest}")
        elif kind is None or steps != "[]":
            yield from list_entries(section, f"{inner}.")


def find_sections(hint: Any, steps: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    """Yield the classes of sections that a type names, each with what leads to it from the key:
    `[]` for the entries of a list, `.NAME` for those of a mapping."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint, steps
        return

    inner = {list: "[]", dict: ".NAME"}.get(get_origin(hint), "")
    for argument in get_args(hint):
        yield from find_sections(argument, steps + inner)


def _format_type(hint: Any) -> str:
    """Format a type, with a section as a mapping."""
    text = format_type(hint)
    for section, _ in find_sections(hint):
        text = re.sub(rf"\b{section.__name__}\b", "mapping", text)
    kinds = dict.fromkeys(text.split(" | "))
    return " | ".join(kinds)


def format_default(value: Any) -> str:
    """Format a default as a file has it; that of a section as its parts without defaults."""
    plain: Any = value
    if isinstance(value, BaseModel):
        plain = value.model_dump(mode="json", exclude_defaults=True)
        # A section that its `type` chooses may be written as that word.
        plain = plain or getattr(value, "type", plain)
    elif isinstance(value, Interval):
        plain = str(value)
    text = yaml.safe_dump(plain, default_flow_style=True, width=1000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def make_entries(parameters: list[Mapping[str, Any]], prefix: str) -> list[Entry]:
    """Return entries of the parameters as `describe_hook` lists them."""
    entries = []
    for parameter in parameters:
        default = "**required**"
        if not parameter["required"]:
            default = f"default `{format_default(parameter['default'])}`"
        path = prefix + parameter["name"]
        entries.append(Entry(path, parameter["type"], default, parameter["doc"]))
    return entries
