"""The loop of an attempt: a training, a training of the task's own, an evaluation or a prediction.
Used in workers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from orchestrator.disk.evaluations import PREDICTIONS
from orchestrator.engines.assigned_run import AssignedRun
from orchestrator.engines.assignment import EvaluationTarget, PredictionTarget
from orchestrator.engines.run_attempt import RunAttempt
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
from orchestrator.loop.sharing.failed_run import call_for_each_run
from orchestrator.loop.sharing.shared_run import Member
from orchestrator.task import has_custom_loop


def make_loop(
    attempts: Sequence[RunAttempt], data_of: DataOf, stop_requested: Callable[[], bool]
) -> BaseLoop[Any]:
    """Make the loop of runs that share a training, the leader first, or of a single run.

    Args:
        attempts: The attempt of each run.
        data_of: Returns the data of a task.
        stop_requested: Returns whether training should save and end.
    """
    make_member = partial(_make_member, stop_requested=stop_requested)
    leader, *followers = call_for_each_run(make_member, attempts)
    assigned = attempts[0].assigned
    task = assigned.resolved.task
    target = assigned.assignment.target
    if isinstance(target, PredictionTarget):
        return _make_prediction_loop(assigned, leader, target, data_of)
    if target:
        return _make_evaluation_loop(assigned, leader, target, data_of)
    if has_custom_loop(type(task)):
        return CustomLoop(task, leader.experiment, leader.hooks, leader.context)
    return Loop(
        task,
        leader.experiment,
        leader.hooks,
        leader.context,
        followers=followers,
        resumes=attempts[0].checkpoint is not None,
        origin=_read_origin(assigned),
        make_data=partial(build_data, data_of=data_of),
    )


def _make_member(attempt: RunAttempt, stop_requested: Callable[[], bool]) -> Member:
    resolved = attempt.assigned.resolved
    return Member(resolved.experiment, resolved.hooks, attempt.make_context(stop_requested))


def _make_evaluation_loop(
    assigned: AssignedRun, member: Member, target: EvaluationTarget, data_of: DataOf
) -> EvaluationLoop:
    run = make_restored_run(
        assigned.resolved.task,
        member.experiment,
        member.hooks,
        member.context,
        partial(build_data, data_of=data_of),
    )
    return EvaluationLoop(
        run, kind=target.phase, rewinds=target.rewinds, origin=_read_origin(assigned)
    )


def _make_prediction_loop(
    assigned: AssignedRun, member: Member, target: PredictionTarget, data_of: DataOf
) -> PredictionLoop:
    run = make_restored_run(
        assigned.resolved.task,
        member.experiment,
        member.hooks,
        member.context,
        _choose_data_to_predict(target, data_of),
    )
    samples = run.training.data.phases[target.phase]
    assert isinstance(samples, ConsecutiveSamples)
    folder = assigned.folder.storage / PREDICTIONS
    return PredictionLoop(
        run,
        Prediction(run, target.phase, samples, folder),
        provider=target.provider,
        rewinds=target.rewinds,
        origin=_read_origin(assigned),
    )


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


def _read_origin(leader: AssignedRun) -> InitialWeights | None:
    """Return the initial weights that were found when the run was created; only rank 0 reads
    them."""
    if leader.resolved.experiment.init and leader.world.is_master:
        return leader.folder.read_metadata().init
    return None
