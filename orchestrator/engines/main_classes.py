"""Classes of a script or a notebook, which other processes cannot import: carried to them by value. Driver."""

from __future__ import annotations

import ast
import io
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, replace
from typing import Any, ClassVar

from orchestrator.config.python.imports import MAIN
from orchestrator.config.python.objects import find_main_classes
from orchestrator.config.text.source import ExperimentSource
from orchestrator.engines.ray_environment import set_environment
from orchestrator.errors import UsageError

LARGEST_BYTES = 64 * 2**20
"""What is carried goes to every rank and every trial."""


def with_classes_of_main(source: ExperimentSource, address: str | None = None) -> ExperimentSource:
    """The source with the classes that it names of this script or notebook, and with what of it these use; itself where
    it names none. Raises UsageError for what cannot be sent. `address` is the cluster that is joined then."""
    written, _ = source.merged()
    classes = find_main_classes(written)
    if not classes:
        return source
    set_environment(address)  # Ray reads it as it is imported
    names = ", ".join(classes)
    try:
        pickled = _pickled({**dict(_named_in_annotations(classes)), **classes})
    except Exception as error:  # whatever an object of the user's raises as it is pickled
        message = (
            f"{names} of the script or notebook cannot be sent to other processes ({type(error).__name__}: {error})"
        )
        raise UsageError(
            f"{message}: make what cannot be pickled in its methods, put it into a module beside it, or run it with"
            " local=True"
        ) from error
    if len(pickled) > LARGEST_BYTES:
        size = f"{len(pickled) / 2**20:,.0f} MiB"
        raise UsageError(
            f"{names} of the script or notebook use {size} of its variables, which would go to every process;"
            f" {LARGEST_BYTES // 2**20} MiB may. Load or make them within data()"
        )
    return replace(source, main_classes=pickled)


def _pickled(classes: Mapping[str, Any]) -> bytes:
    """By value, as cloudpickle does with what is of `__main__`; by name the marks of dataclasses, which are asked for
    by `is`."""
    from ray.cloudpickle import CloudPickler

    class Pickler(CloudPickler):
        dispatch_table: ClassVar[Any] = ChainMap({type(MISSING): lambda mark: "MISSING"}, CloudPickler.dispatch_table)

    buffer = io.BytesIO()
    Pickler(buffer).dump(classes)
    return buffer.getvalue()


def _named_in_annotations(classes: Mapping[str, type]) -> Iterator[tuple[str, Any]]:
    """What the annotations of fields name, where they are text (`from __future__ import annotations`): Python looks it
    up in the module of the class."""
    known = vars(sys.modules[MAIN])
    own = [cls for named in classes.values() for cls in named.__mro__ if cls.__module__ == MAIN]
    for text in (
        text for cls in own for text in vars(cls).get("__annotations__", {}).values() if isinstance(text, str)
    ):
        for node in ast.walk(ast.parse(text, mode="eval")):
            if isinstance(node, ast.Name) and node.id in known:
                yield node.id, known[node.id]
