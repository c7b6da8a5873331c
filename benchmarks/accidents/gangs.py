"""Random runs of two ranks on Ray, some of which lose a rank or their driver; each must equal the run without that."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.accidents import cases, processes
from benchmarks.accidents.cases import Case
from benchmarks.accidents.outcome import Outcome
from benchmarks.accidents.processes import DONE, INTERRUPTED, KILLED
from orchestrator import Experiment, Run, open_run, resume, run
from orchestrator.testing.trees import difference

KEY = ["rank", "phase", "epoch", "iteration"]
os.environ["RAY_AUTH_MODE"] = "disabled"  # of a cluster on the loopback of this machine


@dataclass
class GangCase:
    """A random experiment on two ranks, with the accidents that it meets."""

    case: Case
    engine: str
    strategy: str
    spares: int

    def experiment(self, marks: Path) -> Experiment:
        workers = {"count": 2, "cpus": 0.5, "strategy": self.strategy, "spares": self.spares}
        return self.case.experiment(marks, marks).model_copy(update={"workers": workers, "max_failures": -1})


@contextmanager
def cluster() -> Iterator[str]:
    """Start a Ray cluster of one node and yield its address."""
    from ray.cluster_utils import Cluster

    node = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
    try:
        yield node.address
    finally:
        node.shutdown()


def draw(seed: int) -> GangCase:
    """Draw the run of a seed."""
    chance = random.Random(f"gang {seed}")
    case = replace(cases.draw(seed), places=[], damages=[])
    engine = chance.choice(["gang", "gang", "gang", "train"])
    can_shard = case.program == "denoiser" and case.optimizer not in ("LBFGS", "Adafactor")
    strategy = "fsdp" if can_shard and chance.random() < 0.7 else "ddp"
    for _ in range(chance.randrange(1, 4)):
        kind, event = chance.choice(["kill", "kill", "kill-driver", "interrupt-driver"]), chance.choice(cases.EVENTS)
        phase, epoch = chance.choice(["train", "train", "val"]), chance.randrange(case.epochs)
        iteration, rank = chance.randrange(case.iterations // 2 + 1), chance.randrange(2)
        case.places.append(f"{kind} {event} {phase} {epoch} {iteration} rank{rank}")
    return GangCase(case, engine, strategy, chance.randrange(2) if engine == "gang" else 0)


def check(seed: int, root: Path, address: str) -> Outcome:
    """Check the run of a seed, in a folder of its own below `root`, on the cluster at an address."""
    drawn, folder = draw(seed), root / f"gang-{seed}"
    outcome = Outcome(drawn)
    undisturbed = replace(drawn, case=replace(drawn.case, places=[]))
    outcome.problem = _finish(Outcome(undisturbed), folder / "undisturbed", address)
    outcome.problem = outcome.problem or _finish(outcome, folder / "disturbed", address)
    if not outcome.problem:
        disturbed, expected = (open_run(folder / name / "case") for name in ("disturbed", "undisturbed"))
        outcome.problem = difference(_contents(disturbed), _contents(expected))
    if not outcome.problem:
        shutil.rmtree(folder)
    return outcome


def _finish(outcome: Outcome, folder: Path, address: str) -> str:
    """Run the case and resume it until it is done; return what went wrong, if anything."""
    for _ in range(len(outcome.case.case.places) + 2):
        code, log = processes.run(_run, folder, outcome.case, folder, address)
        outcome.exit_codes.append(code)
        if code == DONE:
            return ""
        if code not in (INTERRUPTED, KILLED):
            return log[-2000:]
    return "never finished"


def _run(drawn: GangCase, folder: Path, address: str) -> str:
    """Begin or resume the run, and return its status."""
    if (folder / "case").exists():
        return resume(folder / "case", address=address).status
    experiment = drawn.experiment(folder / "marks")
    return run(experiment, storage=folder, engine=drawn.engine, address=address).status  # type: ignore[arg-type]


def _contents(result: Run) -> dict[str, Any]:
    """Return everything of a run that accidents must not change."""
    rows = result.stats.sort_values(KEY)
    files = sorted(Path(result.checkpoint("last")).glob("*.pt"))
    return {
        "rows": rows[[*KEY, "loss"]].astype(str).to_dict("list"),
        "reports": [
            {name: report[name] for name in ("epoch", "step", "train/loss", "val/loss") if name in report}
            for report in result.reports()
        ],
        "weights": dict(result.weights("last")),
        "checkpoint": {
            file.name: torch.load(file, weights_only=True)
            for file in files
            if file.name in ("model.pt", "optimizer.pt")
        },
    }
