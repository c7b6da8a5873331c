"""Which calls make the host wait for a device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orchestrator.testing.device_reads import DeviceReads

DEVICE = torch.device("cpu")
READS: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "format": (lambda x, _: f"{x[0]:.3f}", "format"),
    "str": (lambda x, _: str(x), "repr"),
    "repr": (lambda x, _: repr(x), "repr"),
    "item": (lambda x, _: x[0].item(), "item"),
    "bool": (lambda x, _: bool(x[0] > 0), "bool"),
    "complex": (lambda x, _: complex(x[0]), "complex"),
    "contains": (lambda x, _: 1.0 in x, "contains"),
    "cpu": (lambda x, _: x.cpu(), "cpu"),
    "to cpu": (lambda x, _: x.to("cpu"), "to the CPU"),
    "to device=cpu": (lambda x, _: x.to(device="cpu"), "to the CPU"),
    "mask": (lambda x, mask: x[mask], "indexing by a mask"),
    "mask in a tuple": (lambda x, mask: x[(mask,)], "indexing by a mask"),
    "several values to a mask": (
        lambda x, mask: x.__setitem__(mask, torch.ones_like(x)),
        "indexing by a mask",
    ),
    "one value of the device to a mask": (
        lambda x, mask: x.__setitem__(mask, x.sum()),
        "indexing by a mask",
    ),
    "nonzero": (lambda _, mask: mask.nonzero(), "nonzero"),
    "where of a mask": (lambda _, mask: torch.where(mask), "where of a mask"),
    "a tensor of repeats": (
        lambda x, mask: torch.repeat_interleave(x, mask.long()),
        "repeat_interleave",
    ),
    "repeats alone": (
        lambda _, mask: torch.repeat_interleave(repeats=mask.long()),
        "repeat_interleave",
    ),
}

OTHERS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "arithmetic": lambda x, _: (x * 2).sum(),
    "to another dtype": lambda x, _: x.to(torch.float16),
    "to the CPU without waiting": lambda x, _: x.to("cpu", non_blocking=True),
    "to the device of the run": lambda x, _: x.to(torch.device(x.device.type)),
    "to the type of the run's device": lambda x, _: x.to(DEVICE.type),
    "to the name of the run's device": lambda x, _: x.to(device=str(DEVICE)),
    "slice": lambda x, _: x[1:],
    "indices": lambda x, _: x[torch.zeros_like(x, dtype=torch.long)],
    "one value of the host to a mask": lambda x, mask: x.__setitem__(mask, torch.tensor(2.0)),
    "one number to a mask": lambda x, mask: x.__setitem__(mask, 0.0),
    "masks to a slice": lambda _, mask: mask.__setitem__(slice(2), mask[:2].clone()),
    "where of two": lambda x, mask: torch.where(mask, x, 0.0),
    "one number of repeats": lambda x, _: torch.repeat_interleave(x, 2),
    "repeats of a known size": lambda x, mask: torch.repeat_interleave(
        x, mask.long(), output_size=3
    ),
}


def list_reads(call: Callable[[Tensor, Tensor], Any]) -> list[str]:
    reads: list[str] = []
    x, mask = torch.ones(3), torch.ones(3, dtype=torch.bool)
    with DeviceReads(reads.append):
        call(x, mask)
    return reads


@pytest.mark.parametrize("name", READS)
def test_a_read_is_reported(name: str) -> None:
    call, described = READS[name]
    assert list_reads(call) == [described]


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_not_wait_is_not_reported(name: str) -> None:
    assert list_reads(OTHERS[name]) == []


@pytest.mark.parametrize("name", READS)
def test_reading_what_is_on_the_host_waits_for_nothing(name: str) -> None:
    reads: list[str] = []
    with DeviceReads(reads.append):
        READS[name][0](torch.ones(3), torch.ones(3, dtype=torch.bool))
        torch.ones(3).to("cpu").sum().item()
    assert reads == []


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda model: model.to("cpu"), ["to the CPU"]),
        (lambda model: model.to(device="cpu"), ["to the CPU"]),
        (lambda model: model.to("cpu", non_blocking=True), []),
        (lambda model: model.to(DEVICE), []),
        (lambda model: model.to(DEVICE.type), []),
        (lambda model: model.to(torch.float64), []),
    ],
)
def test_a_module_that_is_moved_to_the_cpu_is_reported(
    call: Callable[[nn.Module], Any], expected: list[str]
) -> None:
    reads: list[str] = []
    model = nn.Linear(1, 1)
    with DeviceReads(reads.append):
        call(model)
    assert reads == expected
