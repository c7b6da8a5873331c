"""On a device too what saves memory changes no number: activations that are not kept, and batches
in pieces."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.gpu.tasks import loop_on, raw_on
from tests.tasks import Points, Rows, numbers

pytestmark = pytest.mark.gpu

ROW_BYTES, ROOM_BYTES = 2**26, 3 * 2**28


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_that_are_not_kept_are_computed_again_bit_for_bit(
    device: torch.device, same_numbers_each_time: None, precision: str
) -> None:
    found = []
    for patterns in (None, ["0", "3", "4"]):
        loop = loop_on(
            device,
            Points(batch_norm=True, dropout=0.4),
            precision=precision,
            activation_checkpointing=patterns,
        )
        list(loop.run())
        found.append(numbers(loop.state.module))
    assert found[0] == found[1]


class Wide(nn.Module):
    """Takes 64 MiB for each row, and as much again in the backward pass."""

    def forward(self, points: Tensor) -> Tensor:
        return points + points[:, :1].expand(-1, ROW_BYTES // 4).exp().mean(1, keepdim=True)


@dataclass
class WidePoints(Points):
    def model(self) -> nn.Module:
        return nn.Sequential(Wide(), *super().model())


@pytest.fixture
def little_room(cuda: torch.device) -> Iterator[None]:
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(cuda).total_memory
    torch.cuda.set_per_process_memory_fraction(
        (torch.cuda.memory_reserved(cuda) + ROOM_BYTES) / total, cuda
    )
    yield
    torch.cuda.set_per_process_memory_fraction(1.0, cuda)


def test_a_batch_that_does_not_fit_is_gone_through_in_pieces(
    cuda: torch.device, little_room: None
) -> None:
    rows = Rows()
    loop = loop_on(cuda, WidePoints(), recorder=rows, accumulate="auto", epochs=1)
    list(loop.run())
    pieces: list[Any] = [row["microbatches"] for row in rows.rows if row["phase"] == "train"]
    assert pieces[0] > 1
    torch.cuda.set_per_process_memory_fraction(1.0, cuda)
    for name, value in raw_on(cuda, WidePoints(), epochs=1).state_dict().items():
        torch.testing.assert_close(
            loop.state.module.state_dict()[name], value, rtol=1e-4, atol=1e-5
        )
