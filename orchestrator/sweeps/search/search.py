"""Searches, which choose the values of the next trial. Used in the driver."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.shared_training import SharedPaths
from orchestrator.experiment.sweep.trial_counts import count_trials
from orchestrator.sweeps.search.drawing import draw_trials
from orchestrator.tables.trial_record import TrialRecord


class NumberedValues(TypedDict):
    """The number and the values of a trial."""

    number: int
    values: Mapping[str, Any]


class TrialConfig(NumberedValues):
    """A trial to start, and the others that share its training run."""

    followers: list[NumberedValues]


def make_trial_config(
    number: int, values: Mapping[str, Any], followers: Sequence[NumberedValues] = ()
) -> TrialConfig:
    return {"number": number, "values": dict(values), "followers": [*followers]}


def list_members(config: TrialConfig) -> list[NumberedValues]:
    """Return the trials of a config, the first that was suggested first."""
    return [config, *config["followers"]]


def shares_training(config: TrialConfig) -> bool:
    """Return whether a config has several trials."""
    return bool(config["followers"])


def list_remaining_trials(
    settings: SweepSettings, previous: Mapping[int, TrialRecord]
) -> list[int]:
    """Return the numbers of the trials that have not ended."""
    numbers = sorted({*range(count_trials(settings)), *previous})
    return [
        number for number in numbers if number not in previous or not previous[number].has_ended
    ]


class Search:
    """Base class of searches, which suggest the remaining trials. Trials of earlier attempts keep
    their values."""

    def __init__(self, settings: SweepSettings, shared: SharedPaths | None = None) -> None:
        self._settings = settings
        self._shared = shared or SharedPaths()
        self._queue: deque[TrialConfig] = deque()
        self.count = 0
        """Maximum number of remaining training runs."""

    def suggest(self) -> TrialConfig | None:
        """Return the next trial; None while none can start."""
        return self._queue.popleft() if self._queue else None

    @property
    def is_finished(self) -> bool:
        """True once no other trial will start."""
        return not self._queue

    def record_report(self, number: int, report: Mapping[str, Any]) -> str | None:
        """Learn from a report of a trial; return the reason to stop the trial, or None."""
        return None

    def record_end(
        self, number: int, last: Mapping[str, Any] | None, excesses: Sequence[float] = ()
    ) -> None:
        """Learn from the last report of a trial that has ended, None if it failed, and by how much
        it is beyond each constraint."""

    def record_pause(self, number: int) -> None:
        """Do not wait for the end of a trial, which was interrupted."""

    def _enqueue(self, trials: Mapping[int, Mapping[str, Any]]) -> None:
        """Queue trials; those that share a training run together."""
        for leader, *followers in self._shared.group_trials([*trials.items()]):
            others = [NumberedValues(number=number, values=trials[number]) for number in followers]
            self._queue.append(make_trial_config(leader, trials[leader], others))


class DrawnTrials(Search):
    """Trials of a grid or random search, all drawn before the first one starts."""

    def __init__(
        self,
        settings: SweepSettings,
        seed: int,
        previous: Mapping[int, TrialRecord],
        shared: SharedPaths,
    ) -> None:
        super().__init__(settings, shared)
        drawn = draw_trials(settings, seed)
        remaining = {
            number: previous[number].values if number in previous else drawn[number]
            for number in list_remaining_trials(settings, previous)
        }
        self._enqueue(remaining)
        self.count = len(self._queue)
