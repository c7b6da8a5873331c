"""Conflicts between the parts of an experiment, each of which is valid on its own."""

from collections.abc import Iterator, Mapping

from hooks import Hook
from hooks.metrics.direction import Mode
from hooks.setup import Setup
from hooks.suitability import find_reason_against
from orchestrator.errors import Problem, collect_problems
from orchestrator.experiment.checks.changes import check_changes
from orchestrator.experiment.checks.metrics import check_metrics, find_contradicting_modes
from orchestrator.experiment.checks.optimizers import find_optimizer_conflicts
from orchestrator.experiment.checks.train_method import check_train_method
from orchestrator.experiment.fields.parameters import check_needs, find_changed_keys
from orchestrator.experiment.optim.closures import find_closure_class
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.workers import Ddp
from orchestrator.task import Task, has_custom_loop, has_turns
from orchestrator.user_code import catch_user_errors


def find_conflicts(
    experiment: Experiment,
    task: Task,
    hooks: Mapping[str, Hook],
    meter_modes: Mapping[str, Mode],
) -> Iterator[Problem]:
    """Yield the conflicts between the sections of an experiment, its task and its hooks.

    `meter_modes` has `max` or `min` for each meter of the task that says which is better.
    """
    cls = type(task)
    data = experiment.model_dump(mode="json")
    yield from find_contradicting_modes(data)
    if has_custom_loop(cls):
        yield from check_train_method(experiment, cls)
    else:
        yield from check_needs(experiment, experiment)
        yield from _check_distribution(experiment, cls)
        yield from find_optimizer_conflicts(experiment, cls, hooks, meter_modes)
        yield from check_changes(experiment, cls)
    yield from check_metrics(data, task, hooks)
    yield from _check_hooks(experiment, cls, hooks)


def _check_hooks(
    experiment: Experiment, task: type[Task], hooks: Mapping[str, Hook]
) -> Iterator[Problem]:
    workers = experiment.workers
    setup = Setup(
        strategy="fsdp" if workers.strategy == "fsdp" and workers.count != 1 else "ddp",
        custom_loop=has_custom_loop(task),
        several_optimizers=has_turns(task),
        splits_batches=experiment.accumulate == "auto",
        closure=find_closure_class(experiment.optimizer.type) is not None,
        hooks=hooks,
    )
    problems: list[Problem] = []
    for name, hook in hooks.items():
        catch = catch_user_errors(f"hooks.{name}", f"{type(hook).__name__}.unsuitable() failed")
        reason = collect_problems(problems, catch(find_reason_against), hook, setup)
        if reason:
            problems.append(Problem(f"hooks.{name}", reason))
    yield from problems


# How ranks share the model, and how batches are split


def _check_distribution(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
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
    if experiment.cudnn_benchmark and experiment.deterministic:
        yield Problem(
            "cudnn_benchmark",
            "cannot be combined with deterministic: the fastest algorithm may differ",
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
