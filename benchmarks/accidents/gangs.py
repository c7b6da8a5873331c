"""Random runs on Ray that lose ranks, nodes, the head or their driver; each must equal the run
without that."""

import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from benchmarks.accidents import cases, processes
from benchmarks.accidents.cases import Case
from benchmarks.accidents.nodes import Nodes
from benchmarks.accidents.outcome import Outcome
from benchmarks.accidents.processes import DONE, FAILED, INTERRUPTED, KILLED
from orchestrator import Experiment, Run, open_run, resume, run
from orchestrator.testing.differences import find_difference

KEY = ["rank", "phase", "epoch", "iteration"]
ACCIDENTS = (
    *("kill", "kill", "stop", "terminate", "kill-raylet", "kill-head"),
    *("kill-driver", "interrupt-driver", "terminate-driver"),
)


@dataclass
class GangCase:
    """A random experiment on one to three ranks, with the accidents that it meets."""

    case: Case
    engine: str
    strategy: str
    ranks: int
    spares: int

    def experiment(self, marks: Path) -> Experiment:
        settings = {
            "workers": {
                "count": self.ranks,
                "cpus": 0.5,
                "strategy": self.strategy,
                "spares": self.spares,
            },
            "hang": {"after": 3, "action": "fail"},
            "max_failures": -1,
        }
        return self.case.experiment(marks, marks).model_copy(update=settings)


def draw(seed: int) -> GangCase:
    """Draw the run of a seed."""
    chance = random.Random(f"gang {seed}")
    case = replace(cases.draw(seed), places=[], damages=[])
    engine, ranks = chance.choice(["gang", "gang", "gang", "train"]), chance.choice([1, 2, 2, 3])
    if case.program == "custom":
        ranks = 1  # its ranks do not exchange gradients
    case.train *= ranks
    can_shard = (
        ranks > 1 and case.program == "denoiser" and case.optimizer not in ("LBFGS", "Adafactor")
    )
    strategy = "fsdp" if can_shard and chance.random() < 0.7 else "ddp"
    # Only other ranks notice that one has stopped.
    accidents = [name for name in ACCIDENTS if ranks > 1 or name != "stop"]
    for _ in range(chance.randrange(1, 4)):
        case.places.append(
            f"{chance.choice(accidents)} {case.draw_moment(chance)} rank{chance.randrange(ranks)}"
        )
    return GangCase(case, engine, strategy, ranks, chance.randrange(2) if engine == "gang" else 0)


def check(seed: int, root: Path, nodes: Nodes) -> Outcome:
    """Check the run of a seed, in a folder of its own below `root`, on a cluster."""
    drawn, folder = draw(seed), root / f"gang-{seed}"
    outcome = Outcome(drawn)
    undisturbed = replace(drawn, case=replace(drawn.case, places=[]))
    outcome.problem = _finish(Outcome(undisturbed), folder / "undisturbed", nodes)
    outcome.problem = outcome.problem or _finish(outcome, folder / "disturbed", nodes)
    if not outcome.problem:
        disturbed, expected = (
            _contents(open_run(folder / name / "case")) for name in ("disturbed", "undisturbed")
        )
        if (
            drawn.ranks > 2
        ):  # DDP rebuilds its buckets after a restart, and sums gradients in another order
            disturbed = tree_map(_ignore_rounding, disturbed, expected)
        outcome.problem = find_difference(disturbed, expected)
    outcome.accidents = processes.accidents(folder / "disturbed")
    if not outcome.problem:
        shutil.rmtree(folder)
    return outcome


def _finish(outcome: Outcome, folder: Path, nodes: Nodes) -> str:
    """Run the case and resume it until it is done; return what went wrong, if anything."""
    for _ in range(len(outcome.case.case.places) + 2):
        code, log = processes.run(_run, folder, outcome.case, folder, nodes.address())
        outcome.exit_codes.append(code)
        if code == DONE:
            return ""
        is_head_lost = code == FAILED and any((folder / "marks").glob("kill-head *"))
        if code not in (INTERRUPTED, KILLED) and not is_head_lost:
            return f"exit code {code}\n{log[-2000:]}"
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
        "rows": {**rows[KEY].astype(str).to_dict("list"), "loss": rows["loss"].tolist()},
        "reports": [
            {
                name: report[name]
                for name in ("epoch", "step", "train/loss", "val/loss")
                if name in report
            }
            for report in result.reports()
        ],
        "weights": dict(result.weights("last")),
        "best": result.best and [result.best.value, dict(result.weights("best"))],
        "checkpoint": {
            file.name: torch.load(file, weights_only=True)
            for file in files
            if file.name in ("model.pt", "optimizer.pt")
        },
    }


def _ignore_rounding(actual: Any, expected: Any) -> Any:
    """Return `expected` for a float, or a tensor of floats, that differs from it by less than
    1%."""
    if not isinstance(expected, float) and not (
        isinstance(expected, Tensor) and expected.is_floating_point()
    ):
        return actual
    is_close = torch.allclose(
        torch.as_tensor(actual), torch.as_tensor(expected), 0.01, 1e-4, equal_nan=True
    )
    return expected if is_close else actual
