"""A run on Ray Train: what each worker does, and how the workers are started."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError

from orchestrator.config.experiment import Experiment
from orchestrator.engines.session import Assignment
from orchestrator.engines.train_failures import OnFailure, first_failure
from orchestrator.loop.world import World
from orchestrator.private_api.ray_train import without_extra_actors
from orchestrator.records.run_folder import RunFolder

SCRATCH = ".ray"
"""What Ray Train keeps while a run goes on, in the run's folder."""

_STARTS = 60
"""How often Ray Train waits a minute for room on a cluster, where a host may come back and an autoscaler takes its time."""


def this_rank() -> World:
    """Where this worker stands in its group. Ray Train worker."""
    from ray.train.torch import get_device

    context = ray.train.get_context()
    return World(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        local_rank=context.get_local_rank(),
        device=get_device(),
    )


def fit(train: Callable[[Assignment], None], assignment: Assignment, experiment: Experiment, *, lean: bool) -> None:
    """Starts the worker group, and starts it again from its last checkpoint when a worker dies; blocks. Driver, or the
    process of a sweep's trial.

    `lean` is for those who see themselves to what a lost driver leaves: Ray's own actors for that are not started.
    Raises RunError with the first failing rank's own words; at once where it failed by a mistake in the experiment.
    """
    from ray.train.torch import TorchTrainer

    workers = experiment.workers
    folder = RunFolder(assignment.location)
    trainer = (without_extra_actors(TorchTrainer) if lean else TorchTrainer)(
        train,
        train_loop_config=assignment,
        scaling_config=ScalingConfig(
            num_workers=(workers.least, workers.most) if workers.least < workers.most else workers.most,
            use_gpu=workers.gpu,
            resources_per_worker=workers.resources(),
        ),
        run_config=RunConfig(
            # A name of its own for each driver: Ray would take up its own notes of an earlier one, and ours decide.
            name=f"ray-{uuid.uuid4().hex[:8]}",
            storage_path=f"{folder.storage.root}/{SCRATCH}",
            storage_filesystem=folder.storage.filesystem,
            callbacks=[OnFailure(assignment.mailbox, assignment.location)],
            failure_config=FailureConfig(max_failures=experiment.max_failures, controller_failure_limit=3 if lean else _STARTS),
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        raise first_failure(error) from error
    finally:
        folder.storage.delete(SCRATCH)
