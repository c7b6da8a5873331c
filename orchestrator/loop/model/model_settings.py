"""Settings of an experiment for the model, before it is wrapped. Used in workers."""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from hooks.model.activation_checkpointing import keep_no_activations
from hooks.model.layers import BatchNorm
from hooks.parameter_names import Patterns, match_names
from hooks.private_torch import compile_in_place
from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.needs import find_changed_keys
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.training import Compile
from orchestrator.experiment.sections.workers import Ddp
from orchestrator.loop.world import World


def apply_settings(module: nn.Module, experiment: Experiment, world: World) -> nn.Module:
    """Apply the experiment's settings to the model, and return it; raises ConfigError for a key
    without effect."""
    if experiment.sync_batchnorm:
        if not any(isinstance(part, BatchNorm) for part in module.modules()):
            raise ConfigError.at("sync_batchnorm", "has no effect: the model has no BatchNorm")
        if world.world_size > 1:
            module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
    if experiment.activation_checkpointing is not None:
        _checkpoint_activations(module, experiment.activation_checkpointing)
    if experiment.channels_last:
        if not any(parameter.ndim == 4 for parameter in module.parameters()):
            raise ConfigError.at("channels_last", "has no effect: the model has no 2d convolutions")
        # torch's hints have this form from 2.14 on.
        cast(Any, module).to(memory_format=torch.channels_last)
    compiles_units = experiment.workers.strategy == "fsdp" and world.world_size > 1
    if experiment.compile and not compiles_units:
        compile_in_place(module, get_compile_mode(experiment))
    return module


def get_compile_mode(experiment: Experiment) -> str | None:
    """Return the `mode` of torch.compile, or None for torch's default."""
    return experiment.compile.mode if isinstance(experiment.compile, Compile) else None


def _checkpoint_activations(module: nn.Module, patterns: Patterns) -> None:
    """Checkpoint the matching submodules; of nested ones, only the outermost."""
    # Containers such as ModuleList have no forward pass.
    submodules = {
        name: part
        for name, part in module.named_modules()
        if name and type(part).forward is not nn.Module.forward
    }
    try:
        names = match_names(patterns, submodules, kind="submodule with a forward pass")
    except ValueError as error:
        raise ConfigError.at("activation_checkpointing", str(error)) from None
    inside: set[nn.Module] = set()
    for name in names:
        if submodules[name] not in inside:
            inside.update(submodules[name].modules())
            keep_no_activations(submodules[name])


def describe_settings_without_effect(experiment: Experiment) -> Iterator[str]:
    """Yield a line for each setting that has no effect in a run of one rank."""
    names = [*find_changed_keys(experiment.workers.ddp, Ddp(), "workers.ddp")]
    if experiment.sync_batchnorm:
        names.append("sync_batchnorm")
    for name in names:
        yield f"{name} has no effect with one rank"
