from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hooks import Hook, State
from hooks.training.precise_batch_norm import PreciseBatchNorm
from hooks.training.sync_buffers import SyncBuffers
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.hooks.training.steps import batches, new_state, small_model
from tests.ranks import on_ranks
from tests.tasks import Points, PointSet, experiment, numbers

TASK = Points(batch_norm=True, val=9)


def statistics(module: Any) -> list[Tensor]:
    """The running mean and variance of the BatchNorm that comes second."""
    return [module[1].running_mean.clone(), module[1].running_var.clone()]


def measured(module: Any, inputs: Tensor) -> list[Tensor]:
    """The mean and variance of what goes into that BatchNorm, by hand."""
    with torch.no_grad():
        values = module[0](inputs)
    return [values.mean(0), values.var(0)]


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
def test_each_validation_finds_the_statistics_of_all_training_samples_under_its_weights(cache_samples: bool) -> None:
    seen = AtValidation()
    hooks = {"precise": PreciseBatchNorm(52, cache_samples), "seen": seen}
    list(Loop(TASK, experiment(epochs=3), hooks).run())
    assert len(seen.found) == 3
    for found, expected in zip(seen.found, seen.expected, strict=True):
        torch.testing.assert_close(found, expected)
    assert not torch.allclose(seen.found[0][0], seen.found[1][0])


def test_training_itself_is_not_changed() -> None:
    plain, precise = Loop(TASK, experiment(), {}), Loop(TASK, experiment(), {"precise": PreciseBatchNorm(20)})
    list(plain.run())
    list(precise.run())
    with_it, without = numbers(precise.state.module), numbers(plain.state.module)
    assert {name for name in with_it if with_it[name] != without[name]} == {"1.running_mean", "1.running_var"}


@pytest.mark.parametrize(("num_samples", "taken"), [(1, 1), (8, 1), (9, 2), (16, 2), (24, 3), (1000, 4)])
def test_it_takes_as_many_batches_as_hold_the_samples(num_samples: int, taken: int) -> None:
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
        statistics(state.module), measured(state.module, torch.cat([batch for (batch,) in data[:taken]]))
    )
    assert fetched == list(range(taken))  # no batch is loaded for nothing


def test_cached_samples_are_loaded_once() -> None:
    passes: list[str] = []

    def fresh(phase: str, shuffled: bool) -> Any:
        passes.append(phase)
        return iter([{"x": batch, "meta": ["a", 1]} for (batch,) in batches(3)])

    state = new_state(small_model(), fresh_batches=fresh, samples_in=lambda batch: len(batch["x"]))
    state.forward = lambda model, batch: model(batch["x"])
    hook = PreciseBatchNorm(24, cache_samples=True)
    for scale in (1.0, 2.0):
        state.module[0].weight.data.mul_(scale)
        hook.on_phase_end(state)
        expected = measured(state.module, torch.cat([batch for (batch,) in batches(3)]))
        torch.testing.assert_close(statistics(state.module), expected)
    assert passes == ["train"]


def test_evaluation_changes_nothing() -> None:
    state = new_state(small_model(), phase="val", fresh_batches=lambda phase, shuffled: iter(batches(2)))
    PreciseBatchNorm(8).on_phase_end(state)
    assert statistics(state.module)[0].tolist() == [0] * 6


class Sorted(Dataset[Any]):
    """Forty points of one kind, then forty of another."""

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return torch.full((5,), 0.0 if index < 40 else 10.0), torch.tensor(0), index


class SortedTask(Points):
    def data(self) -> Any:
        return {"train": Sorted()}


def test_of_sorted_data_it_takes_some_of_each_kind() -> None:
    """The first quarter of the data set is all of one kind, and would have no variance."""
    loop = Loop(SortedTask(batch_norm=True), experiment(epochs=1), {"precise": PreciseBatchNorm(20)})
    list(loop.run())
    assert all(variance > 0 for variance in statistics(loop.state.module)[1])


def test_sync_batch_norm_is_refused() -> None:
    state = State(module=nn.Sequential(nn.SyncBatchNorm(3)))
    with pytest.raises(ValueError, match="precise_batch_norm does not work with SyncBatchNorm"):
        PreciseBatchNorm(8).on_start(state)


def _on_a_rank(rank: int, world_size: int) -> Any:
    seen = AtValidation()
    hooks = {"sync": SyncBuffers(), "precise": PreciseBatchNorm(52), "seen": seen}
    loop = Loop(TASK, experiment(epochs=1, batch_size=6), hooks, RunContext(world=World(rank, world_size, rank)))
    list(loop.run())
    (found,), (expected,) = seen.found, seen.expected
    return [value.tolist() for value in found], [value.tolist() for value in expected]


def test_all_ranks_have_the_statistics_of_all_samples() -> None:
    """ClassyVision's ranks each have those of their own share."""
    (first, expected), (second, _) = on_ranks(_on_a_rank)
    assert first == second
    torch.testing.assert_close(torch.tensor(first), torch.tensor(expected))


def _shares(rank: int, world_size: int) -> Any:
    data = batches(3, size=2, seed=rank)
    state = new_state(small_model(), rank=rank, world_size=world_size, fresh_batches=lambda phase, shuffled: iter(data))
    found = []
    for num_samples in (1, 5, 6):
        PreciseBatchNorm(num_samples).on_phase_end(state)
        found.append([value.tolist() for value in statistics(state.module)])
    return found


def test_the_samples_are_shared_out_over_ranks() -> None:
    first, second = on_ranks(_shares)
    assert first == second
    of_ranks = [torch.cat([batch for (batch,) in batches(3, size=2, seed=rank)]) for rank in (0, 1)]
    # 1 sample is rank 0's alone; 5 are 3 and 2, so two batches and one; 6 are 3 and 3
    for found, (mine, other) in zip(first, [(2, 0), (4, 2), (4, 4)], strict=True):
        samples = torch.cat([of_ranks[0][:mine], of_ranks[1][:other]])
        torch.testing.assert_close(torch.tensor(found), torch.stack(measured(small_model(), samples)))
