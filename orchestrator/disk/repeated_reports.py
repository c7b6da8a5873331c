"""Reports that an attempt repeats, because it began at an older checkpoint. Used on rank 0."""

import json
import math
import shlex
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hooks.metrics.names import find_phase
from hooks.position import Position, Stage
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.metadata import seconds_at
from orchestrator.disk.reports import drop_superseded
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import HookyardError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.origins import ParentCheckpoint

_WITHOUT_EFFECT = {
    "name",
    "tags",
    "notes",
    "notify",
    "init",  # the checkpoint replaces it
    "max_failures",
    "max_preemptions",
    "hang",
    "upload_every",
}
"""Sections of an experiment that change no loss after a checkpoint."""
_OF_TRAINING = {"epochs", "steps", "scheduler"}
"""Sections that change no loss before the next training iteration."""
_TOLERANCE = 1e-4
_TOLERANCE_OF_VALIDATION = 1e-3
"""Relative difference of a validation's losses where sums may have another order each time."""
_ABSOLUTE_TOLERANCE = 1e-5


def compute_fingerprints(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return a number for each section of a resolved experiment, to compare the section by."""
    texts = {name: json.dumps(section, sort_keys=True) for name, section in settings.items()}
    return {name: zlib.crc32(text.encode()) for name, text in texts.items()}


@dataclass(frozen=True)
class _ReportedLoss:
    value: float
    started: str
    """Start of the attempt that reported it."""


class RepeatedReports:
    """Losses that earlier attempts reported after the checkpoint at which an attempt began.

    An attempt repeats them if its settings, ranks and devices are the same. Other metrics are left
    out, because some measure time. Where sums may have another order each time, differences grow
    during training, so only the losses of a validation right after the checkpoint are compared.

    Args:
        folder: The run that reported them.
        earlier: Its attempts before this one.
        attempt: The attempt that repeats them.
        is_deterministic: Whether each sum has the same order each time.
    """

    def __init__(
        self,
        folder: RunFolder,
        earlier: Sequence[Attempt],
        attempt: Attempt,
        *,
        is_deterministic: bool,
    ) -> None:
        self._folder = folder
        self._tolerance = _TOLERANCE if is_deterministic else _TOLERANCE_OF_VALIDATION
        self._losses: dict[tuple[int, str], _ReportedLoss] = {}
        attempts = {other.number: other for other in earlier}
        for report in drop_superseded(folder.read_reports(), earlier):
            other = attempts.get(report["attempt"])
            if other is None or other.started is None:
                continue
            if not _will_be_repeated(report, other, attempt, is_deterministic=is_deterministic):
                continue
            for metric, value in report.items():
                if _is_loss(metric, value):
                    self._losses[report["iteration"], metric] = _ReportedLoss(value, other.started)

    def find_difference(self, report: Mapping[str, Any]) -> str | None:
        """Describe the first loss of a report that differs beyond rounding, unless code has changed
        since."""
        iteration = report["iteration"]
        for metric, value in report.items():
            before = self._losses.get((iteration, metric))
            if before is None or not _is_loss(metric, value):
                continue
            if self._is_close(value, before.value) or _has_code_changed_since(before.started):
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


def find_repeated_reports(
    folder: RunFolder, attempt: Attempt, experiment: Experiment, parent: ParentCheckpoint | None
) -> RepeatedReports | None:
    """Return the reports that an attempt repeats: of its run, or of the `parent` whose checkpoint
    it begins at; None without a checkpoint, or if the reports cannot be read."""
    if attempt.checkpoint is None:
        return None
    on_cpu = all(host.device == "cpu" for host in attempt.hosts)
    # More than two ranks may add gradients in another order, and `auto` depends on free memory.
    is_deterministic = (
        (on_cpu or experiment.deterministic)
        and attempt.world_size <= 2
        and experiment.accumulate != "auto"
    )
    try:
        if parent and parent.checkpoint == attempt.checkpoint:
            folder = RunFolder(folder.storage.at(parent.run))
            earlier = folder.read_attempts()
        else:
            earlier = [other for other in folder.read_attempts() if other.number < attempt.number]
        return RepeatedReports(folder, earlier, attempt, is_deterministic=is_deterministic)
    # The parent may be gone, or damaged.
    except (HookyardError, OSError):
        return None


def _will_be_repeated(
    report: Mapping[str, Any], other: Attempt, attempt: Attempt, *, is_deterministic: bool
) -> bool:
    """Return whether an attempt will repeat a report of another one, and its losses can be
    compared."""
    iteration = report["iteration"]
    if attempt.position >= Position(iteration=iteration, stage=Stage.REPORTED):
        return False
    trains = iteration > attempt.position.iteration
    if trains and not is_deterministic:
        return False
    return _is_repeated(other, attempt, trains=trains)


def _is_repeated(other: Attempt, attempt: Attempt, *, trains: bool) -> bool:
    """Return whether an attempt repeats the numbers of another one, after training for them if it
    `trains`."""
    if not other.settings or [*attempt.hosts] != [*other.hosts]:
        return False
    if _get_data_sizes(attempt) != _get_data_sizes(other):
        return False

    ignored = _WITHOUT_EFFECT if trains else _WITHOUT_EFFECT | _OF_TRAINING
    names = attempt.settings.keys() - ignored
    return all(attempt.settings[name] == other.settings.get(name) for name in names)


def _get_data_sizes(attempt: Attempt) -> Mapping[str, int] | None:
    """Return the number of samples of each phase; None if the task has a loop of its own."""
    return None if attempt.order is None else attempt.order.sizes


def _is_loss(metric: str, value: object) -> bool:
    return bool(find_phase(metric)) and metric.endswith("/loss") and isinstance(value, int | float)


def _has_code_changed_since(started: str) -> bool:
    """Return whether the file of an imported module is newer than a time."""
    for module in [*sys.modules.values()]:
        file = getattr(module, "__dict__", {}).get("__file__")
        with suppress(OSError):
            if isinstance(file, str) and Path(file).stat().st_mtime > seconds_at(started):
                return True
    return False
