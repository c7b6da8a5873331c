"""Overrides of an evaluation: which of them have an effect on it, and which are errors. Used in the
driver."""

from collections.abc import Iterable, Iterator
from typing import Any

from hooks.hook import EVENTS, Hook
from orchestrator.errors import ConfigError, Problem, UsageError
from orchestrator.experiment.checked_experiment import CheckedExperiment
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.experiment.yaml.document import Document
from orchestrator.experiment.yaml.dotted_paths import is_within
from orchestrator.experiment.yaml.overrides import add_overrides
from orchestrator.nearest_names import did_you_mean

USED_KEYS = (
    "task_args",
    "init",
    "seed",
    "precision",
    "channels_last",
    "compile",
    "sync_batchnorm",
    "deterministic",
    "cudnn_benchmark",
    "float32_matmul_precision",
    "loader.eval_batch_size",
    "loader.num_workers",
    "loader.pin_memory",
    "workers",
    "hang",
    "max_failures",
    "max_preemptions",
    "environment",
    "upload_every",
)
"""Keys of an experiment that an evaluation uses, besides its hooks."""

_TRAINING_EVENTS = ("on_backward", "on_gradients", "on_update", "on_save", "on_saved")
"""Events that an evaluation never fires."""


def list_paths(overrides: Iterable[str]) -> list[str]:
    """Return the paths that overrides set, except those of malformed ones."""
    return [path for path, _ in add_overrides(Document({}), overrides)]


def changes_task(overrides: Iterable[str]) -> bool:
    """Return whether overrides change the task, and so perhaps its data."""
    return any(is_within(path, "task_args") for path in list_paths(overrides))


def check_rank_count(overrides: Iterable[str], workers: int | None) -> bool:
    """Return whether overrides or `workers` set the number of ranks; raise UsageError if both
    do."""
    paths = list_paths(overrides)
    if workers is None:
        return "workers" in paths or "workers.count" in paths
    if "workers.count" in paths:
        raise UsageError(
            f"the number of workers, {workers}, is set by workers.count too; remove one of them"
        )
    if "workers" in paths:
        raise UsageError(
            f"the number of workers, {workers}, sets workers.count, but the override of `workers`"
            " replaces the whole section; override its keys, such as workers.cpus=2"
        )
    return True


def check_overrides(trained: ResolvedExperiment, overrides: Iterable[str], no_effect: str) -> None:
    """Raise ConfigError for overrides that have no effect on an evaluation of a trained experiment.

    Hooks may be added or removed, not changed. Messages begin with `no_effect`.
    """
    document = Document({})
    problems: list[Problem] = []
    for path, value in add_overrides(document, overrides):
        if path.startswith("hooks."):
            problems += _find_hook_problems(trained, path, value, no_effect)
        elif not _is_used(path):
            problems.append(_make_problem(path, no_effect))
    if problems:
        raise ConfigError([*document.problems, *map(document.locate, problems)])


def _find_hook_problems(
    trained: ResolvedExperiment, path: str, value: Any, no_effect: str
) -> Iterator[Problem]:
    name = path.split(".")[1]
    hook = trained.hooks.get(name)
    is_removed = path == f"hooks.{name}" and value in (None, False)
    if hook is None:
        if value in (None, False):
            yield Problem(path, "is already off")
    elif not _is_active(hook):
        yield Problem(path, no_effect)
    elif not is_removed:
        yield Problem(path, f"cannot differ from the run; hooks.{name}=false leaves the hook out")


def _is_used(path: str) -> bool:
    if is_within(path, "workers.ddp"):
        return False
    return any(is_within(path, key) for key in USED_KEYS)


def _make_problem(path: str, no_effect: str) -> Problem:
    nearest = did_you_mean(path, USED_KEYS)
    allowed = "" if nearest else f", which reads {', '.join(USED_KEYS)} and hooks.NAME"
    return Problem(path, f"{no_effect}{allowed}", suggestion=nearest)


def check_added_hooks(
    experiment: CheckedExperiment, trained: ResolvedExperiment, no_effect: str
) -> None:
    """Raise ConfigError for hooks that the overrides add and that have no effect."""
    idle = [
        name
        for name, hook in experiment.get_resolved().hooks.items()
        if name not in trained.hooks and not _is_active(hook)
    ]
    if idle:
        raise ConfigError([Problem(f"hooks.{name}", no_effect) for name in idle])


def _is_active(hook: Hook) -> bool:
    """Return whether a hook does something in an evaluation."""
    return hook.evaluates and any(
        hook.handles(event) for event in EVENTS if event not in _TRAINING_EVENTS
    )
