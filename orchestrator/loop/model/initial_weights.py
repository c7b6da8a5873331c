"""Matching initial weights with the model by name and shape, and loading them. Runs in workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn

from hooks.parameter_names import listed
from orchestrator.config.sections.initial_weights import Init
from orchestrator.errors import ConfigError, Problem
from orchestrator.loop.model.strategy import sharded_model


def load(module: nn.Module, init: Init, source: Mapping[str, Any], origin: object) -> list[str]:
    """Load the tensors that match into the module, which may be sharded; return lines for the log.

    Raises ConfigError if a pattern matches no name, if no tensor matches, or with `strict` if some tensors do not.
    """
    state = module.state_dict()
    matching, mismatches = _match(init, _tensors_in(source), _tensors_in(state))
    if not matching or (init.strict and mismatches):
        path, problem = ("init.strict", "does not match the whole model")
        if not matching:
            path, problem = ("init.from", "matches no tensor of the model")
        advice = "use init.rename to map the names of the source's tensors to the model's"
        raise ConfigError([Problem(path, f"{origin} {problem}: {'; '.join(mismatches)}", suggestion=advice)])
    module.load_state_dict(sharded_model(matching, module), strict=False)
    return [
        f"initialized from {origin}: loaded {len(matching)} of the model's {len(state)} tensors",
        *(f"  {line}" for line in mismatches),
    ]


def _match(
    init: Init, source: Mapping[str, Tensor], model: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the source's tensors that fit, by the model's names, and lines about tensors that do not fit."""
    source_names = init.renamed([*source])
    init.check_excluded(dict.fromkeys([*model, *source, *source_names]))
    selected = init.select(model)
    if not selected:
        excluded = ", ".join(init.excluded)
        raise ConfigError([Problem("init.except", f"excludes everything that init.only selects, got {excluded}")])
    renamed = {name: source[source_name] for name, source_name in source_names.items()}
    tensors = {name: renamed[name] for name in selected if name in renamed}
    matching = {name: tensor for name, tensor in tensors.items() if tensor.shape == model[name].shape}
    return matching, describe_mismatches(renamed, model, selected)


def describe_mismatches(source: Mapping[str, Any], model: Mapping[str, Any], names: Collection[str]) -> list[str]:
    """Return lines about a source's tensors that do not fit a model; `names` are the model's tensors to load."""
    shapes = {name: (_shape(source[name]), _shape(model[name])) for name in names if name in source}
    different = [f"{name} ({old}, here {new})" for name, (old, new) in shapes.items() if old != new]
    mismatches = (
        ("missing", [name for name in names if name not in source]),
        ("unused", [name for name in source if name not in model]),
        ("with a different shape", different),
    )
    return [f"{len(names)} {kind}: {listed(names)}" for kind, names in mismatches if names]


def _tensors_in(state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _shape(value: Any) -> str:
    return "x".join(map(str, getattr(value, "shape", ()))) or "a number"
