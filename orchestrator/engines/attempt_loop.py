"""The loop of an attempt: a training, a training of the task's own, an evaluation or a prediction.
Used in workers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from orchestrator.disk.run_folder import PREDICTIONS
from orchestrator.engines.assigned_run import AssignedRun
from orchestrator.engines.assignment import PredictionTarget
from orchestrator.experiment.yaml.origins import InitialWeights
from orchestrator.loop.base_loop import BaseLoop
from orchestrator.loop.building import MakeData
from orchestrator.loop.custom.custom_loop import CustomLoop
from orchestrator.loop.data.phases import DataOf, build_data
from orchestrator.loop.data.predicted_data import (
    ConsecutiveSamples,
    build_data_to_predict,
    build_dataset_to_predict,
)
from orchestrator.loop.inference_loops import EvaluationLoop, PredictionLoop, make_restored_run
from orchestrator.loop.loop import Loop
from orchestrator.loop.prediction import Prediction
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.sharing.shared_run import Member
from orchestrator.task import has_custom_loop


def make_loop(
    runs: Sequence[AssignedRun],
    contexts: Sequence[RunContext],
    data_of: DataOf,
    *,
    resumes: bool,
) -> BaseLoop[Any]:
    """Make the loop of runs that share a training, the leader first, or of a single run.

    Args:
        runs: The runs.
        contexts: The context of each run.
        data_of: Returns the data of a task.
        resumes: Whether the training continues from a checkpoint.
    """
    leader = runs[0]
    resolved = leader.resolved
    parts = (resolved.task, resolved.experiment, resolved.hooks, contexts[0])
    target = leader.assignment.target
    if has_custom_loop(type(resolved.task)) and not target:
        return CustomLoop(*parts)

    origin = _read_origin(leader)
    if isinstance(target, PredictionTarget):
        run = make_restored_run(*parts, _choose_data_to_predict(target, data_of))
        samples = run.training.data.phases[target.phase]
        assert isinstance(samples, ConsecutiveSamples)
        folder = leader.folder.storage / PREDICTIONS
        return PredictionLoop(
            run,
            Prediction(run, target.phase, samples, folder),
            provider=target.provider,
            rewinds=target.rewinds,
            origin=origin,
        )
    make_data = partial(build_data, data_of=data_of)
    if target:
        run = make_restored_run(*parts, make_data)
        return EvaluationLoop(run, kind=target.phase, rewinds=target.rewinds, origin=origin)

    members = [
        Member(run.resolved.experiment, run.resolved.hooks, context)
        for run, context in zip(runs, contexts, strict=True)
    ]
    return Loop(*parts, followers=members[1:], resumes=resumes, origin=origin, make_data=make_data)


def _read_origin(leader: AssignedRun) -> InitialWeights | None:
    """Return the initial weights that were found when the run was created; only rank 0 reads
    them."""
    if leader.resolved.experiment.init and leader.world.is_master:
        return leader.folder.read_metadata().init
    return None


def _choose_data_to_predict(target: PredictionTarget, data_of: DataOf) -> MakeData:
    """Return the function that builds the target's data, or that of the task."""
    if target.data is None:
        return partial(build_data_to_predict, data_of=data_of, phase=target.phase)
    return partial(
        build_dataset_to_predict,
        phase=target.phase,
        data=target.data,
        epoch_iterations=target.epoch_iterations,
    )
