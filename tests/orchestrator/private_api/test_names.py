"""What Hookyard takes from Ray beyond its public API is there."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray
from packaging.version import Version

from orchestrator.private_api.ray_settings import SETTINGS
from tests.private_names import assert_there

CORE, TRAIN, TUNE, SCHEDULERS, IN_SETTINGS = (
    f"orchestrator/private_api/{name}.py"
    for name in ("ray_core", "ray_train", "ray_tune", "ray_tune_schedulers", "ray_settings")
)

CONTROLLER = "ray.tune.execution.tune_controller:TuneController"
PBT = "ray.tune.schedulers:PopulationBasedTraining"

NAMES = {
    "ray.job_config:JobConfig._serialize": (CORE, "the import path of workers"),
    "ray.job_config:JobConfig _py_driver_sys_path": (CORE, "the import path of workers"),
    "ray._private.worker:connect _py_driver_sys_path.extend": (CORE, "the import path of workers"),
    **{
        f"ray._private.node:Node.{name}": (CORE, "starting fewer processes")
        for name in ("start_monitor", "start_api_server", "start_log_monitor")
    },
    "ray.train.v2._internal.callbacks:DatasetsCallback": (TRAIN, "starting fewer processes"),
    "ray.train.v2._internal.callbacks.placement_group_callback:PlacementGroupCleanerCallback": (
        TRAIN,
        "starting fewer processes",
    ),
    "ray.train.torch:TorchTrainer._create_default_callbacks": (TRAIN, "starting fewer processes"),
    "ray.train.v2._internal.util:UserExceptionWithTraceback _base_exc": (TRAIN, "a rank's own words"),
    "ray.exceptions:RayTaskError cause": (TRAIN, "a rank's own words"),
    "ray.tune:tune.TuneController": (TUNE, "a loop over trials that forgets those that are over"),
    f"{CONTROLLER}.on_step_end": (TUNE, "forgetting trials that are over"),
    f"{CONTROLLER}._mark_trial_to_checkpoint": (TUNE, "forgetting trials that are over"),
    **{
        f"{CONTROLLER} {name}": (TUNE, "forgetting trials that are over")
        for name in ("_stopped_trials", "_failed_trials", "_live_trials", "_trial_to_actor")
    },
    **{
        f"{CONTROLLER}.{name}": (TUNE, "the death of a process between two trials")
        for name in (
            "_schedule_trial_task",
            "_set_trial_status",
            "_unstage_trial_with_resources",
            "_trial_task_failure",
        )
    },
    "ray.tune.execution.tune_controller:TrialRunnerWrapper _tune_controller": (
        TUNE,
        "ending one of the trials that share a training",
    ),
    f"{CONTROLLER} _resetting_trials": (TUNE, "the death of a process between two trials"),
    "ray.tune:Trainable _iteration": (TUNE, "a trial that is taken up"),
    "ray.tune:Trainable _time_total": (TUNE, "a trial that is taken up"),
    "ray.tune.progress_reporter:TrialProgressCallback": (TUNE, "showing progress in Hookyard's own words"),
    "ray.tune.schedulers:ASHAScheduler _trial_info": (SCHEDULERS, "what ASHA knows of earlier trials"),
    "ray.tune.schedulers:ASHAScheduler _brackets": (SCHEDULERS, "what ASHA knows of earlier trials"),
    "ray.tune.schedulers:MedianStoppingRule _results": (SCHEDULERS, "what the median rule knows of earlier trials"),
    "ray.tune.schedulers:HyperBandScheduler _hyperbands": (SCHEDULERS, "ending trials whose bracket is through"),
    "ray.tune.schedulers.hyperband:_Bracket.finished": (SCHEDULERS, "ending trials whose bracket is through"),
    "ray.tune.schedulers.hyperband:_Bracket.cleanup_full": (SCHEDULERS, "ending trials whose bracket is through"),
    f"{PBT}._get_new_config": (SCHEDULERS, "values that stay in their domains"),
    f"{PBT}._exploit": (SCHEDULERS, "the history of a population"),
    **{
        f"{PBT} {name}": (SCHEDULERS, "the history of a population, and when its trials are compared")
        for name in ("_perturbation_interval", "_next_perturbation_sync", "_synch", "_trial_state", "_metric_op")
    },
    **{
        f"ray.tune.schedulers.pbt:_PBTTrialState {name}": (SCHEDULERS, "the history of a population")
        for name in ("last_perturbation_time", "last_result", "last_score")
    },
}


@pytest.mark.parametrize("name", NAMES)
def test_ray_has_it(name: str) -> None:
    assert_there(name, *NAMES[name])


@pytest.fixture(scope="module")
def sources() -> str:
    """All of Ray's Python in which settings are read."""
    folder = Path(ray.__file__).parent
    return "".join(
        file.read_text()
        for part in ("_private", "_common", "air", "train", "tune")
        for file in (folder / part).rglob("*.py")
    )


@pytest.mark.parametrize("name", [*SETTINGS, "RAY_JOB_CONFIG_JSON_ENV_VAR"])
def test_ray_reads_the_setting(name: str, sources: str) -> None:
    if name == "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER" and Version(ray.__version__) < Version("2.57"):
        pytest.skip("there is no such watcher before ray 2.57")
    # What is in lower case belongs to Ray's C++, whose names are without the prefix.
    known = name.removeprefix("RAY_") if name != name.upper() else name
    assert known in sources, f"ray {ray.__version__} does not read {name}: {IN_SETTINGS} relies on it"
