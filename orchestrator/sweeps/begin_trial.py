"""The beginning of a trial: its experiment and its run folder.

This code runs in the driver, or under Tune in the trial's process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.disk.checkpoint_folder import list_checkpoints
from orchestrator.disk.initial_weights import find_initial_weights
from orchestrator.disk.metadata import LaunchMetadata, RunMetadata, TrialSettings
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import trial_folder
from orchestrator.errors import ConfigError
from orchestrator.experiment.checks.metric_modes import infer_modes
from orchestrator.experiment.load import to_yaml
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.runs.resume import has_edited_init


def make_trial_source(
    source: ExperimentSource, settings: SweepSettings, values: Mapping[str, Any]
) -> ExperimentSource:
    """Return the source of one trial, with the metric directions and row statistics that the
    sweep's metrics need."""
    trial = source.without_sweep().with_values(values)
    data, _ = trial.merge()
    trial = trial.with_values(infer_modes(data, settings))
    if settings.row_stats:
        statistics = [*_list_reported_statistics(data), *settings.row_stats]
        trial = trial.with_values({"hooks.row_stats.report": [*dict.fromkeys(statistics)]})
    return trial


def _list_reported_statistics(data: Mapping[str, Any]) -> Sequence[str]:
    """Return the statistics of rows that an experiment, which is not checked yet, reports itself."""
    row_stats = (data.get("hooks") or {}).get("row_stats")
    return row_stats.get("report", []) if isinstance(row_stats, dict) else []


def begin_trial(
    location: str,
    number: int,
    source: ExperimentSource,
    settings: SweepSettings,
    values: Mapping[str, Any],
) -> tuple[ResolvedExperiment, RunFolder]:
    """Create or reopen a trial's folder, and return it with the experiment. A resumed trial's
    values may have changed.

    Args:
        location: The sweep's folder.
        number: Number of the trial.
        source: The sweep's experiment as written.
        settings: The sweep.
        values: Values of the trial by dotted path.

    Raises:
        ConfigError: If the values are invalid together. The folder then records a failed trial.
    """
    folder = trial_folder(location, number)
    begun = folder.read_metadata() if folder.exists() else None
    metadata = begun or _make_launch_metadata(folder.name, number, settings)
    metadata = replace(metadata, trial_settings=replace(metadata.trial_settings, values=values))
    try:
        source = make_trial_source(source, settings, values)
        resolved = resolve(source)
        if begun is None or _begins_with_edited_init(folder, resolved.experiment):
            metadata = replace(metadata, init=find_initial_weights(resolved.experiment))
        text = to_yaml(resolved.experiment)
    except ConfigError as error:
        _write_begin(folder, RunFolder(location).read_experiment_text(), source, metadata)
        folder.run_file.end("failed", error=str(error), is_user_error=True)
        raise

    _write_begin(folder, text, source, metadata)
    return resolved, folder


def _make_launch_metadata(name: str, number: int, settings: SweepSettings) -> LaunchMetadata:
    """Return what is known of a new trial before it begins, apart from its values."""
    configuration = number // settings.repeat_count if settings.repeat_count > 1 else None
    own = TrialSettings(configuration=configuration, modes=dict(settings.objectives))
    return LaunchMetadata(trial=name, trial_settings=own)


def _begins_with_edited_init(folder: RunFolder, experiment: Experiment) -> bool:
    """Return whether a trial begins again with other initial weights. One that has a checkpoint
    continues from it."""
    return has_edited_init(folder, experiment) and not list_checkpoints(folder)


def _write_begin(
    folder: RunFolder, text: str, source: ExperimentSource, metadata: LaunchMetadata | RunMetadata
) -> None:
    """Create a trial's folder, or record in it that a trial continues which has begun."""
    if isinstance(metadata, RunMetadata):
        folder.write_experiment(text, source)
        folder.run_file.resume(metadata)
    else:
        folder.begin(text, metadata, source)
