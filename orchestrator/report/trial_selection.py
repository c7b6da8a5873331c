"""Which trials of a large sweep the charts of its page show."""

from collections.abc import Sequence

import numpy as np

COST = "step_s"
"""Second axis of the Pareto front if the sweep has one metric."""


def select_trials(ordered: Sequence[str], max_trials: int) -> list[str]:
    """Select at most `max_trials` trials: half of them the best, the others evenly spaced down to
    the worst."""
    if len(ordered) <= max_trials:
        return [*ordered]
    n_best = max_trials // 2
    places = np.linspace(n_best, len(ordered) - 1, max_trials - n_best).round().astype(int)
    return [*ordered[:n_best], *(ordered[place] for place in places)]


def describe_lines(best: str | None, shown: int, count: int) -> str:
    """Describe the style of the trials' lines, and which trials `select_trials` selected."""
    note = "Worse trials are fainter."
    if best:
        note = "The best trial is orange; worse trials are fainter."
    if shown < count:
        note += (
            f" {shown:,} of {count:,} trials are drawn: the {shown // 2:,} best, "
            "and others evenly down to the worst."
        )
    return note
