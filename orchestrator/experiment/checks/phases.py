"""Checks of the phases that a task returns data for, and of what their evaluation needs."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from hooks.metrics.names import PHASES, get_kind
from orchestrator.errors import ConfigError, Problem, raise_problems
from orchestrator.experiment.checks.datasets import get_length, is_map_style, is_ray_dataset
from orchestrator.experiment.checks.metrics import make_meters
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.task import Task, missing_loss
from orchestrator.units import format_count

PHASES_OF_DATA = "a mapping of train, and optionally val and test, to their datasets"
_NAME = re.compile(r"\w[\w.-]{0,99}")
_NAME_RULE = (
    "must be at most 100 letters, digits, `_`, `-` and `.`, and begin with a letter or digit"
)


def check_phases(task: Task, datasets: Mapping[str, Any]) -> None:
    """Raise ConfigError if there is no training data, or a phase is invalid."""
    raise_problems(find_phase_problems(task, datasets))


def find_phase_problems(task: Task, datasets: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem if there is no training data, and for each invalid phase."""
    misspelled: Sequence[str] = ()
    if "train" not in datasets:
        misspelled = get_close_matches("train", map(str, datasets), n=1)
        names = ", ".join(map(str, datasets)) or "nothing"
        hint = " (did you mean 'train'?)" if misspelled else ""
        yield Problem(
            "task", f"{type(task).__name__}.data() must return 'train', got {names}{hint}"
        )
    for phase, dataset in datasets.items():
        message = _explain_wrong_phase(phase, dataset)
        if message and phase not in misspelled:
            yield Problem("task", message)


def _explain_wrong_phase(phase: str, dataset: Any) -> str | None:
    """Return what is wrong with the name or the dataset of a phase; None if nothing is."""
    kind, has_name, name = str(phase).partition("/")
    if kind not in PHASES or (has_name and kind == "train"):
        allowed = "phases are train, val, test, and val/NAME and test/NAME for several"
        return f"data() returns a phase '{phase}'; {allowed}"
    if has_name and not _NAME.fullmatch(name):
        return f"data() returns a phase '{phase}'; '{name}' {_NAME_RULE}"
    if is_ray_dataset(dataset):
        return None
    if not is_map_style(dataset) and not hasattr(dataset, "__iter__"):
        kind = type(dataset).__name__
        return f"the {phase} dataset ({kind}) needs __len__ and __getitem__, or __iter__"
    if get_length(dataset) == 0:
        return make_empty_error(phase, dataset, "its length is 0")
    return None


def make_empty_error(phase: str, dataset: Any, reason: str) -> str:
    """Return the message about a phase without a sample."""
    hint = "" if phase == "train" else f"; to evaluate nothing, leave {phase} out of data()"
    return f"the {phase} data ({type(dataset).__name__}) is empty: {reason}{hint}"


def list_run_phases(experiment: Experiment, phases: Iterable[str]) -> list[str]:
    """Return the phases of a run: all that have data, unless it never validates."""
    validates = experiment.validate_every.count > 0
    return [phase for phase in phases if validates or get_kind(phase) != "val"]


def check_loss(task: Task, phases: Iterable[str]) -> None:
    """Raise ConfigError if there are phases to evaluate, and no loss."""
    evaluated = [phase for phase in phases if phase != "train"]
    if evaluated and type(task).loss is missing_loss:
        raise ConfigError.at(
            "task", f"{type(task).__name__} needs loss(), to evaluate {', '.join(evaluated)}"
        )


def check_meters(experiment: Experiment, task: Task, phase: str, samples: int, ranks: int) -> None:
    """Raise ConfigError if meters would have no sample of a phase on a rank."""
    is_evaluated = phase != "train" and phase in list_run_phases(experiment, [phase])
    if is_evaluated and samples < ranks and make_meters(task):
        raise ConfigError.at(
            "task",
            f"has meters, which need a {phase} sample on each rank; there are {samples} for"
            f" {format_count(ranks, 'rank')}",
        )
