"""Torch functions beyond its public API, in one place. Checked in torch 2.11 to 2.14; the tests
explain each."""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only
from torch.utils._pytree import tree_unflatten as tree_unflatten

# One operation over many tensors, on a GPU in one kernel.
foreach_lerp_ = torch._foreach_lerp_
foreach_norm = torch._foreach_norm
foreach_sub_ = torch._foreach_sub_
foreach_mul_ = torch._foreach_mul_
foreach_clamp_min_ = torch._foreach_clamp_min_
foreach_clamp_max_ = torch._foreach_clamp_max_

CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""Operator of fused attention on the CPU, which torch's table of FLOPs lacks."""


COMPILER = "torch._dynamo"
"""Module of torch's compiler, which is large; every optimizer imports it."""


def import_compiler() -> None:
    """Import torch's compiler."""
    import torch._dynamo  # noqa: F401  # imported for its effect


def compiler_is_imported() -> bool:
    """Return whether anything may be compiled, without importing the compiler."""
    return COMPILER in sys.modules


def record_memory_history(**options: Any) -> None:
    """Start or stop recording GPU allocations. Source:
    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html."""
    torch.cuda.memory._record_memory_history(**options)


def dump_memory_snapshot(path: Path) -> None:
    """Write the contents of GPU memory, with the recorded history."""
    torch.cuda.memory._dump_snapshot(str(path))


def call_after_backward(call: Callable[[], None]) -> None:
    """Call a function at the end of the running backward pass, in the order of registration; from a
    tensor's hook."""
    Variable._execution_engine.queue_callback(call)


def gradients_never_exchanged(model: DistributedDataParallel) -> list[int] | None:
    """Return the indices of trained parameters without a gradient in the last backward pass, if
    therefore DDP has not synchronized all gradients; None if it has."""
    try:
        model._check_reducer_finalized()
    except RuntimeError as error:
        places = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
        return [int(place) for place in places[1].split()] if places else []
    return None


def compile_in_place(module: nn.Module, mode: str | None = None) -> None:
    """Compile a module and each of its parts, as `module.compile(mode=mode)` does.

    Torch compiles the outermost part that is called. All stay the same objects with the same names.
    """
    for part in module.modules():
        part._compiled_call_impl = torch.compile(_call_of(part), mode=mode)


def _call_of(module: nn.Module) -> Callable[..., Any]:
    call: Any = module._call_impl

    # torch does not compile frames of its own code, such as the call of a Sequential, unless
    # another one calls them.
    def run_call(*arguments: Any, **named: Any) -> Any:
        return call(*arguments, **named)

    return run_call


def get_version(tensor: torch.Tensor) -> int:
    """Return how often a tensor has been changed in place, without reading it from its device.

    Torch does not count changes of a tensor that was made in inference mode, which gives 0.
    """
    return 0 if tensor.is_inference() else tensor._version


def inner_schedulers(scheduler: Any) -> Iterable[Any]:
    """Return the schedulers of a SequentialLR or a ChainedScheduler."""
    return getattr(scheduler, "_schedulers", ())


def end_processes(loader: Any) -> None:
    """End the processes of a DataLoader that keeps them. It starts new ones for the next batches.

    They end at once. If the traceback of an error refers to the loader, the garbage collector would
    only delete it later, and wait five seconds for each process.
    """
    iterator = getattr(loader, "_iterator", None)
    if iterator is None:
        return
    shut_down = getattr(iterator, "_shutdown_workers", None)
    if shut_down is not None:
        shut_down()
    loader._iterator = None
