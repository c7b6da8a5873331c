"""CPU time of a row with five values from the device; torch checks that nothing waits.

python -m benchmarks.gpu --only rows
"""

import tempfile
from time import perf_counter

import torch

from benchmarks.gpu.part import Device, print_row, run
from hooks import State
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.storage import Storage

ROWS = 400
"""Fewer than a flush takes: flushing has a clock of its own, and a stream."""


def part(device: Device) -> None:
    values = torch.randn(5, device=device.torch).unbind()
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(
            Storage(folder),
            "stats/attempt=0/rank=0",
            {"rank": 0},
            flush_rows=10 * ROWS,
            flush_s=3600,
        )
        recorder.begin({"phase": "train"}, {"iteration": lambda numbers: numbers[:, 0]})
        state, taken = State(device=device.torch), []
        for _ in range(5):
            device.wait()
            if device.is_cuda:
                torch.cuda.set_sync_debug_mode("error")
            began = perf_counter()
            for iteration in range(ROWS):
                state.record(**{f"value_{number}": value for number, value in enumerate(values)})
                recorder.append(state.row, (float(iteration), began))
                state.row = {}
            taken.append((perf_counter() - began) / ROWS)
            if device.is_cuda:
                torch.cuda.set_sync_debug_mode("default")
            recorder.sync()
        recorder.close()
    print_row(
        "a row with 5 device scalars, time of the CPU", f"{min(taken) * 1e6:.1f} us", "<= 30 us"
    )
    print_row(
        "a row with 5 device scalars, synchronisations",
        "0 (torch would have raised)" if device.is_cuda else "not seen on a CPU",
        "0",
    )


if __name__ == "__main__":
    run(part)
