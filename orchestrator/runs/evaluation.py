"""Evaluations of stored checkpoints, measured as during training, in a folder of the run. Used in
the driver."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hooks.hook import Hook
from hooks.metrics.names import get_kind
from orchestrator.disk.metadata import EngineName, Evaluated
from orchestrator.disk.new_run import create_run, taking_name
from orchestrator.disk.run_folder import EVALUATIONS, RunFolder
from orchestrator.engines.assignment import EvaluationTarget
from orchestrator.errors import CheckpointError, ConfigError, UsageError
from orchestrator.experiment.load import to_dict, to_yaml, with_overrides
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.workers import make_rank_count_overrides
from orchestrator.experiment.yaml.dotted_paths import is_within
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.runs.checkpoints import open_checkpoints
from orchestrator.runs.engine_choice import EngineChoice
from orchestrator.runs.evaluation_overrides import (
    check_added_hooks,
    check_overrides,
    check_rank_count,
    list_paths,
)
from orchestrator.runs.evaluation_words import (
    format_command,
    get_participle,
    name_with_article,
)
from orchestrator.runs.launch import collect_launch_metadata, drive
from orchestrator.runs.launch_checks import check_can_run
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
class EvaluationJob:
    """A checkpoint to evaluate or to predict with, and its experiment."""

    run: RunFolder
    subject: Evaluated
    experiment: Experiment
    name: str
    """Name of its folder, which gets a number if it is taken."""
    make_target: Callable[[EngineChoice], EvaluationTarget]
    """Function that returns what the workers of an engine do."""
    has_rank_override: bool
    """True if the number of ranks was set for the evaluation."""

    def start(self, engine: EngineName | None, address: str | None, *, local: bool) -> RunFolder:
        """Run it on an engine, by default the run's, and return its folder. Raises RunError if it
        fails."""
        chosen = self._choose_engine(engine, address, local=local)
        check_can_run(self.experiment, chosen)
        metadata = {
            **collect_launch_metadata(self.experiment, chosen),
            "evaluates": asdict(self.subject),
        }
        target = self.make_target(chosen)
        root = self.run.storage / EVALUATIONS
        with taking_name(RunFolder(root, self.name), "number") as (folder, lease):
            create_run(root, folder.name, to_yaml(self.experiment), **metadata)
            command = format_command(self.subject, self.run)
            drive(folder, self.experiment, chosen, lease, resume_with=command, target=target)
        return folder

    def _choose_engine(
        self, name: EngineName | None, address: str | None, *, local: bool
    ) -> EngineChoice:
        """Return the engine that was asked for, or that of the run; raises UsageError if it cannot
        have the number of ranks that was asked for."""
        if name or local:
            chosen = EngineChoice.make(name, address, local=local)
        else:
            chosen = EngineChoice.of_run(self.run.read_launch_metadata(), address)
        ranks = self.experiment.workers.max_count
        if chosen.is_local and self.has_rank_override and ranks > 1:
            raise UsageError(
                f"{ranks} workers need --engine gang or train; the engine in-process (--local) has"
                " only one"
            )
        return chosen


def prepare_evaluation(
    run: RunFolder,
    label: str,
    phase: str,
    overrides: Sequence[str] = (),
    workers: int | None = None,
) -> EvaluationJob:
    """Prepare what `Run.evaluate` runs; raises its errors."""
    has_rank_override = check_rank_count(overrides, workers)
    if phase not in ("val", "test"):
        raise UsageError(f"phase must be val or test, got {phase!r}")
    subject = find_subject(run, label, phase, overrides)
    experiment = make_inference_experiment(
        run, subject, overrides, workers, runs_hook=lambda hook: hook.evaluates
    )
    target = EvaluationTarget(subject.checkpoint, phase, has_same_seed(run, experiment))
    name = f"{subject.checkpoint}-{phase}"
    return EvaluationJob(run, subject, experiment, name, lambda _: target, has_rank_override)


def make_inference_experiment(
    run: RunFolder,
    subject: Evaluated,
    overrides: Sequence[str],
    workers: int | None,
    *,
    runs_hook: Callable[[Hook], bool],
) -> Experiment:
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
    return experiment


def has_same_seed(run: RunFolder, experiment: Experiment) -> bool:
    return bool(experiment.seed == run.read_experiment()["seed"])


def _check_has_checkpoints(run: RunFolder) -> None:
    """Raise UsageError for an evaluation, which trains nothing."""
    evaluated = run.read_metadata().evaluates
    if evaluated:
        raise UsageError(
            f"{run} is {name_with_article(evaluated)}, and has no checkpoints; use its run,"
            f" {run.parent_run}"
        )


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


def find_subject(
    run: RunFolder,
    label: str,
    phase: str,
    overrides: Sequence[str],
    *,
    has_other_data: bool = False,
) -> Evaluated:
    """Return the checkpoint of a label, to be evaluated on the data of a phase.

    The run may have had no such data with `has_other_data`, or if the overrides change the task.
    Raises UsageError if there is no such checkpoint, or no data.
    """
    _check_has_checkpoints(run)
    has_other_data |= any(is_within(path, "task_args") for path in list_paths(overrides))
    store = open_checkpoints(run)
    try:
        name = store.resolve(label)
        sha256 = store.verify(name)
        manifest = store.read_manifest(name)
        position = store.read_position(name)
    except CheckpointError as error:
        raise UsageError(str(error)) from None
    phases = manifest.get("phases", [phase])
    if not has_other_data and all(phase not in (known, get_kind(known)) for known in phases):
        raise UsageError(
            f"{run} has no {phase} data: data() returned {' and '.join(phases)} when {name} was"
            " saved"
        )
    return Evaluated(str(run), name, sha256, position.epoch, position.step, phase)


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
