"""Loading initial weights into a model, and comparing a source's tensors with the model's. Used in
workers."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from hooks.parameter_names import join_names
from orchestrator.disk.initial_weights import check_unchanged, find_weights, read_weights
from orchestrator.disk.weight_files import select_tensors
from orchestrator.errors import ConfigError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.initial_weights import Init
from orchestrator.experiment.yaml.origins import InitialWeights
from orchestrator.loop.model.sharded_modules import shard_model_state
from orchestrator.loop.world import World
from orchestrator.units import format_count


def load_initial_weights(
    module: nn.Module, experiment: Experiment, world: World, origin: InitialWeights | None
) -> list[str]:
    """Load the experiment's initial weights that match into the module, which may be sharded;
    return lines for the log.

    Raises ConfigError if a pattern matches no name, if no tensor matches, or with `strict` if some
    tensors do not.
    """
    init = experiment.init
    if init is None:
        return []
    source: InitialWeights = world.broadcast(partial(_find_or_check, init, experiment, origin))
    state = module.state_dict()
    matching, mismatches = _match(init, select_tensors(read_weights(source)), select_tensors(state))
    if not matching or (init.strict and mismatches):
        path = "init.strict" if matching else "init.from"
        problem = "does not match the whole model" if matching else "matches no tensor of the model"
        raise ConfigError.at(
            path,
            f"{source} {problem}: {'; '.join(mismatches)}",
            suggestion="use init.rename to map the names of the source's tensors to the model's",
        )
    module.load_state_dict(shard_model_state(matching, module), strict=False)
    tensors = format_count(len(state), "tensor")
    return [
        f"initialized from {source}: loaded {len(matching)} of the model's {tensors}",
        *(f"  {line}" for line in mismatches),
    ]


def _find_or_check(
    init: Init, experiment: Experiment, origin: InitialWeights | None
) -> InitialWeights:
    """Return the weights that were found at the start of the run and are unchanged, or find them
    now."""
    if origin is None:
        return find_weights(init, experiment.import_paths)
    check_unchanged(origin)
    return origin


def read_matching(
    init: Init, origin: InitialWeights, model: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tensors of `origin` that fit a model, by the model's names."""
    return _match(init, select_tensors(read_weights(origin)), select_tensors(model))[0]


def _match(
    init: Init, source: Mapping[str, Tensor], model: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the source's tensors that fit, by the model's names, and lines about tensors that do
    not fit."""
    source_names = init.map_names([*source])
    init.check_excluded(dict.fromkeys([*model, *source, *source_names]))
    selected = init.select(model)
    if not selected:
        excluded = ", ".join(init.excluded)
        raise ConfigError.at(
            "init.except", f"excludes everything that init.only selects, got {excluded}"
        )
    renamed = {name: source[source_name] for name, source_name in source_names.items()}
    tensors = {name: renamed[name] for name in selected if name in renamed}
    matching = {
        name: tensor for name, tensor in tensors.items() if tensor.shape == model[name].shape
    }
    return matching, describe_mismatches(renamed, model, selected)


def describe_mismatches(
    source: Mapping[str, Any], model: Mapping[str, Any], names: Collection[str]
) -> list[str]:
    """Return lines about a source's tensors that do not fit a model; `names` are the model's
    tensors to load."""
    shapes = {name: (_shape(source[name]), _shape(model[name])) for name in names if name in source}
    different = [f"{name} ({old}, here {new})" for name, (old, new) in shapes.items() if old != new]
    mismatches = (
        ("missing", [name for name in names if name not in source]),
        ("unused", [name for name in source if name not in model]),
        ("with a different shape", different),
    )
    return [f"{len(names)} {kind}: {join_names(names)}" for kind, names in mismatches if names]


def _shape(value: Any) -> str:
    return "x".join(map(str, getattr(value, "shape", ()))) or "a number"
