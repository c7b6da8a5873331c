"""Environment variables of Ray, few of which are documented. Imports no Ray, which reads them at
import."""

import json
import os

ADDRESS_FILE = "ray_current_cluster"
"""File in the folder of a Ray, which `ray start --temp-dir` names, that holds its address once it
has started."""

SETTINGS = {
    # The controller takes one report per poll; the default of 2 s would slow down short epochs.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    # Limits how long other ranks wait for a rank that never reports.
    "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": "1800",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # Rank 0 passes on what it prints, so it must not go to Ray Train's logger instead.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    # Workers stay in the driver's folder, so that relative paths in a task work.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Tune's own checkpoints of a sweep are never read.
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_raylet_start_wait_time_s": "120",
    # Ray would end the process group of a driver that has died, and so the shell that started it.
    "RAY_process_group_cleanup_enabled": "0",
}
"""For any Ray that the driver starts or joins. A value that the user has set stays."""

SETTINGS_ON_THIS_MACHINE = {
    # Under `uv run`, Ray would copy the folder and install the environment again for its workers,
    # which find both on this machine.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}
"""Only for a Ray that the driver starts."""


def list_job_variables() -> set[str]:
    """Return the variables that this driver's job sets for its workers; Ray rejects a variable that
    is set twice."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    return set((job.get("runtime_env") or {}).get("env_vars") or {})
