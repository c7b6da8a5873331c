"""Tune's schedulers as a sweep sets them up, on trials with known curves."""

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

from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import trial_name
from orchestrator.experiment.sections.sweep import Sweep
from orchestrator.sweeps.results.population import Exploit, History
from orchestrator.sweeps.search.search import draw_points
from orchestrator.sweeps.tune.schedulers import (
    REPORTED,
    TRIAL,
    SequentialScheduler,
    make_scheduler,
    make_tune_config,
    seeded,
)
from orchestrator.tables.trial_index import TrialRecord
from tests.orchestrator.sweeps.search.draws import previous_trial


class Member:
    """The attributes of a Tune trial that a scheduler reads."""

    def __init__(self, number: int, values: dict[str, Any]) -> None:
        self.trial_id, self.config, self.status = (
            f"id-{number}",
            make_tune_config(number, values),
            Trial.RUNNING,
        )
        self.checkpoint, self.experiment_tag, self.evaluated_params, self.is_saving = (
            object(),
            "",
            {},
            False,
        )
        self.temporary_state = SimpleNamespace(saving_to=None)
        self.run_metadata = SimpleNamespace(
            checkpoint_manager=SimpleNamespace(checkpoint_config=SimpleNamespace(num_to_keep=None))
        )
        self.set_config = lambda config: setattr(self, "config", config)
        self.set_experiment_tag = lambda tag: None

    def is_finished(self) -> bool:
        return False


class Controller:
    """The methods of Tune's controller that a scheduler calls."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.search_alg = None
        self.stop_trial = lambda trial: setattr(trial, "status", Trial.TERMINATED)
        self.get_trials = self.get_live_trials = lambda: self.members
        self._schedule_trial_save = lambda trial, result: trial.checkpoint

    def pause_trial(self, trial: Member, should_checkpoint: bool) -> None:
        trial.status = Trial.PAUSED


def began(
    settings: Sweep,
    folder: Path,
    previous: dict[int, TrialRecord] | None = None,
    status: str = Trial.RUNNING,
) -> tuple[Controller, Any]:
    """Tune's controller of all trials of a sweep, and its scheduler."""
    controller, scheduler = (
        Controller(),
        make_scheduler(settings, previous or {}, history=History(RunFolder(folder))),
    )
    scheduler.set_search_properties("val/score", "max")
    for number, values in enumerate(draw_points(settings)):
        controller.members.append(Member(number, values))
        scheduler.on_trial_add(controller, controller.members[-1])
        controller.members[-1].status = status
    return controller, scheduler


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


def exploits_of(settings: Sweep, folder: Path, epochs: int) -> tuple[list[Exploit], list[Member]]:
    """Train a population, scored by the distance of a decay from 0.7."""
    controller, scheduler = began(settings, folder)
    with seeded(settings.seed):
        for epoch in range(1, epochs + 1):
            _one_epoch(scheduler, controller, epoch)
    exploits = History(RunFolder(folder)).read()
    low, high = settings.space["hooks.ema.decay"].ends
    assert all(low <= exploit.after["hooks.ema.decay"] <= high for exploit in exploits)
    assert all(exploit.source_score >= exploit.score for exploit in exploits)
    return exploits, controller.members


def test_population_moves_decay_to_the_optimum_within_bounds(tmp_path: Path) -> None:
    """All begin at 0.3 or less, so that copying alone leads nowhere."""
    distances = []
    for seed in range(3):
        settings = sweep(
            trials=8,
            seed=seed,
            scheduler={"type": "pbt", "mutate": ["hooks.ema.decay"]},
            space={"hooks.ema.decay": {"uniform": [0.05, 0.75]}},
            points=[{"hooks.ema.decay": value} for value in np.linspace(0.05, 0.3, 8).tolist()],
        )
        exploits, members = exploits_of(settings, tmp_path / str(seed), 15)
        distances.append(np.median([*map(_distance, members)]))
        assert len(exploits) >= 14 * 2
    assert np.median(distances) < 0.1


def test_a_diverged_trial_of_a_population_copies_another(tmp_path: Path) -> None:
    settings = sweep(trials=4, scheduler="pbt", space={"hooks.ema.decay": {"uniform": [0.1, 0.9]}})
    controller, scheduler = began(settings, tmp_path)
    for epoch in range(1, 5):
        _one_epoch(scheduler, controller, epoch, diverged=2 if epoch == 2 else None)
    exploits = {exploit.report: exploit for exploit in History(RunFolder(tmp_path)).read()}
    assert [*exploits] == [1, 2, 3, 4]
    assert exploits[2].trial == "trial-0002"
    assert [math.isnan(exploit.score) for exploit in exploits.values()] == [
        False,
        True,
        False,
        False,
    ]
    assert not any(math.isnan(exploit.source_score) for exploit in exploits.values())


def _distance(member: Member) -> float:
    return abs(float(member.config[TRIAL]["values"]["hooks.ema.decay"]) - 0.7)


def _one_epoch(
    scheduler: Any, controller: Controller, epoch: int, diverged: int | None = None
) -> None:
    """Every trial reports and waits for the others; at the last report, Tune compares the
    population."""
    for number, member in enumerate(controller.members):
        score = math.inf if number == diverged else -_distance(member)
        result = {
            "val/score": score,
            TRAINING_ITERATION: epoch,
            "epoch": epoch - 1,
            "step": 10 * epoch,
        }
        assert scheduler.on_trial_result(controller, member, result) in (
            TrialScheduler.PAUSE,
            TrialScheduler.NOOP,
        )
        member.status = Trial.PAUSED
    for member in controller.members:
        member.status = Trial.RUNNING


@pytest.mark.parametrize("reports", [(0, 0, 0), (3, 1, 0)])
def test_a_population_waits_for_all_trials_and_not_for_one_that_has_failed(
    reports: tuple[int, ...], tmp_path: Path
) -> None:
    """Two of three trials wait at the next comparison when the third, behind them, fails. Some may
    be resumed."""
    settings = sweep(trials=3, scheduler={"type": "pbt", "perturbation_interval": 2})
    previous = {
        number: previous_trial({}, "lost", [{"val/score": 1.0}] * count, name=trial_name(number))
        for number, count in enumerate(reports)
    }
    controller, scheduler = began(settings, tmp_path, previous)
    for member, first in zip(controller.members, reports, strict=True):
        for count in range(first + 1, max(reports) // 2 * 2 + 3):
            result = {
                "val/score": 1 / count,
                TRAINING_ITERATION: count,
                "epoch": count - 1,
                "step": count,
            }
            if member is controller.members[-1] and count > first + 1:
                break
            decision = scheduler.on_trial_result(controller, member, result)
            member.status = Trial.PAUSED if decision == TrialScheduler.PAUSE else Trial.RUNNING
    assert [member.status for member in controller.members] == [
        Trial.PAUSED,
        Trial.PAUSED,
        Trial.RUNNING,
    ]
    assert scheduler.choose_trial_to_run(controller) is None
    assert History(RunFolder(tmp_path)).read() == []
    controller.members.pop().status = Trial.ERROR
    assert scheduler.choose_trial_to_run(controller) in controller.members
    assert len(History(RunFolder(tmp_path)).read()) == 1


def test_hyperband_stops_a_trial_that_pauses_after_its_bracket_has_ended(tmp_path: Path) -> None:
    """The three trials of a bracket report for the last time; one has paused by then, one is still
    saving."""
    settings = sweep(trials=3, scheduler={"type": "hyperband", "max_t": 4, "reduction_factor": 2})
    controller, scheduler = began(settings, tmp_path)
    saving, paused, _ = trials = controller.members
    paused.status = Trial.PAUSED
    decided = [
        scheduler.on_trial_result(controller, trial, {"val/score": 1.0, TRAINING_ITERATION: 4})
        for trial in trials
    ]
    assert decided == [TrialScheduler.PAUSE, TrialScheduler.PAUSE, TrialScheduler.STOP]
    assert [trial.status for trial in trials] == [Trial.RUNNING, Trial.TERMINATED, Trial.RUNNING]
    saving.status = Trial.PAUSED
    assert scheduler.choose_trial_to_run(controller) is None
    assert saving.status == Trial.TERMINATED


def test_hyperband_cuts_each_bracket_to_its_better_half(tmp_path: Path) -> None:
    """With R = 4 and eta = 2, three brackets of 3, 3 and 4 trials are first cut at 4, 2 and 1
    reports (Li et al. 2018).

    A larger number scores better. Tune rounds half of three up, to two.
    """
    settings = sweep(trials=10, scheduler={"type": "hyperband", "max_t": 4, "reduction_factor": 2})
    (controller, scheduler), ends = began(settings, tmp_path, status=Trial.PENDING), [0] * 10

    def end(trial: Member) -> None:
        trial.status = Trial.TERMINATED
        scheduler.on_trial_remove(controller, trial)

    controller.stop_trial = end
    while trial := scheduler.choose_trial_to_run(controller):
        trial.status, decision = Trial.RUNNING, TrialScheduler.CONTINUE
        while decision == TrialScheduler.CONTINUE:
            number = controller.members.index(trial)
            ends[number] += 1
            decision = scheduler.on_trial_result(
                controller, trial, {"val/score": number, TRAINING_ITERATION: ends[number]}
            )
        trial.status = Trial.PAUSED
        if decision == TrialScheduler.STOP:
            end(trial)
    assert ends == [4, 4, 4, 2, 4, 4, 1, 1, 2, 4]


def test_pbt_copies_the_best_and_multiplies_its_value(tmp_path: Path) -> None:
    """Of four trials the worst, 0.2 with score 1, continues from the best, 0.5 with score 4, at 0.8
    or 1.2 times 0.5.

    With synch, that happens after the second and the fourth report.
    """
    scheduler = {"type": "pbt", "perturbation_interval": 2, "resample_probability": 0}
    points = [{"hooks.ema.decay": value} for value in (0.4, 0.2, 0.5, 0.3)]
    space = {"hooks.ema.decay": {"uniform": [0.1, 0.9]}}
    controller, scheduler = began(
        sweep(trials=4, scheduler=scheduler, space=space, points=points), tmp_path
    )
    for epoch in range(1, 5):
        for score, trial in zip([3, 1, 4, 2], controller.members, strict=True):
            result = {
                "val/score": score,
                TRAINING_ITERATION: epoch,
                "epoch": epoch - 1,
                "step": 10 * epoch,
            }
            scheduler.on_trial_result(controller, trial, result)
            trial.status = Trial.RUNNING
    exploits = History(RunFolder(tmp_path)).read()
    assert [(one.trial, one.source, one.report, one.score) for one in exploits] == [
        ("trial-0001", "trial-0002", report, 1) for report in (2, 4)
    ]
    assert {round(one.after["hooks.ema.decay"], 9) for one in exploits} <= {0.4, 0.6}
    assert [trial.config[TRIAL]["values"]["hooks.ema.decay"] for trial in controller.members] == [
        0.4,
        exploits[-1].after["hooks.ema.decay"],
        0.5,
        0.3,
    ]


class NoneWaits:
    """A controller around trials that never wait."""

    @staticmethod
    def get_live_trials() -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("settings", "tunes_own"),
    [
        (
            {"type": "asha", "grace_period": 2, "reduction_factor": 3, "max_t": 9},
            lambda: ASHAScheduler(
                metric="val/score", mode="max", grace_period=2, reduction_factor=3, max_t=9
            ),
        ),
        (
            {"type": "median", "grace_period": 2, "min_samples_required": 2},
            lambda: MedianStoppingRule(
                TRAINING_ITERATION, "val/score", "max", grace_period=2, min_samples_required=2
            ),
        ),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_sequential_trials_stop_where_tune_stops_them(
    settings: dict[str, Any], tunes_own: Any, seed: int, tmp_path: Path
) -> None:
    ours = SequentialScheduler(sweep(trials=20, scheduler=settings), {})
    theirs, draw = tunes_own(), random.Random(seed)
    ends = []
    for number in range(20):
        trial, curve = (
            Member(number, {}),
            [draw.random() + draw.random() * report for report in range(12)],
        )
        if draw.random() < 0.4:
            curve[draw.randrange(4) :] = [math.nan] * 12
        ours.add(number)
        theirs.on_trial_add(NoneWaits(), trial)
        for count, score in enumerate(curve, 1):
            result = {
                "val/score": score if math.isfinite(score) else -1e9,
                TRAINING_ITERATION: count,
            }
            stops = theirs.on_trial_result(NoneWaits(), trial, result) == TrialScheduler.STOP
            assert ours.should_stop(number, {"val/score": score}, count) is stops
            if stops:
                break
        ours.remove(number, {"val/score": score}, count)
        ends.append(count)
    assert 1 < len(set(ends)) <= 12


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("scheduler", ["asha", "median"])
@pytest.mark.parametrize("repeats", [1, 2])
def test_a_diverged_trial_stops_and_the_others_continue(
    scheduler: str, repeats: int, value: float
) -> None:
    settings = sweep(
        search="grid", repeats=repeats, scheduler=scheduler, space={"a": {"grid": [*range(10)]}}
    )
    sequential, stopped = SequentialScheduler(settings, {}), []
    for number in range(10 * repeats):
        sequential.add(number)
        score = value if number // repeats == 6 else number // repeats
        stopped += [number] if sequential.should_stop(number, {"val/score": score}, 1) else []
        sequential.remove(number, {"val/score": score}, 1)
    assert {number // repeats for number in stopped} == {6}
    assert len(stopped) == repeats


@pytest.mark.parametrize("repeated", range(3))
@pytest.mark.parametrize("repeats", [1, 4])
@pytest.mark.parametrize("scheduler", ["asha", {"type": "asha", "brackets": 3}, "median"])
def test_trials_stop_after_a_resume_where_they_stop_without_one(
    scheduler: Any, repeats: int, repeated: int
) -> None:
    draw = random.Random(repeated)
    curves = [[draw.random() + draw.random() * report for report in range(12)] for _ in range(20)]

    def ends(scheduler: SequentialScheduler, begun: dict[int, int]) -> list[int]:
        """Return at which report each trial ends; `begun` has the report at which some begin."""
        return [
            end(scheduler, number, begun.get(number, 1))
            for number in sorted({*begun, *range(first, 20)})
        ]

    def end(scheduler: SequentialScheduler, number: int, begins: int) -> int:
        scheduler.add(number)
        for count in range(begins, 13):
            if scheduler.should_stop(number, {"val/score": curves[number][count - 1]}, count):
                break
        scheduler.remove(number, {"val/score": curves[number][count - 1]}, count)
        return count

    first, settings = 0, sweep(trials=20, repeats=repeats, scheduler=scheduler)
    expected = ends(SequentialScheduler(settings, {}), {})
    for first in range(1, 20):
        reports = max(1, expected[first] - (not repeated))
        previous = {
            number: previous_trial(
                {},
                "stopped" if number < first else "lost",
                [{"val/score": score} for score in curves[number][:count]],
                name=trial_name(number),
            )
            for number, count in [*enumerate(expected[:first]), (first, reports)]
        }
        begins = max(1, reports + 1 - repeated)
        if begins <= expected[first]:
            assert (
                ends(SequentialScheduler(settings, previous), {first: begins}) == expected[first:]
            )


@pytest.mark.parametrize("scheduler", ["asha", "median"])
def test_a_shared_training_ends_with_a_trial_that_never_reported(scheduler: str) -> None:
    made: Any = make_scheduler(sweep(trials=2, scheduler=scheduler), {})
    made.set_search_properties("val/score", "max")
    trial, result = Member(0, {}), {"val/score": 1.0, TRAINING_ITERATION: 1, REPORTED: 0}
    trial.config[TRIAL]["followers"] = [{"number": 1, "values": {}}]
    made.on_trial_add(NoneWaits(), trial)
    assert made.on_trial_result(NoneWaits(), trial, result) == TrialScheduler.CONTINUE
    made.on_trial_complete(NoneWaits(), trial, result)


@pytest.mark.parametrize(
    ("aggregate", "continues", "aggregates"),
    [("mean", True, [0.55, 0.6]), ("lower_bound", False, [0.5, 0.4])],
)
def test_a_scheduler_gets_the_aggregate_of_repeats_with_as_many_reports(
    aggregate: str, continues: bool, aggregates: list[float]
) -> None:
    """Half of the trials continue after the rung at the first report. Alone, 0.4 is below the
    rung's median, and so is the lower bound. The standard error of two values is half of their
    difference."""
    settings = sweep(
        search="grid",
        repeats=2,
        aggregate=aggregate,
        scheduler="asha",
        space={"a": {"grid": [1, 2]}},
    )
    scheduler, stops = SequentialScheduler(settings, {}), []
    for number, value in enumerate([0.5, 0.6, 0.8, 0.4]):
        scheduler.add(number)
        stops.append(scheduler.should_stop(number, {"val/score": value}, 1))
    assert stops[-1] is not continues
    rung = [*scheduler._scheduler._brackets[0]._rungs[-1][1].values()]
    assert rung == pytest.approx([0.5, aggregates[0], 0.8, aggregates[1]])
