"""Conflicts between the sections of an experiment, each of which is valid on its own."""

from collections.abc import Iterator, Mapping

from hooks import Hook
from hooks.hook import Setup
from orchestrator.config.checks.custom_training import check_train_method
from orchestrator.config.checks.metrics import check_metrics, find_contradicting_modes
from orchestrator.config.optim.changes import check_changes
from orchestrator.config.optim.optimization import check_optimization
from orchestrator.config.optim.optimizer import OPTIMIZERS, needs_closure
from orchestrator.config.python.imports import catch_user_errors
from orchestrator.config.python.parameters import check_needs, find_changed_keys
from orchestrator.config.sections.experiment import Experiment
from orchestrator.config.sections.workers import Ddp
from orchestrator.errors import ConfigError, Problem
from orchestrator.task import Task, has_custom_loop, has_turns


def find_conflicts(experiment: Experiment, task: Task, hooks: Mapping[str, Hook]) -> Iterator[Problem]:
    cls = type(task)
    data = experiment.model_dump(mode="json")
    yield from find_contradicting_modes(data)
    if has_custom_loop(cls):
        yield from check_train_method(experiment, cls)
    else:
        yield from check_needs(experiment, experiment)
        yield from _check_distribution(experiment, cls)
        yield from check_optimization(experiment, cls, hooks)
        yield from check_changes(experiment, cls)
    yield from check_metrics(data, task, hooks)
    yield from _check_hooks(experiment, cls, hooks)


def _check_hooks(experiment: Experiment, task: type[Task], hooks: Mapping[str, Hook]) -> Iterator[Problem]:
    workers, kind = experiment.workers, experiment.optimizer.type
    setup = Setup(
        strategy="fsdp" if workers.strategy == "fsdp" and workers.count != 1 else "ddp",
        custom_loop=has_custom_loop(task),
        several_optimizers=has_turns(task),
        splits_batches=experiment.accumulate == "auto",
        closure=kind in OPTIMIZERS and needs_closure(OPTIMIZERS[kind]),
        hooks=hooks,
    )
    for name, hook in hooks.items():
        path = f"hooks.{name}"
        try:
            with catch_user_errors(path, f"{type(hook).__name__}.unsuitable() failed"):
                reason = setup.find_reason_against(hook)
        except ConfigError as error:
            yield from error.problems
            continue
        if reason:
            yield Problem(path, reason)


def _check_distribution(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
    """Yield the settings that contradict how ranks share the model or how batches are split."""
    workers, ddp, turns = experiment.workers, experiment.workers.ddp, has_turns(task)
    is_fsdp, is_split = workers.strategy == "fsdp", experiment.accumulate == "auto"
    if not is_fsdp and (turns or is_split):
        reason = "each turn exchanges its own gradients" if turns else "with accumulate: auto ranks exchange them later"
        for path in find_changed_keys(ddp, Ddp(), "workers.ddp"):
            yield Problem(path, f"has no effect: {reason}, without DDP")
    several, many_ranks = bool(experiment.optimizers), workers.max_count > 1
    fsdp, auto = "cannot be combined with workers.strategy: fsdp", "cannot be combined with accumulate: auto"
    find_unused, static = "workers.ddp.find_unused_parameters", "workers.ddp.static_graph"
    lacks_gpu = experiment.sync_batchnorm and many_ranks and not workers.gpu
    conflicts = [
        (ddp.static_graph and ddp.find_unused_parameters, find_unused, "has no effect with static_graph; remove it"),
        (ddp.static_graph and experiment.micro_batches > 1, static, "cannot be combined with accumulate"),
        (lacks_gpu, "sync_batchnorm", "needs GPUs, as torch's SyncBatchNorm does; write workers.gpu: true"),
        (is_fsdp and workers.count == 1, "workers.strategy", "fsdp needs several ranks; set workers.count"),
        (is_fsdp and several, "optimizers", f"{fsdp}: a turn needs full gradients, and each rank has only shards"),
        (is_fsdp and experiment.precision == "fp16", "precision", f"{fsdp}; use bf16, which needs no scale"),
        (is_fsdp and experiment.channels_last, "channels_last", f"{fsdp}: torch shards only the default memory format"),
        (is_split and turns, "accumulate", "cannot be auto with turns(), which change the model between them"),
        (is_split and is_fsdp, "workers.strategy", f"{auto}: ranks would wait for one that runs out of memory"),
        (is_split and experiment.sync_batchnorm, "sync_batchnorm", f"{auto}: ranks exchange statistics in forward"),
    ]
    yield from (Problem(path, message) for applies, path, message in conflicts if applies)
    if experiment.cudnn_benchmark and experiment.deterministic:
        yield Problem("cudnn_benchmark", "cannot be combined with deterministic: the fastest algorithm may differ")
