"""A checkpoint of 1.5 GB, the model and AdamW's state of GPT-2 124M: how long training stands still, and bytes a second beside torch.save.

    python -m benchmarks.gpu --only checkpoint
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.gpu.part import Device, print_row, run
from benchmarks.gpu.recorded import column
from benchmarks.gpu.workloads import Tokens, Workload, hookyard

SETTINGS = {"precision": "bf16", "optimizer": {"type": "AdamW", "lr": 3e-4}}


def torch_save(workload: Workload, file: Path) -> tuple[float, int]:
    """Seconds and bytes of the same state in one file, forced to the disk."""
    model = workload.model()
    optimizer = workload.optimizer(model)
    batch: Any = next(iter(workload.loader()))
    with workload.autocast():
        workload.made.loss(workload.made.forward(model, batch), batch).backward()
    optimizer.step()
    workload.device.wait()
    began = perf_counter()
    with file.open("wb") as out:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, out)
        out.flush()
        os.fsync(out.fileno())
    return perf_counter() - began, file.stat().st_size


def part(device: Device) -> None:
    workload = Workload(Tokens, device, batch=4, steps=7, settings=SETTINGS)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        seconds, size = torch_save(workload, Path(folder) / "file.pt")
        print_row(f"torch.save of {size / 1e9:.2f} GB with fsync", f"{seconds:.2f} s, {size / seconds / 1e9:.2f} GB/s")
        hooks = {"checkpoint": {"every": "2 steps", "save_last": False, "keep": 1}}
        run_folder = Path(folder) / "run"
        hookyard(workload, 1, lambda: None, folder=str(run_folder), hooks=hooks)
        # The time of saving stands in the row of the iteration after it.
        synchronous = min(pause for pause in column(run_folder, "checkpoint_s") if pause)
        print_row("a checkpoint, the pause of training", f"{synchronous:.2f} s")
        print_row("a checkpoint, bytes a second to torch.save's", f"{seconds / synchronous:.2f}", ">= 0.9")
        print_row("a checkpoint in the background, its pause to the synchronous one", "there is none yet", "<= 0.1")


if __name__ == "__main__":
    run(part)
