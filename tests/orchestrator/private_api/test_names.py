"""Ray has the names and settings that Hookyard uses beyond the public API."""

from pathlib import Path

import pytest
import ray
from packaging.version import Version

from orchestrator.private_api.ray_settings import (
    ADDRESS_FILE,
    SETTINGS,
    SETTINGS_ON_THIS_MACHINE,
)
from tests.private_names import assert_there

FOLDER = "orchestrator/private_api"
CORE = f"{FOLDER}/ray_core.py"
TRAIN = f"{FOLDER}/ray_train.py"
TUNE = f"{FOLDER}/ray_tune.py"
TUNE_SCHEDULERS = f"{FOLDER}/ray_tune_schedulers.py"
IN_SETTINGS = f"{FOLDER}/ray_settings.py"

NODE, CONTROLLER = "ray._private.node:Node", "ray.tune.execution.tune_controller:TuneController"
SCHEDULERS = "ray.tune.schedulers"
PBT, PBT_STATE = f"{SCHEDULERS}:PopulationBasedTraining", f"{SCHEDULERS}.pbt:_PBTTrialState"

USES = {
    (CORE, "the import path of workers"): (
        "ray.job_config:JobConfig._serialize",
        "ray.job_config:JobConfig _py_driver_sys_path",
        "ray._private.worker:connect _py_driver_sys_path.extend",
    ),
    (CORE, "starting fewer processes"): (
        *(f"{NODE}.{name}" for name in ("start_monitor", "start_api_server", "start_log_monitor")),
    ),
    (TRAIN, "starting fewer actors"): (
        "ray.train.v2._internal.callbacks:DatasetsCallback",
        "ray.train.v2._internal.callbacks.placement_group_callback:PlacementGroupCleanerCallback",
        "ray.train.torch:TorchTrainer._create_default_callbacks",
    ),
    (CORE, "leaving nodes that will be taken away"): (
        "ray._private.state:state.get_draining_nodes",
    ),
    (TRAIN, "the message of a rank's error"): (
        "ray.train.v2._internal.util:UserExceptionWithTraceback _base_exc",
        "ray.exceptions:RayTaskError cause",
    ),
    (TUNE, "forgetting trials that are over"): (
        "ray.tune:tune.TuneController",
        *(f"{CONTROLLER}.{name}" for name in ("on_step_end", "_mark_trial_to_checkpoint")),
        *(
            f"{CONTROLLER} {name}"
            for name in ("_stopped_trials", "_failed_trials", "_live_trials", "_trial_to_actor")
        ),
    ),
    (TUNE, "the death of a process between two trials"): (
        *(
            f"{CONTROLLER}.{name}"
            for name in ("_schedule_trial_task", "_set_trial_status", "_trial_task_failure")
        ),
        f"{CONTROLLER}._unstage_trial_with_resources",
        f"{CONTROLLER} _resetting_trials",
    ),
    (TUNE_SCHEDULERS, "ending one of the trials that share a training"): (
        "ray.tune.execution.tune_controller:TrialRunnerWrapper _tune_controller",
    ),
    (TUNE, "showing progress"): ("ray.tune.progress_reporter:TrialProgressCallback",),
    (TUNE_SCHEDULERS, "ending trials whose bracket has ended"): (
        f"{SCHEDULERS}:HyperBandScheduler _hyperbands",
        *(f"{SCHEDULERS}.hyperband:_Bracket.{name}" for name in ("finished", "cleanup_full")),
    ),
    (TUNE_SCHEDULERS, "the values and the history of a population"): (
        *(f"{PBT}.{name}" for name in ("_get_new_config", "_exploit")),
        *(f"{PBT} {name}" for name in ("_perturbation_interval", "_next_perturbation_sync")),
        *(f"{PBT} {name}" for name in ("_trial_state", "_metric_op")),
        *(f"{PBT_STATE} {name}" for name in ("last_result", "last_score")),
    ),
}
NAMES = {name: use for use, names in USES.items() for name in names}


@pytest.mark.parametrize("name", NAMES)
def test_private_name_exists_in_ray(name: str) -> None:
    assert_there(name, *NAMES[name])


@pytest.fixture(scope="module")
def sources() -> bytes:
    """All of Ray's Python in which settings are read, and its C++ as compiled."""
    folder = Path(ray.__file__).parent
    parts = [folder / part for part in ("_private", "_common", "air", "train", "tune")]
    texts = [b"".join(file.read_bytes() for file in part.rglob("*.py")) for part in parts]
    return b"".join([*texts, (folder / "core/src/ray/raylet/raylet").read_bytes()])


@pytest.mark.parametrize(
    "name", [*SETTINGS, *SETTINGS_ON_THIS_MACHINE, "RAY_JOB_CONFIG_JSON_ENV_VAR"]
)
def test_ray_reads_the_setting(name: str, sources: bytes) -> None:
    if name == "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER" and Version(ray.__version__) < Version("2.57"):
        pytest.skip("there is no such watcher before ray 2.57")
    # What is in lower case belongs to Ray's C++, whose names are without the prefix.
    known = name.removeprefix("RAY_") if name != name.upper() else name
    assert known.encode() in sources, (
        f"ray {ray.__version__} does not read {name}: {IN_SETTINGS} relies on it"
    )


def test_ray_writes_its_address_to_the_file(tmp_path: Path) -> None:
    from ray._private.utils import write_ray_address

    write_ray_address("10.0.0.1:1234", str(tmp_path))
    assert (tmp_path / ADDRESS_FILE).read_text() == "10.0.0.1:1234"
