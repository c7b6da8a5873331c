"""The number of trials of a sweep."""

from typing import Any

import pytest

from orchestrator.experiment.sweep.trial_counts import count_trials
from tests.orchestrator.experiment.sweep.spaces import of


@pytest.mark.parametrize(
    ("more", "trials"),
    [
        ({"trials": 10}, 10),
        ({"trials": 10, "budget": {"trials": 7}}, 7),
        ({"search": "grid", "repeats": 4}, 3 * 2 * 4),
        ({"repeats": 4}, 2 * 4),
        ({"repeats": 4, "space": {"a": {"uniform": [0, 1]}}}, 4),
        ({"repeats": 4, "space": {}}, 4),
        ({"repeats": {"a": [1, 2, 3]}, "space": {}}, 3),
    ],
)
def test_number_of_trials_defaults_to_points_times_repeats(
    more: dict[str, Any], trials: int
) -> None:
    space = {"a": {"choice": [1, 2, 3]}, "b": {"grid": [1, 2]}}
    assert count_trials(of(**{"space": space, **more})) == trials
