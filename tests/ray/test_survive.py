"""Sweeps whose ranks, trials or driver get SIGKILL: the same trials with the same results, and none
runs twice."""

import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator import load_experiment, open_run, open_sweep, resume_sweep, sweep
from orchestrator.sweeps.results.population import History
from orchestrator.sweeps.results.result import Sweep
from tests.driver import Driver
from tests.ray.conftest import address_of
from tests.ray.test_search import BOWL, whole

pytestmark = pytest.mark.ray

KEY = ["trial", "rank", "phase", "epoch", "iteration"]

KILLS = '''
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from hooks import Hook


@dataclass
class KillsDriver(Hook):
    """Kills the sweep's driver and this process, once, as when a machine goes down."""

    step: int = 0
    once: str = ""

    def on_step(self, state):
        if state.phase != "train" or state.step != self.step or state.rank != 0:
            return
        if not self.once or Path(self.once).exists():
            return
        Path(self.once).touch()
        sweep = state.artifacts.parent.parent
        os.kill(json.loads((sweep / "run.json").read_text())["pid"], signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
'''


def written(
    folder: Path,
    space: dict[str, Any],
    hooks: dict[str, Any],
    ranks: int,
    cpus: int = 1,
    **settings: Any,
) -> str:
    (folder / "kills.py").write_text(KILLS)
    swept = {
        "base": "points.yaml",
        "name": "tough",
        "workers": {"count": ranks, "cpus": cpus},
        "hooks": hooks,
        "sweep": {
            "metric": "val/loss",
            "mode": "min",
            "search": "grid",
            "space": space,
            **settings,
        },
    }
    (folder / "tough.yaml").write_text(yaml.safe_dump(swept))
    return "tough.yaml"


def losses(done: Sweep) -> list[list[float]]:
    return [[report["val/loss"] for report in run.reports()] for run in done.runs]


def begun_from(done: Sweep) -> list[list[str | None]]:
    return [[attempt.checkpoint for attempt in run.folder.read_attempts()] for run in done.runs]


def test_trial_resumes_after_losing_a_rank_or_its_own_process(
    ray_cluster: Any, outside: Path
) -> None:
    """Four trials of one configuration in turn: a rank is killed, then rank 0, then rank 0 is told
    to end, as when a node shuts down, then none."""
    accidents = [
        {
            "type": "mishaps:Accident",
            "step": 7,
            "rank": rank,
            "once": str(outside / f"ended-{rank}-{number}"),
            "number": int(number),
        }
        for rank, number in ((1, signal.SIGKILL), (0, signal.SIGKILL), (0, signal.SIGTERM))
    ]
    space = {"hooks.accident": {"choice": [*accidents, None]}}
    done = sweep(
        load_experiment(written(outside, space, {"accident": accidents[0]}, 2, max_concurrent=1)),
        "runs",
    )
    assert done.trials["status"].tolist() == ["finished"] * 4
    assert begun_from(done) == [[None, "step-00000006"]] * 3 + [[None]]
    *disturbed, undisturbed = losses(done)
    assert len(undisturbed) == 3
    assert disturbed == [undisturbed] * 3
    assert not done.stats.duplicated(KEY).any()
    assert done.stats.groupby("trial", observed=True).size().tolist() == [2 * (15 + 9)] * 4


def test_sweep_resumes_after_its_driver_and_ray_were_killed(
    ray_cluster: Any, outside: Path
) -> None:
    """Four trials of the same configuration, one after the other; the second kills the driver, and
    Ray with it."""
    space = {"hooks.kills.once": {"choice": ["", str(outside / "killed"), "", ""]}}
    hooks = {"kills": {"type": "kills:KillsDriver", "step": 13}}
    file = written(outside, space, hooks, 1, max_concurrent=1)
    code, stderr = Driver("sweep", file).wait()
    assert code == -signal.SIGKILL, stderr
    left = open_sweep("runs/tough")
    assert left.status == "lost"
    assert left.runs[0].status == "finished"
    metadata = left.runs[0].folder.read_metadata()

    done = resume_sweep("runs/tough")
    assert done.trials["status"].tolist() == ["finished"] * 4
    assert done.runs[0].folder.read_metadata() == metadata
    assert begun_from(done) == [[None], [None, "step-00000012"], [None], [None]]
    # All four have the same configuration, but for the hook that killed: the same losses, disturbed
    # or not.
    assert len({tuple(found) for found in losses(done)}) == 1
    assert not done.stats.duplicated(KEY).any()
    assert done.stats.groupby("trial", observed=True).size().nunique() == 1
    assert not (outside / "runs/tough/.tune").exists()


def test_population_resumes_after_its_driver_was_killed(ray_cluster: Any, outside: Path) -> None:
    """Two trials take turns in one process: each asks for all of the cluster."""
    (outside / "bowl.py").write_text(BOWL)
    hooks = {
        "bowl": {"type": "bowl:Bowl"},
        "ema": None,
        "kills": {"type": "kills:KillsDriver", "step": 15, "once": str(outside / "killed")},
    }
    space = {"hooks.bowl.place": {"grid": [0.1, 0.74]}}
    scheduler, cpus = {"type": "pbt", "quantile_fraction": 0.5}, whole(ray_cluster)
    file = written(
        outside, space, hooks, 1, cpus, scheduler=scheduler, metric="val/score", mode="max"
    )
    (outside / file).write_text((outside / file).read_text() + "epochs: 4\n")
    # The driver dies alone here: Ray is there already, and stays.
    code, stderr = Driver("sweep", *address_of(ray_cluster), "--skip-preflight", file).wait()
    assert code == -signal.SIGKILL, stderr
    done = resume_sweep("runs/tough")
    assert not done.stats.duplicated(KEY).any()
    assert done.trials["status"].tolist() == ["finished", "finished"]
    assert done.trials["reports"].tolist() == [4, 4]
    for run in done.runs:
        assert run.stats.query("phase == 'train'")["step"].tolist() == list(range(1, 41))
    exploits = History(done.folder).read()
    assert len(exploits) >= 3
    for exploit in exploits[1:]:  # the driver may have died before the first one began
        rows = (
            open_run(f"{done.path}/trials/{exploit.trial}")
            .stats.query("phase == 'train'")
            .set_index("step")
        )
        assert rows.loc[exploit.step + 1, "place"] == exploit.after["hooks.bowl.place"]
