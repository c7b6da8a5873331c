"""Ray Tune's controller and trials, with what its schedulers read and call."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial

from orchestrator.disk.run_folder import RunFolder
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps.results.population import History
from orchestrator.sweeps.search.drawing import draw_points
from orchestrator.sweeps.tune.schedulers import make_scheduler
from orchestrator.sweeps.tune.trial_data import SCORE, TrialReport, TrialResult, make_tune_config

METRIC = "val/score"


def make_result(
    metrics: Mapping[str, Any], reported: int | None = 0, count: int = 1, failed: Sequence[int] = ()
) -> dict[str, Any]:
    """Return a result as the driver gets it."""
    report = TrialReport({METRIC: math.nan, **metrics}, count, seconds=1.0)
    return TrialResult(report, reported, failed).make_tune_result(METRIC)


class FakeTrial:
    def __init__(self, number: int, values: dict[str, Any]) -> None:
        self.trial_id = f"id-{number}"
        self.config = make_tune_config(number, values)
        self.status = Trial.RUNNING
        self.checkpoint = object()
        self.experiment_tag = ""
        self.evaluated_params: dict[str, Any] = {}
        self.is_saving = False
        self.temporary_state = SimpleNamespace(saving_to=None)
        checkpoint_config = SimpleNamespace(num_to_keep=None)
        self.run_metadata = SimpleNamespace(
            checkpoint_manager=SimpleNamespace(checkpoint_config=checkpoint_config)
        )

    def set_config(self, config: dict[str, Any]) -> None:
        self.config = config

    def set_experiment_tag(self, tag: str) -> None: ...

    def is_finished(self) -> bool:
        return False


class FakeController:
    def __init__(self) -> None:
        self.trials: list[FakeTrial] = []
        self.search_alg = None

    def get_trials(self) -> list[FakeTrial]:
        return self.trials

    get_live_trials = get_trials

    def stop_trial(self, trial: FakeTrial) -> None:
        trial.status = Trial.TERMINATED

    def pause_trial(self, trial: FakeTrial, should_checkpoint: bool) -> None:
        trial.status = Trial.PAUSED

    def _schedule_trial_save(self, trial: FakeTrial, result: Any) -> Any:
        return trial.checkpoint


def make_sweep(**more: Any) -> SweepSettings:
    space = {"optimizer.lr": {"uniform": [0, 1]}}
    return SweepSettings.model_validate(
        {"metric": METRIC, "mode": "max", "search": "random", "space": space, **more}
    )


def start(
    settings: SweepSettings, folder: Path, previous: Any = (), status: str = Trial.RUNNING
) -> tuple[FakeController, Any]:
    """Return Tune's controller of all trials of a sweep, and its scheduler."""
    scheduler = make_scheduler(settings, dict(previous), History(RunFolder(folder)), {})
    scheduler.set_search_properties(SCORE, "max")
    controller = FakeController()
    for number, values in enumerate(draw_points(settings)):
        trial = FakeTrial(number, values)
        controller.trials.append(trial)
        scheduler.on_trial_add(controller, trial)
        trial.status = status
    return controller, scheduler
