"""Edits of a run's experiment.yaml, which `resume` sets over the experiment as written."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.errors import ConfigError, Problem, collect_problems, raise_problems, shorten
from orchestrator.experiment.checked_experiment import CheckedExperiment
from orchestrator.experiment.load import make_experiment_from_source, to_dict
from orchestrator.experiment.resolve import resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.dotted_paths import join
from orchestrator.experiment.yaml.reader import parse_yaml
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.storage.omissions import warn_once

_FILE = "experiment.yaml"


def apply_edits(source: ExperimentSource, text: str) -> CheckedExperiment:
    """Return the experiment of a run to resume, with edits of its experiment.yaml, `text`.

    Raises ConfigError.
    """
    data = parse_yaml(text, _FILE).data
    saved = collect_problems([], resolve, source)
    if saved is None:  # it no longer resolves
        return make_experiment_from_source(replace(source, written=data, values=()))
    before = to_dict(saved.experiment)
    raise_problems(_find_removed_keys(before, data))
    edits = dict(_find_differences(before, data))
    if not edits:
        return CheckedExperiment.make(saved)
    if "name" in edits:
        message = f"cannot be changed in a resume; write {before['name']} again"
        raise ConfigError([Problem("name", message, _FILE)])
    changed = ", ".join(f"{path}={value}" for path, value in edits.items())
    warn_once(f"experiment.yaml was edited: {shorten(changed, 1000)}")
    return make_experiment_from_source(source.with_values(edits))


def _find_removed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each section that an edit has removed, unless it had its default."""
    defaults = Experiment.model_construct().model_dump(mode="json")
    for key, value in before.items():
        if key not in after and value != defaults.get(key):
            yield Problem(key, "is missing; write a value, or null", _FILE)


def _find_differences(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the dotted paths and values that differ.

    A mapping is yielded as a whole if a key was removed or contains a dot.
    """
    for key, value in after.items():
        old = before.get(key)
        inner = join(path, key)
        if value == old:
            continue
        if not isinstance(old, dict) or not isinstance(value, dict):
            yield inner, value
        elif old.keys() <= value.keys() and not any("." in name for name in value):
            yield from _find_differences(old, value, inner)
        else:
            yield inner, value
