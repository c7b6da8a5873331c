"""Faults put into real runs of two Ray Train workers: whether the rank that is slow is named, with
its span.

Both ranks train the digits; rank 1 sleeps 30 ms in every iteration, in one run as it loads, in one
in its forward pass, in one in a hook, and in a last one nowhere. The claim: rank 1 and the span
named, rank 0 never blamed, and in the last run nobody.

    python -m benchmarks.real_faults [steps]
"""

import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import distributed, nn
from torch.utils.data import Dataset

from benchmarks.timing import print_table
from experiments.digits import Digits
from hooks import Hook, State
from orchestrator import run
from orchestrator.doctor import diagnose
from orchestrator.experiment.load import make_experiment

LATE_S = 0.03
BATCH = 32
SPANS = {"loading": "data_wait_s", "forward": "forward_s", "hook": "hooks_s", "nothing": ""}


def late() -> None:
    """Sleeps on rank 1 alone."""
    if distributed.get_rank() == 1:
        time.sleep(LATE_S)


class LateBatches(Dataset[Any]):
    """Is late with the first sample of every batch."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.fetched = dataset, 0

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if self.fetched % BATCH == 0:
            late()
        self.fetched += 1
        return self.dataset[index]


@dataclass
class LateDigits(Digits):
    """The digits, with rank 1 late in what `where` says."""

    where: str = "nothing"

    def data(self) -> Mapping[str, Dataset[Any]]:
        data = super().data()
        return {"train": LateBatches(data["train"]) if self.where == "loading" else data["train"]}

    def forward(self, model: nn.Module, batch: Any) -> Any:
        if self.where == "forward":
            late()
        return super().forward(model, batch)


@dataclass
class Late(Hook):
    """Is late after every iteration where `where` says hook."""

    where: str = "nothing"

    def on_step(self, state: State) -> None:
        if self.where == "hook":
            late()


def findings(where: str, steps: int) -> tuple[Any, ...]:
    """Return a run's most serious finding on a rank, all blamed ranks, and whether that is
    right."""
    settings = {
        "name": where,
        "task": "benchmarks.real_faults:LateDigits",
        "task_args": {"where": where},
        "steps": steps,
        "batch_size": BATCH,
        "optimizer": {"type": "SGD", "lr": 0.05},
        "seed": 0,
        "workers": {"count": 2, "gpu": False, "cpus": 1},
        "hooks": {"late": {"type": "benchmarks.real_faults:Late", "where": where}},
    }
    with tempfile.TemporaryDirectory() as storage:
        result = run(make_experiment(settings), storage=storage)
        stats, costs = result.stats, result.hook_costs
    blamed = [
        finding
        for finding in diagnose(stats, costs).findings
        if finding.kind in ("straggler", "memory")
    ]
    numbers = blamed[0].numbers if blamed else {}
    ranks = sorted({int(finding.numbers["rank"]) for finding in blamed})
    right = ranks == ([1] if SPANS[where] else []) and numbers.get("span", "") == SPANS[where]
    step, wait = (
        stats.groupby("rank")[name].median() * 1000 for name in ("step_s", "all_reduce_wait_s")
    )
    return (
        where,
        f"{step[0]:.1f}, {step[1]:.1f}",
        f"{wait[0]:.1f}, {wait[1]:.1f}",
        ", ".join(map(str, ranks)) or "none",
        f"{numbers.get('span', '')} {numbers.get('pattern', '')} {numbers.get('hook', '')}".strip()
        or "nothing",
        f"{1000 * numbers['lost_s']:.1f}" if numbers else "",
        "yes" if right else "NO",
    )


def main(steps: int = 60) -> None:
    print_table(
        f"Two Ray Train workers, rank 1 {1000 * LATE_S:.0f} ms late in every of {steps} steps",
        (
            "late in",
            "ms a step, ranks 0 and 1",
            "ms of it waiting, ranks 0 and 1",
            "ranks blamed",
            "said first",
            "ms lost",
            "right",
        ),
        [findings(where, steps) for where in SPANS],
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
