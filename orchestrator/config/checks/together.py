"""Checks of a whole experiment, once all its parts are right by themselves: what cannot be combined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hooks import Hook
from hooks.hook import Setup
from orchestrator.config.checks.custom_training import train_problems
from orchestrator.config.checks.metrics import contradicting_modes, metric_problems
from orchestrator.config.optim.changes import change_problems
from orchestrator.config.optim.optimization import optimization_problems
from orchestrator.config.optim.optimizer import OPTIMIZERS, needs_closure
from orchestrator.config.python.user_code import catch_user_errors
from orchestrator.config.sections.base import changed_keys, check_needs
from orchestrator.config.sections.experiment import Experiment
from orchestrator.config.sections.workers import Ddp
from orchestrator.errors import ConfigError, Problem
from orchestrator.task import Task, has_turns, trains_itself


def problems_together(experiment: Experiment, task: Task, hooks: Mapping[str, Hook]) -> Iterator[Problem]:
    """Yield the problems between the parts of a resolved experiment."""
    cls = type(task)
    data = experiment.model_dump(mode="json")
    yield from contradicting_modes(data)
    if trains_itself(cls):
        yield from train_problems(experiment, cls)
    else:
        yield from check_needs(experiment, experiment)
        yield from _ddp_problems(experiment, cls)
        yield from _fsdp_problems(experiment)
        yield from _splitting_problems(experiment, cls)
        yield from optimization_problems(experiment, cls, hooks)
        yield from change_problems(experiment, cls)
    yield from metric_problems(data, task, hooks)
    yield from _hook_problems(_setup(experiment, cls, hooks))
    if experiment.cudnn_benchmark and experiment.deterministic:
        message = "cannot be combined with deterministic: the fastest algorithm differs between runs"
        yield Problem("cudnn_benchmark", message)


def _setup(experiment: Experiment, task: type[Task], hooks: Mapping[str, Hook]) -> Setup:
    workers, kind = experiment.workers, experiment.optimizer.type
    return Setup(
        strategy="fsdp" if workers.strategy == "fsdp" and workers.count != 1 else "ddp",
        custom_loop=trains_itself(task),
        several_optimizers=has_turns(task),
        splits_batches=experiment.accumulate == "auto",
        closure=needs_closure(OPTIMIZERS[kind]) if kind in OPTIMIZERS else False,
        hooks=hooks,
    )


def _hook_problems(setup: Setup) -> Iterator[Problem]:
    for name, hook in setup.hooks.items():
        path = f"hooks.{name}"
        try:
            with catch_user_errors(path, f"{type(hook).__name__}.unsuitable() failed"):
                reason = setup.find_reason_against(hook)
        except ConfigError as error:
            yield from error.problems
            continue
        if reason:
            yield Problem(path, reason)


def _ddp_problems(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
    """Yield the options of an exchange of gradients that have no effect; those of a single rank may stay."""
    workers, ddp = experiment.workers, experiment.workers.ddp
    reason = ""
    if has_turns(task):
        reason = "each turn exchanges its own gradients, without DDP"
    elif experiment.accumulate == "auto":
        reason = "with accumulate: auto ranks exchange gradients after the backward pass, without DDP"
    if workers.strategy == "ddp" and reason:
        for path in changed_keys(ddp, Ddp(), "workers.ddp"):
            yield Problem(path, f"has no effect: {reason}")
    elif ddp.static_graph and ddp.find_unused_parameters:
        message = "has no effect with static_graph, as torch then searches only in the first iteration"
        yield Problem("workers.ddp.find_unused_parameters", message)
    if ddp.static_graph and experiment.micro_batches > 1:
        message = (
            "cannot be combined with accumulate: torch takes the first backward pass, without exchange, as the graph"
        )
        yield Problem("workers.ddp.static_graph", message)
    if experiment.sync_batchnorm and workers.max_count > 1 and not workers.gpu:
        message = "needs GPUs, as torch's SyncBatchNorm supports no other device"
        yield Problem("sync_batchnorm", message, suggestion="write workers.gpu: true")


def _fsdp_problems(experiment: Experiment) -> Iterator[Problem]:
    workers = experiment.workers
    if workers.strategy != "fsdp":
        return
    if workers.count == 1:
        hint = "set workers.count, or strategy: ddp"
        yield Problem("workers.strategy", "is fsdp, which needs several ranks, got 1", suggestion=hint)
        return
    start = "cannot be combined with workers.strategy: fsdp"
    if experiment.optimizers:
        yield Problem("optimizers", f"{start}: a turn needs whole gradients, of which each rank has only shards")
    if experiment.precision == "fp16":
        yield Problem("precision", f"{start}: ranks would scale the loss differently; bf16 needs no scale")
    if experiment.channels_last:
        yield Problem("channels_last", f"{start}: torch shards only parameters with the default memory format")


def _splitting_problems(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
    if experiment.accumulate != "auto":
        return
    start = "cannot be combined with accumulate: auto"
    waiting = "within the forward pass, and would wait for one that runs out of memory"
    if has_turns(task):
        yield Problem("accumulate", f"{start}: a turn cannot start again after earlier turns have changed the model")
    if experiment.workers.strategy == "fsdp":
        yield Problem("workers.strategy", f"{start}: ranks gather parameters {waiting}")
    if experiment.sync_batchnorm:
        yield Problem("sync_batchnorm", f"{start}: ranks exchange statistics {waiting}")
