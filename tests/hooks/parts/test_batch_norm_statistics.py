from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from hooks import State
from hooks.parts.batch_norm_statistics import recompute

torch.manual_seed(0)


def state_for(module: nn.Module, data: list[Tensor]) -> State:
    return State(module=module, fresh_batches=lambda phase, shuffled: ((batch,) for batch in data if phase == "train"))


def statistics(module: nn.Module) -> dict[str, Tensor]:
    return {name: buffer for name, buffer in module.named_buffers() if "running" in name}


def images(*sizes: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(size, 3, 5, 4, generator=generator) * 3 + 2 for size in sizes]


def test_over_one_batch_it_is_torchs_update_bn_in_every_layer() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2))
    reference, data = deepcopy(module), images(6)
    recompute(state_for(module, data))
    update_bn(data, reference)
    for name, value in statistics(reference).items():
        torch.testing.assert_close(statistics(module)[name], value)


def test_over_unequal_batches_it_is_the_statistics_of_all_values() -> None:
    """update_bn takes the mean over batches, in which a small last batch weighs as much as a full one."""
    module: Any = nn.Sequential(nn.BatchNorm2d(3))
    reference, data = deepcopy(module), images(8, 8, 2)
    recompute(state_for(module, data))
    update_bn(data, reference)
    values = torch.cat(data).transpose(0, 1).flatten(1)
    torch.testing.assert_close(module[0].running_mean, values.mean(1))
    torch.testing.assert_close(module[0].running_var, values.var(1))
    assert not torch.allclose(reference[0].running_var, values.var(1), rtol=1e-3)


def test_a_last_batch_of_one_sample_is_counted() -> None:
    """Training on it would raise: a layer cannot normalize one value by its own variance."""
    module: Any = nn.Sequential(nn.BatchNorm1d(2))
    data = [torch.tensor([[1.0, 2.0], [3.0, 8.0]]), torch.tensor([[5.0, 2.0]])]
    recompute(state_for(module, data))
    torch.testing.assert_close(module[0].running_mean, torch.tensor([3.0, 4.0]))
    torch.testing.assert_close(module[0].running_var, torch.tensor([4.0, 12.0]))


def test_large_means_do_not_swallow_the_variance() -> None:
    module: Any = nn.Sequential(nn.BatchNorm1d(1))
    values = torch.tensor([[10000.0], [10001.0], [10002.0]])
    recompute(state_for(module, [values]))
    torch.testing.assert_close(module[0].running_var, torch.tensor([1.0]))


def test_everything_else_is_left_as_it_was() -> None:
    module: Any = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(60, 2))
    module[1].eval()
    module[0].num_batches_tracked.fill_(7)
    random, modes = torch.get_rng_state(), [child.training for child in module.modules()]
    weights = deepcopy(dict(module.named_parameters()))

    def fresh(phase: str, shuffled: bool) -> Any:
        torch.rand(1)  # as making a DataLoader's iterator does
        return ((batch,) for batch in images(4, 4))

    state = State(module=module, fresh_batches=fresh)
    recompute(state)
    assert torch.equal(torch.get_rng_state(), random)
    assert [child.training for child in module.modules()] == modes
    assert module[0].num_batches_tracked.item() == 7
    assert all(torch.equal(parameter, weights[name]) for name, parameter in module.named_parameters())
    assert not module[0]._forward_pre_hooks


def test_a_layer_that_is_kept_in_evaluation_mode_is_frozen() -> None:
    """fvcore's update_bn_stats leaves such layers alone too; torch's update_bn resets them."""
    module: Any = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    module[0].eval()
    module[0].running_mean.fill_(2.0)
    data = images(4)
    with torch.no_grad():
        inputs = module[1](module[0](data[0])).transpose(0, 1).flatten(1)
    recompute(state_for(module, data))
    assert module[0].running_mean.tolist() == [2, 2, 2]
    torch.testing.assert_close(module[2].running_mean, inputs.mean(1))


def test_layers_without_statistics_or_without_input_keep_what_they_have() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
            self.untracked = nn.BatchNorm2d(3, track_running_stats=False)

        def forward(self, x: Tensor) -> Any:
            return self.untracked(self.used(x))

    module = Partly()
    recompute(state_for(module, images(4)))
    assert module.unused.running_mean is not None
    assert module.unused.running_mean.tolist() == [0, 0, 0]
    assert module.used.running_mean is not None
    assert module.used.running_mean.abs().min() > 1
    recompute(state_for(nn.Linear(2, 2), []))
