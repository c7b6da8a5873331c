"""What Hookyard takes from torch beyond its public API, the loop too; nothing else names any of it. Read in torch 2.9
to 2.13.

The tests of this file have a line for each name, which says what it is for and which torch has lost it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only
from torch.utils._pytree import tree_unflatten as tree_unflatten

# One operation over many tensors: on a GPU one kernel instead of one for each.
foreach_lerp_ = torch._foreach_lerp_
foreach_norm = torch._foreach_norm
foreach_sub_ = torch._foreach_sub_
foreach_mul_ = torch._foreach_mul_
foreach_clamp_min_ = torch._foreach_clamp_min_
foreach_clamp_max_ = torch._foreach_clamp_max_

CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""The operator of fused attention on the CPU, which torch's table of FLOPs lacks."""


def import_compiler() -> None:
    """Imports torch's compiler, which is large: every optimizer does as it is made."""
    import torch._dynamo  # noqa: F401  # for its being imported alone


def compiler_is_imported() -> bool:
    """Whether anything can be compiled yet; asking the compiler itself would import it."""
    return "torch._dynamo" in sys.modules


def record_memory_history(**options: Any) -> None:
    """Begins to record what is allocated on the GPU, or ends it. Source:
    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html."""
    torch.cuda.memory._record_memory_history(**options)


def dump_memory_snapshot(path: Path) -> None:
    """Writes down what the GPU's memory holds, with the history of allocations that was recorded."""
    torch.cuda.memory._dump_snapshot(str(path))


def when_out_of_memory(call: Callable[[], None]) -> None:
    """Calls where an allocation on a GPU fails, while everything is still allocated. It cannot be taken back."""
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)  # a torch for the CPU has none
    if attach is not None:
        attach(lambda device, size, total, free: call())


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Calls when the backward pass that is under way ends, in the order in which that was asked for. In a tensor's
    hook."""
    Variable._execution_engine.queue_callback(call)


def gradients_never_exchanged(model: DistributedDataParallel) -> list[int] | None:
    """Which parameters, by their place among those that are trained, had no gradient in the backward pass that has just
    ended, so that ranks have not exchanged all of them; None where they have, or were not to. Costs no
    communication."""
    try:
        model._check_reducer_finalized()
    except RuntimeError as error:
        places = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
        return [int(place) for place in places[1].split()] if places else []
    return None


def initializer(part: nn.Module) -> Callable[[], None] | None:
    """What gives a part of a model its values anew: its `reset_parameters`, which torch's own attention has under
    another name."""
    reset: Any = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
    return reset if callable(reset) else None


def count_writes(tensor: Tensor) -> int:
    """Return how often a tensor was written in place, but through `.data`."""
    return int(tensor._version)


def compile_in_place(module: nn.Module, mode: str | None = None) -> None:
    """Compile a module and each part of it as torch's `module.compile(mode=mode)` does.

    The outermost part that is called is compiled. All stay the same objects with the same names.
    """
    for part in module.modules():
        part._compiled_call_impl = torch.compile(_call_of(part), mode=mode)


def _call_of(module: nn.Module) -> Callable[..., Any]:
    call: Any = module._call_impl

    # torch compiles no frame of its own code, as the call of a `Sequential` is one, but what it finds below another.
    def called(*arguments: Any, **named: Any) -> Any:
        return call(*arguments, **named)

    return called


def inner_schedulers(scheduler: Any) -> Iterable[Any]:
    """The schedulers that a SequentialLR or a ChainedScheduler is made of; none of another."""
    return getattr(scheduler, "_schedulers", ())
