"""The outcome that Optuna learns for a suggestion, whose trials differ in the repeated path and in
`fan_out` values."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.tables.configurations import compute_score


class EndedTrial(NamedTuple):
    """The last report of an ended trial, and by how much the trial is beyond each constraint."""

    report: Mapping[str, Any]
    excesses: Sequence[float]


class Outcome(NamedTuple):
    """The scores of a configuration, and by how much it is beyond each constraint."""

    scores: list[float]
    excesses: list[float]

    def is_complete(self) -> bool:
        return not any(map(math.isnan, self.scores)) and not any(map(math.isinf, self.excesses))

    def is_feasible(self) -> bool:
        return all(excess <= 0 for excess in self.excesses)


def find_best_outcome(
    sweep: SweepSettings, results: Mapping[int, EndedTrial | None]
) -> Outcome | None:
    """Return the outcome of the best configuration; None if all trials failed, or a number is
    missing.

    `results` has those of a suggestion's trials by number, None for a failed trial.
    """
    metric, mode = sweep.objectives[0]
    configurations: defaultdict[int, list[EndedTrial]] = defaultdict(list)
    for number, result in results.items():
        if result and metric in result.report:
            configurations[number // sweep.repeat_count].append(result)

    outcomes = [_combine_repeats(sweep, repeats) for repeats in configurations.values()]
    sign = 1 if mode == "max" else -1
    return max(
        filter(Outcome.is_complete, outcomes),
        key=lambda outcome: (outcome.is_feasible(), sign * outcome.scores[0]),
        default=None,
    )


def _combine_repeats(sweep: SweepSettings, repeats: Sequence[EndedTrial]) -> Outcome:
    """Return the score of each of the sweep's metrics over the repeats of a configuration, and the
    largest excess of each constraint."""
    scores = []
    for metric, mode in sweep.objectives:
        values = [result.report[metric] for result in repeats]
        scores.append(compute_score(values, mode, sweep.aggregate))
    excesses = zip(*(result.excesses for result in repeats), strict=True)
    return Outcome(scores, [max(values) for values in excesses])
