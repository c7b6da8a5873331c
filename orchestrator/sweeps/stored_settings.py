"""The settings of a sweep that its `run.json` keeps."""

from typing import Any

from orchestrator.disk.metadata import SweepMetadata
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.trial_counts import count_trials


def summarize_settings(settings: SweepSettings) -> SweepMetadata:
    """Return all settings that are kept."""
    return SweepMetadata(
        settings.objectives,
        count_trials(settings),
        **summarize_repeats(settings),
        aggregate=settings.aggregate,
        constraints=settings.constraints,
    )


def summarize_repeats(settings: SweepSettings) -> dict[str, Any]:
    """Return those of the settings that a resume must not change."""
    is_seed = isinstance(settings.repeats, int)
    return {
        "repeats": settings.repeat_count,
        "repeated_path": settings.repeated_path,
        "repeated_values": [] if is_seed else settings.list_repeated_values(0),
    }
