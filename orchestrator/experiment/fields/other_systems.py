"""Names of options and classes in other systems, and what to write here instead."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

import yaml

_T = TypeVar("_T")

EXPERIMENT = "experiment"
"""Table of the options of an experiment; the others are those of hooks."""
_NO_OPTIONS = {"loggers", "classes"}
"""Tables of the file that are not those of a hook's options."""


class Advice(NamedTuple):
    """What to write instead of an option of another system."""

    text: str
    key: str | None = None
    """The key that takes its place in the same section; None if there is none."""


@cache
def _load_tables() -> dict[str, dict[str, Any]]:
    text = files(__package__).joinpath("other_systems.yaml").read_text()
    tables: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return tables


def load_other_systems() -> Mapping[str, Mapping[str, Advice]]:
    """Return what to write instead of other systems' options, by hook and lower-case name."""
    kinds = _load_tables().keys() - _NO_OPTIONS
    return {kind: _read_advice(kind) for kind in sorted(kinds)}


def find_options_elsewhere(kind: str) -> Mapping[str, Advice]:
    """Return the advice for each option of other systems' hook of this kind."""
    return _split_names(_read_advice(kind))


def find_classes_elsewhere() -> Mapping[str, str]:
    """Return the advice for each class of other systems that is named as a hook."""
    return _split_names(_load_tables()["classes"])


def _read_advice(kind: str) -> dict[str, Advice]:
    """Return the advice in a table, by the names of options; an entry is its text, or a mapping with
    the key to write."""
    table = {} if kind in _NO_OPTIONS else _load_tables().get(kind, {})
    advice = {}
    for names, entry in table.items():
        has_key = isinstance(entry, Mapping)
        advice[names] = Advice(entry["advice"], entry["key"]) if has_key else Advice(entry)
    return advice


def _split_names(table: Mapping[str, _T]) -> Mapping[str, _T]:
    """Return what a table has under each single name; several names are separated by commas."""
    split: dict[str, _T] = {}
    for names, advice in table.items():
        split.update(dict.fromkeys(names.split(", "), advice))
    return split
