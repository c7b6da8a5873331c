"""Settings of an experiment for the model, before it is wrapped, and for torch during training;
precision."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

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

_T = TypeVar("_T")
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


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
        # torch's hints leave this form out
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    compiles_units = experiment.workers.strategy == "fsdp" and world.world_size > 1
    if experiment.compile and not compiles_units:
        compile_in_place(module, compile_mode(experiment))
    return module


def compile_mode(experiment: Experiment) -> str | None:
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


def settings_without_effect(experiment: Experiment) -> Iterator[str]:
    """Yield a line for each setting that has no effect in a run of one rank."""
    names = [*find_changed_keys(experiment.workers.ddp, Ddp(), "workers.ddp")]
    if experiment.sync_batchnorm:
        names.append("sync_batchnorm")
    for name in names:
        yield f"{name} has no effect with one rank"


def thread_count(experiment: Experiment) -> int:
    """Return the number of torch's threads of a rank. Sums are split by threads, so their last bits
    depend on it."""
    return max(1, int(experiment.workers.cpus))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def torch_settings(experiment: Experiment) -> Iterator[None]:
    """Apply the experiment's settings to torch within the block; restore the previous ones after
    it."""
    with ExitStack() as before:
        if experiment.deterministic:
            # Without it, torch rejects matrix products; cuBLAS reads it at each call.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            warns = torch.is_deterministic_algorithms_warn_only_enabled()
            before.callback(
                torch.use_deterministic_algorithms,
                torch.are_deterministic_algorithms_enabled(),
                warn_only=warns,
            )
            torch.use_deterministic_algorithms(True)
        if experiment.cudnn_benchmark:
            before.callback(
                setattr, torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark
            )
            torch.backends.cudnn.benchmark = True
        if experiment.float32_matmul_precision:
            before.callback(
                torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()
            )
            torch.set_float32_matmul_precision(experiment.float32_matmul_precision)
        yield


class Precision:
    """fp32, bf16, or fp16 with a GradScaler that gets the arguments `scaler`. Used in workers."""

    def __init__(
        self, name: str, device: torch.device, scaler: Mapping[str, Any] | None = None
    ) -> None:
        self._dtype = _AUTOCAST.get(name)
        self._device_type = device.type
        self.scaler: torch.amp.GradScaler | None = None
        if name == "fp16":
            self.scaler = torch.amp.GradScaler(device.type, **(scaler or {}))

    def with_autocast(self, function: Callable[..., _T]) -> Callable[..., _T]:
        """Return the function under torch's autocast; in fp32 return it unchanged, because the
        context costs time."""
        if self._dtype is None:
            return function
        autocast = torch.autocast(self._device_type, dtype=self._dtype)
        under_autocast: Callable[..., _T] = autocast(function)
        return under_autocast

    def autocast(self) -> AbstractContextManager[Any]:
        """Return torch's autocast; in fp32 a context that does nothing."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device_type, dtype=self._dtype)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the scaled loss, on which to call `backward`."""
        return self.scaler.scale(loss) if self.scaler else loss

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Step the optimizer with the scaler; returns False if a gradient overflowed.

        This synchronizes once, as the scaler itself does. A fused optimizer decides on the device
        whether to skip the step; a lower scale then shows that it did.
        """
        assert self.scaler is not None
        if optimizer.defaults.get("fused"):
            before = self.scaler.get_scale()
            self.scaler.step(optimizer)
            self.scaler.update()
            return self.scaler.get_scale() >= before
        steps: list[bool] = []
        hook = optimizer.register_step_post_hook(lambda *_: steps.append(True))
        try:
            self.scaler.step(optimizer)
            self.scaler.update()
        finally:
            hook.remove()
        return bool(steps)

    def skip(self) -> None:
        """Skip this step, but update the scaler, which counts steps."""
        if self.scaler:
            self.scaler.update()
