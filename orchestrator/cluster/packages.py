"""The packages that an experiment's own code needs: on the driver they are listed, on each node they are looked for."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from orchestrator.config.resolve import resolve
from orchestrator.config.sections.experiment import Experiment


def needed_packages(experiment: Experiment) -> tuple[str, ...]:
    """What the modules of the task and the hooks import, in functions too, and is installed here. Driver."""
    resolved = resolve(experiment.source)
    parts = (resolved.task, *resolved.hooks.values())
    files = {file for part in parts if (file := getattr(sys.modules[type(part).__module__], "__file__", None))}
    return tuple(sorted({name for file in files for name in _imported(Path(file).read_text()) if _is_here(name)}))


def missing_packages(names: Iterable[str]) -> list[str]:
    """Those of the packages that are not installed on this machine."""
    return [name for name in names if not _is_here(name)]


def _imported(source: str) -> Iterator[str]:
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            yield statement.module.partition(".")[0]


def _is_here(name: str) -> bool:
    return name in sys.modules or find_spec(name) is not None
