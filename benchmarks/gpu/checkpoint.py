"""A checkpoint of 1.5 GB, the model and AdamW's state of GPT-2 124M (on a CPU of 150 MB): how long
training stands still, and bytes a second beside torch.save.

    python -m benchmarks.gpu --only checkpoint
"""

import os
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.gpu.part import Device, print_row, run
from benchmarks.gpu.recorded import column, spent
from benchmarks.gpu.workloads import Tokens, Wide, Workload, hookyard

SETTINGS = {"precision": "bf16", "optimizer": {"type": "AdamW", "lr": 3e-4}}
SAVES = 3


def torch_save(workload: Workload, file: Path) -> tuple[float, int]:
    """Seconds and bytes of the same state in one file, forced to the disk."""
    model = workload.model()
    optimizer = workload.optimizer(model)
    batch: Any = next(iter(workload.loader()))
    with workload.autocast():
        workload.resident_task.loss(workload.resident_task.forward(model, batch), batch).backward()
    optimizer.step()
    taken = []
    for _ in range(SAVES):
        workload.device.wait()
        began = perf_counter()
        with file.open("wb") as out:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, out)
            out.flush()
            os.fsync(out.fileno())
        taken.append(perf_counter() - began)
    return min(taken), file.stat().st_size


def pauses(folder: Path, between: int) -> list[float]:
    """Return the time for which each checkpoint but the last paused training: at its start, and
    when it was renamed."""
    # The time of saving stands in the row of the iteration after it.
    waited = column(folder, "checkpoint_s")
    return [
        sum(waited[begin : begin + between]) for begin in range(between, SAVES * between, between)
    ]


def part(device: Device) -> None:
    between = 60 if device.is_cuda else 12  # steps, in which one can be written
    workload = Workload(
        Tokens if device.is_cuda else Wide,
        device,
        batch=4,
        steps=SAVES * between,
        settings=SETTINGS,
    )
    with tempfile.TemporaryDirectory(dir=".") as folder:
        seconds, size = torch_save(workload, Path(folder) / "file.pt")
        print_row(
            f"torch.save of {size / 1e9:.2f} GB with fsync",
            f"{seconds:.2f} s, {size / seconds / 1e9:.2f} GB/s",
        )
        paused = {}
        for background in (False, True):
            run_folder = Path(folder) / f"background={background}"
            hooks = {
                "checkpoint": {
                    "every": f"{between} steps",
                    "save_last": False,
                    "keep": 1,
                    "background": background,
                }
            }
            hookyard(workload, 1, lambda: None, folder=str(run_folder), hooks=hooks)
            paused[background] = pauses(run_folder, between)
        shortest, first, later = min(paused[False]), *paused[True]
        print_row("a checkpoint, the pause of training", f"{shortest:.2f} s")
        print_row(
            "a checkpoint, bytes a second to torch.save's", f"{seconds / shortest:.2f}", ">= 0.9"
        )
        print_row(
            "a checkpoint in the background, its pause to the synchronous one",
            f"{later / shortest:.3f} ({later * 1e3:.0f} ms; the first {first * 1e3:.0f} ms)",
            "<= 0.1",
        )
        print_row(
            "a checkpoint in the background, bytes a second to torch.save's",
            f"{seconds / spent(run_folder, 'write'):.2f}",
            ">= 0.9",
        )


if __name__ == "__main__":
    run(part)
