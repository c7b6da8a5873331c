"""Models that no rank builds whole: made without memory for their parameters, which get their values a unit at a time.
Worker process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_parameter_registration_hook

from hooks.parameter_names import listed
from hooks.private_torch import TorchDispatchMode, initializer
from orchestrator.errors import RunError


class _Written(TorchDispatchMode):
    """Keeps what is written into tensors without memory, by the memory that each would have: which operations, with
    which numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.into: dict[StorageWeakRef, list[str]] = defaultdict(list)

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        tensors = [one for one in arguments if isinstance(one, Tensor)]
        in_place = operation.name().partition(".")[0].endswith("_")
        if in_place and tensors and tensors[0].is_meta:
            numbers = [one for one in arguments if not isinstance(one, Tensor)]
            self.into[_memory_of(tensors[0])].append(f"{operation}{numbers}{sorted((named or {}).items(), key=str)}")
        return operation(*arguments, **(named or {}))


class Skeleton:
    """What is remembered of a model that is made without its parameters' values, to give each rank its parts of
    them."""

    def __init__(self) -> None:
        self._written = _Written()
        self._draws = torch.get_rng_state()

    @contextmanager
    def without_values(self) -> Iterator[None]:
        """Within it parameters of modules take no memory, on torch's meta device; buffers are as ever."""

        def without_memory(module: nn.Module, name: str, parameter: Any) -> Any:
            return (
                None
                if parameter is None or parameter.is_meta
                else nn.Parameter(parameter.to("meta"), parameter.requires_grad)
            )

        handle = register_module_parameter_registration_hook(without_memory)
        try:
            with self._written:
                yield
        finally:
            handle.remove()

    def shards(self, module: nn.Module, units: Collection[nn.Module], mesh: Any) -> dict[str, Tensor]:
        """This rank's parts of all parameters, as DTensors by name. Each unit is whole in the host's memory once, and
        so is each part in none.

        All ranks draw the same, as they would for the whole model. Raises RunError for what `reset_parameters` does not
        give its values as the making of the model does.
        """
        from torch.distributed.tensor import DTensor, Replicate, Shard

        groups = list(_groups(module, units, set()))
        self._check(module, groups)
        torch.set_rng_state(self._draws)
        found: dict[nn.Parameter, Tensor] = {}
        for group in groups:
            own = {
                (part, name): parameter for part in group for name, parameter in part.named_parameters(recurse=False)
            }
            values = {
                parameter: nn.Parameter(torch.empty_like(parameter, device="cpu"), parameter.requires_grad)
                for parameter in own.values()
            }
            for (part, name), parameter in own.items():
                setattr(part, name, values[parameter])
            _reset(group)
            for (part, name), parameter in own.items():
                setattr(part, name, parameter)
            for parameter, value in values.items():
                whole = DTensor.from_local(value.detach().to(mesh.device_type), mesh, [Replicate()], run_check=False)
                found[parameter] = whole.redistribute(placements=[Shard(0)])
        return {name: found[parameter] for name, parameter in module.named_parameters(remove_duplicate=False)}

    def _check(self, module: nn.Module, groups: list[list[nn.Module]]) -> None:
        again: dict[StorageWeakRef, list[str]] = defaultdict(list)
        for group in groups:
            with _Written() as written:
                _reset(group)
            for parameter in {parameter for part in group for parameter in part.parameters(recurse=False)}:
                again[_memory_of(parameter)] += written.into[_memory_of(parameter)]
        made = self._written.into
        wrong = [
            name
            for name, one in module.named_parameters()
            if not made[_memory_of(one)] or made[_memory_of(one)] != again[_memory_of(one)]
        ]
        if wrong:
            parts = sorted({type(module.get_submodule(name.rpartition(".")[0])).__name__ for name in wrong})
            raise RunError(
                f"workers.meta_device: {len(wrong)} parameters ({listed(wrong, 4)}) get their values otherwise than by"
                " reset_parameters() of the part that they are of, which is called where it is made"
                f" ({listed(parts, 4)}). Give them so, or take meta_device away"
            )


def _memory_of(tensor: Tensor) -> StorageWeakRef:
    """What tells a tensor's memory from that of another, where they have none too."""
    return StorageWeakRef(tensor.untyped_storage())


def _groups(module: nn.Module, units: Collection[nn.Module], seen: set[nn.Module]) -> Iterator[list[nn.Module]]:
    """Parts that get their values together, each after those within it: as they are made. A unit is one, and so is each
    part outside."""
    if module in seen:
        return
    seen.add(module)
    if module in units:
        yield [part for inner in module.children() for group in _groups(inner, (), seen) for part in group] + [module]
        return
    for inner in module.children():
        yield from _groups(inner, units, seen)
    yield [module]


def _reset(group: list[nn.Module]) -> None:
    for part in group:
        if reset := initializer(part):
            reset()
