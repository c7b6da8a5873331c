"""Changes during a run: when they may happen, and which values are valid together."""

from typing import Any

import pytest

from orchestrator.experiment.load import make_experiment
from tests.orchestrator.experiment.samples import HERE, refusal


@pytest.mark.parametrize(("at", "length"), [(1, "1 epoch"), (3, "2 epochs")])
def test_change_must_come_before_the_end_of_the_run(at: int, length: str) -> None:
    message = refusal(
        epochs=int(length[0]), changes=[{"at": at, "set": {"optimizer.lr": 0.5}}]
    ).partition(",")[0]
    assert message == f"changes.0.at: must be less than the run's {length}"


def _change_band(*changes: dict[str, Any]) -> dict[str, Any]:
    """Return an experiment whose band, from 0 to 1, changes."""
    return {
        "name": "line",
        "task": f"{HERE}:Line",
        "epochs": 5,
        "hooks": {"band": {"type": f"{HERE}:Band", "low": 0, "high": 1}},
        "changes": list(changes),
    }


RAISED = {"at": 1, "set": {"hooks.band.low": 5, "hooks.band.high": 10}}
"""Neither value is valid beside the other's old one."""


def test_values_that_change_together_need_to_be_valid_only_together() -> None:
    make_experiment(_change_band(RAISED))

    refused = refusal(**_change_band({"at": 1, "set": {"hooks.band.low": 5, "hooks.band.high": 4}}))
    assert "changes.0.set: low must be below high, got 5.0 and 4.0" in refused


def test_values_must_be_valid_beside_those_of_earlier_changes() -> None:
    later = {"at": 2, "set": {"hooks.band.low": 7}}
    make_experiment(_change_band(RAISED, later))
    make_experiment(_change_band(later, RAISED))

    too_high = {"at": 2, "set": {"hooks.band.low": 11}}
    refused = refusal(**_change_band(too_high, RAISED))
    assert "changes.0.set.hooks.band.low: low must be below high, got 11.0 and 10.0" in refused
