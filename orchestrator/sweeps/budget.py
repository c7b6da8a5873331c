"""The time and the training samples that a sweep uses of its budget. Used in the driver; does not
need Ray."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from orchestrator.experiment.sections.sweep import Budget
from orchestrator.units import format_count


class BudgetUse:
    """Use of a sweep's `budget`, whose time begins now."""

    def __init__(
        self,
        budget: Budget | None,
        *,
        ranks: int = 1,
        seconds_used: float = 0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Start the clock.

        Args:
            budget: The limits of the sweep, if it has any.
            ranks: Number of ranks of each trial.
            seconds_used: Time of earlier attempts, in seconds.
            clock: Returns the time in seconds.
        """
        self._budget = budget or Budget()
        self._ranks = ranks
        self._clock = clock
        self._started_at = clock() - seconds_used
        self._samples = 0
        """Samples of all trials on all ranks."""
        self._samples_by_trial: defaultdict[int, int] = defaultdict(int)
        """Samples of one rank by the last report of each trial."""
        self._trainings: dict[int, Sequence[int]] = {}
        """The trials that share a training run, by each of them."""

    def share_training(self, trials: Iterable[int]) -> None:
        """Count the samples of these trials once from now on, because they share a training run."""
        training = [*trials]
        for trial in training:
            self._trainings[trial] = training

    def count_samples(self, trial: int, samples: int) -> None:
        """Count the new samples of a trial, one rank of which has trained on `samples` in all."""
        training = self._trainings.get(trial, [trial])
        counted = max(self._samples_by_trial[member] for member in training)
        # A trial that continues from another trial's checkpoint may have fewer samples than before.
        self._samples += max(0, samples - counted) * self._ranks
        self._samples_by_trial[trial] = samples

    def explain_end(self) -> str | None:
        """Return which limit is used up; None if none is."""
        budget = self._budget
        if budget.time is not None and self._clock() - self._started_at >= budget.time:
            return f"the sweep's budget of {budget.time:g} s is used up"
        if budget.samples is not None and self._samples >= budget.samples:
            return f"the sweep's budget of {format_count(budget.samples, 'sample')} is used up"
        return None
