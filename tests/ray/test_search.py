"""Searches, schedulers, rules and populations on Ray; the metric is a known function of a hook's
field."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator import load_experiment, sweep
from orchestrator.sweeps.results.population import History
from orchestrator.sweeps.results.result import Sweep

pytestmark = pytest.mark.ray

BOWL = '''
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from hooks import Hook


@dataclass
class Bowl(Hook):
    """Scores val by how near its place is to 0.7; what it has gained so far is its state."""

    place: Annotated[float, Ge(0), Le(1)] = 0.5

    mutable: ClassVar[frozenset[str]] = frozenset({"place"})

    def __post_init__(self):
        self.gained = 0.0

    def on_step(self, state):
        state.record(place=self.place)

    def on_phase_end(self, state):
        if state.phase == "val":
            self.gained += 1 - abs(self.place - 0.7)
            state.metrics["val/score"] = self.gained

    def state_dict(self):
        return {"gained": self.gained}

    def load_state_dict(self, state):
        self.gained = state["gained"]
'''


def swept(folder: Path, epochs: int = 4, ranks: int = 1, cpus: float = 1, **settings: Any) -> Sweep:
    (folder / "bowl.py").write_text(BOWL)
    written = {
        "base": "points.yaml",
        "name": "bowls",
        "epochs": epochs,
        "hooks": {"bowl": {"type": "bowl:Bowl"}, "ema": None},
        "workers": {"count": ranks, "cpus": cpus},
        "sweep": {
            "metric": "val/score",
            "mode": "max",
            "space": {"hooks.bowl.place": {"uniform": [0.0, 1.0]}},
            **settings,
        },
    }
    (folder / "bowls.yaml").write_text(yaml.safe_dump(written))
    return sweep(load_experiment("bowls.yaml"), "runs")


def whole(ray: Any) -> int:
    """All CPUs of the cluster: trials that ask for them take turns in one process."""
    return int(ray.cluster_resources()["CPU"])


def grid(*places: float) -> dict[str, Any]:
    return {"search": "grid", "space": {"hooks.bowl.place": {"grid": list(places)}}}


def test_population_exploits_its_best_within_bounds(ray_cluster: Any, outside: Path) -> None:
    scheduler = {"type": "pbt", "quantile_fraction": 0.5, "resample_probability": 0}
    space = {
        "hooks.bowl.place": {"uniform": [0.05, 0.75]},
        "optimizer.lr": {"loguniform": [0.01, 0.2]},
    }
    points = [{"hooks.bowl.place": 0.1}, {"hooks.bowl.place": 0.74}]
    cpus = whole(ray_cluster) // 2
    done = swept(
        outside, 4, ranks=2, cpus=cpus, scheduler=scheduler, space=space, points=points, trials=2
    )
    assert done.trials["status"].tolist() == ["finished", "finished"]

    exploits = History(done.folder).read()
    assert len(exploits) == 3
    assert exploits[0].trial == "trial-0000"
    assert exploits[0].source == "trial-0001"
    assert exploits[0].before["hooks.bowl.place"] == 0.74
    for exploit in exploits:
        assert exploit.source_score >= exploit.score
        place, lr = exploit.after["hooks.bowl.place"], exploit.after["optimizer.lr"]
        factors = [exploit.before["hooks.bowl.place"] * factor for factor in (0.8, 1.2)]
        assert place in [min(max(factor, 0.05), 0.75) for factor in factors]
        assert 0.01 <= lr <= 0.2
    # Whoever began with 0.1 goes on from the other's gains, so its score is no longer that of its
    # beginning.
    score = done.runs[0].metrics["val/score"]
    assert score.iloc[0] == pytest.approx(0.4)
    assert score.iloc[1] > 2 * 0.9

    # The rows say which value each step had: the one before the exploit, then the new one.
    first = exploits[0]
    rows = done.runs[0].stats.query("phase == 'train' and rank == 0").sort_values("step")
    assert set(rows[rows["step"] <= first.step]["place"]) == {0.1}
    assert rows[rows["step"] > first.step]["place"].iloc[0] == first.after["hooks.bowl.place"]


def test_hyperband_pauses_trials_and_finishes_the_best(ray_cluster: Any, outside: Path) -> None:
    """With max_t=4 and eta=2 a first bracket of three runs through; one of three more is halved
    after 2 reports."""
    places, cpus = grid(0.3, 0.3, 0.3, 0.1, 0.7, 0.2), whole(ray_cluster)
    done = swept(
        outside,
        9,
        cpus=cpus,
        scheduler={"type": "hyperband", "max_t": 4, "reduction_factor": 2},
        **places,
    )
    reports = done.trials["reports"].tolist()
    assert reports[:3] == [4, 4, 4]
    assert (reports[3], reports[4]) == (2, 4)
    # Gains add up over the pause in which the others were waited for: 1 for each report of the
    # best.
    best = done.runs[4]
    assert best.metrics["val/score"].tolist() == pytest.approx([1, 2, 3, 4])
    assert len(best.folder.read_attempts()) == 2
    assert done.trials["status"].tolist() == ["stopped"] * 6


def test_optuna_trials_end_by_rules_and_budget(ray_cluster: Any, outside: Path) -> None:
    pytest.importorskip("optuna")
    done = swept(
        outside,
        epochs=6,
        search="optuna",
        trials=50,
        max_concurrent=1,
        points=[{"hooks.bowl.place": 0.7}],
        stop={"target": 3.0, "max_reports": 4},
        budget={"samples": 80 * 13},
    )
    trials = done.trials
    assert done.status == "finished"
    assert trials["config/hooks.bowl.place"].iloc[0] == 0.7
    about = [json.loads(Path(one.path, "run.json").read_text()) for one in done.runs]
    assert about[0]["stopped"] == ["val/score 3 reached the target 3"]
    assert all(one["status"] == "stopped" for one in about)
    assert about[-1]["stopped"] == ["the sweep's budget of 1,040 samples is used up"]
    # 3 reports to the target and at most 4 of each trial after it; the 13th epoch of 80 samples is
    # the last of all, but for what is trained while Tune takes a moment to stop.
    assert trials["reports"].iloc[0] == 3
    assert (trials["reports"] <= 4).all()
    assert 13 <= trials["reports"].sum() <= 15


WATCHES = '''
from dataclasses import dataclass
from typing import ClassVar

from hooks import Hook


@dataclass
class Watches(Hook):
    """Scores val by its place; above 1 it fails on the last rank."""

    place: float = 0.5
    observes: ClassVar[bool] = True

    def on_phase_end(self, state):
        if state.phase != "val":
            return
        if self.place > 1 and state.rank == state.world_size - 1:
            raise ValueError(f"{self.place} is too much")
        state.metrics["val/score"] = self.place
'''


def test_trials_of_a_shared_training_stop_and_fail_one_by_one(
    ray_cluster: Any, outside: Path
) -> None:
    """Four trials on one draw: ASHA ends the lowest, the highest fails on its own, and the others
    continue together."""
    (outside / "watches.py").write_text(WATCHES)
    space = {
        "hooks.watches.place": {"fan_out": [0.5, 2.0, 0.1, 0.7]},
        "optimizer.lr": {"uniform": [0.01, 0.1]},
    }
    hooks = {"watches": {"type": "watches:Watches"}, "ema": None}
    settings = {
        "metric": "val/score",
        "mode": "max",
        "search": "optuna",
        "trials": 4,
        "scheduler": {"type": "asha", "reduction_factor": 2},
        "space": space,
    }
    (outside / "followers.yaml").write_text(
        yaml.safe_dump(
            {
                "base": "points.yaml",
                "name": "followers",
                "epochs": 2,
                "hooks": hooks,
                "sweep": settings,
            }
        )
    )
    done = sweep(load_experiment("followers.yaml"), "runs")
    assert done.trials["leader"].tolist() == ["trial-0000"] * 4
    assert done.trials["status"].tolist() == ["finished", "failed", "stopped", "finished"]
    first, fails, low, best = (trial.folder for trial in done.runs)
    assert "2.0 is too much" in str(fails.read_metadata().error)
    assert low.read_metadata().stopped == ["asha ended the trial after report 1"]
    assert [len(folder.read_reports()) for folder in (first, fails, low, best)] == [3, 0, 1, 2]
    assert done.best.name == best.name
