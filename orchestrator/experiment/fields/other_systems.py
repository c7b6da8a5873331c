"""Names of options and classes in other systems, and what to write here instead."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import yaml

EXPERIMENT = "experiment"
"""Table of the options of an experiment; the others are those of hooks."""
_NO_OPTIONS = {"loggers", "classes"}
"""Tables of the file that are not those of a hook's options."""


@cache
def _load_tables() -> dict[str, dict[str, str]]:
    text = files(__package__).joinpath("other_systems.yaml").read_text()
    tables: dict[str, dict[str, str]] = yaml.safe_load(text)
    return tables


def load_other_systems() -> Mapping[str, Mapping[str, str]]:
    """Return what to write instead of other systems' options, by hook and lower-case name."""
    return {name: table for name, table in _load_tables().items() if name not in _NO_OPTIONS}


def find_options_elsewhere(kind: str) -> Mapping[str, str]:
    """Return the advice for each option of other systems' hook of this kind."""
    return _split_names(load_other_systems().get(kind, {}))


def find_classes_elsewhere() -> Mapping[str, str]:
    """Return the advice for each class of other systems that is named as a hook."""
    return _split_names(_load_tables()["classes"])


def _split_names(table: Mapping[str, str]) -> Mapping[str, str]:
    advice_by_name: dict[str, str] = {}
    for names, advice in table.items():
        advice_by_name.update(dict.fromkeys(names.split(", "), advice))
    return advice_by_name


def find_key_to_write(advice: str) -> str | None:
    """Return the key of an advice such as `write epochs: 20`, or None."""
    match = re.match(r"write (\w+):", advice)
    return match[1] if match else None
