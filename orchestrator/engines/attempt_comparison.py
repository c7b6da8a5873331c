"""Which reports of an earlier attempt another attempt repeats, with losses that can be compared."""

from collections.abc import Mapping
from typing import Any

from hooks.position import Position, Stage
from orchestrator.disk.attempts import Attempt
from orchestrator.experiment.sections.experiment import Experiment

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


def is_attempt_deterministic(attempt: Attempt, experiment: Experiment) -> bool:
    """Return whether each sum of an attempt has the same order each time."""
    on_cpu = all(host.device == "cpu" for host in attempt.hosts)
    # More than two ranks may add gradients in another order, and `auto` depends on free memory.
    return (
        (on_cpu or experiment.deterministic)
        and attempt.world_size <= 2
        and experiment.accumulate != "auto"
    )


class AttemptComparison:
    """Which reports of an earlier attempt another attempt repeats, with losses that can be compared.

    Settings, ranks and devices must be the same. Where sums may have another order each time,
    differences grow during training, so that only a validation right after the checkpoint is
    compared.

    Args:
        earlier: The attempt that made the reports.
        attempt: The attempt that may repeat them.
        is_deterministic: Whether each sum has the same order each time.
    """

    def __init__(self, earlier: Attempt, attempt: Attempt, *, is_deterministic: bool) -> None:
        has_same_ranks = [*attempt.hosts] == [*earlier.hosts]
        has_same_data = _get_data_sizes(attempt) == _get_data_sizes(earlier)
        is_comparable = bool(earlier.settings) and has_same_ranks and has_same_data
        changed = {
            name
            for name, fingerprint in attempt.settings.items()
            if fingerprint != earlier.settings.get(name)
        }
        changed -= _WITHOUT_EFFECT

        self._start = attempt.position
        self._repeats_validation = is_comparable and changed <= _OF_TRAINING
        self._repeats_training = is_comparable and is_deterministic and not changed

    def will_repeat(self, report: Mapping[str, Any]) -> bool:
        """Return whether the attempt will repeat a report."""
        iteration = report["iteration"]
        if self._start >= Position(iteration=iteration, stage=Stage.REPORTED):
            return False
        has_to_train = iteration > self._start.iteration
        return self._repeats_training if has_to_train else self._repeats_validation


def _get_data_sizes(attempt: Attempt) -> Mapping[str, int] | None:
    """Return the number of samples of each phase; None if the task has a loop of its own."""
    return None if attempt.order is None else attempt.order.sizes
