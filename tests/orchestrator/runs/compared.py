"""How two runs are compared bit for bit."""

from pathlib import Path
from typing import Any

import pandas as pd
import torch

from orchestrator.runs.result import Run

NOISY = {"train": 44, "val": 11, "batch_norm": True, "dropout": 0.3, "noisy": True}


def stored(run: Run) -> list[Any]:
    """Everything in the last checkpoint, as it compares bit for bit."""
    path = Path(run.checkpoint("last"))
    files = sorted(path.glob("*.pt"))
    assert files

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.tolist()
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items() if key != "memory_stats"}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    # Memory differs between processes, and an interruption stores one more name in the checkpoint
    # hook.
    return [
        (file.name, plain(torch.load(file, weights_only=True)))
        for file in files
        if file.name != "hooks.pt"
    ]


def each_row_once(stats: pd.DataFrame) -> bool:
    return not stats.duplicated(["rank", "phase", "epoch", "iteration"]).any()
