"""The experiment and the run folder of a trial. In the process that trains it, or in the driver if that died."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.config.checks.metrics import inferred_modes
from orchestrator.config.load import to_yaml
from orchestrator.config.resolve import ResolvedExperiment, resolve
from orchestrator.config.sections.sweep import Sweep
from orchestrator.config.text.source import ExperimentSource
from orchestrator.errors import ConfigError
from orchestrator.loop.model.weight_sources import find_for
from orchestrator.records.process import Process
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.sweep_folder import trial_folder


def begin_trial(
    location: str, number: int, source: ExperimentSource, settings: Sweep, values: Mapping[str, Any]
) -> tuple[ResolvedExperiment, RunFolder]:
    """Return a trial's experiment and its folder, made if it is new. A resumed trial may have other values.

    `source` is the sweep's. Raises ConfigError if the values do not go together, and writes down a failed trial.
    """
    try:
        source = trial_source(source, settings, values)
        resolved = resolve(source)
        init = None if trial_folder(location, number).exists() else find_for(resolved.experiment)
    except ConfigError as error:
        text = RunFolder(location).experiment_text()
        _open_or_create(location, number, source, settings, text, values).end("failed", error=str(error), mistake=True)
        raise
    return resolved, _open_or_create(location, number, source, settings, to_yaml(resolved.experiment), values, init)


def trial_source(source: ExperimentSource, settings: Sweep, values: Mapping[str, Any]) -> ExperimentSource:
    """Return the source of one trial, with the modes of the sweep's metrics; `row_stats` reports statistics of rows."""
    trial = source.without_sweep().with_values(values)
    written, _ = trial.merged()
    trial = trial.with_values(inferred_modes(written, settings))
    if not settings.row_stats:
        return trial
    entry = (written.get("hooks") or {}).get("row_stats")
    reported = entry.get("report", []) if isinstance(entry, dict) else []
    return trial.with_values({"hooks.row_stats.report": list(dict.fromkeys([*reported, *settings.row_stats]))})


def _open_or_create(
    location: str,
    number: int,
    source: ExperimentSource,
    settings: Sweep,
    text: str,
    values: Mapping[str, Any],
    init: Mapping[str, Any] | None = None,
) -> RunFolder:
    folder = trial_folder(location, number)
    if folder.exists():
        folder.write_experiment(text, source)
        folder.update(status="running", error=None, values=values, **asdict(Process.this()))
        return folder
    configuration = number // settings.repeats if settings.repeats > 1 else None
    modes = dict(settings.objectives)
    folder.begin(
        text, source, trial=folder.name, values=values, configuration=configuration, modes=modes, init=init, local=False
    )
    return folder
