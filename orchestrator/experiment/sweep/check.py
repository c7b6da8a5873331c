"""Checks of a sweep: its settings together, and each value of its space in the experiment."""

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.errors import Problem, collect_problems
from orchestrator.experiment.fields.validation import validate
from orchestrator.experiment.read_sections import Sections
from orchestrator.experiment.sections.domain import Domain
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.check_settings import check_settings
from orchestrator.experiment.sweep.check_space import (
    check_point,
    find_overlaps,
    find_unsearchable,
)
from orchestrator.experiment.sweep.check_values import check_repeated_values, check_values
from orchestrator.experiment.sweep.mutation import check_mutation
from orchestrator.experiment.sweep.shared_training import ValueReasons, find_unshareable_paths
from orchestrator.experiment.sweep.trial_counts import check_configuration_count, check_trial_count
from orchestrator.experiment.yaml.source import ExperimentSource


def check_sweep(
    source: ExperimentSource, sections: Sections, *, is_experiment_valid: bool
) -> list[Problem]:
    """Return the problems of a sweep beyond its fields.

    Checks its settings together. If they are right, checks each value of its space; if the values
    are right too, checks which paths can share a training.
    """
    sweep = sections.experiment.sweep
    if sweep is None:
        return [*check_values(_read_valid_space(sections), sections.valid_data)]

    problems = [
        *_find_overridden_paths(source, sweep),
        *_check_sections(sweep, sections.experiment),
    ]
    if problems:
        return problems

    data = {**sections.valid_data, **_write_objectives(sweep)}
    reasons = ValueReasons()
    problems = [
        *check_values(sweep.space, data, reasons.add),
        *check_repeated_values(sweep, data),
    ]
    if problems or not is_experiment_valid:
        return problems

    return [*find_unshareable_paths(sweep, reasons)]


def _read_valid_space(sections: Sections) -> dict[str, Domain]:
    """Return the valid domains of a sweep that has wrong settings, or other domains that are wrong."""
    written = sections.data.get("sweep")
    space = written.get("space") if isinstance(written, Mapping) else None
    is_refused = any(problem.path == "sweep.space" for problem in sections.problems)
    if is_refused or not isinstance(space, Mapping):
        return {}

    valid: dict[str, Domain] = {}
    for name, domain in space.items():
        alone = {"metric": "val/loss", "space": {name: domain}}  # `metric` is required
        sweep = collect_problems([], validate, SweepSettings, alone, "")
        valid |= sweep.space if sweep else {}
    return valid


def _check_sections(sweep: SweepSettings, experiment: Experiment) -> Iterator[Problem]:
    yield from check_settings(sweep, experiment)
    space_problems = [*find_unsearchable(sweep), *find_overlaps(sweep)]
    yield from space_problems
    if not space_problems:
        yield from check_configuration_count(sweep)
    if sweep.space and not space_problems:
        yield from check_trial_count(sweep)
        yield from check_mutation(sweep, experiment)
    for index, point in enumerate(sweep.points):
        yield from check_point(point, f"sweep.points.{index}", sweep)


def _find_overridden_paths(source: ExperimentSource, sweep: SweepSettings) -> Iterator[Problem]:
    overrides = dict(source.values)
    repeated = sweep.repeated_path
    if not isinstance(sweep.repeats, int) and overrides.get(repeated) is not None:
        yield Problem(repeated, "has no effect: sweep.repeats sets it in each trial; remove it")
    for path in sweep.space:
        if overrides.get(path) is not None:
            yield Problem(
                path,
                "has no effect: sweep.space sets it in each trial",
                suggestion=f"remove it, or keep it for all trials: sweep.space.{path}=null",
            )


def _write_objectives(sweep: SweepSettings) -> dict[str, Any]:
    """Return the part of the sweep that decides the modes of metrics in its trials."""
    try:
        modes = [mode for _, mode in sweep.objectives]
    except ValueError:  # an unknown mode is a separate problem
        return {}
    return {"sweep": {"metric": sweep.metric, "mode": modes}}
