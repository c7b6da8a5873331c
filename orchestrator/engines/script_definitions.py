"""Classes and functions of a script or notebook, which other processes cannot import, sent by value.
Runs in the driver."""

import io
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any, ClassVar

from hooks.errors import describe_error
from orchestrator.engines.ray_environment import set_environment
from orchestrator.errors import UsageError
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.units import format_bytes
from orchestrator.user_code.main_definitions import (
    find_annotated_definitions,
    find_main_definitions,
)

LARGEST_BYTES = 64 * 2**20
"""Limit of the pickled definitions, because every rank and every trial gets a copy."""


def check_main_definitions(source: ExperimentSource, address: str | None) -> None:
    """Raise UsageError if the script's or notebook's definitions cannot be sent, before anything of
    a launch is written. `address` is the cluster to join, for which this sets the environment."""
    set_environment(address)  # Ray reads the environment on import
    pickle_main_definitions(source)


def pickle_main_definitions(source: ExperimentSource) -> bytes | None:
    """Pickle what a source names of the script or notebook, and everything that this uses; return
    None if it names nothing. Imports ray, for which the caller has set the environment.

    Raises UsageError if it cannot be sent.
    """
    config, _ = source.merge()
    definitions = find_main_definitions(config)
    if not definitions:
        return None
    names = ", ".join(definitions)
    annotated = find_annotated_definitions(definitions)
    try:
        pickled = _pickle_by_value(annotated | definitions)
    # The pickler may raise anything for what the user's definitions refer to.
    except Exception as error:
        raise UsageError(
            f"{names} of the script or notebook cannot be pickled ({describe_error(error)}); define them in a module"
        ) from error
    if len(pickled) > LARGEST_BYTES:
        raise UsageError(
            f"{names} of the script or notebook use {format_bytes(len(pickled))} of its variables,"
            f" and at most {format_bytes(LARGEST_BYTES)} can be sent; load them in data()"
        )
    return pickled


def _pickle_by_value(definitions: Mapping[str, Any]) -> bytes:
    """Pickle by value, as cloudpickle does for `__main__`, but dataclasses' MISSING by name, to
    stay identical."""
    from ray.cloudpickle import CloudPickler

    class Pickler(CloudPickler):
        dispatch_table: ClassVar[Any] = ChainMap(
            {type(MISSING): lambda _: "MISSING"}, CloudPickler.dispatch_table
        )

    buffer = io.BytesIO()
    Pickler(buffer).dump(definitions)
    return buffer.getvalue()
