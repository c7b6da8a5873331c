import math
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hooks import State
from hooks.training.loss_spike import LossSpike
from tests.hooks.training.steps import batches, new_state, train
from tests.ranks import on_ranks

SMALL = {"window": 8, "warmup": 4, "threshold": 6.0}


def spikes(hook: LossSpike, losses: Sequence[float], folder: Path) -> list[bool]:
    """Which steps with these losses are left out."""
    state = State(phase="train", artifacts=folder)
    found = []
    for loss in losses:
        state.loss = torch.tensor(loss, dtype=torch.float64)
        state.row = {}
        state.skip_reasons = []
        hook.on_backward(state)
        hook.on_gradients(state)
        assert (state.row == {"loss_spike": 1}) is bool(state.skip_reasons)
        found.append(bool(state.skip_reasons))
    return found


def by_definition(
    losses: Sequence[float], window: int, warmup: int, threshold: float
) -> list[bool]:
    """OLMo-core's rule: above the mean by more than so many deviations of the last losses that were
    no spikes."""
    usual: list[float] = []
    found = []
    for loss in losses:
        last = torch.tensor(usual[-window:], dtype=torch.float64)
        spike = not math.isfinite(loss)
        if not spike and len(last) >= warmup:
            deviation, mean = torch.std_mean(last)
            spike = bool(loss - mean > threshold * deviation)
        found.append(spike)
        usual += [] if spike else [loss]
    return found


def some_losses(seed: int) -> list[float]:
    """A falling loss with noise, some heights, and some values that are not finite."""
    generator = torch.Generator().manual_seed(seed)
    losses = 2 / (1 + 0.1 * torch.arange(60)) + 0.1 * torch.randn(60, generator=generator)
    losses[torch.randint(60, (6,), generator=generator)] += 2.0
    losses[torch.randint(60, (2,), generator=generator)] = math.nan
    losses[torch.randint(60, (1,), generator=generator)] = math.inf
    values: list[float] = losses.tolist()
    return values


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("window", "warmup", "threshold"), [(8, 4, 6.0), (20, 20, 3.0), (16, 2, 2.0), (128, 64, 6.0)]
)
def test_spikes_are_losses_far_above_the_recent_ones(
    window: int, warmup: int, threshold: float, seed: int, tmp_path: Path
) -> None:
    hook = LossSpike(window=window, warmup=warmup, threshold=threshold, patience=60)
    expected = by_definition(some_losses(seed), window, warmup, threshold)
    assert spikes(hook, some_losses(seed), tmp_path) == expected
    assert any(expected)
    assert not all(expected)


def test_a_warmup_longer_than_the_window_is_refused() -> None:
    with pytest.raises(ValueError, match="warmup=9 must be at most window=8"):
        LossSpike(window=8, warmup=9)


def test_too_many_spikes_in_a_row_are_an_error(tmp_path: Path) -> None:
    usual = [1.0, 1.1, 0.9, 1.0]
    hook = LossSpike(**SMALL, patience=2)
    assert spikes(hook, [*usual, 9.0, 9.0, 1.0, math.nan, 9.0], tmp_path)[4:] == [
        True,
        True,
        False,
        True,
        True,
    ]
    with pytest.raises(
        ArithmeticError,
        match=r"loss 9 at step 1, and the recent mean is 1 with .*: spike 3 in a row, and patience is 2",
    ):
        spikes(hook, [9.0], tmp_path)


def heights(count: int, *high: int, factor: float = 100.0) -> list[tuple[Tensor]]:
    """Batches, of which some give a loss far above that of the others."""
    return [
        (batch * (factor if index in high else 1.0),)
        for index, (batch,) in enumerate(batches(count))
    ]


def test_skipped_step_leaves_no_trace_of_its_batch(tmp_path: Path) -> None:
    module = nn.Linear(4, 2)
    reference = deepcopy(module)
    state = new_state(module, artifacts=tmp_path)
    rows = train(state, {"spike": LossSpike(**SMALL)}, heights(10, 5, 8))
    train(
        new_state(reference),
        {},
        [batch for index, batch in enumerate(batches(10)) if index not in (5, 8)],
    )
    assert torch.equal(module.weight, reference.weight)
    assert [index for index, row in enumerate(rows) if "loss_spike" in row] == [5, 8]
    assert state.step == 8


def test_the_loss_of_a_step_is_the_mean_of_its_micro_batches(tmp_path: Path) -> None:
    rows = train(
        new_state(nn.Linear(4, 2), artifacts=tmp_path, accumulate=2),
        {"spike": LossSpike(**SMALL)},
        heights(14, 10),
    )
    assert [index for index, row in enumerate(rows) if "loss_spike" in row] == [11]


def _on_a_rank(rank: int, world_size: int, folder: str) -> Any:
    torch.manual_seed(0)
    module = nn.Linear(4, 2)
    state = new_state(module, rank=rank, world_size=world_size, artifacts=Path(folder))
    state.model = DistributedDataParallel(module, broadcast_buffers=False)
    data = heights(8, 5) if rank == 1 else heights(8, 7, factor=math.nan)
    rows = train(state, {"spike": LossSpike(**SMALL)}, data)
    return (
        [index for index, row in enumerate(rows) if "loss_spike" in row],
        state.step,
        module.weight.tolist(),
    )


def test_all_ranks_skip_a_step_if_one_has_a_spike(tmp_path: Path) -> None:
    first, second = on_ranks(_on_a_rank, 2, str(tmp_path))
    assert first == second
    assert first[:2] == ([5, 7], 6)
