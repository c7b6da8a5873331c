"""Shared code of the parts: the device, and printing rows."""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch


@dataclass(frozen=True)
class Device:
    """The device of a part. On a CPU everything is small, and the figures only show that the part
    runs."""

    torch: torch.device

    @property
    def is_cuda(self) -> bool:
        return self.torch.type == "cuda"

    def wait(self) -> None:
        """Wait until the device has finished its work."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch)

    def median_s(self, function: Callable[[], object], repeats: int) -> float:
        """The median time of a call, with the work it gives the device; two calls before are not
        counted."""
        taken = []
        for _ in range(repeats + 2):
            self.wait()
            began = perf_counter()
            function()
            self.wait()
            taken.append(perf_counter() - began)
        return median(taken[2:])


def print_row(what: str, figure: str, aim: str = "") -> None:
    """Print a row when it is known, so that a later failure costs no other row."""
    print(f"| {what} | {figure} | {aim} |", flush=True)


def run(part: Callable[[Device], None], needs_cuda: Iterable[str] = ()) -> None:
    """Runs a part on the device that the command line names; without CUDA, what needs it has a row
    that says so."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = Device(torch.device(parser.parse_args().device))
    part(device)
    for what in () if device.is_cuda else needs_cuda:
        print_row(what, "needs CUDA")
