"""Random sweeps in one process, killed and resumed; each must equal the same sweep without an
accident."""

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.accidents import cases, processes
from benchmarks.accidents.cases import Case
from benchmarks.accidents.nodes import Nodes
from benchmarks.accidents.outcome import Outcome
from benchmarks.accidents.processes import DONE, FAILED, INTERRUPTED, KILLED
from orchestrator import Experiment, Sweep, open_sweep, resume_sweep, sweep
from orchestrator.testing.differences import find_difference

ACCIDENTS = ("kill", "kill", "interrupt", "terminate", "clock")
ON_RAY = (
    "kill",
    "kill",
    "kill-raylet",
    "kill-head",
    "kill-driver",
    "interrupt-driver",
    "terminate-driver",
)
KEY = ["trial", "rank", "phase", "epoch", "iteration"]


@dataclass
class SweepCase:
    """A random sweep over a random experiment, with the accidents that it meets."""

    case: Case
    settings: dict[str, Any]

    def experiment(self, marks: Path) -> Experiment:
        settings = {
            "sweep": self.settings,
            "workers": {"count": 1, "cpus": 0.5},
            "hang": {"after": 3, "action": "fail"},
            "max_failures": -1,
        }
        return self.case.experiment(marks, marks).model_copy(update=settings)


def draw(seed: int, accidents: Sequence[str] = ACCIDENTS) -> SweepCase:
    """Draw the sweep of a seed."""
    chance = random.Random(f"sweep {seed}")
    case = replace(
        cases.draw(seed), validate_every="1 epoch", save_every="1 epoch", places=[], damages=[]
    )
    if case.program in ("adversarial", "custom"):
        case.program = "perceptron"
    if case.optimizer == "LBFGS":
        case.optimizer, case.decay = "SGD", None
    repeats = chance.choice([1, 1, 2, 3])
    scheduler = chance.choice(["fifo", "asha", "median"] + (["race"] if repeats > 1 else []))
    space: dict[str, Any] = {"optimizer.lr": {"uniform": [0.001, 0.05]}}
    if case.scheduler in cases.RATES:
        space = {"scheduler.max_lr": {"uniform": [0.01, 0.05]}}
    shares = bool(case.decay) and scheduler != "race" and chance.random() < 0.7
    if case.decay:
        space["hooks.ema.decay"] = {"fan_out": [0, 0.5, 0.9]} if shares else {"uniform": [0.1, 0.9]}
    has_bound = repeats > 1 and scheduler != "race" and chance.random() < 0.5
    settings: dict[str, Any] = {
        "metric": "val/loss",
        "mode": "min",
        "trials": repeats * (3 * chance.randrange(1, 3) if shares else chance.randrange(2, 4)),
        "repeats": repeats,
        "aggregate": "lower_bound" if has_bound else "mean",
        "scheduler": scheduler,
        "seed": chance.randrange(5),
        "space": space,
    }
    for _ in range(chance.randrange(1, 4)):
        trial = f"trial-{chance.randrange(settings['trials']):04d}"
        case.places.append(f"{chance.choice(accidents)} {case.draw_moment(chance)} {trial}")
    return SweepCase(case, settings)


def check(seed: int, root: Path, nodes: Nodes | None = None) -> Outcome:
    """Check the sweep of a seed, in a folder of its own below `root`, in one process or on a
    cluster."""
    drawn = draw(seed, ON_RAY if nodes else ACCIDENTS)
    if nodes:  # schedulers compare trials in the order of their reports
        drawn.settings["max_concurrent"] = 1
    return compare(drawn, root / f"sweep-{seed}", nodes)


def compare(drawn: SweepCase, folder: Path, nodes: Nodes | None = None) -> Outcome:
    """Run a sweep with and without its accidents, and compare the results."""
    outcome, calm = Outcome(drawn), folder / "undisturbed"
    undisturbed = replace(drawn, case=replace(drawn.case, places=[]))
    outcome.problem = _finish(Outcome(undisturbed), calm, nodes) or _finish(
        outcome, folder / "disturbed", nodes
    )
    if not outcome.problem:
        outcome.problem = _difference(
            open_sweep(folder / "disturbed" / "case"), open_sweep(calm / "case")
        )
    outcome.accidents = processes.accidents(folder / "disturbed")
    if not outcome.problem:
        shutil.rmtree(folder)
    return outcome


def _finish(outcome: Outcome, folder: Path, nodes: Nodes | None) -> str:
    """Run the sweep and resume it until it is done; return what went wrong, if anything."""
    for _ in range(len(outcome.case.case.places) + 2):
        code, log = processes.run(_sweep, folder, outcome.case, folder, nodes and nodes.address())
        outcome.exit_codes.append(code)
        if code == DONE:
            return ""
        is_head_lost = code == FAILED and any((folder / "marks").glob("kill-head *"))
        if code not in (INTERRUPTED, KILLED) and not is_head_lost:
            return f"exit code {code}\n{log[-2000:]}"
    return "never finished"


def _sweep(drawn: SweepCase, folder: Path, address: str | None) -> str:
    """Begin or resume the sweep, and return its status."""
    if (folder / "case").exists():
        return resume_sweep(folder / "case", address=address).status
    return sweep(
        drawn.experiment(folder / "marks"), storage=folder, local=address is None, address=address
    ).status


def _difference(disturbed: Sweep, undisturbed: Sweep) -> str:
    rows = disturbed.stats
    if rows.duplicated(KEY).any():
        return f"{int(rows.duplicated(KEY).sum())} rows exist twice"
    return find_difference(_contents(disturbed), _contents(undisturbed))


def _contents(result: Sweep) -> dict[str, Any]:
    """Return everything of a sweep that accidents must not change."""
    rows = result.stats.sort_values(KEY)
    trials = {
        run.name: {
            "status": run.status,
            "values": run.folder.read_metadata().trial_settings.values,
            "reports": [_reported(report) for report in run.reports()],
            "weights": dict(run.weights("last")),
        }
        for run in result.runs
    }
    return {
        "trials": trials,
        "rows": rows[[*KEY, "loss"]].astype(str).to_dict("list"),
        "best": result.best.name,
    }


def _reported(report: dict[str, Any]) -> dict[str, Any]:
    return {
        name: report[name] for name in ("epoch", "step", "train/loss", "val/loss") if name in report
    }
