"""What Hookyard takes from torch beyond its public API is there, and does what it is taken for."""

import pytest
import torch
from torch import nn

from hooks import private_torch
from hooks.private_torch import call_after_backward, compile_in_place
from tests.private_names import assert_there

NAMES = {
    "torch.utils._python_dispatch:TorchDispatchMode": "collectives that a hook calls, seen by its check",
    "torch.utils._pytree:tree_flatten": "batches of any shape, in the graph of a model",
    "torch.utils._pytree:tree_unflatten": "batches of any shape, in the graph of a model",
    "torch.utils._pytree:tree_leaves": "the tensors of a batch, of an output and of what is exported",
    "torch.utils._pytree:tree_map": "checkpoints and exports of any shape",
    "torch.utils._pytree:tree_map_only": "batches on another device",
    "torch:_foreach_lerp_": "averages of weights in one operation",
    "torch:_foreach_norm": "norms of gradients, weights and updates in one operation",
    "torch:_foreach_sub_": "what an update changed",
    "torch:_foreach_mul_": "clipping by norm",
    "torch:_foreach_clamp_min_": "clipping by value",
    "torch:_foreach_clamp_max_": "clipping by value",
    "torch:ops.aten._scaled_dot_product_flash_attention_for_cpu": "the FLOPs of attention on the CPU",
    "torch.cuda.memory:_record_memory_history": "the history of allocations on a GPU",
    "torch.cuda.memory:_dump_snapshot": "snapshots of a GPU's memory",
    "torch.autograd:Variable._execution_engine": "the end of a rank's own backward pass",
    "torch.nn:Module _call_impl": "compiling a module in place",
    "torch.nn:Module _compiled_call_impl": "compiling a module in place",
    "torch.nn.parallel:DistributedDataParallel _check_reducer_finalized": "layers that a batch does not use",
    "torch.utils.data:DataLoader _iterator": "DataLoader workers that start anew for another epoch",
    "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter._shutdown_workers": (
        "DataLoader workers that end with a run"
    ),
    "torch:Tensor._version": "values of a task that have changed, without reading them from a device",
    "torch._dynamo:": "what every optimizer imports as it is made",
    "torch.optim.lr_scheduler:SequentialLR _schedulers": "learning rates that change while a run goes on",
    "torch.optim.lr_scheduler:ChainedScheduler _schedulers": "learning rates that change while a run goes on",
}


@pytest.mark.parametrize("name", NAMES)
def test_private_torch_functions_exist(name: str) -> None:
    assert_there(name, "hooks/private_torch.py", NAMES[name])


def test_foreach_operations_equal_those_of_single_tensors() -> None:
    ones = [torch.ones(2), torch.ones(3)]
    twos = [torch.full((2,), 2.0), torch.full((3,), 2.0)]
    assert [float(norm) for norm in private_torch.foreach_norm(twos, 2.0)] == pytest.approx(
        [8**0.5, 12**0.5]
    )
    private_torch.foreach_lerp_(ones, twos, 0.25)
    assert torch.equal(ones[1], torch.full((3,), 1.25))
    private_torch.foreach_sub_(ones, twos)
    private_torch.foreach_mul_(ones, torch.tensor(4.0))
    assert torch.equal(ones[0], torch.full((2,), -3.0))
    private_torch.foreach_clamp_min_(ones, -1.0)
    private_torch.foreach_clamp_max_(twos, 1.5)
    assert (float(ones[0][0]), float(twos[0][0])) == (-1.0, 1.5)


def test_callbacks_run_after_backward_in_order_of_registration() -> None:
    came: list[str] = []
    first = torch.ones(1, requires_grad=True)
    last = torch.ones(1, requires_grad=True)

    def ask(gradient: torch.Tensor) -> None:
        call_after_backward(lambda: came.append("one"))
        call_after_backward(lambda: came.append("two"))

    last.register_hook(ask)
    first.register_hook(lambda gradient: came.append("first"))
    (first.exp() * last).sum().backward()
    assert came == ["first", "one", "two"]


def test_a_module_that_is_compiled_in_place_stays_the_same_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(
        torch,
        "compile",
        lambda called, mode: lambda *inputs: calls.append(called) or called(*inputs),
    )
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    expected = module(torch.ones(1, 2))
    compile_in_place(module)
    assert torch.equal(module(torch.ones(1, 2)), expected)
    # The model and its two layers; torch makes one of what is called within another.
    assert len(calls) == 3
    assert list(module.state_dict()) == ["0.weight", "0.bias"]
