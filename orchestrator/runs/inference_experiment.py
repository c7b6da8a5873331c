"""The experiment of an evaluation or a prediction, made of the run's. Used in the driver."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hooks.hook import Hook
from orchestrator.disk.metadata import Evaluated
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import ConfigError, UsageError
from orchestrator.experiment.checked_experiment import CheckedExperiment
from orchestrator.experiment.load import to_dict, with_overrides
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.experiment.sections.workers import make_rank_count_overrides
from orchestrator.experiment.yaml.dotted_paths import is_within
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.runs.evaluation_overrides import check_added_hooks, check_overrides
from orchestrator.runs.evaluation_words import get_participle, name_with_article
from orchestrator.runs.model import make_import_error
from orchestrator.task import has_custom_loop

_RESET_VALUES: Mapping[str, Any] = {
    "init": None,
    "scaler": {},
    "workers.ddp": {},
    "workers.spares": 0,
    "activation_checkpointing": None,
}
"""Values that only training uses, and that may not be valid for another number of ranks or
precision."""


@dataclass(frozen=True)
class InferenceExperiment:
    """The experiment of an evaluation or a prediction."""

    experiment: CheckedExperiment
    has_seed_of_run: bool


def make_inference_experiment(
    run: RunFolder,
    subject: Evaluated,
    overrides: Sequence[str],
    workers: int | None,
    *,
    runs_hook: Callable[[Hook], bool],
) -> InferenceExperiment:
    """Return the experiment of the run, with the overrides and without what only training uses.

    `runs_hook` returns whether a hook of the run runs here too.
    """
    no_effect = f"has no effect on {name_with_article(subject)}"
    source = run.read_source()
    paths = tuple(dict.fromkeys([*source.import_paths, str(Path.cwd())]))
    source = replace(source, continued_from=None, import_paths=paths)
    trained = _resolve_trained(run, source, get_participle(subject))
    check_overrides(trained, overrides, no_effect)

    source = source.with_values({**_RESET_VALUES, **_make_hook_values(trained, runs_hook)})
    if workers is not None:
        source = source.with_values(make_rank_count_overrides(workers))
    experiment = with_overrides(source, overrides)
    check_added_hooks(experiment, trained, no_effect)
    return InferenceExperiment(experiment, experiment.seed == trained.experiment.seed)


def _resolve_trained(
    run: RunFolder, source: ExperimentSource, participle: str
) -> ResolvedExperiment:
    """Return the experiment of a run; raises UsageError if its task cannot be built or
    evaluated."""
    try:
        trained = resolve(source)
    except ConfigError as error:
        raise make_import_error(run, participle, error) from None
    if has_custom_loop(type(trained.task)):
        raise UsageError(
            f"{run} cannot be {participle}: its task has a training loop of its own (train())"
        )
    return trained


def _make_hook_values(
    trained: ResolvedExperiment, runs_hook: Callable[[Hook], bool]
) -> dict[str, Any]:
    """Return values that switch off the hooks that do not run here, and that leave only those
    `changes` during training that concern the other hooks."""
    required = trained.task.required_hooks()
    disabled = []
    kept = []
    for name, hook in trained.hooks.items():
        path = f"hooks.{name}"
        if runs_hook(hook) or name in required:
            kept.append(path)
        else:
            disabled.append(path)

    changes = []
    for change in to_dict(trained.experiment)["changes"]:
        values = {
            path: value
            for path, value in change["set"].items()
            if any(is_within(path, hook_path) for hook_path in kept)
        }
        if values:
            changes.append({**change, "set": values})
    return {**dict.fromkeys(disabled), "changes": changes}
