"""Classes and functions that a script or notebook defines, which other processes cannot import."""

import inspect
import pickle
import sys
from contextlib import suppress
from typing import Any

from hooks.import_path import import_named
from orchestrator.user_code.named_classes import MAIN, find_import_paths


def define_in_main(definitions: bytes | None) -> None:
    """Define the pickled definitions of a driver's script or notebook in this worker's
    `__main__`."""
    if not definitions:
        return
    namespace: dict[str, Any] = pickle.loads(definitions)
    vars(import_named(MAIN)).update(namespace)
    for definition in namespace.values():
        if inspect.isfunction(definition) and definition.__module__ == MAIN:
            # Python looks up textual annotations there, and a pickled function has globals of its own.
            definition.__globals__.update(namespace)


def find_main_definitions(config: Any) -> dict[str, Any]:
    """Return the classes and functions of the script or notebook itself that a config names."""
    namespace = vars(sys.modules[MAIN])
    names = [name for module, name in find_import_paths(config) if module == MAIN]
    return {name: namespace[name] for name in names if name in namespace}


def read_main_source(config: Any) -> str:
    """Return the source of these definitions, and of the bases of classes, where it can be read."""
    definitions: list[Any] = []
    for definition in find_main_definitions(config).values():
        definitions += reversed(list_with_bases(definition))
    sources = []
    for definition in dict.fromkeys(definitions):
        with suppress(OSError, TypeError):  # defined without a file or a cell
            sources.append(inspect.getsource(definition))
    return "\n\n".join(sources)


def list_with_bases(definition: Any) -> list[Any]:
    """Return a function, or a class and its bases, as far as the script or notebook defines
    them."""
    bases: tuple[Any, ...] = ()
    if isinstance(definition, type):
        bases = definition.__mro__
    elif inspect.isfunction(definition):
        bases = (definition,)
    return [base for base in bases if base.__module__ == MAIN]
