"""The guide's list of columns is what a run records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator import load_experiment, run

ROOT = Path(__file__).parents[1]
HOOKS = (
    "gradient_clip.max_norm=1.0",
    "activation_stats.every=5 steps",
    "optimizer_stats.every=5 steps",
    "model_complexity={}",
    "throughput={every: 5, peak_flops: 1.0e+9}",
    "device_stats.every=5",
    "progress_bar=false",
)
ELSEWHERE = re.compile(r"on CUDA|by NVML|byol|nan_guard|loss_spike|accumulate: auto|closure")
"""Who records what a quiet run on a CPU does not have."""


def documented() -> dict[str, tuple[str, str]]:
    """The dtype of each column, and who records it."""
    page = (ROOT / "docs" / "tables.md").read_text()
    section = page.split("## Every column\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    return {name: (dtype, by) for names, dtype, _, by in rows for name in re.findall(r"`(\w+)`", names)}


def test_the_guide_has_the_dtype_of_every_column_that_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    overrides = ["epochs=1", "batch_size=256", "task_args.width=8", *(f"hooks.{hook}" for hook in HOOKS)]
    done = run(load_experiment("experiments/digits.yaml", overrides), tmp_path, local=True)
    recorded = {name: str(dtype) for name, dtype in done.stats.dtypes.items()}
    listed = documented()
    assert recorded == {name: listed[name][0] for name in recorded}
    quiet = {name for name, (_, by) in listed.items() if not ELSEWHERE.search(by)}
    assert quiet - {"lr_1"} == set(recorded)
