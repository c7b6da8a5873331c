"""Settings that conflict with the strategy of the ranks, or with splitting batches."""

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.experiment.fields.needs import find_changed_keys
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.workers import Ddp
from orchestrator.task import Task, has_turns


def find_strategy_conflicts(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
    """Yield the settings that the strategy of the ranks, or splitting batches, excludes."""
    workers = experiment.workers
    if workers.strategy == "fsdp":
        yield from _check_fsdp(experiment)
    else:
        yield from _check_ddp(experiment, task)
    if experiment.accumulate == "auto":
        yield from _check_splitting(experiment, task)
    if experiment.sync_batchnorm and workers.max_count > 1 and not workers.gpu:
        yield Problem(
            "sync_batchnorm", "needs GPUs, as torch's SyncBatchNorm does; write workers.gpu: true"
        )


def _check_ddp(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
    ddp = experiment.workers.ddp
    reason = ""
    if has_turns(task):
        reason = "each turn exchanges its own gradients"
    elif experiment.accumulate == "auto":
        reason = "with accumulate: auto ranks exchange them later"
    if reason:
        for path in find_changed_keys(ddp, Ddp(), "workers.ddp"):
            yield Problem(path, f"has no effect: {reason}, without DDP")

    if ddp.static_graph and ddp.find_unused_parameters:
        yield Problem(
            "workers.ddp.find_unused_parameters", "has no effect with static_graph; remove it"
        )
    if ddp.static_graph and experiment.micro_batches > 1:
        yield Problem("workers.ddp.static_graph", "cannot be combined with accumulate")


def _check_fsdp(experiment: Experiment) -> Iterator[Problem]:
    start = "cannot be combined with workers.strategy: fsdp"
    if experiment.workers.count == 1:
        yield Problem("workers.strategy", "fsdp needs several ranks; set workers.count")
    if experiment.optimizers:
        reason = "a turn needs full gradients, and each rank has only shards"
        yield Problem("optimizers", f"{start}: {reason}")
    if experiment.precision == "fp16":
        yield Problem("precision", f"{start}; use bf16, which needs no scale")
    if experiment.channels_last:
        reason = "torch shards only the default memory format"
        yield Problem("channels_last", f"{start}: {reason}")


def _check_splitting(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
    start = "cannot be combined with accumulate: auto"
    if has_turns(task):
        yield Problem(
            "accumulate", "cannot be auto with turns(), which change the model between them"
        )
    if experiment.workers.strategy == "fsdp":
        reason = "ranks would wait for one that runs out of memory"
        yield Problem("workers.strategy", f"{start}: {reason}")
    if experiment.sync_batchnorm:
        yield Problem("sync_batchnorm", f"{start}: ranks exchange statistics in forward")
