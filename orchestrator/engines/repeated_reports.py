"""Reports that an attempt repeats, because it began at an older checkpoint. Used on rank 0."""

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hooks.metrics.names import find_phase
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.reports import drop_superseded
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.timestamps import seconds_at
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.attempt_comparison import AttemptComparison, is_attempt_deterministic
from orchestrator.engines.ray_data import can_use_ray_data
from orchestrator.errors import HookyardError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.origins import ParentCheckpoint
from orchestrator.task import Task
from orchestrator.user_code.changes import has_code_changed_since
from orchestrator.user_code.named_classes import MAIN

_TOLERANCE = 1e-4
_TOLERANCE_OF_VALIDATION = 1e-3
"""Relative difference of a validation's losses where sums may have another order each time."""
_ABSOLUTE_TOLERANCE = 1e-5


@dataclass(frozen=True)
class _ReportedLoss:
    value: float
    started: str
    """Start of the attempt that reported it."""


_Losses = Mapping[tuple[int, str], _ReportedLoss]
"""Losses by iteration and metric."""


class RepeatedReports:
    """Losses that earlier attempts reported after the checkpoint at which an attempt began.

    Other metrics are left out, because some measure time.

    Args:
        folder: The run that reported them.
        losses: The losses that the attempt repeats.
        tolerance: Relative difference of two losses up to which they count as equal.
    """

    def __init__(self, folder: RunFolder, losses: _Losses, tolerance: float) -> None:
        self._folder = folder
        self._losses = losses
        self._tolerance = tolerance

    def find_difference(self, report: Mapping[str, Any]) -> str | None:
        """Describe the first loss of a report that differs beyond rounding, unless code has changed
        since."""
        iteration = report["iteration"]
        for metric, value in report.items():
            before = self._losses.get((iteration, metric))
            if before is None or not _is_loss(metric, value):
                continue
            if self._is_close(value, before.value):
                continue
            if has_code_changed_since(seconds_at(before.started)):
                continue
            command = f"hookyard verify {shlex.quote(f'{self._folder}/experiment.yaml')}"
            return (
                f"{metric} is {value:.6g} at iteration {iteration}, but {self._folder} reported "
                f"{before.value:.6g} there, and no setting has changed that matters there. Either "
                "training changes state that no checkpoint holds, or the data has changed, or "
                f"training is not deterministic. To see what differs: {command}"
            )
        return None

    def _is_close(self, value: float, before: float) -> bool:
        both_are_nan = math.isnan(value) and math.isnan(before)
        return both_are_nan or math.isclose(
            value, before, rel_tol=self._tolerance, abs_tol=_ABSOLUTE_TOLERANCE
        )


def can_explain_difference(assignment: Assignment, store: CheckpointStore, task: Task) -> bool:
    """Return whether a difference between an attempt of a run and an earlier one could be explained.

    Args:
        assignment: The run.
        store: Its checkpoints.
        task: Its task.
    """
    checkpoint = assignment.checkpoint
    is_of_other_trial = checkpoint and checkpoint.rpartition("/")[0] != store.storage.path
    # A cell of a notebook may have been edited since.
    is_from_notebook = type(task).__module__ == MAIN and not hasattr(sys.modules[MAIN], "__file__")
    has_unknown_code = assignment.source.main_definitions is not None or is_from_notebook
    # Ray Data begins with the first rows after a resume.
    return not (is_of_other_trial or has_unknown_code or can_use_ray_data(type(task)))


def find_repeated_reports(
    folder: RunFolder, attempt: Attempt, experiment: Experiment, parent: ParentCheckpoint | None
) -> RepeatedReports | None:
    """Return the reports that an attempt repeats: of its run, or of the `parent` whose checkpoint
    it begins at; None without a checkpoint, or if the reports cannot be read."""
    if attempt.checkpoint is None:
        return None
    is_deterministic = is_attempt_deterministic(attempt, experiment)
    tolerance = _TOLERANCE if is_deterministic else _TOLERANCE_OF_VALIDATION
    try:
        folder, earlier = _find_earlier_attempts(folder, attempt, parent)
        reports = drop_superseded(folder.read_reports(), earlier)
    # The parent may be gone, or damaged.
    except (HookyardError, OSError):
        return None

    losses: dict[tuple[int, str], _ReportedLoss] = {}
    for other in earlier:
        comparison = AttemptComparison(other, attempt, is_deterministic=is_deterministic)
        own_reports = [report for report in reports if report["attempt"] == other.number]
        losses.update(_collect_losses(own_reports, other, comparison))
    return RepeatedReports(folder, losses, tolerance)


def _find_earlier_attempts(
    folder: RunFolder, attempt: Attempt, parent: ParentCheckpoint | None
) -> tuple[RunFolder, list[Attempt]]:
    """Return the run whose reports an attempt repeats, and the attempts that made them: those of the
    parent if the attempt begins at the parent's checkpoint."""
    if parent and parent.checkpoint == attempt.checkpoint:
        parent_folder = RunFolder(folder.storage.at(parent.run))
        return parent_folder, parent_folder.read_attempts()
    attempts = folder.read_attempts()
    return folder, [other for other in attempts if other.number < attempt.number]


def _collect_losses(
    reports: Sequence[Mapping[str, Any]], earlier: Attempt, comparison: AttemptComparison
) -> _Losses:
    """Return the losses in the reports of an earlier attempt that will be repeated."""
    if earlier.started is None:
        return {}
    losses = {}
    for report in filter(comparison.will_repeat, reports):
        for metric, value in report.items():
            if _is_loss(metric, value):
                losses[report["iteration"], metric] = _ReportedLoss(value, earlier.started)
    return losses


def _is_loss(metric: str, value: object) -> bool:
    return bool(find_phase(metric)) and metric.endswith("/loss") and isinstance(value, int | float)
