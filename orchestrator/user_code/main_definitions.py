"""Classes and functions that a script or notebook defines, which other processes cannot import."""

import inspect
import pickle
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, get_type_hints

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


def find_annotated_definitions(definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the script or notebook defines under names in the text of annotations: in those
    of the definitions, and of what they name. Python looks such names up in `__main__`."""
    names = _AnnotatedNames()
    waiting = [*definitions.values()]
    while waiting:
        for definition in list_with_bases(waiting.pop()):
            for annotation in inspect.get_annotations(definition).values():
                waiting += names.look_up(annotation)
    return names.found


class _AnnotatedNames(dict[str, Any]):
    """The names of `__main__` for the evaluation of annotations, which keeps those that are looked
    up."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def __missing__(self, name: str) -> Any:
        self.found[name] = vars(sys.modules[MAIN])[name]
        return self.found[name]

    def look_up(self, annotation: Any) -> list[Any]:
        """Return what an annotation names by text and no annotation has named before."""
        count = len(self.found)
        owner = type("Owner", (), {"__annotations__": {"annotated": annotation}})
        # An annotation may be any text or name what does not exist, as it does in the other process.
        with suppress(Exception):
            get_type_hints(owner, globalns={}, localns=self)
        return [*self.found.values()][count:]


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
