"""What MMEngine, ClassyVision, VISSL and iMIX call the options of their hooks, and what to write here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import yaml

EXPERIMENT = "experiment"


@cache
def other_systems() -> Mapping[str, Mapping[str, str]]:
    """Each hook, and the experiment, to names of options there, in lower case, and what to write instead."""
    tables: dict[str, dict[str, str]] = yaml.safe_load(files(__package__).joinpath("other_systems.yaml").read_text())
    del tables["loggers"]
    return tables


def options_elsewhere(kind: str) -> Mapping[str, str]:
    """Each option by itself, for a hook of this kind."""
    return {name: advice for names, advice in other_systems().get(kind, {}).items() for name in names.split(", ")}
