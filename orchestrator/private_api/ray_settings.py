"""Of Ray's environment: the variables that it reads, few of which are documented. Imports no Ray, which reads them as
it is imported."""

from __future__ import annotations

import json
import os

SETTINGS = {
    # The controller takes one report per poll; the default of 2 s would be the pace of short epochs.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    # A rank that never reaches a report would hang the others for ever.
    "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": "1800",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # Workers stay in the driver's folder, so that relative paths in a task mean what they say.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Tune's own notes of a sweep are never read: the trials' folders say where it stands.
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_raylet_start_wait_time_s": "120",
}


def given_by_job() -> set[str]:
    """The variables that the job which this process is the driver of gives its workers anyway; Ray refuses one given
    twice."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    return set((job.get("runtime_env") or {}).get("env_vars") or {})
