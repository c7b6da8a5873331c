"""Tune's schedulers as a sweep sets them up, on trials with known curves: what they stop, and where they lead."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule, TrialScheduler

from orchestrator.config.sections.sweep import Sweep
from orchestrator.records.run_folder import RunFolder
from orchestrator.sweeps.results.population import History
from orchestrator.sweeps.search.sampling import random_points
from orchestrator.sweeps.tune.schedulers import SequentialScheduler, make_scheduler, seeded
from orchestrator.sweeps.tune.tune_config import TRIAL, tune_config


class Member:
    """As much of a trial of Tune's as a scheduler looks at."""

    def __init__(self, number: int, values: dict[str, Any]) -> None:
        self.trial_id, self.config, self.status = f"id-{number}", tune_config(number, values), Trial.RUNNING
        self.checkpoint, self.experiment_tag, self.evaluated_params = object(), "", {}
        self.temporary_state = SimpleNamespace(saving_to=None)
        self.run_metadata = SimpleNamespace(
            checkpoint_manager=SimpleNamespace(checkpoint_config=SimpleNamespace(num_to_keep=None))
        )
        self.set_config = lambda config: setattr(self, "config", config)
        self.set_experiment_tag = lambda tag: None

    def is_finished(self) -> bool:
        return False


class Controller:
    """As much of Tune's controller."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.search_alg = None
        self.stop_trial = lambda trial: setattr(trial, "status", Trial.TERMINATED)
        self.get_trials = self.get_live_trials = lambda: self.members
        self._schedule_trial_save = lambda trial, result: trial.checkpoint

    def pause_trial(self, trial: Member, should_checkpoint: bool) -> None:
        trial.status = Trial.PAUSED


def scheduler_of(settings: Sweep, folder: Path, mode: str = "max") -> Any:
    scheduler = make_scheduler(settings, {}, history=History(RunFolder(folder)))
    scheduler.set_search_properties("val/score", mode)
    return scheduler


def sweep(**more: Any) -> Sweep:
    return Sweep.model_validate(
        {
            "metric": "val/score",
            "mode": "max",
            "search": "random",
            "space": {"optimizer.lr": {"uniform": [0, 1]}},
            **more,
        }
    )


MAX_T = 27


@pytest.mark.parametrize("seed", range(5))
def test_asha_stops_the_bad_ones_early_and_keeps_the_best(seed: int, tmp_path: Path) -> None:
    """27 learning curves that rise to heights of their own and never cross, four at a time."""
    scheduler = scheduler_of(
        sweep(trials=27, scheduler={"type": "asha", "grace_period": 1, "reduction_factor": 3, "max_t": MAX_T}), tmp_path
    )
    heights = random.Random(seed).sample(range(1, 28), 27)
    waiting = [Member(number, {}) for number in range(27)]
    reports = dict.fromkeys(range(27), 0)
    running: list[Member] = []
    while waiting or running:
        while waiting and len(running) < 4:
            running.append(waiting.pop(0))
            scheduler.on_trial_add(Controller(), running[-1])
        for trial in list(running):
            number = trial.config[TRIAL]["number"]
            reports[number] += 1
            result = {
                "val/score": heights[number] * (1 - math.exp(-reports[number] / 9)),
                TRAINING_ITERATION: reports[number],
            }
            if scheduler.on_trial_result(Controller(), trial, result) == TrialScheduler.STOP:
                running.remove(trial)
    best, worst = heights.index(27), heights.index(1)
    assert reports[best] == MAX_T
    # Without waiting for the others the first to reach a rung goes on, whatever it is; all later ones must be among the
    # best third.
    assert reports[worst] <= 3
    assert sum(reports.values()) < 27 * MAX_T / 2
    by_height = sorted(range(27), key=heights.__getitem__)
    assert (
        np.mean([reports[number] for number in by_height[:9]])
        < np.mean([reports[number] for number in by_height[-9:]]) / 2
    )


def test_a_population_moves_its_decay_to_the_optimum_and_never_leaves_its_bounds(tmp_path: Path) -> None:
    """Scored by the distance of a decay from 0.7, near the end of its range; all begin at 0.3 or less, so that copying
    alone leads nowhere."""
    distances = []
    for seed in range(5):
        points = [{"hooks.ema.decay": value} for value in np.linspace(0.05, 0.3, 8).tolist()]
        settings = sweep(
            trials=8,
            seed=seed,
            scheduler={"type": "pbt", "mutate": ["hooks.ema.decay"]},
            space={"hooks.ema.decay": {"uniform": [0.05, 0.75]}},
            points=points,
        )
        controller, folder = Controller(), tmp_path / str(seed)
        scheduler = scheduler_of(settings, folder)
        for number, values in enumerate(random_points(settings)):
            controller.members.append(Member(number, values))
            scheduler.on_trial_add(controller, controller.members[-1])
        with seeded(seed):
            for epoch in range(1, 16):
                _one_epoch(scheduler, controller, epoch)
        distances.append(np.median([_distance(member) for member in controller.members]))
        exploits = History(RunFolder(folder)).read()
        assert len(exploits) >= 14 * 2
        assert all(0.05 <= exploit.after["hooks.ema.decay"] <= 0.75 for exploit in exploits)
        assert all(exploit.source_score >= exploit.score for exploit in exploits)
    assert np.median(distances) < 0.1


@pytest.mark.filterwarnings(
    "ignore::Warning"
)  # of scipy and scikit-learn, about the process that PB2 fits to few points
def test_pb2_stays_within_its_ends(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    settings = sweep(
        trials=3,
        scheduler={"type": "pb2", "quantile_fraction": 0.5},
        space={"hooks.ema.decay": {"uniform": [0.1, 0.9]}},
    )
    controller = Controller()
    scheduler = scheduler_of(settings, tmp_path)
    for number, values in enumerate(random_points(settings)):
        controller.members.append(Member(number, values))
        scheduler.on_trial_add(controller, controller.members[-1])
    with seeded(0):
        for epoch in range(1, 5):
            _one_epoch(scheduler, controller, epoch)
    exploits = History(RunFolder(tmp_path)).read()
    assert len(exploits) == 4
    assert len({exploit.after["hooks.ema.decay"] for exploit in exploits}) > 1
    assert all(0.1 <= exploit.after["hooks.ema.decay"] <= 0.9 for exploit in exploits)


def _distance(member: Member) -> float:
    return abs(float(member.config[TRIAL]["values"]["hooks.ema.decay"]) - 0.7)


def _one_epoch(scheduler: Any, controller: Controller, epoch: int) -> None:
    """Every trial reports and waits for the others; whoever is last has the population look at itself."""
    for member in controller.members:
        result = {"val/score": -_distance(member), TRAINING_ITERATION: epoch, "epoch": epoch - 1, "step": 10 * epoch}
        assert scheduler.on_trial_result(controller, member, result) in (TrialScheduler.PAUSE, TrialScheduler.NOOP)
        member.status = Trial.PAUSED
    for member in controller.members:
        member.status = Trial.RUNNING


def test_hyperband_stops_a_trial_whose_pause_is_saved_after_its_bracket_is_through(tmp_path: Path) -> None:
    """Three trials of a bracket that runs through report for the last time; one has paused by then, one is still
    saving."""
    scheduler = scheduler_of(
        sweep(trials=3, scheduler={"type": "hyperband", "max_t": 4, "reduction_factor": 2}), tmp_path
    )
    controller = Controller()
    saving, paused, _ = trials = [Member(number, {}) for number in range(3)]
    for trial in trials:
        scheduler.on_trial_add(controller, trial)
    paused.status = Trial.PAUSED
    decided = [
        scheduler.on_trial_result(controller, trial, {"val/score": 1.0, TRAINING_ITERATION: 4}) for trial in trials
    ]
    assert decided == [TrialScheduler.PAUSE, TrialScheduler.PAUSE, TrialScheduler.STOP]
    assert [trial.status for trial in trials] == [Trial.RUNNING, Trial.TERMINATED, Trial.RUNNING]
    saving.status = Trial.PAUSED
    assert scheduler.choose_trial_to_run(controller) is None
    assert saving.status == Trial.TERMINATED


class Beside:
    """As much of Tune's loop as a scheduler asks for, where no trial waits."""

    @staticmethod
    def get_live_trials() -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("settings", "tunes_own"),
    [
        (
            {"type": "asha", "grace_period": 2, "reduction_factor": 3, "max_t": 9},
            lambda: ASHAScheduler(metric="val/score", mode="max", grace_period=2, reduction_factor=3, max_t=9),
        ),
        (
            {"type": "median", "grace_period": 2, "min_samples_required": 2},
            lambda: MedianStoppingRule(TRAINING_ITERATION, "val/score", "max", grace_period=2, min_samples_required=2),
        ),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_trials_one_after_the_other_end_where_tunes_own_scheduler_ends_them(
    settings: dict[str, Any], tunes_own: Any, seed: int, tmp_path: Path
) -> None:
    ours = SequentialScheduler(sweep(trials=20, scheduler=settings), {})
    theirs, draw = tunes_own(), random.Random(seed)
    ends = []
    for number in range(20):
        trial, curve = Member(number, {}), [draw.random() + draw.random() * report for report in range(12)]
        ours.begins(number)
        theirs.on_trial_add(Beside(), trial)
        for made, score in enumerate(curve, 1):
            result = {"val/score": score, TRAINING_ITERATION: made}
            stops = theirs.on_trial_result(Beside(), trial, result) == TrialScheduler.STOP
            assert ours.stops(number, {"val/score": score}, made) is stops
            if stops:
                break
        ours.ended(number, {"val/score": score}, made)
        theirs.on_trial_complete(Beside(), trial, result)
        ends.append(made)
    assert 1 < len(set(ends)) <= 12


@pytest.mark.parametrize(
    ("aggregate", "goes_on", "seen_as"), [("mean", True, [0.55, 0.6]), ("lower_bound", False, [0.5, 0.4])]
)
def test_of_repeats_a_scheduler_sees_the_mean_of_those_that_have_come_as_far(
    tmp_path: Path, aggregate: str, goes_on: bool, seen_as: list[float]
) -> None:
    """With a rung after the first report half go on. By itself the second seed of the second configuration, 0.4, would
    be below the rung's median, and so it is by the bound: of two values the standard error is half of what they differ
    by."""
    settings = Sweep.model_validate(
        {
            "metric": "val/score",
            "mode": "max",
            "search": "grid",
            "repeats": 2,
            "aggregate": aggregate,
            "scheduler": "asha",
            "space": {"a": {"grid": [1, 2]}},
        }
    )
    scheduler, seen = SequentialScheduler(settings, {}), []
    for number, value in enumerate([0.5, 0.6, 0.8, 0.4]):
        scheduler.begins(number)
        seen.append(scheduler.stops(number, {"val/score": value}, 1))
    assert seen[-1] is not goes_on
    rung = [*scheduler._scheduler._brackets[0]._rungs[-1][1].values()]
    assert rung == pytest.approx([0.5, seen_as[0], 0.8, seen_as[1]])
