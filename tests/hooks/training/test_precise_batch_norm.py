from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from hooks import EMA, Hook, State
from hooks.training.precise_batch_norm import PreciseBatchNorm, recompute
from hooks.training.sync_buffers import SyncBuffers
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.hooks.training.steps import batches, new_state, small_model
from tests.ranks import on_ranks
from tests.tasks import Points, PointSet, experiment

TASK = Points(batch_norm=True, val=9)


def statistics(module: Any) -> list[Tensor]:
    """The running mean and variance of the BatchNorm that comes second."""
    return [module[1].running_mean.clone(), module[1].running_var.clone()]


def measured(module: Any, inputs: Tensor) -> list[Tensor]:
    """The mean and variance of what goes into that BatchNorm, by hand."""
    with torch.no_grad():
        values = module[0](inputs)
    return [values.mean(0), values.var(0)]


def images(*sizes: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(size, 3, 5, 4, generator=generator) * 3 + 2 for size in sizes]


def recomputed(module: nn.Module, data: list[Tensor]) -> Any:
    recompute(State(module=module), [(batch,) for batch in data])
    return module


def test_over_one_batch_it_is_torchs_update_bn_in_every_layer() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2)
    )
    reference = deepcopy(module)
    data = images(6)
    recomputed(module, data)
    update_bn(data, reference)
    for name, value in reference.named_buffers():
        if "running" in name:
            torch.testing.assert_close(module.get_buffer(name), value)


class PopulationStatistics:
    """What fvcore's update_bn_stats keeps for each layer, which ClassyVision calls: the variance of
    all values."""

    def __init__(self, channels: int) -> None:
        self.total = 0
        self.mean = torch.zeros(channels, dtype=torch.float64)
        self.mean_square = torch.zeros(channels, dtype=torch.float64)

    def update(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].transpose(0, 1).flatten(1).double()
        count = values.shape[1]
        self.total += count
        self.mean += (values.mean(1) - self.mean) * (count / self.total)
        self.mean_square += (values.square().mean(1) - self.mean_square) * (count / self.total)

    def biased_variance(self) -> Tensor:
        return self.mean_square - self.mean.square()


def test_dropout_acts_as_in_training() -> None:
    """fvcore, and so ClassyVision, and torch's update_bn run the model as it trains. Dropout(0.5)
    nearly doubles the variance of what comes after it. fvcore's variance is biased, ours is
    torch's, larger by n / (n - 1)."""
    module = nn.Sequential(
        nn.Dropout(), nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten()
    )
    reference = deepcopy(module)
    data = images(8, 8, 2)
    expected = PopulationStatistics(4)
    handle = reference[2].register_forward_pre_hook(expected.update)
    torch.manual_seed(5)
    with torch.no_grad(), handle:
        for batch in data:
            reference(batch)

    torch.manual_seed(5)
    recomputed(module, data)

    count = expected.total
    torch.testing.assert_close(module[2].running_mean, expected.mean.float())
    torch.testing.assert_close(
        module[2].running_var,
        (expected.biased_variance() * count / (count - 1)).float(),
    )
    still = recomputed(deepcopy(module)[1:], data)
    assert (module[2].running_var > 1.3 * still[1].running_var).all()


@pytest.mark.parametrize(
    "data",
    [
        images(8, 8, 2),
        [torch.tensor([[1.0, 2.0], [3.0, 8.0]]), torch.tensor([[5.0, 2.0]])],
        [torch.tensor([[10000.0], [10001.0], [10002.0]])],
    ],
    ids=["unequal batches", "a last batch of one sample", "large means"],
)
def test_over_several_batches_it_is_the_statistics_of_all_values(data: list[Tensor]) -> None:
    """update_bn takes the mean over batches, in which a small last batch weighs as much as a full
    one."""
    channels = data[0].shape[1]
    layer = nn.BatchNorm2d(channels) if data[0].ndim == 4 else nn.BatchNorm1d(channels)
    module = recomputed(nn.Sequential(layer), data)
    values = torch.cat(data).transpose(0, 1).flatten(1)
    torch.testing.assert_close(module[0].running_mean, values.mean(1))
    torch.testing.assert_close(module[0].running_var, values.var(1))


def test_frozen_untracked_and_unused_layers_stay_as_they_are() -> None:
    """fvcore's update_bn_stats leaves frozen layers alone too; torch's update_bn resets them."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.used, self.unused = (nn.BatchNorm2d(3) for _ in range(3))
            self.untracked = nn.BatchNorm2d(3, track_running_stats=False)
            self.frozen.eval()
            self.frozen.running_mean.fill_(2.0)

        def forward(self, x: Tensor) -> Any:
            return self.untracked(self.used(self.frozen(x)))

    module = Mixed()
    random = torch.get_rng_state()
    modes = [child.training for child in module.modules()]
    recomputed(module, images(4))
    assert module.frozen.running_mean.tolist() == [2, 2, 2]
    assert module.unused.running_mean.tolist() == [0, 0, 0]
    assert module.used.running_mean.tolist() != [0, 0, 0]
    assert module.used.num_batches_tracked.item() == 0
    assert torch.equal(torch.get_rng_state(), random)
    assert [child.training for child in module.modules()] == modes
    assert not module.used._forward_pre_hooks


class AtValidation(Hook):
    """Keeps weights and statistics as each validation finds them."""

    def __init__(self) -> None:
        self.found: list[list[Tensor]] = []
        self.expected: list[list[Tensor]] = []

    def on_phase_start(self, state: State) -> None:
        if state.phase == "val":
            self.found.append(statistics(state.module))
            self.expected.append(measured(state.module, PointSet(TASK.train, False, 0).points))


@pytest.mark.parametrize("cache_samples", [False, True])
def test_validation_uses_statistics_of_all_training_samples_with_its_weights(
    cache_samples: bool,
) -> None:
    seen = AtValidation()
    hooks = {"precise": PreciseBatchNorm(52, cache_samples), "seen": seen}
    list(Loop(TASK, experiment(epochs=3), hooks).run())
    assert len(seen.found) == 3
    for found, expected in zip(seen.found, seen.expected, strict=True):
        torch.testing.assert_close(found, expected)
    assert not torch.allclose(seen.found[0][0], seen.found[1][0])


class InValidation(Hook):
    """Keeps what each kind of validation uses, and the raw statistics before."""

    def __init__(self) -> None:
        self.raw: list[list[Tensor]] = []
        self.found: dict[str, list[Tensor]] = {}
        self.expected: dict[str, list[Tensor]] = {}

    def on_phase_start(self, state: State) -> None:
        if state.phase == "val":
            self.raw.append(statistics(state.module))

    def on_iteration_start(self, state: State) -> None:
        if state.phase == "val":
            inputs = PointSet(TASK.train, False, 0).points
            self.found[state.evaluation] = statistics(state.module)
            self.expected[state.evaluation] = measured(state.module, inputs)


def validated(epochs: int = 2, **hooks: Hook) -> InValidation:
    seen = InValidation()
    list(Loop(TASK, experiment(epochs=epochs), {**hooks, "seen": seen}).run())
    return seen


@pytest.mark.parametrize("average", ["exponential", "stochastic"])
@pytest.mark.parametrize("is_first", [True, False])
def test_averaged_weights_have_the_statistics_of_their_own_activations(
    average: Any, is_first: bool
) -> None:
    """Those of the raw weights are others, which is why stochastic weight averaging needs
    `update_bn`."""
    hooks = {"ema": EMA(0.9 if average == "exponential" else 0.0, average=average)}
    precise = {"precise": PreciseBatchNorm(52)}
    seen = validated(**(precise | hooks if is_first else hooks | precise))
    torch.testing.assert_close(seen.found[""], seen.expected[""])


def test_averaged_buffers_stay_averages_of_the_running_statistics() -> None:
    seen = validated(1, ema=EMA(0.9, buffers="ema"), precise=PreciseBatchNorm(52))
    torch.testing.assert_close(seen.found, validated(1, ema=EMA(0.9, buffers="ema")).found)
    torch.testing.assert_close(seen.raw, validated(1, precise=PreciseBatchNorm(52)).raw)


def test_of_raw_and_averaged_weights_the_main_metrics_have_their_own() -> None:
    seen = validated(ema=EMA(0.9, evaluate="both"), precise=PreciseBatchNorm(52))
    torch.testing.assert_close(seen.found[""], seen.expected[""])


@pytest.mark.parametrize(
    ("num_samples", "taken"), [(1, 1), (8, 1), (9, 2), (16, 2), (24, 3), (1000, 4)]
)
def test_takes_enough_batches_for_the_requested_samples(num_samples: int, taken: int) -> None:
    data = batches(4)
    fetched: list[int] = []

    def fresh(phase: str, shuffled: bool) -> Any:
        assert (phase, shuffled) == ("train", True)
        for index, batch in enumerate(data):
            fetched.append(index)
            yield batch

    state = new_state(small_model(), fresh_batches=fresh)
    PreciseBatchNorm(num_samples).on_phase_end(state)
    torch.testing.assert_close(
        statistics(state.module),
        measured(state.module, torch.cat([batch for (batch,) in data[:taken]])),
    )
    assert fetched == list(range(taken))  # no batch is loaded for nothing


def test_takes_batches_that_are_none() -> None:
    """As a task has them whose forward() makes the samples."""
    data = batches(2)
    made = iter(data)
    state = new_state(
        small_model(),
        fresh_batches=lambda phase, shuffled: iter([None, None]),
        forward=lambda model, batch: model(*next(made)),
        samples_in=lambda batch: 8,
    )
    PreciseBatchNorm(16).on_phase_end(state)
    torch.testing.assert_close(
        statistics(state.module),
        measured(state.module, torch.cat([batch for (batch,) in data])),
    )


def test_sync_batch_norm_is_refused() -> None:
    state = State(module=nn.Sequential(nn.SyncBatchNorm(3)))
    with pytest.raises(ValueError, match="SyncBatchNorm is not supported"):
        PreciseBatchNorm(8).on_start(state)


def _on_a_rank(rank: int, world_size: int) -> Any:
    seen = AtValidation()
    hooks = {"sync": SyncBuffers(), "precise": PreciseBatchNorm(52), "seen": seen}
    loop = Loop(
        TASK,
        experiment(epochs=1, batch_size=6),
        hooks,
        RunContext(world=World(rank, world_size, rank)),
    )
    list(loop.run())
    (found,) = seen.found
    (expected,) = seen.expected
    return [value.tolist() for value in found], [value.tolist() for value in expected]


def test_all_ranks_have_the_statistics_of_all_samples() -> None:
    """ClassyVision's ranks each have those of their own share."""
    (first, expected), (second, _) = on_ranks(_on_a_rank)
    assert first == second
    torch.testing.assert_close(torch.tensor(first), torch.tensor(expected))
